"""A hash table whose key is one or two 64-bit integers, nulls among them.

A slot is four words: the two integers, a word with the null flags and the group number, and one
spare. Integers, times, booleans and floats (by their bits) are keyed here; so are composite
keys, by the group numbers of their parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.kernels.native.memory import U64, mix
from headrace.kernels.native.strings import GROUP_MASK, GROUPS

FLAG_SHIFT = U64(32)


@njit(nogil=True, cache=True)
def group_pairs(
    a: Any, a_valid: Any, b: Any, b_valid: Any, first: int, slots: Any, meta: Any, groups: Any
) -> int:
    """Write each row's group number from row ``first``; where it stopped for want of room."""
    mask = slots.shape[0] - 1
    room = slots.shape[0] // 2
    two = b.size > 0
    a_nulls = a_valid.size > 0
    b_nulls = b_valid.size > 0
    for row in range(first, a.size):
        if meta[GROUPS] >= room:
            return row
        x = U64(a[row])
        y = U64(b[row]) if two else U64(0)
        flags = U64(0)
        if a_nulls and not a_valid[row]:
            x = U64(0)
            flags = U64(1)
        if b_nulls and not b_valid[row]:
            y = U64(0)
            flags |= U64(2)
        tag = flags << FLAG_SHIFT
        at = np.int64(mix(x, y ^ flags) & U64(mask))
        while True:
            info = slots[at, 2]
            if info == U64(0):
                slots[at, 0] = x
                slots[at, 1] = y
                meta[GROUPS] += 1
                info = tag | U64(meta[GROUPS])
                slots[at, 2] = info
                break
            if slots[at, 0] == x and slots[at, 1] == y and (info & ~GROUP_MASK) == tag:
                break
            at = (at + 1) & mask
        groups[row] = np.int64(info & GROUP_MASK) - 1
    return a.size


@njit(nogil=True, cache=True)
def grow_pairs(old: Any, new: Any) -> None:
    """Move every slot of ``old`` to the larger empty table ``new``."""
    mask = new.shape[0] - 1
    for i in range(old.shape[0]):
        info = old[i, 2]
        if info == U64(0):
            continue
        flags = info >> FLAG_SHIFT
        at = np.int64(mix(old[i, 0], old[i, 1] ^ flags) & U64(mask))
        while new[at, 2] != U64(0):
            at = (at + 1) & mask
        for j in range(4):
            new[at, j] = old[i, j]


@njit(nogil=True, cache=True)
def first_rows(groups: Any, known: int, rows: Any) -> int:
    """The rows that brought a new group, in order; groups are numbered as they appear."""
    found = 0
    for row in range(groups.size):
        if groups[row] == known + found:
            rows[found] = row
            found += 1
    return found
