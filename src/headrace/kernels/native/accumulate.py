"""Folding a column into one number a group: sums, extremes, moments.

``groups[i]`` is the group of row ``i``; ``valid`` is empty where the column has no null.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def add_counts(groups: Any, valid: Any, counts: Any) -> None:
    """Count the valid rows of each group."""
    nulls = valid.size > 0
    for i in range(groups.size):
        if not nulls or valid[i]:
            counts[groups[i]] += 1


@njit(nogil=True, cache=True)
def add_integers(groups: Any, values: Any, valid: Any, sums: Any, counts: Any) -> bool:
    """Add 64-bit integers; true if one sum left the range of a bigint."""
    nulls = valid.size > 0
    overflow = False
    for i in range(groups.size):
        if nulls and not valid[i]:
            continue
        g = groups[i]
        before = sums[g]
        value = np.int64(values[i])
        after = before + value
        if (before >= 0) == (value >= 0) and (after >= 0) != (before >= 0):
            overflow = True
        sums[g] = after
        counts[g] += 1
    return overflow


@njit(nogil=True, cache=True)
def add_floats(groups: Any, values: Any, valid: Any, sums: Any, counts: Any) -> None:
    """Add numbers as doubles, and count them."""
    nulls = valid.size > 0
    for i in range(groups.size):
        if nulls and not valid[i]:
            continue
        g = groups[i]
        sums[g] += np.float64(values[i])
        counts[g] += 1


@njit(nogil=True, cache=True)
def merge_means(groups: Any, sums_in: Any, counts_in: Any, sums: Any, counts: Any) -> None:
    """Add partial sums and partial counts."""
    for i in range(groups.size):
        g = groups[i]
        sums[g] += sums_in[i]
        counts[g] += counts_in[i]


@njit(nogil=True, cache=True)
def keep_least(groups: Any, values: Any, valid: Any, least: Any, seen: Any, largest: bool) -> None:
    """The least (or largest) 64-bit integer of each group."""
    nulls = valid.size > 0
    for i in range(groups.size):
        if nulls and not valid[i]:
            continue
        g = groups[i]
        value = values[i]
        if not seen[g] or (value > least[g] if largest else value < least[g]):
            least[g] = value
            seen[g] = True


@njit(nogil=True, cache=True)
def keep_least_float(
    groups: Any, values: Any, valid: Any, least: Any, seen: Any, largest: bool
) -> None:
    """The least (or largest) double of each group, where NaN is above every number."""
    nulls = valid.size > 0
    for i in range(groups.size):
        if nulls and not valid[i]:
            continue
        g = groups[i]
        value = values[i]
        if not seen[g]:
            least[g] = value
            seen[g] = True
        elif largest:
            if value > least[g] or (math.isnan(value) and not math.isnan(least[g])):
                least[g] = value
        elif value < least[g] or (math.isnan(least[g]) and not math.isnan(value)):
            least[g] = value


@njit(nogil=True, cache=True)
def add_moments(
    groups: Any, values: Any, valid: Any, counts: Any, means: Any, squares: Any
) -> None:
    """Welford's running count, mean and sum of squared differences."""
    nulls = valid.size > 0
    for i in range(groups.size):
        if nulls and not valid[i]:
            continue
        g = groups[i]
        value = np.float64(values[i])
        counts[g] += 1
        delta = value - means[g]
        means[g] += delta / counts[g]
        squares[g] += delta * (value - means[g])


@njit(nogil=True, cache=True)
def merge_moments(
    groups: Any,
    counts_in: Any,
    means_in: Any,
    squares_in: Any,
    counts: Any,
    means: Any,
    squares: Any,
) -> None:
    """Chan's rule for joining two sets of moments."""
    for i in range(groups.size):
        n = counts_in[i]
        if n == 0:
            continue
        g = groups[i]
        total = counts[g] + n
        delta = means_in[i] - means[g]
        squares[g] += squares_in[i] + delta * delta * counts[g] * n / total
        means[g] += delta * n / total
        counts[g] = total
