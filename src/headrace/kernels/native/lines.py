"""Finding where lines begin and end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def count_lines(data: Any) -> int:
    """How many line ends there are."""
    count = 0
    for i in range(data.size):
        count += data[i] == 10
    return count


@njit(nogil=True, cache=True)
def find_lines(data: Any, starts: Any, ends: Any) -> int:
    """Where each line starts and ends, without its line end (``\\n`` or ``\\r\\n``)."""
    lines = 0
    start = 0
    for i in range(data.size):
        if data[i] == 10:
            starts[lines] = start
            ends[lines] = i - 1 if i > start and data[i - 1] == 13 else i
            lines += 1
            start = i + 1
    if start < data.size:
        starts[lines] = start
        ends[lines] = data.size - 1 if data[data.size - 1] == 13 else data.size
        lines += 1
    return lines


@njit(nogil=True, cache=True)
def gather(data: Any, starts: Any, ends: Any, offsets: Any, out: Any) -> None:
    """The lines one after the other, without what stands between them."""
    used = 0
    for i in range(starts.size):
        offsets[i] = used
        for j in range(starts[i], ends[i]):
            out[used] = data[j]
            used += 1
    offsets[starts.size] = np.int32(used)


@njit(nogil=True, cache=True)
def csv_records(data: Any, delimiter: int, quote: int, ends: Any) -> int:
    """Where each record of CSV ends, line ends within quotes being part of it; how many there are.

    A quote opens a quoted field only where a field starts; two quotes within one are a quote.
    """
    quoted = False
    opens = True  # at the start of a field, or just after a closing quote
    found = 0
    last = 0
    for i in range(data.size):
        c = data[i]
        if c == quote and (quoted or opens):
            quoted = not quoted
            opens = True
        elif c == 10 and not quoted:
            ends[found] = i + 1
            last = i + 1
            found += 1
            opens = True
        elif not quoted:
            opens = c == delimiter
    if last < data.size:
        ends[found] = data.size
        found += 1
    return found


@njit(nogil=True, cache=True)
def count_objects(data: Any) -> int:
    """How many lines begin an object of JSON, blank lines aside; -1 if one begins otherwise."""
    count = 0
    blank = True  # so far in this line
    for i in range(data.size):
        c = data[i]
        if c == 10:
            blank = True
        elif blank and c != 32 and c != 9 and c != 13:
            if c != 123:
                return -1
            count += 1
            blank = False
    return count
