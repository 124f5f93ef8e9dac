"""The experiments on ordered streams as tables."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from headrace.bench.ordered_plots import sigma_of
from headrace.bench.samples import Row

_SHOWN = {
    "query": "query", "scheduler": "scheduler", "pipeline": "pipeline", "box": "box",
    "operator": "operator", "reorder": "reorder", "app": "app", "load": "load",
    "worklist": "worklist/partitions", "workers": "workers", "sigma": "σ", "cost_us": "µs a record",
}  # fmt: skip
"""What tells the rows of an experiment apart, and how it is called."""
_MEASURES = {
    "records_per_s": "K records/s", "records_per_cpu_s": "K/cpu s", "mean_ms": "mean ms",
    "p99_ms": "p99 ms",
    "busy_workers": "busy workers", "others": "others",
}  # fmt: skip
LEGEND = (
    "medians, the distance between quartiles in brackets; latency in the middle 60 % of a run; "
    "others: the share of the cores that other processes had"
)


def table(rows: list[Row]) -> Table:
    """The rows of one experiment: medians, and the distance between the quartiles in brackets."""
    names = [key for key in _SHOWN if key in rows[0]]
    measures = [key for key in _MEASURES if any(key in row for row in rows)]
    shown = Table(show_edge=False, pad_edge=False)
    for key in names:
        shown.add_column(_SHOWN[key], no_wrap=True)
    for key in measures:
        shown.add_column(_MEASURES[key], justify="right", no_wrap=True)
    for row in rows:
        cells = [sigma_of(row) if key == "sigma" else _plain(row[key]) for key in names]
        shown.add_row(*cells, *(_measured(row, key) for key in measures))
    return shown


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _measured(row: Row, key: str) -> str:
    if key not in row:
        return "–"
    if key == "others":
        return f"{100 * row[key]:.0f} %"
    if key == "records_per_cpu_s":
        return f"{row[key] / 1000:,.1f}"
    unit, digits = (1000, 1) if key == "records_per_s" else (1, 2)
    middle, around = row[key] / unit, row[f"{key}_spread"] / unit
    return f"{middle:,.{digits}f} ({around:,.{digits}f})"
