"""Damaged Parquet files are refused or read as pyarrow reads them, and never end the process."""

from __future__ import annotations

import contextlib
import datetime
import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import HeadraceError, PlanError
from headrace.io.source import Source
from headrace.trees import parse
from headrace.types import normal_batch
from tests.fuzz.budget import first_seed
from tests.fuzz.child import rounds_in_child
from tests.fuzz.damage import damaged

DAY = datetime.datetime(2024, 1, 1)
CONDITIONS = ["i > 3", "t < 'b'", "f > 0.5", "d = date'2024-01-05'", "at >= timestamp'2024-01-02'"]


def random_file(rng: random.Random) -> bytes:
    """A small file with columns of many types and several row groups."""
    rows = range(rng.choice([1, 20, 60]))
    words = ["a", "b", None, "é" * 10, "long " * 50]
    table = pa.table(
        {
            "i": pa.array([rng.choice([None, *range(5)]) for _ in rows], pa.int64()),
            "t": pa.array([rng.choice(words) for _ in rows], pa.string()),
            "f": pa.array([rng.random() for _ in rows]),
            "d": pa.array([DAY.date() + datetime.timedelta(rng.randrange(20)) for _ in rows]),
            "at": pa.array([DAY + datetime.timedelta(rng.randrange(3)) for _ in rows]),
            "n": pa.array([rng.randrange(100) for _ in rows]).cast(pa.decimal128(21, 2)),
            "v": pa.array([[1] * rng.randrange(4) for _ in rows], pa.list_(pa.int32())),
            "s": pa.array([{"x": rng.choice(words)} for _ in rows]),
        }
    )
    form: dict[str, Any] = {
        "row_group_size": rng.choice([7, 20, 100]),
        "compression": rng.choice(["none", "snappy", "gzip", "zstd"]),
        "use_dictionary": rng.random() < 0.6,
        "data_page_version": rng.choice(["1.0", "2.0"]),
        "data_page_size": rng.choice([64, 1 << 20]),
        "write_page_index": rng.random() < 0.3,
        "store_schema": rng.random() < 0.5,
    }
    out = io.BytesIO()
    pq.write_table(table.select(rng.sample(table.column_names, rng.randint(1, 8))), out, **form)
    return out.getvalue()


def damaged_file(rng: random.Random, data: bytes) -> bytes:
    """The file with some bytes changed, most often in its footer."""
    if rng.random() < 0.2:
        return damaged(rng, data, 2)
    body = bytearray(data)
    footer = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    first, last = (footer, len(body) - 8) if rng.random() < 0.75 else (4, footer)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(first, last)
        body[at] = rng.choice([rng.randrange(256), body[at] ^ (1 << rng.randrange(8))])
    return bytes(body)


def records(source: Source) -> pa.Table:
    names = source.schema.names
    batches = [batch for split in source.splits(2) for batch in split.read(names)]
    for batch in batches:
        batch.validate()
    return pa.Table.from_batches(batches, source.schema)


def theirs(data: bytes, schema: pa.Schema) -> pa.Table:
    """What pyarrow reads, in our types."""
    parquet = pq.ParquetFile(pa.BufferReader(data))
    batches = [
        normal_batch(batch, schema)
        for group in range(parquet.num_row_groups)
        for batch in parquet.read_row_group(group, use_threads=False).to_batches()
    ]
    return pa.Table.from_batches(batches, schema)


def same(a: pa.Table, b: pa.Table) -> bool:
    """Equal, where NaN is equal to NaN."""
    for x, y in zip(a.columns, b.columns, strict=True):
        if pa.types.is_floating(x.type) and x.is_null().equals(y.is_null()):
            numbers = (np.asarray(c.fill_null(0)) for c in (x, y))
            if not np.array_equal(*numbers, equal_nan=True):
                return False
        elif not x.equals(y):
            return False
    return True


def check(rng: random.Random, folder: str) -> None:
    data = damaged_file(rng, random_file(rng))
    path = Path(folder) / "a.parquet"
    path.write_bytes(data)
    try:
        source = hr.read_parquet(path).node.source  # type: ignore[attr-defined]
        filtered = None
        with contextlib.suppress(PlanError):  # the damaged column may have another name or type
            filtered = source.filtered(parse(rng.choice(CONDITIONS)), "UTC")
        if filtered is not None:
            records(filtered)
        ours = records(source)
    except HeadraceError as error:
        if str(path) not in str(error):
            raise AssertionError(f"{error} does not name the file") from error
        return
    assert same(ours, theirs(data, source.schema))


def check_rounds(rounds: int, folder: Path) -> None:
    first = first_seed()
    rounds_in_child(range(first, first + rounds), check, str(folder))


def test_hundreds_of_damaged_files_are_refused_or_read_as_pyarrow_does(tmp_path: Path) -> None:
    check_rounds(400, tmp_path)


@pytest.mark.slow
def test_thousands_of_damaged_files_are_refused_or_read_as_pyarrow_does(tmp_path: Path) -> None:
    check_rounds(5000, tmp_path)
