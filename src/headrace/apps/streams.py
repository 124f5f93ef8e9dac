"""What the streaming workloads share: times for records, and input kept in Parquet files."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.apps import App, StreamApp
from headrace.windows import micros_of

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
"""The event time of the first record that is generated."""
PIECES = 10
DONE = "_DONE"
EARLY = 20
"""The percentage of records out of order in input that is kept in files."""
Reference = Callable[[dict[str, pa.Table]], set[tuple[Any, ...]]]


def times(
    records: int, per_second: int, early: int, seed: int, seconds: int = 1, delay: int = 3
) -> pa.Array:
    """Event times of ``per_second`` records in ``seconds``; of ``early`` percent of them the time
    is from a third of ``delay`` to ``delay`` seconds ahead."""
    at = np.arange(records, dtype=np.int64) * (seconds * 1_000_000) // per_second
    if early:
        rng = np.random.default_rng([seed, 77])
        ahead = rng.integers(delay * 1_000_000 // 3, delay * 1_000_000, records)
        at += np.where(rng.random(records) * 100 < early, ahead, 0)
    return pa.array(at + micros_of(START)).cast(pa.timestamp("us", tz="UTC"))


def app(name: str, summary: str, records: int, stream: StreamApp, reference: Reference) -> App:
    """A streaming workload that can also be run over files, as any other."""

    def generate(folder: Path, count: int, seed: int, form: str) -> Path:
        kind = f"-{START.year}" if form == "parquet" else f"-{START.year}-{form}"
        place = folder / f"{name}-{count}-{seed}{kind}"
        if not place.exists():
            draft = folder / f".{name}-{count}-{seed}{kind}"
            draft.mkdir(parents=True, exist_ok=True)
            per_second = max(1, min(stream.epoch_records, count // 10))
            for part, table in stream.tables(count, seed, per_second, EARLY).items():
                if form == "parquet":
                    pq.write_table(table, draft / f"{part}.parquet", use_dictionary=False)
                else:
                    _in_pieces(table, draft / part)
            draft.rename(place)
        return place

    def pipelines(path: str, form: str) -> dict[str, hr.Stream]:
        if form == "parquet":
            read = {p.stem: hr.read_parquet(p) for p in sorted(Path(path).glob("*.parquet"))}
        else:
            read = {
                p.name: hr.read_parquet(p, follow=True, limit=1, until=DONE)
                for p in sorted(Path(path).iterdir())
            }
        delay = f"{stream.delay}s"
        inputs = {part: records.event_time("at", delay=delay) for part, records in read.items()}
        return {name: stream.pipeline(inputs, stream.window)}

    def checked(path: str) -> dict[str, set[tuple[Any, ...]]]:
        tables = {file.stem: pq.read_table(file) for file in Path(path).glob("*.parquet")}
        return {name: reference(tables)}

    forms = ("parquet", "stream")
    return App(name, summary, forms, records, generate, pipelines, checked, stream)


def _in_pieces(table: pa.Table, folder: Path) -> None:
    """Input as it would come over time: ten files in a folder, and one that says it has ended."""
    folder.mkdir(exist_ok=True)
    size = max(1, -(-table.num_rows // PIECES))
    for i in range(PIECES):
        piece = table.slice(i * size, size)
        pq.write_table(piece, folder / f"{i:03d}.parquet", use_dictionary=False)
    (folder / DONE).touch()


def windows(at: int, size: int, every: int) -> list[int]:
    """The starts of the windows that hold a time, for the references."""
    first = at // every * every
    return [s for s in range(first, at - size, -every) if s > at - size]


def micros(table: pa.Table, column: str = "at") -> list[int]:
    """The times of a table as integers."""
    found: list[int] = table[column].cast(pa.int64()).to_pylist()
    return found


def in_order(table: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    """Records as tuples, the time first, in the order of event time; ties as in the input."""
    rows = zip(micros(table), *(table[c].to_pylist() for c in columns), strict=True)
    return sorted(rows, key=lambda row: row[0])
