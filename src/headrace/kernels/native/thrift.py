"""Skips structs in Thrift's compact protocol, in which Parquet stores its footer and page headers.

Every access is checked, so damaged data raises IndexError and is never read past its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_MAX_DEPTH = 32


@njit(nogil=True, cache=True, boundscheck=True)
def skip_struct(data: Any, at: int) -> int:
    """Return where the struct that begins at ``at`` ends."""
    kinds = np.zeros(_MAX_DEPTH, np.int64)  # of a list's elements; 0 in a struct
    left = np.zeros(_MAX_DEPTH, np.int64)  # how many of them are still to skip
    depth = 0
    while depth >= 0:
        if at > data.size:
            raise IndexError("the data ends within a struct")
        kind = kinds[depth]
        if kind == 0:
            head = np.int64(data[at])
            at += 1
            if head == 0:
                depth -= 1
                continue
            if head >> 4 == 0:
                while data[at] >= 128:
                    at += 1
                at += 1
            kind = head & 15
            if kind <= 2:  # a boolean is its own type
                continue
        else:
            if left[depth] == 0:
                depth -= 1
                continue
            left[depth] -= 1
        if kind <= 3:
            at += 1
        elif kind <= 6:
            while data[at] >= 128:
                at += 1
            at += 1
        elif kind == 7:
            at += 8
        elif kind == 8 or kind == 9 or kind == 10:
            count, shift = np.int64(0), 0
            inner = np.int64(0)
            short = False
            if kind != 8:
                head = np.int64(data[at])
                at += 1
                inner, count, short = head & 15, head >> 4, head >> 4 < 15
            if not short:
                count = np.int64(0)
                while True:
                    byte = np.int64(data[at])
                    at += 1
                    count |= (byte & 127) << shift
                    shift += 7
                    if byte < 128:
                        break
                    if shift > 28:
                        raise IndexError("a size is too large")
            if kind == 8:
                at += count
            else:
                depth += 1
                kinds[depth] = inner
                left[depth] = count
                if inner == 0:
                    raise IndexError("a list of an unknown type")
        elif kind == 12:
            depth += 1
            kinds[depth] = 0
        else:
            raise IndexError("an unknown type")
    return at
