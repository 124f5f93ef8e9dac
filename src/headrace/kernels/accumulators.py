"""How each aggregate is kept: columns of numbers where it can be, kept rows where it must be.

An accumulator holds one state for each group of a ``Grouper``. It takes input (``update``) or
partials of its own making (``merge``), and gives partials or the result. Neither the number of
bundles nor where they were cut changes a result, except the last digits of floating sums.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ExpressionError, PlanError, StepError
from headrace.kernels.expressions.hashing import hash_columns, hashable
from headrace.kernels.expressions.kernel import is_number, numbers, validity
from headrace.kernels.group import Grouper, is_fixed
from headrace.kernels.native import accumulate
from headrace.kernels.order import order_key, sort_rows
from headrace.kernels.rows import typed_array
from headrace.types import to_type, type_name

Numbers = np.ndarray[Any, Any]
SKETCH = 1024


class Accumulator(Protocol):
    """The states of one aggregate for every group."""

    partial: pa.DataType
    result: pa.DataType

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        """Take in records: their groups, and the aggregate's input columns."""

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        """Take in partials: their groups, and a column of type ``partial``."""

    def partials(self, size: int) -> pa.Array:
        """The state of every group, to be merged elsewhere."""

    def finish(self, size: int) -> pa.Array:
        """The result for every group."""


def grown(array: Numbers, size: int) -> Numbers:
    """The array with room for ``size`` groups, new ones zero."""
    if array.size >= size:
        return array
    larger = np.zeros(max(size, 2 * array.size, 64), array.dtype)
    larger[: array.size] = array
    return larger


class Count:
    """Records, or values that are not null."""

    partial = result = pa.int64()

    def __init__(self) -> None:
        self.counts = np.zeros(0, np.int64)

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        self.counts = grown(self.counts, size)
        valid = validity(columns[0]) if columns else _ALL
        accumulate.add_counts(groups, valid, self.counts)

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        self.counts = grown(self.counts, size)
        np.add.at(self.counts, groups, numbers(column, np.int64))

    def partials(self, size: int) -> pa.Array:
        self.counts = grown(self.counts, size)
        return pa.array(self.counts[:size].copy())

    finish = partials


_ALL = np.zeros(0, np.bool_)


class Sum:
    """A sum of integers, which must stay a bigint, or of floating numbers."""

    def __init__(self, kind: pa.DataType) -> None:
        self.whole = bool(pa.types.is_integer(kind))
        self.partial = self.result = pa.int64() if self.whole else pa.float64()
        self.dtype = np.int64 if self.whole else np.float64
        self.sums = np.zeros(0, self.dtype)
        self.counts = np.zeros(0, np.int64)

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        self.sums, self.counts = grown(self.sums, size), grown(self.counts, size)
        values, valid = numbers(columns[0], columns[0].type.to_pandas_dtype()), validity(columns[0])
        add = accumulate.add_integers if self.whole else accumulate.add_floats
        if add(groups, values, valid, self.sums, self.counts):
            raise ExpressionError("bigint overflow in 'sum'; cast the column to double first")

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        self.update(groups, size, [column])

    def partials(self, size: int) -> pa.Array:
        self.sums, self.counts = grown(self.sums, size), grown(self.counts, size)
        return pa.array(self.sums[:size].copy(), mask=self.counts[:size] == 0)

    finish = partials


class DecimalSum:
    """A sum of decimals."""

    def __init__(self, kind: pa.DataType) -> None:
        self.partial = self.result = pa.decimal128(min(38, kind.precision + 10), kind.scale)
        self.rows: list[pa.Table] = []

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        self.rows.append(
            pa.table({"g": groups, "v": columns[0].cast(pa.decimal128(38, self.result.scale))})
        )
        if len(self.rows) > 16:
            self.rows = [self._summed()]

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        self.update(groups, size, [column])

    def _summed(self) -> pa.Table:
        table = pa.concat_tables(self.rows).group_by("g").aggregate([("v", "sum")])
        return pa.table(
            {"g": table["g"], "v": table["v_sum"].cast(pa.decimal128(38, self.result.scale))}
        )

    def partials(self, size: int) -> pa.Array:
        if not self.rows:
            return pa.nulls(size, self.result)
        table = self._summed()
        places = np.full(size, -1, np.int64)
        places[table["g"].to_numpy()] = np.arange(len(table))
        try:
            values = table["v"].combine_chunks().cast(self.result)
        except pa.ArrowInvalid:
            raise ExpressionError(f"{type_name(self.result)} overflow in 'sum'") from None
        return values.take(pa.array(places, mask=places < 0))

    finish = partials


