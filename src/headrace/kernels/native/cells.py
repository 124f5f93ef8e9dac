"""Tables that keep a key's running numbers beside the key, so that a record costs one cache line.

A slot is the key (one or two words), the number of records, then a word for each aggregate; a slot
with no records is free. Rows are first copied into buckets, by slice of time and by part of the
key's hash. Each (slice, part) has a small table of its own, with a lock, in a directory that says
where it is; threads that add at once seldom need the same one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray, njit

from headrace.kernels.native.locks import give_way, pointer, try_lock, unlock, wait_a_little
from headrace.kernels.native.memory import U64, mix, prefetch

SUM_INT, SUM_FLOAT, MIN_INT, MAX_INT, MIN_FLOAT, MAX_FLOAT = 0, 1, 2, 3, 4, 5
AHEAD = 12
"""How many rows ahead a slot is asked of memory."""
BLOCK = 1 << 12
"""The rows that are put into their buckets together."""
TURNS = 4
"""After so many blocks others get the core, where there are more threads than cores."""
NEXT, LEFT, OVER = 0, 1, 2
"""How far a bundle is: its next row, how many were passed over, and whether a sum overflowed."""
DONE, OVERFLOWN, TAKEN = -1, -2, -3
LOCK, ADDRESS, WORDS, SIZE, OVERFLOW = 0, 1, 2, 3, 4
"""A table in a directory: its lock, where its slots are and how many words they have, the number of
keys, and whether a sum left the bigints."""
LINE = 16
"""Words of a directory for each table: two locks never share a cache line."""


@njit(nogil=True, cache=True)
def _scatter(
    a: Any, b: Any, slices: Any, low: int, parts: int, shift: Any, values: Any, rows: Any,
    first: int, count: int, starts: Any, at: Any, of: Any, hashes: Any, words: Any, ids: Any,
) -> None:  # fmt: skip
    """Copy some rows to a block in the order of their buckets, and tell where each bucket begins.

    A row's bucket is ``(slice - low) * parts + part``, the part being the top bits of its key's
    hash; ``slices`` is empty where all rows are of one slice, ``shift`` is 64 less the bits.
    ``rows`` are the rows to take, or empty for those from ``first`` on. Of each the block has the
    hash, the key and the values, in ``words``, and which row it is.
    """
    two = b.size > 0
    timed = slices.size > 0
    some = rows.size > 0
    value = 2 if two else 1
    starts[:] = 0
    for i in range(count):
        row = rows[i] if some else first + i
        h = mix(U64(a[row]), U64(b[row]) if two else U64(0))
        bucket = np.int64(h >> shift) if parts > 1 else 0
        if timed:
            bucket += (slices[row] - low) * parts
        of[i] = bucket
        ids[i] = row
        hashes[count + i] = h
        starts[bucket + 1] += 1
    for i in range(1, starts.size):
        starts[i] += starts[i - 1]
        at[i - 1] = starts[i - 1]
    for i in range(count):
        row = ids[i]
        place = at[of[i]]
        at[of[i]] += 1
        hashes[place] = hashes[count + i]
        words[0, place] = a[row]
        if two:
            words[1, place] = b[row]
        for o in range(values.shape[0]):
            words[value + o, place] = values[o, row]
        ids[count + place] = row
    for i in range(1, starts.size):
        at[i - 1] = starts[i - 1]


@njit(nogil=True, cache=True)
def _add_rows(
    hashes: Any, words: Any, floats: Any, first: int, end: int, keys: int, ops: Any,
    slots: Any, fslots: Any, width: int, meta: Any,
) -> int:  # fmt: skip
    """Take in rows ``first`` to ``end`` of a block; where it stopped for want of room.

    ``slots`` is flat, ``width`` words a slot, and ``fslots`` the same memory as doubles, as
    ``floats`` is of ``words``; ``meta[0]`` is the number of keys and ``meta[1]`` becomes 1 if a sum
    left the bigints.
    """
    mask = U64(slots.size // width - 1)
    room = (slots.size // width) * 13 // 16
    two = keys == 2
    for i in range(first, min(first + AHEAD, end)):
        prefetch(slots, np.int64(hashes[i] & mask) * width)
    for i in range(first, end):
        if meta[0] >= room:
            return i
        if i + AHEAD < end:
            prefetch(slots, np.int64(hashes[i + AHEAD] & mask) * width)
        x = U64(words[0, i])
        y = U64(words[1, i]) if two else U64(0)
        at = hashes[i] & mask
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
        for o in range(ops.size):
            op = ops[o]
            if op == SUM_FLOAT:
                fslots[word + o] += floats[keys + o, i]
            elif op == SUM_INT:
                before = np.int64(slots[word + o])
                value = words[keys + o, i]
                after = before + value
                if (before >= 0) == (value >= 0) and (after >= 0) != (before >= 0):
                    meta[1] = 1
                slots[word + o] = U64(after)
            elif op == MIN_INT:
                if n == U64(0) or words[keys + o, i] < np.int64(slots[word + o]):
                    slots[word + o] = U64(words[keys + o, i])
            elif op == MAX_INT:
                if n == U64(0) or words[keys + o, i] > np.int64(slots[word + o]):
                    slots[word + o] = U64(words[keys + o, i])
            else:
                number = floats[keys + o, i]
                best = fslots[word + o]
                if n == U64(0):
                    fslots[word + o] = number
                elif op == MAX_FLOAT:
                    if number > best or (math.isnan(number) and not math.isnan(best)):
                        fslots[word + o] = number
                elif number < best or (math.isnan(best) and not math.isnan(number)):
                    fslots[word + o] = number
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
    patient: bool, crowded: bool, a: Any, b: Any, slices: Any, low: int, shift: Any, values: Any,
    ops: Any, directories: Any, parts: int, width: int, first: int, progress: Any, left: Any,
) -> int:  # fmt: skip
    """Take a bundle into the tables of its slices; the bucket that needs room, or ``DONE``, or
    ``OVERFLOWN`` if a sum has left the bigints, or ``TAKEN`` if, not ``patient``, others hold the
    tables of all that is left.

    ``directories`` has the address of each slice's directory of ``parts`` tables. ``progress`` is
    how far it is, all zeros to begin with, and ``left`` room for the rows that were passed over;
    a call with both as they are goes on. Rows are taken block by block, small enough to stay in the
    cache of a core; rows whose table another thread has are passed over, and come last. Where
    workers are ``crowded``, others get the core after each block, while no table is held.
    """
    n, buckets, keys = a.size, directories.size * parts, 2 if b.size > 0 else 1
    size = min(BLOCK, n)
    starts, at = np.empty(buckets + 1, np.int64), np.empty(buckets, np.int64)
    of, ids = np.empty(size, np.int32), np.empty(2 * size, np.int32)
    hashes = np.empty(2 * size, np.uint64)
    words = np.empty((keys + values.shape[0], size), np.int64)
    floats = words.view(np.float64)
    naps = turns = 0
    while True:
        again = progress[NEXT] == n
        if again:
            count = min(size, progress[LEFT])
            if count == 0:
                return OVERFLOWN if progress[OVER] else DONE
            progress[LEFT] -= count
            rows = left[progress[LEFT] : progress[LEFT] + count]
        else:
            count = min(size, n - progress[NEXT])
            rows = left[:0]
        _scatter(
            a, b, slices, low, parts, shift, values, rows, progress[NEXT], count, starts, at, of,
            hashes, words, ids,
        )  # fmt: skip
        if not again:
            progress[NEXT] += count
        full, added = -1, 0
        for i in range(buckets):
            bucket = (first + i) % buckets
            begin, end = at[bucket], starts[bucket + 1]
            if begin == end:
                continue
            table = directories[bucket // parts] + (bucket % parts) * (LINE * 8)
            if try_lock(table):
                entry = carray(pointer(table), LINE, np.int64)
                slots = carray(pointer(entry[ADDRESS]), entry[WORDS], np.uint64)
                fslots = carray(pointer(entry[ADDRESS]), entry[WORDS], np.float64)
                at[bucket] = _add_rows(
                    hashes, words, floats, begin, end, keys, ops, slots, fslots, width, entry[SIZE:]
                )
                if entry[OVERFLOW]:
                    progress[OVER] = 1
                unlock(table)
                added += at[bucket] - begin
                if at[bucket] < end:
                    full = bucket
            for place in range(at[bucket], end):
                left[progress[LEFT]] = ids[count + place]
                progress[LEFT] += 1
        if full >= 0:
            return full
        if again and added == 0:
            if not patient:
                return TAKEN
            wait_a_little(naps, crowded)
            naps += 1
        elif crowded:
            turns += 1
            if turns % TURNS == 0:
                give_way()


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
