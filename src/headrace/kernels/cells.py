"""Aggregates of a few numbers for a key of one or two fixed-width columns, kept in one table.

It is the fast path of ``aggregate``: counts, sums, means, least and largest, of values that are
there. Rows with a null among their keys or values go the general way; both give partials of the
same form, so they can be merged.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import StepError
from headrace.kernels import recycled
from headrace.kernels.aggregate import Aggregation
from headrace.kernels.columns import as_column, numbers
from headrace.kernels.group import is_fixed, key_words
from headrace.kernels.native import cells, locks
from headrace.kernels.native.memory import cleared

_NONE = np.zeros(0, np.int64)
_FLOATS = (cells.SUM_FLOAT, cells.MIN_FLOAT, cells.MAX_FLOAT)
_LEAST = 1 << 4


@dataclass(frozen=True, slots=True)
class Rows:
    """A bundle's keys and values as words, all of them present."""

    a: Any
    b: Any
    values: Any


@dataclass(frozen=True)
class NumberPlan:
    """An aggregation that can be kept in cells."""

    aggregation: Aggregation
    ops: Any
    """For each aggregate that needs a word, what is done with it."""
    inputs: tuple[int, ...]
    """The aggregates that need a word."""
    keys: int

    @staticmethod
    def of(aggregation: Aggregation) -> NumberPlan | None:
        """The plan, or None for an aggregation that must go the general way."""
        kinds = [k.type for k in aggregation.keys]
        if not 1 <= len(kinds) <= 2 or not all(is_fixed(k) for k in kinds):
            return None
        ops, inputs = [], []
        for i, (_, aggregate) in enumerate(aggregation.node.aggregates):
            op = _op(aggregate.kind, [k.type for k in aggregation.inputs[i]])
            if op is None:
                return None
            if op >= 0:
                ops.append(op)
                inputs.append(i)
        return NumberPlan(aggregation, np.array(ops, np.int64), tuple(inputs), len(kinds))

    @property
    def width(self) -> int:
        return self.keys + 1 + len(self.inputs)

    def rows(self, keys: list[pa.Array], inputs: list[list[pa.Array]]) -> Rows | None:
        """The words of a bundle's keys and values; None if one of them is null."""
        if any(k.null_count for k in keys) or any(c.null_count for cs in inputs for c in cs):
            return None
        words = [key_words(k) for k in keys]
        values = self._values([inputs[i][0] for i in self.inputs], len(keys[0]))
        return Rows(words[0], words[1] if len(words) > 1 else _NONE, values)

    def _values(self, columns: list[pa.Array], count: int) -> Any:
        """The words of the values, a row of them for each aggregate that has one."""
        if len(columns) == 1 and self._is_words(columns[0].type):
            return numbers(columns[0], np.int64).reshape(1, -1)
        values = recycled.empty((len(columns), count), np.int64)
        floats = values.view(np.float64)
        for o, column in enumerate(columns):
            if self.ops[o] in _FLOATS:
                floats[o] = numbers(column, column.type.to_pandas_dtype())
            elif pa.types.is_boolean(column.type):
                values[o] = numbers(column.cast(pa.int8()), np.int8)
            else:
                values[o] = numbers(column, f"i{column.type.bit_width // 8}")
        values.flags.writeable = False  # so that there is one version of the native code
        return values

    def _is_words(self, kind: pa.DataType) -> bool:
        """Whether the one column of values is as the table takes it."""
        is_float = bool(pa.types.is_floating(kind))
        width = 1 if pa.types.is_boolean(kind) else kind.bit_width
        return width == 64 and is_float == (self.ops[0] in _FLOATS)


def _op(kind: str, types: list[pa.DataType]) -> int | None:
    """What an aggregate does with its word; -1 if it needs none, None if it does not fit."""
    if kind == "count":
        return -1
    if kind not in ("sum", "mean", "min", "max") or not is_fixed(types[0]):
        return None
    floating = bool(pa.types.is_floating(types[0]))
    if kind == "mean":
        return cells.SUM_FLOAT if floating or pa.types.is_integer(types[0]) else None
    if kind == "sum":
        return cells.SUM_FLOAT if floating else cells.SUM_INT
    if kind == "min":
        return cells.MIN_FLOAT if floating else cells.MIN_INT
    return cells.MAX_FLOAT if floating else cells.MAX_INT


