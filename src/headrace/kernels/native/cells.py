"""Tables that keep a key's running numbers beside the key, so that a record costs one cache line.

A slot is the key (one or two words), the number of records, then a word for each aggregate; a slot
with no records is free. Rows are first put into buckets, by slice of time and by part of the key's
hash. Each (slice, part) has a small table of its own, with a lock, in a directory that says where
it is; threads that add at once seldom need the same one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray, njit

from headrace.kernels.native.locks import longer_nap, pointer, try_lock, unlock
from headrace.kernels.native.memory import U64, mix, prefetch

SUM_INT, SUM_FLOAT, MIN_INT, MAX_INT, MIN_FLOAT, MAX_FLOAT = 0, 1, 2, 3, 4, 5
AHEAD = 12
"""How many rows ahead a slot is asked of memory."""
LOCK, ADDRESS, WORDS, SIZE, OVERFLOW = 0, 1, 2, 3, 4
"""A table in a directory: its lock, where its slots are and how many words they have, the number of
keys, and whether a sum left the bigints."""
LINE = 16
"""Words of a directory for each table: two locks never share a cache line."""


@njit(nogil=True, cache=True)
def bucket_rows(
    a: Any, b: Any, panes: Any, low: int, spans: int, shift: Any, starts: Any, rows: Any, of: Any
) -> None:
    """The rows in the order of their buckets, and where each bucket begins.

    A row's bucket is ``(pane - low) << bits | part``, the part being the top bits of its key's
    hash; ``panes`` is empty where all rows are of one pane, ``shift`` is 64 less the bits.
    """
    two = b.size > 0
    timed = panes.size > 0
    parts = starts.size - 1
    parts = parts // spans
    for i in range(starts.size):
        starts[i] = 0
    for row in range(a.size):
        bucket = 0
        if parts > 1:
            h = mix(U64(a[row]), U64(b[row]) if two else U64(0))
            bucket = np.int64(h >> shift)
        if timed:
            bucket += (panes[row] - low) * parts
        of[row] = bucket
        starts[bucket + 1] += 1
    for i in range(1, starts.size):
        starts[i] += starts[i - 1]
    for row in range(a.size):
        bucket = of[row]
        rows[starts[bucket]] = row
        starts[bucket] += 1
    for i in range(starts.size - 1, 0, -1):
        starts[i] = starts[i - 1]
    starts[0] = 0


@njit(nogil=True, cache=True)
def add_rows(
    rows: Any,
    first: int,
    end: int,
    a: Any,
    b: Any,
    integers: Any,
    floats: Any,
    ops: Any,
    slots: Any,
    fslots: Any,
    width: int,
    meta: Any,
) -> int:
    """Take in the rows ``rows[first:end]``; where it stopped for want of room.

    ``slots`` is flat, ``width`` words a slot, and ``fslots`` the same memory as doubles;
    ``meta[0]`` is the number of keys and ``meta[1]`` becomes 1 if a sum left the bigints.
    """
    mask = U64(slots.size // width - 1)
    room = (slots.size // width) * 13 // 16
    two = b.size > 0
    keys = 2 if two else 1
    count = ops.size
    for i in range(first, end):
        if meta[0] >= room:
            return i
        if i + AHEAD < end:
            later = rows[i + AHEAD]
            h = mix(U64(a[later]), U64(b[later]) if two else U64(0))
            prefetch(slots, np.int64(h & mask) * width)
        row = rows[i]
        x = U64(a[row])
        y = U64(b[row]) if two else U64(0)
        at = mix(x, y) & mask
        while True:
            base = np.int64(at) * width
            n = slots[base + keys]
            if n == U64(0):
                slots[base] = x
                if two:
                    slots[base + 1] = y
                meta[0] += 1
                break
            if slots[base] == x and (not two or slots[base + 1] == y):
                break
            at = (at + U64(1)) & mask
        slots[base + keys] = n + U64(1)
        word = base + keys + 1
        for o in range(count):
            op = ops[o]
            if op == SUM_FLOAT:
                fslots[word + o] += floats[o, row]
            elif op == SUM_INT:
                before = np.int64(slots[word + o])
                value = integers[o, row]
                after = before + value
                if (before >= 0) == (value >= 0) and (after >= 0) != (before >= 0):
                    meta[1] = 1
                slots[word + o] = U64(after)
            elif op == MIN_INT:
                if n == U64(0) or integers[o, row] < np.int64(slots[word + o]):
                    slots[word + o] = U64(integers[o, row])
            elif op == MAX_INT:
                if n == U64(0) or integers[o, row] > np.int64(slots[word + o]):
                    slots[word + o] = U64(integers[o, row])
            else:
                value = floats[o, row]
                best = fslots[word + o]
                if n == U64(0):
                    fslots[word + o] = value
                elif op == MAX_FLOAT:
                    if value > best or (math.isnan(value) and not math.isnan(best)):
                        fslots[word + o] = value
                elif value < best or (math.isnan(best) and not math.isnan(value)):
                    fslots[word + o] = value
    return end


@njit(nogil=True, cache=True)
def clear(directory: Any) -> None:
    """Forget the keys of all parts of a table."""
    for part in range(directory.shape[0]):
        slots = carray(pointer(directory[part, ADDRESS]), directory[part, WORDS], np.uint64)
        slots[:] = U64(0)
        directory[part, SIZE] = 0
        directory[part, OVERFLOW] = 0


@njit(nogil=True, cache=True)
def add_bundle(
    fresh: bool,
    patient: bool,
    a: Any,
    b: Any,
    slices: Any,
    low: int,
    shift: Any,
    integers: Any,
    floats: Any,
    ops: Any,
    directories: Any,
    parts: int,
    width: int,
    first: int,
    starts: Any,
    rows: Any,
    at: Any,
) -> int:
    """Take a bundle into the tables of its slices; the bucket that needs room, or -1 when done, or
    -2 if a sum of a table has left the bigints, or -3 if, not ``patient``, others hold the tables
    of all that is left.

    ``directories`` has the address of each slice's directory of ``parts`` tables. ``starts``,
    ``rows`` and ``at`` are room for the buckets, the rows in their order, and how far each bucket
    is; they are filled where ``fresh``, and a call after that goes on.
    """
    buckets = starts.size - 1
    if fresh:
        of = np.empty(a.size, np.int32)
        bucket_rows(a, b, slices, low, buckets // parts, shift, starts, rows, of)
        for i in range(buckets):
            at[i] = starts[i]
    left = 0
    for i in range(buckets):
        if at[i] < starts[i + 1]:
            left += 1
    missed = naps = 0
    over = False
    bucket = first % buckets
    while left:
        if at[bucket] < starts[bucket + 1]:
            table = directories[bucket // parts] + (bucket % parts) * (LINE * 8)
            if try_lock(table):
                entry = carray(pointer(table), LINE, np.int64)
                words = entry[WORDS]
                slots = carray(pointer(entry[ADDRESS]), words, np.uint64)
                fslots = carray(pointer(entry[ADDRESS]), words, np.float64)
                end = starts[bucket + 1]
                stopped = add_rows(
                    rows, at[bucket], end, a, b, integers, floats, ops, slots, fslots, width,
                    entry[SIZE:],
                )  # fmt: skip
                over = over or entry[OVERFLOW] != 0
                unlock(table)
                at[bucket] = stopped
                if stopped < end:
                    return bucket
                left -= 1
                missed = naps = 0
            else:
                missed += 1
                if missed >= left and not patient:
                    return -3
                if missed >= left:  # all that is left is taken: let the others run
                    longer_nap(naps)
                    naps += 1
                    missed = 0
        bucket += 1
        if bucket == buckets:
            bucket = 0
    return -2 if over else -1


@njit(nogil=True, cache=True)
def grow_cells(old: Any, new: Any, width: int, keys: int) -> None:
    """Move every slot of ``old`` to the larger empty table ``new``."""
    mask = U64(new.size // width - 1)
    for i in range(old.size // width):
        base = i * width
        if old[base + keys] == U64(0):
            continue
        at = mix(old[base], old[base + 1] if keys == 2 else U64(0)) & mask
        while new[np.int64(at) * width + keys] != U64(0):
            at = (at + U64(1)) & mask
        for j in range(width):
            new[np.int64(at) * width + j] = old[base + j]


@njit(nogil=True, cache=True)
def cells_out(directory: Any, first: int, end: int, width: int, keys: int, columns: Any) -> None:
    """The used slots of some tables as columns, a word of a slot in each."""
    out = 0
    for part in range(first, end):
        words = directory[part, WORDS]
        slots = carray(pointer(directory[part, ADDRESS]), words, np.uint64)
        for i in range(words // width):
            base = i * width
            if slots[base + keys] == U64(0):
                continue
            for j in range(width):
                columns[j, out] = slots[base + j]
            out += 1
