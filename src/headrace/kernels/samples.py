"""Sample records of any schema, to run kernels on before there is real input."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa

from headrace.kernels.expressions.codes import is_coded

_DAY = datetime.date(2026, 1, 1)
_TEXTS = ("a", "1", "a longer text of several words", "")


def sample_batch(schema: pa.Schema, rows: int, apart: int = 0) -> pa.RecordBatch:
    """Make records without nulls.

    Args:
        schema: The columns.
        rows: How many records.
        apart: The time from each record to the next, in microseconds.
    """
    times = [row * apart for row in range(rows)]
    columns = [_column(field.type, times) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(kind: pa.DataType, times: list[int]) -> pa.Array:
    values = [_value(kind, row, time) for row, time in enumerate(times)]
    if is_coded(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def _value(kind: pa.DataType, row: int, time: int) -> Any:
    if pa.types.is_timestamp(kind):
        moment = datetime.datetime.combine(_DAY, datetime.time(), datetime.UTC)
        moment += datetime.timedelta(microseconds=time)
        return moment if kind.tz is not None else moment.replace(tzinfo=None)
    if pa.types.is_date(kind):
        return _DAY
    if pa.types.is_time(kind):
        return datetime.time(1)
    if pa.types.is_duration(kind):
        return datetime.timedelta(seconds=row)
    if pa.types.is_boolean(kind):
        return row % 2 == 0
    if pa.types.is_decimal(kind):
        return decimal.Decimal(row % 3)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return row % 3
    if pa.types.is_string(kind) or is_coded(kind):
        return _TEXTS[row % len(_TEXTS)]
    if pa.types.is_binary(kind):
        return _TEXTS[row % len(_TEXTS)].encode()
    if pa.types.is_list(kind):
        return [_value(kind.value_type, row, time)]
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, row, time) for field in kind}
    if pa.types.is_map(kind):
        return [(_value(kind.key_type, row, time), _value(kind.item_type, row, time))]
    return None
