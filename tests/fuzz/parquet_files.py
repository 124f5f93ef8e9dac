"""Parquet files of any types, and what they must read as."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import PlanError
from headrace.types import normal_schema
from tests.fuzz.values import maybe

TYPES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
    pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(),
    pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary(3), pa.date32(),
    pa.date64(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.timestamp("ms"),
    pa.timestamp("ns", tz="Europe/Paris"), pa.decimal128(10, 2), pa.decimal128(38, 10),
    pa.decimal256(50, 2), pa.time32("s"), pa.time64("us"), pa.duration("us"), pa.null(),
    pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.int64()),
    pa.list_(pa.int64()), pa.large_list(pa.string()), pa.list_(pa.float32(), 2),
    pa.struct([("k", pa.int32()), ("v", pa.large_string())]),
    pa.map_(pa.string(), pa.int64()), pa.list_(pa.list_(pa.string())),
    pa.list_(pa.struct([("x", pa.uint8())])), pa.list_(pa.dictionary(pa.int8(), pa.string())),
    pa.struct([("t", pa.timestamp("ns"))]), pa.list_(pa.timestamp("ms", tz="UTC")),
]  # fmt: skip


def random_table(rng: random.Random) -> pa.Table:
    names = rng.sample(["a", "b", "c.d", "é", "n"], rng.randint(1, 3))
    rows = rng.choice([0, 1, 7, 60])
    arrays = []
    for _ in names:
        kind = rng.choice(TYPES)
        arrays.append(pa.array([maybe(rng, kind) for _ in range(rows)], kind))
    return pa.Table.from_arrays(arrays, names=names)


def write(rng: random.Random, table: pa.Table, path: Path) -> None:
    pq.write_table(
        table,
        path,
        row_group_size=rng.choice([1, 10, 1000]),
        compression=rng.choice(["none", "snappy", "gzip", "zstd"]),
        use_dictionary=rng.random() < 0.5,
        data_page_version=rng.choice(["1.0", "2.0"]),
    )


def expected(table: pa.Table) -> list[dict[str, Any]] | None:
    """The records in our types; None where a type or a value must be refused."""
    try:
        schema = normal_schema(table.schema)
    except PlanError:
        return None
    arrays = []
    for column, field in zip(table.columns, schema, strict=True):
        values = column.to_pylist()
        try:
            arrays.append(pa.array(_plain(values), field.type))
        except (pa.ArrowInvalid, OverflowError):
            return None  # a value that does not fit
    return pa.Table.from_arrays(arrays, schema=schema).to_pylist()


def _plain(value: Any) -> Any:
    """Times of pandas as Python's."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
