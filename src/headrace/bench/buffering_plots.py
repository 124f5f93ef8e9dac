"""The plots of the experiments on buffering."""

from __future__ import annotations

import re
from typing import Any

from headrace.bench.plots import Plot, Track, rate_of
from headrace.bench.samples import Row

_MOMENT = 1.0
"""Seconds that are drawn of what is too fine to be seen in a longer time."""


def plots(report: dict[str, Any]) -> dict[str, str]:
    """The plots of a report as SVG, by file name."""
    rows, drawn = report["experiments"], {}
    if "throughput" in rows:
        drawn["buffering-throughput.svg"] = _throughput(rows["throughput"])
    if "light" in rows:
        title = "Latency under light load: a record every millisecond"
        known = [row for row in rows["light"] if row["buffers"] == 1 and row["policy"] != "default"]
        drawn["buffering-light.svg"] = _over_time(known, title)
        short = [row for row in rows["light"] if not row["policy"].startswith("fixed")]
        title += ", its first second"
        drawn["buffering-light-adaptive.svg"] = _over_time(short, title, _MOMENT)
    if "heavy" in rows:
        title = "Latency under heavy load: as many records as are taken"
        drawn["buffering-heavy.svg"] = _over_time(rows["heavy"], title)
    return drawn


def _throughput(rows: list[Row]) -> str:
    places = [_place(row["policy"]) for row in rows]
    values = [rate_of(row, 1000) for row in rows]
    label = "policy, records of a bundle; adaptive: of 1024 or after a time"
    title = "Throughput by buffering policy"
    return Plot(title, label, "thousand records/s", places, {"box": values}, log=True).bars()


def _place(policy: str) -> str:
    """``fixed, 16`` for ``fixed(16)``, ``adaptive, 50ms`` for ``adaptive(1024, 50ms)``."""
    return re.sub(r"\((?:.*, )?(.*)\)", r", \1", policy)


def _over_time(rows: list[Row], title: str, upto: float | None = None) -> str:
    series = {}
    for row in rows:
        name = row["policy"] + (", two buffers" if row["buffers"] == 2 else "")
        points = row["over_time"]
        series[name] = [(at, ms) for at, ms in points if upto is None or at <= upto]
    return Track(title, "when a record was due, s", "latency, ms", series).lines()
