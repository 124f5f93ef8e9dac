"""Rows in the order of their hashes, which are spread evenly: a sort that compares very little."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

FEW = 32
"""Rows of a bucket that are put in order one by one."""


@njit(nogil=True, cache=True)
def order_by_hash(hashes: Any, shift: Any, starts: Any, order: Any) -> bool:
    """Row numbers in the order of their hashes, those of one hash as they come.

    A row's bucket is the top bits of its hash; ``shift`` is 64 less their number and ``starts`` has
    one place more than there are buckets. False if a bucket has more than a few: hashes that are
    not spread evenly are for another sort.
    """
    for i in range(starts.size):
        starts[i] = 0
    for row in range(hashes.size):
        starts[np.int64(hashes[row] >> shift) + 1] += 1
    for i in range(1, starts.size):
        if starts[i] > FEW:
            return False
        starts[i] += starts[i - 1]
    for row in range(hashes.size):
        bucket = np.int64(hashes[row] >> shift)
        order[starts[bucket]] = row
        starts[bucket] += 1
    for i in range(1, order.size):  # buckets are in order: none leaves its own
        row, at = order[i], i
        while at > 0 and hashes[order[at - 1]] > hashes[row]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = row
    return True
