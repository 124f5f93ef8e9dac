"""Aggregates of windows that are slices of rows in order.

They are those of any other window: numbers go through native loops that fill the states of the
same accumulators, and all else through the accumulators themselves, each window a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.aggregates import Aggregate
from headrace.errors import ExpressionError
from headrace.kernels.accumulators import Accumulator
from headrace.kernels.accumulators.numeric import Count, Extreme, Mean, Moments, Sum
from headrace.kernels.columns import as_column
from headrace.kernels.native import slices
from headrace.kernels.scans.kept import Taken

_MOST = 1 << 18
"""Of windows that overlap, so many rows are written out at once."""


def of_slices(
    aggregate: Aggregate,
    make: Callable[[], Accumulator],
    columns: Sequence[Taken],
    starts: Any,
    ends: Any,
) -> pa.Array:
    """The aggregate of each slice of some columns."""
    if aggregate.kind in ("first", "last") and aggregate.by is None:
        return columns[0].array.take(as_column(starts if aggregate.kind == "first" else ends - 1))
    states = make()
    if isinstance(states, Count):
        states.counts = ends - starts
        if columns and columns[0].valid.size:
            slices.count(columns[0].valid, starts, ends, states.counts)
        return states.finish(starts.size)
    if len(columns) == 1 and columns[0].is_numbers and _reckoned(states, columns[0], starts, ends):
        return states.finish(starts.size)
    return _grouped(make, columns, starts, ends)


def _reckoned(states: Accumulator, column: Taken, starts: Any, ends: Any) -> bool:
    """Fill the states of an accumulator that is a few numbers; false if it is not one."""
    count = starts.size
    rows = (column.values, column.valid, starts, ends)
    if isinstance(states, Sum) and states.whole:
        states.sums, states.counts = np.empty(count, np.int64), np.empty(count, np.int64)
        if slices.add_integers(*rows, states.sums, states.counts):
            raise ExpressionError("bigint overflow in 'sum'; cast the column to double first")
    elif isinstance(states, (Sum, Mean)):
        states.sums, states.counts = np.empty(count), np.empty(count, np.int64)
        slices.add_floats(*rows, states.sums, states.counts)
    elif isinstance(states, Extreme):
        states.best, states.seen = np.empty(count, column.values.dtype), np.empty(count, np.bool_)
        least = slices.least_floats if states.floating else slices.least_integers
        least(*rows, states.largest, states.best, states.seen)
    elif isinstance(states, Moments):
        states.counts = np.empty(count, np.int64)
        states.means, states.squares = np.empty(count), np.empty(count)
        slices.moments(*rows, states.counts, states.means, states.squares)
    else:
        return False
    return True


def _grouped(
    make: Callable[[], Accumulator], columns: Sequence[Taken], starts: Any, ends: Any
) -> pa.Array:
    """Any aggregate: windows are written out, some at a time, and each is a group."""
    found = []
    past = np.cumsum(ends - starts)
    begin = 0
    while begin < starts.size:
        done = past[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(past, done + _MOST, side="right")))
        lengths = (ends - starts)[begin:end]
        before = np.cumsum(lengths) - lengths
        rows = np.arange(int(lengths.sum())) + np.repeat(starts[begin:end] - before, lengths)
        groups, states = np.repeat(np.arange(end - begin), lengths), make()
        states.update(groups, end - begin, [c.array.take(as_column(rows)) for c in columns])
        found.append(states.finish(end - begin))
        begin = end
    return found[0] if len(found) == 1 else pa.concat_arrays(found)
