"""Loops over the codes of text that is stored once for each distinct value."""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(nogil=True, cache=True)
def codes_seen(codes: Any, valid: Any, places: Any, seen: Any) -> int:
    """The codes that rows have, in the order in which they first appear; how many there are.

    ``places`` has room for each code and for null, which comes last, and begins with -1.
    """
    nulls = valid.size > 0
    null = places.size - 1
    found = 0
    for row in range(codes.size):
        code = null if nulls and not valid[row] else codes[row]
        if places[code] < 0:
            places[code] = found
            seen[found] = code
            found += 1
    return found


@njit(nogil=True, cache=True)
def map_codes(codes: Any, valid: Any, values: Any, out: Any) -> None:
    """The value of each row's code; that of null is the last."""
    nulls = valid.size > 0
    null = values.size - 1
    for row in range(codes.size):
        out[row] = values[null if nulls and not valid[row] else codes[row]]
