"""The plots of the experiments on ordered streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.bench.plots import Plot, Value, rate_of, value_of
from headrace.bench.samples import Row


def plots(report: dict[str, Any]) -> dict[str, str]:
    """The plots of a report as SVG, by file name."""
    drawn: dict[str, str] = {}
    rows = report["experiments"]
    if "schedulers" in rows:
        drawn |= _schedulers(rows["schedulers"])
    for workers in sorted({row["workers"] for row in rows.get("skew", ())}):
        drawn[f"ordered-skew-{workers}.svg"] = _skew(rows["skew"], workers)
        drawn[f"ordered-skew-{workers}-shared.svg"] = _shared(rows["skew"], workers)
    if "costs" in rows:
        drawn["ordered-costs.svg"] = _costs(rows["costs"])
    if "reordering" in rows:
        drawn["ordered-reordering.svg"] = _reordering(rows["reordering"])
    if "ordering" in rows:
        drawn["ordered-ordering.svg"] = _ordering(rows["ordering"])
    if "latency" in rows:
        drawn["ordered-latency.svg"] = _latency(rows["latency"])
    return drawn


def _by(
    rows: list[Row],
    series: Callable[[Row], str],
    place: Callable[[Row], str],
    value: Callable[[Row], Value],
) -> tuple[list[str], dict[str, list[Value]]]:
    """Rows as the values of a plot, in their order."""
    places = list(dict.fromkeys(map(place, rows)))
    names = list(dict.fromkeys(map(series, rows)))
    found = {(series(row), place(row)): value(row) for row in rows}
    return places, {n: [found.get((n, p), Value(None)) for p in places] for n in names}


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: str(row[name])


def _schedulers(rows: list[Row]) -> dict[str, str]:
    usual = {row["query"]: row["records_per_s"] for row in reversed(rows)}  # the first of each
    places, speeds = _by(
        rows,
        _text("scheduler"),
        _text("query"),
        lambda row: rate_of(row, usual[row["query"]]),
    )
    title = f"Throughput of the schedulers, as a share of {rows[0]['scheduler']}"
    _, times = _by(rows, _text("scheduler"), _text("query"), lambda row: value_of(row, "mean_ms"))
    return {
        "ordered-schedulers-throughput.svg": Plot(title, "query", "share", places, speeds).bars(),
        "ordered-schedulers-latency.svg": Plot(
            "Mean latency by scheduler at full speed", "query", "ms", places, times, log=True
        ).bars(),
    }


def sigma_of(row: Row) -> str:
    return "even" if row["sigma"] is None else f"{row['sigma']:g}"


def _skew(rows: list[Row], workers: int) -> str:
    rows = [row for row in rows if row["workers"] == workers]
    places, series = _by(rows, _text("worklist"), sigma_of, lambda row: rate_of(row, 1000))
    title = f"Worklists under skew, {workers} workers, {rows[0]['cost_us']:g} µs a record"
    return Plot(title, _SKEW, "thousand records/s", places, series).lines()


def _shared(rows: list[Row], workers: int) -> str:
    rows = [row for row in rows if row["workers"] == workers]
    places, series = _by(
        rows, _text("worklist"), sigma_of, lambda row: value_of(row, "busy_workers")
    )
    title = f"How many of {workers} workers share the work, by worklist"
    return Plot(title, _SKEW, "all work over that of the busiest", places, series).lines()


_SKEW = "σ of the keys: even on the left, most skewed on the right"


def _costs(rows: list[Row]) -> str:
    def place(row: Row) -> str:
        return f"{row['cost_us']:g} µs, {'even' if row['sigma'] is None else 'skewed'}"

    ideal = {place(row): row["workers"] * 1e6 / row["cost_us"] for row in rows}
    places, series = _by(
        rows, _text("worklist"), place, lambda row: rate_of(row, ideal[place(row)])
    )
    title = "Worklists by the cost of a record, 2 workers"
    return Plot(title, "cost of a record, keys", "share of the ideal", places, series).bars()


def _reordering(rows: list[Row]) -> str:
    def place(row: Row) -> str:
        kind, _, bundles = row["operator"].partition(", bundles of ")
        return f"{kind.replace('selectivity ', '×')}, {bundles}, {row['workers']} w"

    most: dict[str, float] = {}
    for row in rows:
        most.setdefault(place(row), row["records_per_s"])
    places, series = _by(rows, _text("reorder"), place, lambda row: rate_of(row, most[place(row)]))
    title = "Reorder schemes, throughput as a share of non-blocking"
    x_label = "operator, records of a bundle, workers"
    return Plot(title, x_label, "share", places, series).bars()


def _ordering(rows: list[Row]) -> str:
    places, series = _by(
        rows,
        _text("box"),
        _text("pipeline"),
        lambda row: rate_of(row, 1e6),
    )
    return Plot("What order costs", "pipeline", "million records/s", places, series).bars()


def _latency(rows: list[Row]) -> str:
    places = [f"{row['app']}, {row['load']} load" for row in rows]
    series = {
        "mean": [value_of(row, "mean_ms") for row in rows],
        "p99": [value_of(row, "p99_ms") for row in rows],
    }
    title = "Processing latency of a bundle, ordered"
    return Plot(title, "application and load", "ms", places, series, log=True).bars()
