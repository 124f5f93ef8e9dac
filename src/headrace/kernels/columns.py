"""Arrow's columns as NumPy arrays and as native code takes them, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels import recycled
from headrace.kernels.native import rows as native_rows
from headrace.kernels.native import tokens


def validity(array: pa.Array) -> np.ndarray[Any, Any]:
    """False for each null; empty where there is none, which native code reads as all valid."""
    if array.null_count == 0:
        return _ALL_VALID
    return array.is_valid().to_numpy(zero_copy_only=False)


_ALL_VALID = np.zeros(0, dtype=np.bool_)


def as_column(values: Any, kind: pa.DataType | None = None) -> pa.Array:
    """Numbers that are all there as a column, of their own type or one as wide as they are.

    Without a copy, and without giving up the interpreter lock as often as ``pa.array`` does.
    """
    values = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(values.dtype) if kind is None else kind
    return pa.Array.from_buffers(kind, values.size, [None, pa.py_buffer(values)])


def filled(values: Any, count: int, kind: pa.DataType) -> pa.Array:
    """A column of one 64-bit value, or of as many as there are rows."""
    data = recycled.empty(count, np.int64)
    data[:] = values
    return as_column(data, kind)


def numbers(array: pa.Array, dtype: Any) -> np.ndarray[Any, Any]:
    """A fixed-width array's values as NumPy, with anything in place of nulls; no copy."""
    width = np.dtype(dtype).itemsize
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.zeros(len(array), dtype=dtype)
    return np.frombuffer(data, dtype=dtype, count=len(array), offset=array.offset * width)


def taken(batch: pa.RecordBatch, rows: Any) -> pa.RecordBatch:
    """Some rows of a batch, each of which it has; numbers into memory that is used again."""
    columns, places = [], None
    for column in batch.columns:
        kind = column.type
        is_number = pa.types.is_primitive(kind) and kind.bit_width in (8, 16, 32, 64)
        if is_number and column.null_count == 0:
            values = numbers(column, f"i{kind.bit_width // 8}")
            out = recycled.empty(rows.size, values.dtype)
            native_rows.take(values, rows, out)
            columns.append(as_column(out, kind))
        else:
            places = as_column(rows) if places is None else places
            columns.append(column.take(places))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def from_numbers(values: np.ndarray[Any, Any], valid: np.ndarray[Any, Any], kind: Any) -> pa.Array:
    """An Arrow array of NumPy values; ``valid`` as ``validity`` gives it."""
    mask = ~valid if valid.size else None
    array = pa.array(values, mask=mask)
    return array if array.type.equals(kind) else array.cast(kind)


@dataclass(frozen=True, slots=True)
class Text:
    """The buffers of a string array as native code takes them."""

    data: np.ndarray[Any, Any]
    offsets: np.ndarray[Any, Any]
    valid: np.ndarray[Any, Any]

    @staticmethod
    def of(array: pa.Array) -> Text:
        _, offsets, data = array.buffers()
        if len(array) == 0 or offsets is None:
            return Text(_NO_BYTES, np.zeros(1, np.int32), validity(array))
        places = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
        raw = _NO_BYTES if data is None or data.size == 0 else np.frombuffer(data, np.uint8)
        return Text(raw, places, validity(array))

    @property
    def is_ascii(self) -> bool:
        """Whether every byte of the rows is below 128."""
        part = self.data[self.offsets[0] : self.offsets[-1]]
        return part.size == 0 or int(part.max()) < 128

    def some(self, rows: np.ndarray[Any, Any]) -> Text:
        """Some of the rows, copied together; there must be no nulls."""
        sizes = self.offsets[rows + 1] - self.offsets[rows]
        places = np.empty(rows.size + 1, np.int32)
        out = np.empty(int(sizes.sum()) + 8, np.uint8)
        tokens.gather_rows(self.data, self.offsets, rows, places, out)
        return Text(out, places, self.valid)

    @property
    def nbytes(self) -> int:
        return int(self.offsets[-1] - self.offsets[0]) + 4 * self.offsets.size


_NO_BYTES = np.zeros(0, np.uint8)
