"""Aggregates of slices of a column: slice ``i`` is from ``starts[i]`` to before ``ends[i]``.

The same arithmetic, in the same order, as the aggregates by group have. ``valid`` is empty where
the column has no null.
"""

from __future__ import annotations

import math
from typing import Any

from numba import njit


@njit(nogil=True, cache=True)
def count(valid: Any, starts: Any, ends: Any, counts: Any) -> None:
    """How many values are not null."""
    for i in range(starts.size):
        found = 0
        for j in range(starts[i], ends[i]):
            found += valid[j]
        counts[i] = found


@njit(nogil=True, cache=True)
def add_integers(values: Any, valid: Any, starts: Any, ends: Any, sums: Any, counts: Any) -> bool:
    """Sums of 64-bit integers; true if one left the range of a bigint."""
    nulls, overflow = valid.size > 0, False
    for i in range(starts.size):
        total, found = 0, 0
        for j in range(starts[i], ends[i]):
            if nulls and not valid[j]:
                continue
            value = values[j]
            after = total + value
            overflow |= ((total ^ after) & (value ^ after)) < 0
            total = after
            found += 1
        sums[i], counts[i] = total, found
    return overflow


@njit(nogil=True, cache=True)
def add_floats(values: Any, valid: Any, starts: Any, ends: Any, sums: Any, counts: Any) -> None:
    """Sums of numbers as doubles."""
    nulls = valid.size > 0
    for i in range(starts.size):
        total, found = 0.0, ends[i] - starts[i]
        if nulls:
            found = 0
            for j in range(starts[i], ends[i]):
                if valid[j]:
                    total += float(values[j])
                    found += 1
        else:
            for j in range(starts[i], ends[i]):
                total += float(values[j])
        sums[i], counts[i] = total, found


@njit(nogil=True, cache=True)
def least_integers(
    values: Any, valid: Any, starts: Any, ends: Any, largest: bool, best: Any, seen: Any
) -> None:
    """The least (or largest) 64-bit integer."""
    nulls = valid.size > 0
    for i in range(starts.size):
        found, known = 0, False
        for j in range(starts[i], ends[i]):
            if nulls and not valid[j]:
                continue
            if not known or (values[j] > found if largest else values[j] < found):
                found, known = values[j], True
        best[i], seen[i] = found, known


@njit(nogil=True, cache=True)
def least_floats(
    values: Any, valid: Any, starts: Any, ends: Any, largest: bool, best: Any, seen: Any
) -> None:
    """The least (or largest) double, where NaN is above every number."""
    nulls = valid.size > 0
    for i in range(starts.size):
        found, known = 0.0, False
        for j in range(starts[i], ends[i]):
            if nulls and not valid[j]:
                continue
            value = values[j]
            if not known:
                found, known = value, True
            elif largest:
                if value > found or (math.isnan(value) and not math.isnan(found)):
                    found = value
            elif value < found or (math.isnan(found) and not math.isnan(value)):
                found = value
        best[i], seen[i] = found, known


@njit(nogil=True, cache=True)
def moments(
    values: Any, valid: Any, starts: Any, ends: Any, counts: Any, means: Any, squares: Any
) -> None:
    """Welford's count, mean and sum of squared differences."""
    nulls = valid.size > 0
    for i in range(starts.size):
        found, mean, square = 0, 0.0, 0.0
        for j in range(starts[i], ends[i]):
            if nulls and not valid[j]:
                continue
            value = float(values[j])
            found += 1
            delta = value - mean
            mean += delta / found
            square += delta * (value - mean)
        counts[i], means[i], squares[i] = found, mean, square
