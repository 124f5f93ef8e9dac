"""Looking for a few bytes in many strings at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.kernels.native.memory import HIGHS, ONES, U64, first_byte, same_bytes, word_at


@njit(nogil=True, cache=True)
def rows_with(data: Any, offsets: Any, needle: Any, anchor: int, rows: Any) -> int:
    """The rows that hold the bytes of ``needle``, in order; how many there are.

    ``anchor`` is the place in the needle of the byte that is looked for, eight at a time, through
    all rows as one text: it should be a rare one.
    """
    n = offsets.size - 1
    end = np.int64(offsets[n])
    sought = U64(needle[anchor]) * ONES
    length = needle.size
    found = 0
    row = 0
    at = np.int64(offsets[0])
    while at < end:
        word = word_at(data, at, end - at) ^ sought
        zeros = (word - ONES) & ~word & HIGHS
        if zeros == U64(0):
            at += 8
            continue
        at += first_byte(zeros)
        if at >= end:
            break
        while np.int64(offsets[row + 1]) <= at:
            row += 1
        start = at - anchor
        if (
            start >= np.int64(offsets[row])
            and start + length <= np.int64(offsets[row + 1])
            and same_bytes(data, start, needle, 0, length)
        ):
            rows[found] = row
            found += 1
            at = np.int64(offsets[row + 1])  # the rest of this row does not matter
        else:
            at += 1
    return found
