"""Columns of the records that are kept, row by row, for windows that are not full yet."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.kernels.columns import as_column, validity
from headrace.kernels.group import is_fixed
from headrace.kernels.scans.running import as_numbers, typed

_ALL = np.zeros(0, np.bool_)
_LARGEST = 1 << 30
"""The bytes of a chunk: one of text must be less than 2 GB."""


class Taken:
    """Some rows of a column: as an array, and as numbers where it is of fixed width."""

    def __init__(self, array: pa.Array | None, values: Any, valid: Any, kind: pa.DataType) -> None:
        self._array, self.values, self._valid, self.kind = array, values, valid, kind

    @property
    def is_numbers(self) -> bool:
        return self.values is not None

    @property
    def valid(self) -> Any:
        """False for each null; empty where there is none."""
        if self._valid is None:
            self._valid = validity(self.array)
        return self._valid

    @property
    def array(self) -> pa.Array:
        if self._array is None:
            there = self._valid if self._valid.size else np.ones(self.values.size, np.bool_)
            self._array = typed(self.values, there, self.kind)
        return self._array


class KeptColumn(Protocol):
    """A column of the rows that are kept."""

    @property
    def nbytes(self) -> int:
        """The memory it holds."""

    def append(self, array: pa.Array) -> None:
        """Rows after those there are."""

    def take(self, rows: Any) -> Taken:
        """Some of the rows."""

    def keep(self, rows: Any) -> None:
        """Forget all rows but these, which then stand in this order."""


def kept_column(kind: pa.DataType) -> KeptColumn:
    """An empty column of a type."""
    return Numbers(kind) if is_fixed(kind) else Values(kind)


class Numbers:
    """Values of fixed width, as 64-bit numbers."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind, self.size = kind, 0
        self.values = np.zeros(0, np.float64 if pa.types.is_floating(kind) else np.int64)
        self.valid: Any = None
        """Where values are there; None until one is not."""

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes) + (0 if self.valid is None else int(self.valid.nbytes))

    def append(self, array: pa.Array) -> None:
        end = self.size + len(array)
        if end > self.values.size:
            more = np.empty(max(1024, 2 * end), self.values.dtype)
            more[: self.size] = self.values[: self.size]
            self.values = more
        self.values[self.size : end] = as_numbers(array, self.values.dtype)
        there = validity(array)
        if self.valid is None and there.size:
            self.valid = np.ones(self.values.size, np.bool_)
        if self.valid is not None:
            if self.valid.size < self.values.size:
                more = np.ones(self.values.size, np.bool_)
                more[: self.size] = self.valid[: self.size]
                self.valid = more
            self.valid[self.size : end] = there if there.size else True
        self.size = end

    def take(self, rows: Any) -> Taken:
        valid = _ALL if self.valid is None else self.valid[rows]
        return Taken(None, self.values[rows], valid, self.kind)

    def keep(self, rows: Any) -> None:
        self.values = self.values[rows]
        if self.valid is not None:
            self.valid = self.valid[rows]
            self.valid = None if self.valid.all() else self.valid
        self.size = rows.size


class Values:
    """Values of any type."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self.chunks: list[pa.Array] = []
        """Each more than twice as long as the next, so that there are few."""

    @property
    def nbytes(self) -> int:
        return sum(int(chunk.nbytes) for chunk in self.chunks)

    def append(self, array: pa.Array) -> None:
        self.chunks.append(array)
        while len(self.chunks) > 1 and len(self.chunks[-2]) <= 2 * len(self.chunks[-1]):
            if self.chunks[-2].nbytes + self.chunks[-1].nbytes > _LARGEST:
                break
            last = self.chunks.pop()
            self.chunks[-1] = pa.concat_arrays([self.chunks[-1], last])

    def take(self, rows: Any) -> Taken:
        if not self.chunks:
            return Taken(pa.array([], self.kind), None, None, self.kind)
        found = pa.chunked_array(self.chunks).take(as_column(rows))
        return Taken(found.combine_chunks(), None, None, self.kind)

    def keep(self, rows: Any) -> None:
        self.chunks = [self.take(rows).array] if rows.size else []
