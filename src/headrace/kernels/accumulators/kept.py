"""Aggregates that keep some of the records: first, last, top k, lists, distinct values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels.accumulators.protocol import Numbers
from headrace.kernels.accumulators.row_lists import RowLists
from headrace.kernels.columns import as_column, numbers, validity
from headrace.kernels.expressions.hashing import hash_columns
from headrace.kernels.group import Grouper
from headrace.kernels.order import order_key, sort_rows

SKETCH = 1024

Keep = Callable[[Numbers, list[pa.Array]], Numbers]
"""Which rows to keep of some groups' rows in input order, sorted by group."""


class Kept:
    """Aggregates that keep some of the rows themselves: first, last, top k, lists.

    Rows gather in input order and are cut down to those that may still matter whenever they have
    grown to twice what was left the last time.
    """

    def __init__(
        self,
        kinds: list[pa.DataType],
        keep: Keep,
        result: pa.DataType,
        finish: Callable[[pa.Array], pa.Array],
        drop_null: int | None,
    ) -> None:
        self.kinds, self.keep, self.result = kinds, keep, result
        self.lists = RowLists(kinds)
        self.partial = self.lists.type
        self.drop_null = drop_null
        self._finish = finish
        self.chunks: list[tuple[Numbers, list[pa.Array]]] = []
        self.held = 0
        self.nbytes = 0
        self.limit = 1 << 16

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        arrays = list(columns)
        if self.drop_null is not None and arrays[self.drop_null].null_count:
            mask = arrays[self.drop_null].is_valid()
            groups = groups[mask.to_numpy(zero_copy_only=False)]
            arrays = [a.filter(mask) for a in arrays]
        self._take(groups, arrays)

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        self._take(*self.lists.unpacked(groups, column))

    def _take(self, groups: Numbers, arrays: list[pa.Array]) -> None:
        if not groups.size:
            return
        self.chunks.append((groups.copy(), arrays))
        self.held += groups.size
        self.nbytes += groups.nbytes + sum(a.nbytes for a in arrays)
        if self.held > self.limit:
            self._compact()
            self.limit = max(1 << 16, 2 * self.held)

    def _compact(self) -> tuple[Numbers, list[pa.Array]]:
        if not self.chunks:
            return np.zeros(0, np.int64), [pa.array([], k) for k in self.kinds]
        groups = np.concatenate([g for g, _ in self.chunks])
        arrays = [pa.concat_arrays([c[i] for _, c in self.chunks]) for i in range(len(self.kinds))]
        rows = self.keep(groups, arrays)
        groups = groups[rows]
        arrays = [a.take(as_column(rows)) for a in arrays]
        self.chunks = [(groups, arrays)]
        self.held = groups.size
        self.nbytes = groups.nbytes + sum(a.nbytes for a in arrays)
        return groups, arrays

    def partials(self, size: int) -> pa.Array:
        groups, arrays = self._compact()
        return self.lists.packed(groups, size, arrays)

    def finish(self, size: int) -> pa.Array:
        return self._finish(self.partials(size))


def by_group(groups: Numbers) -> Numbers:
    return np.argsort(groups, kind="stable")


def runs_of(groups: Numbers) -> tuple[Numbers, Numbers]:
    """Where each group begins and ends in groups that are sorted."""
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if groups.size else groups[:0]
    return starts, np.r_[starts[1:], groups.size] if groups.size else groups[:0]


def keep_first(groups: Numbers, arrays: list[pa.Array]) -> Numbers:
    order = by_group(groups)
    return order[runs_of(groups[order])[0]]


def keep_last(groups: Numbers, arrays: list[pa.Array]) -> Numbers:
    order = by_group(groups)
    return order[runs_of(groups[order])[1] - 1]


def keep_ranked(column: int, last: bool) -> Keep:
    """The row of each group with the least (or largest) value of a column; ties by input order."""

    def keep(groups: Numbers, arrays: list[pa.Array]) -> Numbers:
        order = sort_rows([pa.array(groups), order_key(arrays[column])], [False, False])
        starts, ends = runs_of(groups[order])
        return order[ends - 1] if last else order[starts]

    return keep


def keep_top(k: int, by: int) -> Keep:
    """The ``k`` rows of each group with the largest value of column ``by``, largest first."""

    def keep(groups: Numbers, arrays: list[pa.Array]) -> Numbers:
        keys = [pa.array(groups), order_key(arrays[by])]
        descending = [False, True]
        if by:
            keys.append(order_key(arrays[0]))
            descending.append(False)
        order = sort_rows(keys, descending)
        return order[_rank(groups[order]) < k]

    return keep


