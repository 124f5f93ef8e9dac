"""Network latency monitoring (StreamBox §9): the mean round trip of each pair of machines."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.apps import StreamApp
from headrace.apps.streams import app, micros, times

MACHINES = 1000
"""A million pairs of them are possible."""


def tables(records: int, seed: int, per_second: int, early: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng([seed, 7])
    trips = rng.integers(100, 100_000, records) / 16.0
    return {
        "pings": pa.table(
            {
                "at": times(records, per_second, early, seed),
                "src": rng.integers(0, MACHINES, records),
                "dst": rng.integers(0, MACHINES, records),
                "rtt": trips,
            }
        )
    }


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    return inputs["pings"].key_by("src", "dst").window(window).agg(rtt=hr.mean("rtt"))


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    found: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    table = inputs["pings"]
    columns = (table[n].to_pylist() for n in ("src", "dst", "rtt"))
    for at, src, dst, rtt in zip(micros(table), *columns, strict=True):
        found[src, dst, at // 1_000_000 * 1_000_000].append(rtt)
    return {(a, b, s, s + 1_000_000, sum(r) / len(r)) for (a, b, s), r in found.items()}


APP = app(
    "netmon", "mean round trip by pair of machines each second (StreamBox)", 4_000_000,
    StreamApp(tables, pipeline, hr.tumbling("1s"), 500_000), reference,
)  # fmt: skip
