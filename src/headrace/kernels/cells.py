"""Aggregates of a few numbers for a key of one or two fixed-width columns, kept in one table.

It is the fast path of ``aggregate``: counts, sums, means, least and largest, of values that are
there. Rows with a null among their keys or values go the general way; both give partials of the
same form, so they can be merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import StepError
from headrace.kernels.aggregate import Aggregation
from headrace.kernels.expressions.kernel import numbers
from headrace.kernels.group import is_fixed, key_words
from headrace.kernels.native import cells

_NONE = np.zeros(0, np.int64)
_LEAST = 1 << 4


@dataclass(frozen=True, slots=True)
class Rows:
    """A bundle's keys and values as words, all of them present."""

    a: Any
    b: Any
    integers: Any
    floats: Any


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
        values = np.empty((len(self.inputs), len(keys[0])), np.int64)
        floats = values.view(np.float64)
        for o, i in enumerate(self.inputs):
            column = inputs[i][0]
            if self.ops[o] in (cells.SUM_FLOAT, cells.MIN_FLOAT, cells.MAX_FLOAT):
                floats[o] = numbers(column, column.type.to_pandas_dtype())
            elif pa.types.is_boolean(column.type):
                values[o] = numbers(column.cast(pa.int8()), np.int8)
            else:
                values[o] = numbers(column, f"i{column.type.bit_width // 8}")
        return Rows(words[0], words[1] if len(words) > 1 else _NONE, values, floats)


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


def bucket(
    rows: Rows, panes: Any, low: int, high: int, bits: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The rows by pane and part of the key's hash, and where each (pane, part) begins."""
    spans = high - low + 1
    order = np.empty(rows.a.size, np.int32)
    starts = np.empty((spans << bits) + 1, np.int64)
    of = np.empty(rows.a.size, np.int32)
    shift = np.uint64(64 - bits)
    cells.bucket_rows(rows.a, rows.b, panes, low, spans, shift, starts, order, of)
    return order, starts


class NumberTable:
    """The table of one pane and one part of the keys."""

    def __init__(self, plan: NumberPlan, room: int = _LEAST) -> None:
        self.plan = plan
        self.slots = np.zeros(room * plan.width, np.uint64)
        self.meta = np.zeros(2, np.int64)

    @property
    def size(self) -> int:
        return int(self.meta[0])

    @property
    def room(self) -> int:
        return int(self.slots.size // self.plan.width)

    @property
    def used(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        return int(self.slots.nbytes)

    def reset(self) -> None:
        """Forget every key, and keep the room."""
        self.slots[:] = 0
        self.meta[:] = 0

    def add(self, order: Any, first: int, end: int, rows: Rows) -> None:
        """Take in the rows ``order[first:end]``."""
        plan = self.plan
        while True:
            first = cells.add_rows(
                order, first, end, rows.a, rows.b, rows.integers, rows.floats, plan.ops,
                self.slots, self.slots.view(np.float64), plan.width, self.meta,
            )  # fmt: skip
            if first == end:
                break
            larger = np.zeros(self.slots.size * (2 if self.room >= 1 << 14 else 4), np.uint64)
            cells.grow_cells(self.slots, larger, plan.width, plan.keys)
            self.slots = larger
        if self.meta[1]:
            raise StepError(f"{plan.aggregation.node.label}: bigint overflow in 'sum'")

    def columns(self, finished: bool) -> list[pa.Array]:
        """The keys and each aggregate, as results or as partials."""
        plan, size = self.plan, self.size
        words = np.empty((plan.width, size), np.uint64)
        cells.cells_out(self.slots, plan.width, plan.keys, words)
        out = [_typed(words[i], k.type, as_key=True) for i, k in enumerate(plan.aggregation.keys)]
        counts = words[plan.keys].view(np.int64)
        fields = plan.aggregation.result_schema if finished else plan.aggregation.partial_schema
        for i, (_, aggregate) in enumerate(plan.aggregation.node.aggregates):
            kind = fields.field(plan.keys + i).type
            if i not in plan.inputs:
                out.append(pa.array(counts))
                continue
            word = words[plan.keys + 1 + plan.inputs.index(i)]
            if aggregate.kind != "mean":
                out.append(_typed(word, kind))
            elif finished:
                out.append(pa.array(word.view(np.float64) / counts))
            else:
                parts = [pa.array(word.view(np.float64)), pa.array(counts)]
                out.append(pa.StructArray.from_arrays(parts, fields=list(kind)))
        return out


def _typed(words: Any, kind: pa.DataType, as_key: bool = False) -> pa.Array:
    """Words as values of a type again; a key of 32-bit floats is its bits."""
    if pa.types.is_float64(kind):
        return pa.array(words.view(np.float64))
    if pa.types.is_float32(kind):
        if as_key:
            return pa.array(words.astype(np.int32).view(np.float32))
        return pa.array(words.view(np.float64)).cast(kind)
    values = pa.array(words.view(np.int64))
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8()).cast(kind)
    if pa.types.is_date(kind):
        return values.cast(pa.int32()).cast(kind)
    return values if pa.types.is_int64(kind) else values.cast(kind)
