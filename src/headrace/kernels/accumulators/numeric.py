"""Aggregates that are a few numbers a group: counts, sums, extremes, means, moments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.errors import ExpressionError
from headrace.kernels.accumulators.protocol import Numbers
from headrace.kernels.columns import as_column, numbers, validity
from headrace.kernels.native import accumulate
from headrace.kernels.native.memory import cleared
from headrace.types import type_name


def grown(array: Numbers, size: int) -> Numbers:
    """The array with room for ``size`` groups, new ones zero."""
    if array.size >= size:
        return array
    larger = cleared(max(size, 2 * array.size, 64), array.dtype)
    larger[: array.size] = array
    return larger


class Count:
    """Records, or values that are not null."""

    nbytes = 0
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
        return as_column(self.counts[:size].copy())

    finish = partials


_ALL = np.zeros(0, np.bool_)


class Sum:
    """A sum of integers, which must stay a bigint, or of floating numbers."""

    nbytes = 0

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

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self.rows)

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        # 76 digits hold any sum that a job could ever add up, so that none wraps around.
        wide = columns[0].cast(pa.decimal256(76, self.result.scale))
        self.rows.append(pa.table({"g": groups, "v": wide}))
        if len(self.rows) > 16:
            self.rows = [self._summed()]

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        self.update(groups, size, [column])

    def _summed(self) -> pa.Table:
        table = pa.concat_tables(self.rows).group_by("g").aggregate([("v", "sum")])
        return pa.table({"g": table["g"], "v": table["v_sum"]})

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

    nbytes = 0

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

    nbytes = 0
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
        columns = [as_column(self.sums[:size].copy()), as_column(self.counts[:size].copy())]
        return pa.StructArray.from_arrays(columns, fields=list(self.partial))

    def finish(self, size: int) -> pa.Array:
        self.sums, self.counts = grown(self.sums, size), grown(self.counts, size)
        counts = self.counts[:size]
        return pa.array(self.sums[:size] / np.maximum(counts, 1), mask=counts == 0)


class Moments:
    """A sample variance or standard deviation."""

    nbytes = 0
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
