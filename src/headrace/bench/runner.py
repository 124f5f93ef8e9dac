"""One benchmark run: every engine by turns on the same input, medians, spread, and ratios."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.apps import App
from headrace.bench.memory import MemoryWatch
from headrace.errors import HeadraceError

Queries = Mapping[str, Callable[[], pa.Table]]
"""Results by name, each of which is computed by itself."""
Job = Callable[[], dict[str, pa.Table]] | Queries


@dataclass
class Measured:
    """What one engine did."""

    engine: str
    seconds: list[float] = field(default_factory=list)
    queries: dict[str, list[float]] = field(default_factory=dict)
    """The seconds of each query, where there are several."""
    peak: int = 0
    worker: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The distance between the quartiles."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return high - low

    def report(self, records: int) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "median_s": round(self.median, 4),
            "spread_s": round(self.spread, 4),
            "records_per_s": round(records / self.median),
            "peak_mb": round(self.peak / 1e6, 1),
            "worker_peak_mb": round(self.worker / 1e6, 1),
        }


def measure(
    app: App,
    records: int,
    jobs: dict[str, Job],
    rounds: int,
    progress: Callable[[str], None] = lambda text: None,
    unlike: Collection[str] = (),
) -> dict[str, Any]:
    """Run the jobs by turns, check that they agree but for some, and report."""
    first: dict[str, pa.Table] = {}
    equal = True
    for name, job in jobs.items():
        progress(f"warming up {name}")
        result = _run(job, {})
        if name not in unlike:
            first = first or result
            equal = equal and same_tables(first, result)
        del result
    first.clear()
    measured = {name: Measured(name) for name in jobs}
    for turn in range(rounds):
        for name, job in jobs.items():
            progress(f"round {turn + 1} of {rounds}: {name}")
            with MemoryWatch() as watch:
                start = time.perf_counter()
                _run(job, measured[name].queries)
                measured[name].seconds.append(time.perf_counter() - start)
            measured[name].peak = max(measured[name].peak, watch.tree)
            measured[name].worker = max(measured[name].worker, watch.worker)
    names = list(jobs)
    ratios = {
        f"{a}/{b}": round(measured[b].median / measured[a].median, 3)
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    }
    return {
        "app": app.name,
        "records": records,
        "equal": equal,
        "runs": [m.report(records) for m in measured.values()],
        "ratios": ratios,
        "queries": _by_query(list(measured.values())),
    }


def _run(job: Job, seconds: dict[str, list[float]]) -> dict[str, pa.Table]:
    """What a job gives; how long each of its queries took is added to ``seconds``."""
    if callable(job):
        return job()
    results = {}
    for name, query in job.items():
        start = time.perf_counter()
        results[name] = query()
        seconds.setdefault(name, []).append(time.perf_counter() - start)
    return results


def _by_query(measured: list[Measured]) -> dict[str, dict[str, float]]:
    """The median seconds of each query on each engine, where there are several queries."""
    names = list(measured[0].queries) if measured else []
    if len(names) < 2 or not all(m.queries for m in measured):
        return {}
    return {
        name: {m.engine: round(statistics.median(m.queries[name]), 4) for m in measured}
        for name in names
    }


def same_tables(a: dict[str, pa.Table], b: dict[str, pa.Table]) -> bool:
    """Whether two results hold the same records, whatever their order and column names."""
    if a.keys() != b.keys():
        raise HeadraceError(f"the engines gave other results: {list(a)} and {list(b)}")
    return all(a[k] is b[k] or _same_columns(_sorted(a[k]), _sorted(b[k])) for k in a)


def _sorted(table: pa.Table) -> list[pa.Array]:
    """A table's columns, times as numbers and lists sorted, in the order of its plain columns."""
    columns = []
    for column in table.combine_chunks().columns:
        array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.int64())
        elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            lists = [
                None if v is None else ",".join(sorted(map(str, v))) for v in array.to_pylist()
            ]
            array = pa.array(lists, pa.string())
        columns.append(array)
    plain = [str(i) for i, c in enumerate(columns) if not pa.types.is_floating(c.type)]
    named = pa.table(columns, names=[str(i) for i in range(len(columns))])
    ordered = named.sort_by([(n, "ascending") for n in plain]) if plain else named
    return [c.combine_chunks() for c in ordered.columns]


def _same_columns(a: list[pa.Array], b: list[pa.Array]) -> bool:
    if len(a) != len(b) or any(len(x) != len(y) for x, y in zip(a, b, strict=True)):
        return False
    for x, y in zip(a, b, strict=True):
        if pa.types.is_floating(x.type):
            left, right = (np.asarray(v.cast(pa.float64()).fill_null(np.nan)) for v in (x, y))
            if not np.allclose(left, right, rtol=1e-9, atol=1e-12, equal_nan=True):
                return False
        elif not x.cast(y.type).equals(y):
            return False
    return True


def rows_of(table: pa.Table) -> set[tuple[Any, ...]]:
    """A table as a set of tuples; its column names do not matter, its number of rows does."""
    columns = [
        (c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist()
        for c in table.columns
    ]
    rows = [tuple(map(_hashable, row)) for row in zip(*columns, strict=True)]
    counted: dict[tuple[Any, ...], int] = {}
    for row in rows:
        counted[row] = counted.get(row, 0) + 1
    return {(*row, count) for row, count in counted.items()}


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def same(a: dict[str, set[tuple[Any, ...]]], b: dict[str, set[tuple[Any, ...]]]) -> bool:
    """Whether two results hold the same rows, floating numbers to the last digits."""
    if a.keys() != b.keys():
        raise HeadraceError(f"the engines gave other results: {list(a)} and {list(b)}")
    return all(_rounded(a[k]) == _rounded(b[k]) for k in a)


def _rounded(rows: Iterable[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    return {tuple(_digits(v) if isinstance(v, float) else v for v in row) for row in rows}


def _digits(value: float) -> Any:
    return f"{value:.9g}" if math.isfinite(value) else str(value)
