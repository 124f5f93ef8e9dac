"""Looking for text in the strings of an array, all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels.columns import Text
from headrace.kernels.expressions.patterns import rank
from headrace.kernels.native import search


class Needle:
    """Text to look for in many strings at once; it must not be empty."""

    def __init__(self, text: str) -> None:
        raw = text.encode()
        self.bytes = np.frombuffer(raw, np.uint8)
        rarest = sorted(range(len(raw)), key=lambda i: -rank(chr(raw[i])))
        self.first, self.second = rarest[0], rarest[min(1, len(raw) - 1)]

    def rows(self, array: pa.Array) -> np.ndarray[Any, Any]:
        """The rows that hold it; no null does."""
        text = Text.of(array)
        rows = np.empty(max(1, text.offsets.size - 1), np.int64)
        count = search.rows_with(text.data, text.offsets, self.bytes, self.first, self.second, rows)
        found = rows[:count]
        return found[text.valid[found]] if text.valid.size else found

    def is_in(self, array: pa.Array) -> pa.Array:
        """Whether each row holds it."""
        return true_at(self.rows(array), array)


def candidates(
    needle: Needle | None, array: pa.Array
) -> tuple[np.ndarray[Any, Any] | None, pa.Array]:
    """The rows that a pattern is to be tried on, and their text; None where that is all rows."""
    rows = None if needle is None else needle.rows(array)
    if rows is None or 2 * rows.size > len(array):
        return None, array
    return rows, array.take(pa.array(rows))


def true_at(rows: np.ndarray[Any, Any], array: pa.Array) -> pa.Array:
    """True at these rows, null where the array is, false elsewhere."""
    mask = np.zeros(len(array), np.bool_)
    mask[rows] = True
    return pa.array(mask, mask=_nulls(array))


def text_at(rows: np.ndarray[Any, Any], pieces: pa.Array, array: pa.Array) -> pa.Array:
    """A piece at each of these rows, null where the array is, the empty text elsewhere."""
    text = Text.of(pieces)
    sizes = np.zeros(len(array) + 1, np.int32)
    sizes[0] = text.offsets[0]
    sizes[rows + 1] = np.diff(text.offsets)
    offsets = np.cumsum(sizes, dtype=np.int32)
    texts = pa.StringArray.from_buffers(len(array), pa.py_buffer(offsets), pa.py_buffer(text.data))
    if not array.null_count:
        return texts
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))


def text_changed(rows: np.ndarray[Any, Any], texts: pa.Array, array: pa.Array) -> pa.Array:
    """The array with other texts at these rows."""
    if not rows.size:
        return array
    mask = np.zeros(len(array), np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(array, pa.array(mask), texts)


def _nulls(array: pa.Array) -> np.ndarray[Any, Any] | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
