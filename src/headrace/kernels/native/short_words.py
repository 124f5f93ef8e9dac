"""Counters of words of at most eight bytes: most words, in a quarter of the memory of the others.

A slot is two machine words: the word's bytes, padded with zeros, and its count. A word that ends
in a zero byte would look like a shorter one, so it is not kept here; a slot of zero is free.
``size`` holds the number of words. Where there is no room a function stops and returns where.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.kernels.native.memory import U64, mix, store64, top_byte

FULL = 13
"""Sixteenths of a table that may be in use. Words are looked up far more often than added, and the
smaller a table, the more of it stays in the cache."""


@njit(nogil=True, cache=True, inline="always")
def is_short(word: Any, length: int) -> bool:
    """Whether a word of ``length`` bytes, the first of which are ``word``, is kept here."""
    return length <= 8 and (word >> U64(8 * (length - 1))) != U64(0)


@njit(nogil=True, cache=True, inline="always")
def room_in(slots: Any) -> int:
    """How many words a table takes."""
    return slots.shape[0] * FULL // 16


@njit(nogil=True, cache=True)
def _probe(slots: Any, size: Any, word: Any, at: Any) -> Any:
    """The slot of a word that is not in its first place; a new one if it is not there."""
    mask = U64(slots.shape[0] - 1)
    while slots[at, 0] != word:
        if slots[at, 0] == U64(0):
            slots[at, 0] = word
            size[0] += 1
            return at
        at = (at + U64(1)) & mask
    return at


@njit(nogil=True, cache=True, inline="always")
def count_short(slots: Any, size: Any, word: Any, times: Any) -> None:
    """Count a word; there must be room."""
    at = mix(word, U64(0)) & U64(slots.shape[0] - 1)
    if slots[at, 0] == word:  # written twice, for most words are found here: a quarter faster
        slots[at, 1] += times
    else:
        at = _probe(slots, size, word, at)
        slots[at, 1] += times


@njit(nogil=True, cache=True)
def merge_short(old: Any, first: int, slots: Any, size: Any) -> int:
    """Add the counts of other slots, from ``first``; where it stopped for want of room."""
    room = room_in(slots)
    for i in range(first, old.shape[0]):
        word = old[i, 0]
        if word == U64(0):
            continue
        if size[0] >= room:
            return i
        count_short(slots, size, word, old[i, 1])
    return old.shape[0]


@njit(nogil=True, cache=True)
def part_short(slots: Any, shift: Any, starts: Any, out: Any) -> None:
    """The slots in use, by part, and where each part begins.

    A word's part is the top bits of its hash; ``shift`` is 64 less their number.
    """
    starts[:] = 0
    for i in range(slots.shape[0]):
        if slots[i, 0] != U64(0):
            starts[np.int64(mix(slots[i, 0], U64(0)) >> shift) + 1] += 1
    for part in range(1, starts.size):
        starts[part] += starts[part - 1]
    for i in range(slots.shape[0]):
        if slots[i, 0] != U64(0):
            part = np.int64(mix(slots[i, 0], U64(0)) >> shift)
            out[starts[part], 0] = slots[i, 0]
            out[starts[part], 1] = slots[i, 1]
            starts[part] += 1
    for part in range(starts.size - 1, 0, -1):
        starts[part] = starts[part - 1]
    starts[0] = 0


@njit(nogil=True, cache=True)
def short_bytes(slots: Any) -> int:
    """How many bytes the words take in all."""
    total = 0
    for i in range(slots.shape[0]):
        if slots[i, 0] != U64(0):
            total += top_byte(slots[i, 0]) + 1
    return total


@njit(nogil=True, cache=True)
def write_short(slots: Any, offsets: Any, data: Any, counts: Any) -> None:
    """The words one after the other and their counts, from the first of ``offsets`` on.

    Each is written as a whole machine word; what is too much the next one overwrites.
    """
    found = 0
    used = offsets[0]
    for i in range(slots.shape[0]):
        word = slots[i, 0]
        if word == U64(0):
            continue
        store64(data, np.int64(used), word)
        used += top_byte(word) + 1
        counts[found] = np.int64(slots[i, 1])
        found += 1
        offsets[found] = used
