"""Rows of a batch by their numbers."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from headrace.kernels.columns import taken

COLUMNS = {
    "int8": pa.array([1, 2, 3, 4, 5], pa.int8()),
    "nulls": pa.array([1, None, 3, 4, None]),
    "float16": pa.array(np.arange(5, dtype=np.float16)),
    "double": pa.array([0.5, float("nan"), -0.0, 4.0, 5.0]),
    "bool": pa.array([True, False, None, True, False]),
    "text": pa.array(["a", "", None, "dé", "e" * 40]),
    "date": pa.array([dt.date(2020, 1, day) for day in range(1, 6)]),
    "time": pa.array([1, 2, 3, 4, 5], pa.timestamp("us", tz="UTC")),
    "decimal": pa.array([Decimal(n) for n in range(5)], pa.decimal128(38, 2)),
    "interval": pa.array([(n, n, n) for n in range(5)], pa.month_day_nano_interval()),
    "list": pa.array([[1], [], None, [4, 4], [5]]),
}


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("rows", [[], [0], [3, 1, 1, 0]])
def test_rows_are_taken_of_columns_of_any_type(rows: list[int], start: int) -> None:
    batch = pa.RecordBatch.from_arrays(list(COLUMNS.values()), names=list(COLUMNS)).slice(start)
    found = taken(batch, np.array(rows, np.int32))
    expected = batch.take(pa.array(rows, pa.int32()))
    assert found.schema == expected.schema
    for mine, theirs in zip(found.columns, expected.columns, strict=True):
        assert str(mine.to_pylist()) == str(theirs.to_pylist())  # NaN is like NaN