class Extreme:
    """The least or largest number, date, time or truth value."""

    def __init__(self, kind: pa.DataType, largest: bool) -> None:
        self.partial = self.result = kind
        self.largest = largest
        self.floating = bool(pa.types.is_floating(kind))
        self.best = np.zeros(0, np.float64 if self.floating else np.int64)
        self.seen = np.zeros(0, np.bool_)

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        self.best, self.seen = grown(self.best, size), grown(self.seen, size)
        column, valid = columns[0], validity(columns[0])
        if self.floating:
            values = numbers(column, column.type.to_pandas_dtype()).astype(np.float64, copy=False)
            keep = accumulate.keep_least_float
        else:
            values = _integers(column)
            keep = accumulate.keep_least
        keep(groups, values, valid, self.best, self.seen, self.largest)

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        self.update(groups, size, [column])

    def partials(self, size: int) -> pa.Array:
        self.best, self.seen = grown(self.best, size), grown(self.seen, size)
        values = pa.array(self.best[:size].copy(), mask=~self.seen[:size])
        if pa.types.is_boolean(self.result):
            return values.cast(pa.int8()).cast(pa.bool_())
        if pa.types.is_date(self.result):
            return values.cast(pa.int32()).cast(self.result)
        return values.cast(self.result)

    finish = partials


def _integers(column: pa.Array) -> Numbers:
    kind = column.type
    if pa.types.is_boolean(kind):
        return numbers(column.cast(pa.int8()), np.int8).astype(np.int64)
    return numbers(column, f"i{kind.bit_width // 8}").astype(np.int64, copy=False)


class Mean:
    """A mean, from a sum and a count."""

    partial = pa.struct([("sum", pa.float64()), ("count", pa.int64())])
    result = pa.float64()

    def __init__(self) -> None:
        self.sums, self.counts = np.zeros(0, np.float64), np.zeros(0, np.int64)

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        self.sums, self.counts = grown(self.sums, size), grown(self.counts, size)
        values = numbers(columns[0], columns[0].type.to_pandas_dtype())
        accumulate.add_floats(groups, values, validity(columns[0]), self.sums, self.counts)

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        self.sums, self.counts = grown(self.sums, size), grown(self.counts, size)
        sums, counts = column.flatten()
        accumulate.merge_means(
            groups, numbers(sums, np.float64), numbers(counts, np.int64), self.sums, self.counts
        )

    def partials(self, size: int) -> pa.Array:
        self.sums, self.counts = grown(self.sums, size), grown(self.counts, size)
        columns = [pa.array(self.sums[:size].copy()), pa.array(self.counts[:size].copy())]
        return pa.StructArray.from_arrays(columns, fields=list(self.partial))

    def finish(self, size: int) -> pa.Array:
        self.sums, self.counts = grown(self.sums, size), grown(self.counts, size)
        counts = self.counts[:size]
        return pa.array(self.sums[:size] / np.maximum(counts, 1), mask=counts == 0)


