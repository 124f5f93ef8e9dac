"""What the streaming workloads share: times for records, and input kept in Parquet files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.apps import App, StreamApp

EARLIEST, LATEST = 1_000_000, 3_000_000
"""How far ahead of its epoch an early record's time is, in microseconds."""
EARLY = 20
"""The percentage of records out of order in input that is kept in files."""
Reference = Callable[[dict[str, pa.Table]], set[tuple[Any, ...]]]


def times(records: int, per_second: int, early: int, seed: int) -> pa.Array:
    """Event times of ``per_second`` records a second, ``early`` percent of them from the future."""
    at = np.arange(records, dtype=np.int64) * 1_000_000 // per_second
    if early:
        rng = np.random.default_rng([seed, 77])
        ahead = rng.integers(EARLIEST, LATEST, records)
        at += np.where(rng.random(records) * 100 < early, ahead, 0)
    return pa.array(at).cast(pa.timestamp("us", tz="UTC"))


def app(name: str, summary: str, records: int, stream: StreamApp, reference: Reference) -> App:
    """A streaming workload that can also be run over files, as any other."""

    def generate(folder: Path, count: int, seed: int, form: str) -> Path:
        place = folder / f"{name}-{count}-{seed}"
        if not place.exists():
            draft = folder / f".{name}-{count}-{seed}"
            draft.mkdir(parents=True, exist_ok=True)
            per_second = max(1, min(stream.epoch_records, count // 10))
            for part, table in stream.tables(count, seed, per_second, EARLY).items():
                pq.write_table(table, draft / f"{part}.parquet", use_dictionary=False)
            draft.rename(place)
        return place

    def pipelines(path: str, form: str) -> dict[str, hr.Stream]:
        inputs = {
            file.stem: hr.read_parquet(str(file)).event_time("at", delay="3s")
            for file in sorted(Path(path).glob("*.parquet"))
        }
        return {name: stream.pipeline(inputs, stream.window)}

    def checked(path: str) -> dict[str, set[tuple[Any, ...]]]:
        tables = {file.stem: pq.read_table(file) for file in Path(path).glob("*.parquet")}
        return {name: reference(tables)}

    return App(name, summary, ("parquet",), records, generate, pipelines, checked, stream)


def windows(at: int, size: int, every: int) -> list[int]:
    """The starts of the windows that hold a time, for the references."""
    first = at // every * every
    return [s for s in range(first, at - size, -every) if s > at - size]


def micros(table: pa.Table, column: str = "at") -> list[int]:
    """The times of a table as integers."""
    found: list[int] = table[column].cast(pa.int64()).to_pylist()
    return found