def keep_best(k: int, columns: int, down: Sequence[bool]) -> Keep:
    """The first ``k`` whole records of each group in the order of the columns after the first."""

    def keep(groups: Numbers, arrays: list[pa.Array]) -> Numbers:
        ranks = [order_key(a) for a in arrays[columns:]]
        order = sort_rows([pa.array(groups), *ranks], [False, *down])
        return order[_rank(groups[order]) < k]

    return keep


def first_fields(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Lists of records without the columns they were ranked by."""

    def cut(lists: pa.Array) -> pa.Array:
        fields = lists.values.flatten()[: kind.num_fields]
        records = pa.StructArray.from_arrays(fields, fields=list(kind))
        return pa.ListArray.from_arrays(lists.offsets, records)

    return cut


def keep_sketch(groups: Numbers, arrays: list[pa.Array]) -> Numbers:
    hashes = numbers(arrays[0], np.int64).view(np.uint64)
    order = np.lexsort((hashes, groups))
    g, h = groups[order], hashes[order]
    fresh = np.r_[True, (g[1:] != g[:-1]) | (h[1:] != h[:-1])] if g.size else np.zeros(0, np.bool_)
    order, g = order[fresh], g[fresh]
    return order[_rank(g) < SKETCH]


def _rank(groups: Numbers) -> Numbers:
    """The place of each row within its group, groups being sorted."""
    starts, ends = runs_of(groups)
    return np.arange(groups.size) - np.repeat(starts, ends - starts)


def element_at(index: int, field: int | None) -> Callable[[pa.Array], pa.Array]:
    def take(lists: pa.Array) -> pa.Array:
        offsets = np.asarray(lists.offsets)
        empty = np.diff(offsets) == 0
        rows = pa.array(np.where(empty, 0, offsets[:-1] + index), mask=empty)
        values = lists.values if field is None else lists.values.field(field)
        return values.take(rows)

    return take


def _estimate(lists: pa.Array) -> pa.Array:
    offsets = np.asarray(lists.offsets)
    sizes = np.diff(offsets).astype(np.int64)
    hashes = numbers(lists.values, np.int64).view(np.uint64)
    full = sizes >= SKETCH
    largest = hashes[offsets[1:][full] - 1].astype(np.float64) / 2.0**64
    sizes[full] = np.rint((SKETCH - 1) / largest).astype(np.int64)
    return pa.array(sizes)


class Sketch(Kept):
    """An approximate distinct count: the least hashes of each group."""

    def __init__(self) -> None:
        super().__init__([pa.int64()], keep_sketch, pa.int64(), _estimate, None)

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        valid = validity(columns[0])
        hashes = hash_columns([columns[0]], groups.size).view(np.int64)
        if valid.size:
            groups, hashes = groups[valid], hashes[valid]
        self._take(groups, [pa.array(hashes)])


class Distinct:
    """An exact distinct count: every (group, value) once."""

    result: pa.DataType = pa.int64()

    def __init__(self, kinds: list[pa.DataType], *, structs: bool = False) -> None:
        self.lists = RowLists(kinds, structs=structs)
        self.partial = self.lists.type
        self.seen = Grouper([pa.int64(), *kinds])

    @property
    def nbytes(self) -> int:
        return self.seen.nbytes

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        arrays = list(columns)
        for column in columns:
            if column.null_count:
                mask = columns[0].is_valid()
                for other in columns[1:]:
                    mask = pc.and_(mask, other.is_valid())
                groups = groups[mask.to_numpy(zero_copy_only=False)]
                arrays = [a.filter(mask) for a in arrays]
                break
        if groups.size:
            self.seen.groups([pa.array(groups), *arrays])

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        parents, arrays = self.lists.unpacked(groups, column)
        self.update(parents, size, arrays)

    def partials(self, size: int) -> pa.Array:
        owners, *values = self.seen.keys()
        groups = numbers(owners, np.int64)
        order = by_group(groups)
        return self.lists.packed(groups, size, [v.take(as_column(order)) for v in values])

    def finish(self, size: int) -> pa.Array:
        owners = numbers(self.seen.keys()[0], np.int64)
        return pa.array(np.bincount(owners, minlength=size).astype(np.int64))


class DistinctRows(Distinct):
    """Every different row of a group, nulls too, as a list of records."""

    def __init__(self, kinds: list[pa.DataType]) -> None:
        super().__init__(kinds, structs=True)
        self.result = self.partial

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        if groups.size:
            self.seen.groups([pa.array(groups), *columns])

    def finish(self, size: int) -> pa.Array:
        return self.partials(size)


def list_field(lists: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(lists.offsets, lists.values.field(0))
