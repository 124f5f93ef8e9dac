"""Fill the cache of compiled kernels by running small pipelines of every common kind."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

import headrace as hr
from headrace.kernels.compiling import announce_compiling
from headrace.stream import Stream
from headrace.testing import records, script

_ROWS = 2000
_MANY = 200_000
_KEYS = (("k",), ("n",), ("k", "n"), ())


def warm() -> int:
    """Run the pipelines on the box; return how many kernels were compiled."""
    announcer = announce_compiling()
    before = announcer.count
    box = hr.Box(workers=2)
    with tempfile.TemporaryDirectory() as folder:
        for pipeline in [*_bounded(_written(Path(folder))), *_streams()]:
            if pipeline.bounded:
                pipeline.collect(on=box)
            else:
                pipeline.start(on=box).wait()
    return announcer.count - before


def _table() -> pa.Table:
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return pa.table(
        {
            "k": [f"key {i % 7}" for i in range(_ROWS)],
            "n": [i % 5 for i in range(_ROWS)],
            "v": [i / 4 for i in range(_ROWS)],
            "at": [start + datetime.timedelta(milliseconds=10 * i) for i in range(_ROWS)],
        }
    )


def _written(folder: Path) -> list[Stream]:
    """The same records from files of each format."""
    table = _table()
    pq.write_table(table, folder / "a.parquet")
    csv.write_csv(table, folder / "a.csv")
    lines = [f'{{"k": "{row["k"]}", "n": {row["n"]}}}' for row in table.to_pylist()]
    (folder / "a.json").write_text("\n".join(lines))
    (folder / "a.txt").write_text("\n".join(table["k"].to_pylist()))
    schema = {"k": "string", "n": "bigint"}
    return [
        hr.read_parquet(folder / "a.parquet"),
        hr.read_csv(folder / "a.csv").select("k", "n"),
        hr.read_json(folder / "a.json", schema=schema),
        hr.read_text(folder / "a.txt").select(k="line", n="length(line)"),
    ]


def _bounded(inputs: list[Stream]) -> Iterator[Stream]:
    for stream in inputs:
        yield stream.group_by("k").agg(rows=hr.count(), total=hr.sum("n"))
        words = stream.flat_map("split(lower(k), '[^a-z]+')", name="word").filter("word != ''")
        yield words.group_by("word").agg(rows=hr.count())
    table = inputs[0]
    for keys in _KEYS[:3]:
        yield table.group_by(*keys).agg(**_aggregates())
        yield table.join(table.group_by(*keys).agg(m=hr.max("v")), on=list(keys))
    yield from _many_keys()
    yield table.filter("k like '%3' and v > 10").distinct()
    yield table.sort("v", "k")
    yield table.top_k(5, by="v")


def _many_keys() -> Iterator[Stream]:
    """Enough keys for tables to grow, and for workers to meet at them."""
    numbers = hr.from_items(range(_MANY)).with_columns(k="concat('key ', value)", m="value div 10")
    at = "timestamp_millis(1767225600000 + value div 100)"
    timed = numbers.with_columns(at=at).event_time("at")
    for keys in (("k",), ("value",), ("value", "m")):
        yield numbers.group_by(*keys).agg(rows=hr.count(), top=hr.max("m"))
        yield timed.key_by(*keys).window(hr.tumbling("1s")).agg(top=hr.max("m"))


def _streams() -> Iterator[Stream]:
    windows = (hr.tumbling("2s"), hr.sliding("4s", every="1s"), hr.session("100ms"))
    for keys in _KEYS:
        for window in windows:
            timed: Any = _stream()
            timed = timed.key_by(*keys) if keys else timed
            yield timed.window(window).agg(**_aggregates())
    words = _stream().flat_map("split(lower(k), '[^a-z]+')", name="word")
    words = words.filter("word != ''")
    for window in windows[:2]:
        yield words.key_by("word").window(window).agg(rows=hr.count())
    yield words.key_by("word").running(rows=hr.count())
    by_key = _stream().key_by("k")
    yield by_key.window(windows[0]).top_k(2, by="v")
    yield by_key.lag(1, before="v")
    yield by_key.scan(lambda total, row: (total + row.v, total), 0.0, schema={"total": "double"})
    yield _stream().deduplicate("k", "n", within="1s")
    yield _stream().join_within(_stream().select("k", "at", m="n"), on="k", before="20ms")


def _stream() -> Stream:
    batches = [records(batch) for batch in _table().to_batches(max_chunksize=_ROWS // 4)]
    source = script(batches, bounded=False, ends=True)
    return source.event_time("at", delay="1s")


def _aggregates() -> dict[str, Any]:
    made = {"rows": hr.count(), "different": hr.count_distinct("k")}
    for column in ("n", "v"):
        for kind in (hr.sum, hr.min, hr.max, hr.mean, hr.var):
            made[f"{kind.__name__}_{column}"] = kind(column)
    return made