class NumberTable:
    """The numbers of one slice of time, in parts by the keys' hashes; threads add to it at once."""

    def __init__(self, plan: NumberPlan, parts: int = 1, like: NumberTable | None = None) -> None:
        """``like`` is a table that will have had about as many keys."""
        self.plan, self.parts = plan, parts
        self.directory = np.zeros((parts, cells.LINE), np.int64)
        self.address = int(self.directory.ctypes.data)
        room = _LEAST * plan.width if like is None else like.largest
        self.slots = list(cleared((parts, room), np.uint64))
        for part, slots in enumerate(self.slots):
            self._place(part, slots)

    def _place(self, part: int, slots: Any) -> None:
        self.slots[part] = slots
        self.directory[part, cells.ADDRESS] = slots.ctypes.data
        self.directory[part, cells.WORDS] = slots.size

    @property
    def groups(self) -> int:
        return int(self.directory[:, cells.SIZE].sum())

    used = groups

    @property
    def room(self) -> int:
        return int(self.directory[:, cells.WORDS].sum()) // self.plan.width

    @property
    def nbytes(self) -> int:
        return int(self.directory[:, cells.WORDS].sum()) * 8

    @property
    def largest(self) -> int:
        """The words of its largest part."""
        return int(self.directory[:, cells.WORDS].max())

    def reset(self) -> None:
        """Forget every key, and keep the room."""
        cells.clear(self.directory)

    def grow(self, part: int) -> None:
        """Make room in a part, unless another thread just has."""
        lock = self.address + part * cells.LINE * 8
        locks.wait_for(lock)
        try:
            old, plan = self.slots[part], self.plan
            room = old.size // plan.width
            if self.directory[part, cells.SIZE] >= room * 13 // 16:
                # As large as the other parts, which have had as many keys by now.
                more = max(old.size * (2 if room >= 1 << 14 else 4), self.largest)
                self._place(part, cleared(more, np.uint64))
                cells.grow_cells(old, self.slots[part], plan.width, plan.keys)
        finally:
            locks.give_back(lock)

    def _columns(self, finished: bool, parts: range, size: int) -> list[pa.Array]:
        plan = self.plan
        words = recycled.empty((plan.width, size), np.uint64)
        cells.cells_out(self.directory, parts.start, parts.stop, plan.width, plan.keys, words)
        out = [_typed(words[i], k.type, as_key=True) for i, k in enumerate(plan.aggregation.keys)]
        counts = words[plan.keys].view(np.int64)
        fields = plan.aggregation.result_schema if finished else plan.aggregation.partial_schema
        for i, (_, aggregate) in enumerate(plan.aggregation.node.aggregates):
            kind = fields.field(plan.keys + i).type
            if i not in plan.inputs:
                out.append(as_column(counts, kind))
                continue
            word = words[plan.keys + 1 + plan.inputs.index(i)]
            if aggregate.kind != "mean":
                out.append(_typed(word, kind))
            elif finished:
                means = recycled.empty(size, np.float64)
                out.append(as_column(np.divide(word.view(np.float64), counts, means), kind))
            else:
                states = [_typed(word, pa.float64()), _typed(counts, pa.int64())]
                out.append(pa.StructArray.from_arrays(states, fields=list(kind)))
        return out

    def batch(self, finished: bool, parts: range | None = None) -> pa.RecordBatch | None:
        """The keys and each aggregate, as results or as partials; None if there is nothing.

        ``parts`` are some of the parts, one after the other; all unless told.
        """
        parts = range(self.parts) if parts is None else parts
        size = int(self.directory[parts.start : parts.stop, cells.SIZE].sum())
        if not size:
            return None
        aggregation = self.plan.aggregation
        schema = aggregation.result_schema if finished else aggregation.partial_schema
        return pa.RecordBatch.from_arrays(self._columns(finished, parts, size), schema=schema)


class Adding:
    """A bundle on its way into the tables of its slices, from ``low`` on.

    A slice without rows needs no table. Threads that add at once begin at different tables
    (``first``), so that they seldom meet; where they do, what is left may be added later, by any of
    them. ``crowded`` says that there are more of them than cores.
    """

    def __init__(
        self,
        rows: Rows,
        slices: Any,
        low: int,
        tables: Sequence[NumberTable | None],
        first: int,
        crowded: bool,
    ) -> None:
        self.rows, self.slices, self.low, self.tables = rows, slices, low, tables
        self.first, self.crowded = first, crowded
        used = next(table for table in tables if table is not None)
        self.plan, self.parts = used.plan, used.parts
        self.directories = np.array([0 if t is None else t.address for t in tables], np.int64)
        self.progress = np.zeros(3, np.int64)
        self.left = recycled.empty(rows.a.size, np.int32)
        self.lock = threading.Lock()
        """Held by whoever goes on with it."""
        self.is_done = False

    def go_on(self, patient: bool) -> None:
        """Add what is left in one native call; unless ``patient``, as much as can be at once."""
        rows, plan = self.rows, self.plan
        bits = (self.parts - 1).bit_length()
        while not self.is_done:
            bucket = cells.add_bundle(
                patient, self.crowded, rows.a, rows.b, self.slices, self.low, np.uint64(64 - bits),
                rows.values, plan.ops, self.directories, self.parts, plan.width, self.first,
                self.progress, self.left,
            )  # fmt: skip
            if bucket == cells.OVERFLOWN:
                raise StepError(f"{plan.aggregation.node.label}: bigint overflow in 'sum'")
            if bucket == cells.TAKEN:
                return
            if bucket >= 0:
                full = self.tables[bucket // self.parts]
                assert full is not None
                full.grow(bucket % self.parts)
            self.is_done = bucket == cells.DONE


def _typed(words: Any, kind: pa.DataType, as_key: bool = False) -> pa.Array:
    """Words as values of a type again; a key of 32-bit floats is its bits."""
    if pa.types.is_float64(kind):
        return as_column(words.view(np.float64), kind)
    if pa.types.is_float32(kind):
        if as_key:
            return pa.array(words.astype(np.int32).view(np.float32))
        return pa.array(words.view(np.float64)).cast(kind)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_int64(kind):
        return as_column(words.view(np.int64), kind)
    values = pa.array(words.view(np.int64))
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8()).cast(kind)
    if pa.types.is_date(kind):
        return values.cast(pa.int32()).cast(kind)
    return values.cast(kind)
