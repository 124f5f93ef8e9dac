"""Order: which row comes before which, the same on every engine.

Nulls come first in ascending order and last in descending order, and NaN is above every number:
Spark's order, which Arrow's own sort does not follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PlanError
from headrace.kernels.columns import as_column, numbers, validity
from headrace.kernels.group import Grouper, is_fixed, key_words
from headrace.kernels.native import hash_order
from headrace.types import type_name


def sortable(kind: pa.DataType, where: str) -> None:
    """Refuse a type that has no order."""
    if pa.types.is_nested(kind):
        raise PlanError(f"{where}: a {type_name(kind)} has no order; use one of its parts")


def order_key(array: pa.Array) -> pa.Array:
    """A column that Arrow sorts in our order: floats become integers of the same order."""
    if not pa.types.is_floating(array.type):
        return array
    values = numbers(array, array.type.to_pandas_dtype()).astype(np.float64) + 0.0
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    ranked = np.where(bits < 0, np.int64(-(2**63)) - bits - 1, bits)
    valid = validity(array)
    return pa.array(ranked, mask=~valid if valid.size else None)


def sort_rows(keys: Sequence[pa.Array], descending: Sequence[bool]) -> np.ndarray[Any, Any]:
    """Row numbers in order: a stable sort by several columns."""
    rows = len(keys[0])
    names = [str(i) for i in range(2 * len(keys))]
    columns: list[pa.Array] = []
    order: list[tuple[str, str]] = []
    for key, down in zip(keys, descending, strict=True):
        if key.null_count:
            # Arrow puts nulls at one end for all keys: a flag column places them per key.
            order.append((names[len(columns)], "descending" if not down else "ascending"))
            columns.append(key.is_null().cast(pa.int8()))
        order.append((names[len(columns)], "descending" if down else "ascending"))
        columns.append(key)
    if rows == 0:
        return np.zeros(0, np.int64)
    table = pa.Table.from_arrays(columns, names=names[: len(columns)])
    return np.asarray(pc.sort_indices(table, sort_keys=order)).astype(np.int64)


def by_hash(hashes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Row numbers in the order of their hashes; those of one hash stay in the order they are in."""
    bits = max(1, hashes.size.bit_length())
    order, starts = np.empty(hashes.size, np.int64), np.empty((1 << bits) + 1, np.int64)
    if hash_order.order_by_hash(hashes, np.uint64(64 - bits), starts, order):
        return order
    return np.argsort(hashes, kind="stable")


def first_rows(
    keys: Sequence[pa.Array], descending: Sequence[bool], count: int
) -> np.ndarray[Any, Any]:
    """The first rows that ``sort_rows`` gives; most are told by the first key not to be of them."""
    key = keys[0]
    if not 0 < 2 * count < len(key) or key.null_count or not is_fixed(key.type):
        return sort_rows(keys, descending)[:count]
    values = key_words(key)
    if descending[0]:
        edge = np.partition(values, values.size - count)[values.size - count]
        rows = np.flatnonzero(values >= edge)
    else:
        edge = np.partition(values, count - 1)[count - 1]
        rows = np.flatnonzero(values <= edge)
    some = as_column(rows)
    return rows[sort_rows([k.take(some) for k in keys], descending)[:count]]


class Top:
    """The first ``k`` rows of each key, in an order, of the bundles seen so far."""

    def __init__(
        self,
        schema: pa.Schema,
        k: int,
        order: Sequence[tuple[Callable[[pa.RecordBatch], pa.Array], bool]],
        keys: Sequence[str],
    ) -> None:
        self.schema, self.k, self.order = schema, k, order
        self.keys = list(keys)
        self.pending: list[pa.RecordBatch] = []
        self.held = 0
        self.limit = max(1 << 16, 4 * k)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in a bundle."""
        if batch.num_rows == 0:
            return
        self.pending.append(batch)
        self.held += batch.num_rows
        if self.held > self.limit:
            kept = self.bundle()
            self.limit = max(1 << 16, 4 * self.k, 2 * kept.num_rows)

    def bundle(self) -> pa.RecordBatch:
        """The rows that are left, by key and then in order."""
        if not self.pending:
            return pa.RecordBatch.from_pylist([], self.schema)
        batch = pa.concat_batches(self.pending)
        ranks = [order_key(compute(batch)) for compute, _ in self.order]
        flags = [down for _, down in self.order]
        if self.keys:
            grouper = Grouper([self.schema.field(n).type for n in self.keys])
            groups, _ = grouper.groups([batch.column(n) for n in self.keys])
            rows = sort_rows([pa.array(groups), *ranks], [False, *flags])
            owners = groups[rows]
            starts = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
            sizes = np.diff(np.r_[starts, owners.size])
            rows = rows[np.arange(owners.size) - np.repeat(starts, sizes) < self.k]
        else:
            rows = first_rows(ranks, flags, self.k)
        kept = batch.take(pa.array(rows))
        self.pending, self.held = [kept], kept.num_rows
        return kept
