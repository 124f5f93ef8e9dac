"""Bundles that are kept whole, so that their records can be had by number."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.native import multimap


@dataclass(frozen=True, slots=True)
class Index:
    """Where the bundles are from number ``base`` on; threads read one while others are made."""

    base: int
    places: Any
    """For each bundle and column the address of its values, 0 where they are not just numbers."""
    batches: dict[int, tuple[pa.RecordBatch, int]]
    """By number, each with the last slice of time that refers to it."""


class Records:
    """Bundles of one schema. A record is its bundle's number, and in the lower 32 bits its row."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.widths = widths = [_width(field.type) for field in schema]
        self.numbers = [
            (width, np.array([i for i, w in enumerate(widths) if w == width]))
            for width in sorted({w for w in widths if w})
        ]
        self.lock = threading.Lock()
        self.count = 0
        self.current = Index(0, np.zeros((16, len(schema)), np.int64), {})

    def add(self, batch: pa.RecordBatch, slice: int) -> int:
        """Keep a bundle until a slice is forgotten; its number."""
        places = [_address(c, w) for c, w in zip(batch.columns, self.widths, strict=True)]
        with self.lock:
            number, index = self.count, self.current
            self.count += 1
            if number - index.base >= len(index.places):
                index = Index(index.base, _extended(index.places), index.batches)
            index.places[number - index.base] = places
            index.batches[number] = batch, slice
            self.current = index
        return number

    def forget(self, slice: int) -> None:
        """Forget the bundles that only slices before this one refer to."""
        with self.lock:
            index = self.current
            batches = {n: kept for n, kept in index.batches.items() if kept[1] >= slice}
            if len(batches) == len(index.batches):
                return
            base = min(batches, default=self.count)
            places = _extended(index.places[base - index.base : self.count - index.base])
            for number in index.batches.keys() - batches.keys():
                if number >= base:
                    places[number - base] = 0
            self.current = Index(base, places, batches)

    def take(self, records: Any, before: Index) -> pa.RecordBatch:
        """Some records as a bundle. ``before`` is the index from before they were looked up, which
        still has what was forgotten since."""
        index = self.current
        columns: list[pa.Array | None] = [None] * len(self.schema)
        if int(records.min()) >> 32 >= index.base:
            self._gather(index, records, columns)
        missing = [i for i, column in enumerate(columns) if column is None]
        if missing:
            numbers = records >> 32
            order = np.argsort(numbers, kind="stable")
            parts = []
            for rows in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
                number = int(numbers[rows[0]])
                batch, _ = index.batches.get(number) or before.batches[number]
                places = pa.array(records[rows] & 0xFFFFFFFF)
                parts.append(batch.select(missing).take(places))
            rank = np.empty(order.size, np.int64)
            rank[order] = np.arange(order.size)
            together = pa.concat_batches(parts).take(pa.array(rank))
            for i, column in zip(missing, together.columns, strict=True):
                columns[i] = column
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _gather(self, index: Index, records: Any, columns: list[pa.Array | None]) -> None:
        """The columns that are numbers without nulls, read from where they are."""
        for width, chosen in self.numbers:
            out = np.empty((len(chosen), records.size), f"i{width}")
            if multimap.gather(index.places, index.base, chosen, records, out):
                for i, values in zip(chosen.tolist(), out, strict=True):
                    kind = self.schema.field(i).type
                    buffers = [None, pa.py_buffer(values)]
                    columns[i] = pa.Array.from_buffers(kind, records.size, buffers)


def _extended(places: Any) -> Any:
    return np.concatenate([places, np.zeros((max(16, len(places)), places.shape[1]), np.int64)])


def _width(kind: pa.DataType) -> int:
    """The bytes of a value that is a number; 0 for any other type."""
    t = pa.types
    numeric = t.is_integer(kind) or t.is_floating(kind) or t.is_temporal(kind)
    width = kind.bit_width // 8 if numeric else 0
    return width if width in (1, 2, 4, 8) else 0


def _address(column: pa.Array, width: int) -> int:
    if not width or column.null_count:
        return 0
    data = column.buffers()[1]
    return 0 if data is None else int(data.address) + column.offset * width
