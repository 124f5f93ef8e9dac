"""A hash table of byte strings: the heart of keyed work on text.

A slot is four words, half a cache line: the key's first 16 bytes inline, then its length and
group number, then a counter that word counting keeps here so that most probes touch one line.
A key longer than 16 bytes puts its hash and its place in the arena where the bytes would be.

``meta`` holds the number of groups, the bytes used of the arena and the group of null, if any.
A function that runs out of room stops and returns where it stopped; the caller grows the table
and goes on from there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.kernels.native.memory import U64, hash_bytes, mix, same_bytes, store64, word_at
from headrace.kernels.native.short_words import room_in

GROUPS, ARENA, NULL = 0, 1, 2
LENGTH_SHIFT = U64(32)
GROUP_MASK = (U64(1) << U64(32)) - U64(1)


@njit(nogil=True, cache=True)
def _probe_short(slots: Any, meta: Any, w0: Any, w1: Any, tag: Any, at: Any) -> Any:
    """The slot of a short key that is not in its first place; a new one if it is not there."""
    mask = U64(slots.shape[0] - 1)
    while True:
        info = slots[at, 2]
        if info == U64(0):
            slots[at, 0] = w0
            slots[at, 1] = w1
            meta[GROUPS] += 1
            slots[at, 2] = tag | U64(meta[GROUPS])
            return at
        if slots[at, 0] == w0 and slots[at, 1] == w1 and (info & ~GROUP_MASK) == tag:
            return at
        at = (at + U64(1)) & mask


@njit(nogil=True, cache=True, inline="always")
def find_short(slots: Any, meta: Any, w0: Any, w1: Any, length: int) -> Any:
    """The slot of a key of at most 16 bytes; a new one if it was not there.

    Most keys are found in their first place, so that is all that stands in the callers' loops.
    """
    tag = U64(length) << LENGTH_SHIFT
    at = mix(w0, w1 ^ U64(length)) & U64(slots.shape[0] - 1)
    # A slot in use has a group number of 1 or more behind the tag; an empty one is all zero.
    if slots[at, 0] == w0 and slots[at, 1] == w1 and slots[at, 2] - tag - U64(1) < GROUP_MASK:
        return at
    return _probe_short(slots, meta, w0, w1, tag, at)


@njit(nogil=True, cache=True)
def find_long(slots: Any, meta: Any, arena: Any, data: Any, start: int, length: int) -> Any:
    """The slot of a key longer than 16 bytes; the arena must have room for it."""
    mask = U64(slots.shape[0] - 1)
    h = hash_bytes(data, start, length)
    at = h & mask
    tag = U64(length) << LENGTH_SHIFT
    while True:
        info = slots[at, 2]
        if info == U64(0):
            used = meta[ARENA]
            for i in range(length):
                arena[used + i] = data[start + i]
            meta[ARENA] = used + length
            slots[at, 0] = h
            slots[at, 1] = U64(used)
            meta[GROUPS] += 1
            slots[at, 2] = tag | U64(meta[GROUPS])
            return at
        if (
            slots[at, 0] == h
            and (info & ~GROUP_MASK) == tag
            and same_bytes(arena, np.int64(slots[at, 1]), data, start, length)
        ):
            return at
        at = (at + U64(1)) & mask


@njit(nogil=True, cache=True)
def group_strings(
    data: Any, offsets: Any, valid: Any, first: int, slots: Any, meta: Any, arena: Any, groups: Any
) -> int:
    """Write each string's group number to ``groups`` from row ``first``; where it stopped.

    ``valid`` is false for a null and empty where there are none. Nulls are one group, which the
    table itself does not hold.
    """
    n = offsets.size - 1
    room = slots.shape[0] // 2
    nulls = valid.size > 0
    for row in range(first, n):
        if nulls and not valid[row]:
            if meta[NULL] < 0:
                meta[NULL] = meta[GROUPS]
                meta[GROUPS] += 1
            groups[row] = meta[NULL]
            continue
        if meta[GROUPS] >= room:
            return row
        start = np.int64(offsets[row])
        length = np.int64(offsets[row + 1]) - start
        if length <= 16:
            w0 = word_at(data, start, length)
            w1 = U64(0)
            if length > 8:
                w1 = word_at(data, start + 8, length - 8)
            at = find_short(slots, meta, w0, w1, length)
        else:
            if meta[ARENA] + length > arena.size:
                return row
            at = find_long(slots, meta, arena, data, start, length)
        groups[row] = np.int64(slots[at, 2] & GROUP_MASK) - 1
    return n


@njit(nogil=True, cache=True, inline="always")
def _hash_of(slot: Any) -> Any:
    """The hash of the key of a slot in use."""
    length = np.int64(slot[2] >> LENGTH_SHIFT)
    return mix(slot[0], slot[1] ^ U64(length)) if length <= 16 else slot[0]


@njit(nogil=True, cache=True)
def grow_strings(old: Any, new: Any) -> None:
    """Move every slot of ``old`` to the larger empty table ``new``."""
    mask = new.shape[0] - 1
    for i in range(old.shape[0]):
        info = old[i, 2]
        if info == U64(0):
            continue
        at = np.int64(_hash_of(old[i]) & U64(mask))
        while new[at, 2] != U64(0):
            at = (at + 1) & mask
        for j in range(4):
            new[at, j] = old[i, j]


@njit(nogil=True, cache=True)
def string_room(slots: Any) -> int:
    """How many bytes the keys take in all."""
    total = 0
    for i in range(slots.shape[0]):
        total += np.int64(slots[i, 2] >> LENGTH_SHIFT)
    return total


@njit(nogil=True, cache=True)
def write_strings(slots: Any, arena: Any, offsets: Any, data: Any, counts: Any) -> None:
    """The keys one after the other, as they lie in the table, and their counters.

    A short key is written as two whole words; what is too much the next key overwrites, so ``data``
    has 16 bytes more than the keys take.
    """
    found = 0
    used = 0
    offsets[0] = 0
    for i in range(slots.shape[0]):
        info = slots[i, 2]
        if info == U64(0):
            continue
        length = np.int64(info >> LENGTH_SHIFT)
        if length > 16:
            source = np.int64(slots[i, 1])
            for j in range(length):
                data[used + j] = arena[source + j]
        else:
            store64(data, used, slots[i, 0])
            store64(data, used + 8, slots[i, 1])
        used += length
        counts[found] = np.int64(slots[i, 3])
        found += 1
        offsets[found] = used


@njit(nogil=True, cache=True)
def merge_counts(
    old: Any, old_arena: Any, first: int, slots: Any, meta: Any, arena: Any
) -> int:  # fmt: skip
    """Add the counters of other slots, from ``first``; where it stopped for want of room."""
    room = room_in(slots)
    for i in range(first, old.shape[0]):
        info = old[i, 2]
        if info == U64(0):
            continue
        length = np.int64(info >> LENGTH_SHIFT)
        if meta[GROUPS] + 1 >= room or meta[ARENA] + length > arena.size:
            return i
        if length <= 16:
            at = find_short(slots, meta, old[i, 0], old[i, 1], length)
        else:
            at = find_long(slots, meta, arena, old_arena, np.int64(old[i, 1]), length)
        slots[at, 3] += old[i, 3]
    return old.shape[0]


@njit(nogil=True, cache=True)
def part_strings(slots: Any, shift: Any, starts: Any, out: Any) -> None:
    """The slots in use, by part, and where each part begins.

    A key's part is the top bits of its hash; ``shift`` is 64 less their number.
    """
    starts[:] = 0
    for i in range(slots.shape[0]):
        if slots[i, 2] != U64(0):
            starts[np.int64(_hash_of(slots[i]) >> shift) + 1] += 1
    for part in range(1, starts.size):
        starts[part] += starts[part - 1]
    for i in range(slots.shape[0]):
        if slots[i, 2] != U64(0):
            part = np.int64(_hash_of(slots[i]) >> shift)
            for j in range(4):
                out[starts[part], j] = slots[i, j]
            starts[part] += 1
    for part in range(starts.size - 1, 0, -1):
        starts[part] = starts[part - 1]
    starts[0] = 0