class Moments:
    """A sample variance or standard deviation."""

    partial = pa.struct([("n", pa.int64()), ("mean", pa.float64()), ("m2", pa.float64())])
    result = pa.float64()

    def __init__(self, root: bool) -> None:
        self.root = root
        self.counts = np.zeros(0, np.int64)
        self.means, self.squares = np.zeros(0, np.float64), np.zeros(0, np.float64)

    def _grow(self, size: int) -> None:
        self.counts = grown(self.counts, size)
        self.means, self.squares = grown(self.means, size), grown(self.squares, size)

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        self._grow(size)
        values = numbers(columns[0], columns[0].type.to_pandas_dtype())
        accumulate.add_moments(
            groups, values, validity(columns[0]), self.counts, self.means, self.squares
        )

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        self._grow(size)
        n, mean, m2 = column.flatten()
        accumulate.merge_moments(
            groups, numbers(n, np.int64), numbers(mean, np.float64), numbers(m2, np.float64),
            self.counts, self.means, self.squares,
        )  # fmt: skip

    def partials(self, size: int) -> pa.Array:
        self._grow(size)
        columns = [pa.array(a[:size].copy()) for a in (self.counts, self.means, self.squares)]
        return pa.StructArray.from_arrays(columns, fields=list(self.partial))

    def finish(self, size: int) -> pa.Array:
        self._grow(size)
        counts = self.counts[:size]
        values = self.squares[:size] / np.maximum(counts - 1, 1)
        return pa.array(np.sqrt(values) if self.root else values, mask=counts < 2)


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
        self.row = (
            kinds[0]
            if len(kinds) == 1
            else pa.struct([pa.field(str(i), k) for i, k in enumerate(kinds)])
        )
        self.partial = pa.list_(self.row)
        self.drop_null = drop_null
        self._finish = finish
        self.chunks: list[tuple[Numbers, list[pa.Array]]] = []
        self.held = 0
        self.limit = 1 << 16

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        arrays = list(columns)
        if self.drop_null is not None and arrays[self.drop_null].null_count:
            mask = arrays[self.drop_null].is_valid()
            groups = groups[mask.to_numpy(zero_copy_only=False)]
            arrays = [a.filter(mask) for a in arrays]
        self._take(groups, arrays)

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        offsets = np.asarray(column.offsets)
        parents = np.repeat(groups, np.diff(offsets))
        flat = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        self._take(parents, flat.flatten() if len(self.kinds) > 1 else [flat])

    def _take(self, groups: Numbers, arrays: list[pa.Array]) -> None:
        if not groups.size:
            return
        self.chunks.append((groups.copy(), arrays))
        self.held += groups.size
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
        arrays = [a.take(pa.array(rows)) for a in arrays]
        self.chunks = [(groups, arrays)]
        self.held = groups.size
        return groups, arrays

    def partials(self, size: int) -> pa.Array:
        groups, arrays = self._compact()
        offsets = np.zeros(size + 1, np.int32)
        np.cumsum(np.bincount(groups, minlength=size), out=offsets[1:])
        flat = (
            arrays[0]
            if len(arrays) == 1
            else pa.StructArray.from_arrays(arrays, fields=list(self.row))
        )
        return pa.ListArray.from_arrays(pa.array(offsets), flat, type=self.partial)

    def finish(self, size: int) -> pa.Array:
        return self._finish(self.partials(size))


def _by_group(groups: Numbers) -> Numbers:
    return np.argsort(groups, kind="stable")


def _runs(groups: Numbers) -> tuple[Numbers, Numbers]:
    """Where each group begins and ends in groups that are sorted."""
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if groups.size else groups[:0]
    return starts, np.r_[starts[1:], groups.size] if groups.size else groups[:0]


def keep_first(groups: Numbers, arrays: list[pa.Array]) -> Numbers:
    order = _by_group(groups)
    return order[_runs(groups[order])[0]]


def keep_last(groups: Numbers, arrays: list[pa.Array]) -> Numbers:
    order = _by_group(groups)
    return order[_runs(groups[order])[1] - 1]


def keep_ranked(column: int, last: bool) -> Keep:
    """The row of each group with the least (or largest) value of a column; ties by input order."""

    def keep(groups: Numbers, arrays: list[pa.Array]) -> Numbers:
        order = sort_rows([pa.array(groups), order_key(arrays[column])], [False, False])
        starts, ends = _runs(groups[order])
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


def keep_sketch(groups: Numbers, arrays: list[pa.Array]) -> Numbers:
    hashes = numbers(arrays[0], np.int64).view(np.uint64)
    order = np.lexsort((hashes, groups))
    g, h = groups[order], hashes[order]
    fresh = np.r_[True, (g[1:] != g[:-1]) | (h[1:] != h[:-1])] if g.size else np.zeros(0, np.bool_)
    order, g = order[fresh], g[fresh]
    return order[_rank(g) < SKETCH]


def _rank(groups: Numbers) -> Numbers:
    """The place of each row within its group, groups being sorted."""
    starts, ends = _runs(groups)
    return np.arange(groups.size) - np.repeat(starts, ends - starts)


def _element(index: int, field: int | None) -> Callable[[pa.Array], pa.Array]:
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

    result = pa.int64()

    def __init__(self, kinds: list[pa.DataType]) -> None:
        self.kinds = kinds
        self.row = (
            kinds[0]
            if len(kinds) == 1
            else pa.struct([pa.field(str(i), k) for i, k in enumerate(kinds)])
        )
        self.partial = pa.list_(self.row)
        self.seen = Grouper([pa.int64(), *kinds])

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
        offsets = np.asarray(column.offsets)
        parents = np.repeat(groups, np.diff(offsets))
        flat = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        self.update(parents, size, flat.flatten() if len(self.kinds) > 1 else [flat])

    def partials(self, size: int) -> pa.Array:
        owners, *values = self.seen.keys()
        groups = numbers(owners, np.int64)
        order = _by_group(groups)
        offsets = np.zeros(size + 1, np.int32)
        np.cumsum(np.bincount(groups, minlength=size), out=offsets[1:])
        values = [v.take(pa.array(order)) for v in values]
        flat = (
            values[0]
            if len(values) == 1
            else pa.StructArray.from_arrays(values, fields=list(self.row))
        )
        return pa.ListArray.from_arrays(pa.array(offsets), flat, type=self.partial)

    def finish(self, size: int) -> pa.Array:
        owners = numbers(self.seen.keys()[0], np.int64)
        return pa.array(np.bincount(owners, minlength=size).astype(np.int64))


