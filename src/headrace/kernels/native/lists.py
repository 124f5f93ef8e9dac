"""Lists: work within each list of a column."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def first_of_each(offsets: Any, codes: Any, kept: Any, sizes: Any) -> int:
    """The elements that do not repeat an earlier one of their list; for short lists."""
    base = np.int64(offsets[0])
    found = 0
    for row in range(offsets.size - 1):
        start = np.int64(offsets[row]) - base
        end = np.int64(offsets[row + 1]) - base
        before = found
        for i in range(start, end):
            repeated = False
            for j in range(before, found):
                if codes[kept[j]] == codes[i]:
                    repeated = True
                    break
            if not repeated:
                kept[found] = i
                found += 1
        sizes[row] = found - before
    return found
