"""Records by key, any number of a key: what a temporal join looks matches up in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.kernels.native.memory import U64, mix


@njit(nogil=True, cache=True)
def link_rows(keys: Any, first: int, end: int, heads: Any, nexts: Any) -> None:
    """Put the rows from ``first`` to ``end`` in front of the chains of their keys."""
    mask = U64(heads.size - 1)
    for row in range(first, end):
        at = np.int64(mix(U64(keys[row]), U64(0)) & mask)
        nexts[row] = heads[at]
        heads[at] = row + 1


@njit(nogil=True, cache=True)
def count_matches(
    keys: Any, times: Any, low: int, high: int, known: Any, stamps: Any, heads: Any, nexts: Any
) -> int:
    """How many known rows have the key of a row, and a time in ``[time - low, time + high]``."""
    mask = U64(heads.size - 1)
    found = 0
    for row in range(keys.size):
        at = heads[np.int64(mix(U64(keys[row]), U64(0)) & mask)]
        while at > 0:
            other = at - 1
            if (
                known[other] == keys[row]
                and stamps[other] >= times[row] - low
                and stamps[other] <= times[row] + high
            ):
                found += 1
            at = nexts[other]
    return found


@njit(nogil=True, cache=True)
def write_matches(
    keys: Any,
    times: Any,
    low: int,
    high: int,
    known: Any,
    stamps: Any,
    heads: Any,
    nexts: Any,
    rows: Any,
    others: Any,
) -> None:
    """The pairs themselves: the row, and the known row it matches."""
    mask = U64(heads.size - 1)
    found = 0
    for row in range(keys.size):
        at = heads[np.int64(mix(U64(keys[row]), U64(0)) & mask)]
        while at > 0:
            other = at - 1
            if (
                known[other] == keys[row]
                and stamps[other] >= times[row] - low
                and stamps[other] <= times[row] + high
            ):
                rows[found] = row
                others[found] = other
                found += 1
            at = nexts[other]