class States:
    """A state in Python for each group, for functions people write. States travel pickled."""

    partial = pa.binary()

    def __init__(
        self,
        result: pa.DataType,
        partial: Callable[..., Any],
        merge: Callable[[Any, Any], Any],
        finish: Callable[[Any], Any],
        label: str,
    ) -> None:
        self.result, self.label = result, label
        self._partial, self._merge, self._finish = partial, merge, finish
        self.states: dict[int, Any] = {}

    def _add(self, group: int, state: Any) -> None:
        known = self.states
        known[group] = self._merge(known[group], state) if group in known else state

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        order = _by_group(groups)
        ordered = groups[order]
        columns = [c.take(pa.array(order)) for c in columns]
        for start, end in zip(*_runs(ordered), strict=True):
            parts = [c.slice(start, end - start) for c in columns]
            self._add(int(ordered[start]), self._partial(*parts))

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        for group, state in zip(groups.tolist(), column.to_pylist(), strict=True):
            if state is not None:
                self._add(group, pickle.loads(state))

    def partials(self, size: int) -> pa.Array:
        states = self.states
        return pa.array(
            [pickle.dumps(states[g]) if g in states else None for g in range(size)], self.partial
        )

    def finish(self, size: int) -> pa.Array:
        states = self.states
        results = [self._finish(states[g]) if g in states else None for g in range(size)]
        try:
            return typed_array(results, self.result)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise StepError(
                f"{self.label}: the result does not fit {type_name(self.result)}: {error}"
            ) from None


def accumulator(aggregate: Any, kinds: list[pa.DataType]) -> Accumulator:
    """The accumulator of an aggregate whose inputs (and ``by``, last) have these types."""
    kind, name = (kinds[0] if kinds else None), aggregate.kind
    if name == "count":
        return Count()
    if name in ("sum", "mean", "var", "std"):
        if not is_number(kind):
            raise PlanError(f"{aggregate} takes numbers, not {type_name(kind)}")
        if pa.types.is_decimal(kind) and name != "sum":
            raise PlanError(f"{aggregate} of a decimal is not supported; cast it to double")
        if name == "sum":
            return DecimalSum(kind) if pa.types.is_decimal(kind) else Sum(kind)
        return Mean() if name == "mean" else Moments(root=name == "std")
    if name in ("min", "max"):
        if pa.types.is_nested(kind):
            raise PlanError(f"{aggregate} takes values with an order, not {type_name(kind)}")
        if is_fixed(kind):
            return Extreme(kind, name == "max")
        return Kept([kind], keep_ranked(0, name == "max"), kind, _element(0, None), 0)
    if aggregate.by is not None and pa.types.is_nested(kinds[-1]):
        raise PlanError(f"{aggregate}: by= takes values with an order, not {type_name(kinds[-1])}")
    if name in ("first", "last"):
        if aggregate.by is None:
            return Kept(
                [kind], keep_first if name == "first" else keep_last, kind, _element(0, None), None
            )
        return Kept(kinds, keep_ranked(1, name == "last"), kind, _element(0, 0), 1)
    if name == "count_distinct":
        return Distinct(kinds)
    if name == "approx_distinct":
        if not hashable(kind):
            raise PlanError(f"{aggregate} does not take {type_name(kind)}")
        return Sketch()
    if name == "collect":
        return Kept([kind], lambda g, a: _by_group(g), pa.list_(kind), lambda lists: lists, 0)
    if name == "top_k":
        by = len(kinds) - 1
        values = (lambda lists: lists) if by == 0 else _list_field
        return Kept(kinds, keep_top(aggregate.k, by), pa.list_(kind), values, by)
    if name == "user":
        user = aggregate.user
        kind = to_type(user.returns)
        return States(kind, user.partial, user.merge, user.finish, repr(aggregate))
    raise AssertionError(name)


def _list_field(lists: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(lists.offsets, lists.values.field(0))
