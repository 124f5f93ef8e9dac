"""Matches of a pattern in many strings, found by an automaton."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.kernels.native.search import next_place


@njit(nogil=True, cache=True)
def find_matches(
    data: Any, offsets: Any, rows: Any, prefix: Any, first: int, second: int, classes: Any,
    table: Any, accepts: Any, steps: int, sizes: Any, starts: Any, ends: Any,
) -> int:  # fmt: skip
    """Where the matches in some rows begin and end, and how many each row has.

    Every match begins with ``prefix``, and is not empty. Gives how many there are, which may be
    more than there was room for; -1 if it took more than ``steps`` for a byte.
    """
    found = 0
    for i in range(rows.size):
        at = np.int64(offsets[rows[i]])
        end = np.int64(offsets[rows[i] + 1])
        left = steps * (end - at)
        sizes[i] = 0
        while True:
            at = next_place(data, at, end, prefix, first, second)
            if at < 0:
                break
            state = 1
            last = -1
            place = at
            while place < end:
                state = np.int64(table[state, classes[data[place]]])
                if state == 0:
                    break
                place += 1
                if accepts[state]:
                    last = place
            left -= place - at
            if left < 0:
                return -1
            if last < 0:
                at += 1
                continue
            if found < starts.size:
                starts[found] = at
                ends[found] = last
            found += 1
            sizes[i] += 1
            at = last
    return found


@njit(nogil=True, cache=True)
def copy_spans(data: Any, starts: Any, offsets: Any, out: Any) -> None:
    """Pieces of a text one after the other."""
    for i in range(offsets.size - 1):
        for j in range(offsets[i], offsets[i + 1]):
            out[j] = data[starts[i] + j - offsets[i]]
