"""Rows by key, for a join: built once over one side, then probed by any number of threads.

A table gives for each key the first row that has it. Where the keys are whole numbers that lie
close together it is a list, a place for each number. Else it has slots: the key and the row, from
1. The slot of a key of bytes is four words: up to 16 bytes, or of a longer key its hash and where
it is, then its length and the row. Where a key has several rows they are in a list of their own,
by their first row, and ``starts`` tells where each list begins.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.kernels.native.memory import (
    U64,
    hash_bytes,
    mix,
    prefetch,
    same_bytes,
    store64,
    word_at,
)

NONE = -1
"""The first row of a key that has none."""
INLINE = 16
"""The bytes of a key that its slot can hold."""
LENGTH_SHIFT = U64(32)
ROW_MASK = (U64(1) << U64(32)) - U64(1)
_AHEAD = 16
_BLOCK = 64


@njit(nogil=True, cache=True)
def word_span(words: Any, valid: Any, span: Any) -> int:
    """How many words are there, and the least and the largest of them into ``span``."""
    nulls = valid.size > 0
    count = 0
    least = np.int64(2**63 - 1)
    most = np.int64(-(2**63))
    for row in range(words.size):
        if nulls and not valid[row]:
            continue
        count += 1
        least = min(least, words[row])
        most = max(most, words[row])
    span[0] = least
    span[1] = most
    return count


@njit(nogil=True, cache=True)
def build_dense(words: Any, valid: Any, low: int, table: Any, firsts: Any) -> int:
    """Give each key its first row, and each row that of its key; how many rows are not first."""
    nulls = valid.size > 0
    again = 0
    for row in range(words.size):
        if nulls and not valid[row]:
            firsts[row] = NONE
            continue
        at = words[row] - low
        first = table[at] - 1
        if first < 0:
            table[at] = row + 1
            first = row
        else:
            again += 1
        firsts[row] = first
    return again


@njit(nogil=True, cache=True)
def find_dense(words: Any, valid: Any, low: int, table: Any, starts: Any, firsts: Any) -> int:
    """The first row with each key, and how many rows there are with all of them."""
    nulls = valid.size > 0
    size = U64(table.size)
    n = words.size
    found = 0
    for row in range(n):
        if row + _AHEAD < n:
            later = U64(words[row + _AHEAD] - low)
            if later < size:
                prefetch(table, np.int64(later))
        at = U64(words[row] - low)  # what is below becomes very large
        first = NONE
        if at < size and (not nulls or valid[row]):
            first = table[at] - 1
        firsts[row] = first
        found += _rows_of(first, starts)
    return found


@njit(nogil=True, cache=True, inline="always")
def _rows_of(first: int, starts: Any) -> int:
    if first < 0:
        return 0
    return np.int64(starts[first + 1]) - np.int64(starts[first]) if starts.size else 1


@njit(nogil=True, cache=True)
def build_words(words: Any, valid: Any, table: Any, firsts: Any) -> int:
    """The same for keys that are words, by their hash."""
    mask = U64(table.size // 2 - 1)
    nulls = valid.size > 0
    n = words.size
    again = 0
    for row in range(n):
        if row + _AHEAD < n:
            prefetch(table, 2 * np.int64(mix(U64(words[row + _AHEAD]), U64(0)) & mask))
        if nulls and not valid[row]:
            firsts[row] = NONE
            continue
        word = U64(words[row])
        at = mix(word, U64(0)) & mask
        while True:
            entry = table[2 * at + U64(1)]
            if entry == U64(0):
                table[2 * at] = word
                table[2 * at + U64(1)] = U64(row + 1)
                firsts[row] = row
                break
            if table[2 * at] == word:
                firsts[row] = np.int64(entry) - 1
                again += 1
                break
            at = (at + U64(1)) & mask
    return again


@njit(nogil=True, cache=True)
def find_words(words: Any, valid: Any, table: Any, starts: Any, firsts: Any) -> int:
    """The same for keys that are words."""
    mask = U64(table.size // 2 - 1)
    nulls = valid.size > 0
    n = words.size
    found = 0
    for row in range(n):
        if row + _AHEAD < n:
            prefetch(table, 2 * np.int64(mix(U64(words[row + _AHEAD]), U64(0)) & mask))
        first = NONE
        if not nulls or valid[row]:
            word = U64(words[row])
            at = mix(word, U64(0)) & mask
            while True:
                entry = table[2 * at + U64(1)]
                if entry == U64(0):
                    break
                if table[2 * at] == word:
                    first = np.int64(entry) - 1
                    break
                at = (at + U64(1)) & mask
        firsts[row] = first
        found += _rows_of(first, starts)
    return found


@njit(nogil=True, cache=True)
def _read_keys(data: Any, offsets: Any, first: int, end: int, keys: Any, table: Any) -> None:
    """What a slot would have of some rows, and their hashes; the slots are asked for."""
    mask = U64(table.size // 4 - 1)
    for row in range(first, end):
        start = offsets[row]
        length = offsets[row + 1] - start
        i = row - first
        if length <= INLINE:
            w0 = word_at(data, start, length)
            w1 = word_at(data, start + 8, length - 8) if length > 8 else U64(0)
            h = mix(w0, w1 ^ U64(length))
        else:
            h = hash_bytes(data, start, length)
            w0 = h
            w1 = U64(start)
        keys[i, 0] = w0
        keys[i, 1] = w1
        keys[i, 2] = U64(length) << LENGTH_SHIFT
        keys[i, 3] = h
        prefetch(table, 4 * np.int64(h & mask))


@njit(nogil=True, cache=True)
def _place_of(key: Any, data: Any, table: Any, known: Any) -> Any:
    """Where the slot of a key begins, empty if the key is not there."""
    mask = U64(table.size // 4 - 1)
    at = key[3] & mask
    length = key[2]
    while True:
        place = np.int64(4 * at)
        info = table[place + 2]
        if info == U64(0):
            return place
        if (info & ~ROW_MASK) == length and table[place] == key[0]:
            if length <= U64(INLINE) << LENGTH_SHIFT:
                if table[place + 1] == key[1]:
                    return place
            elif same_bytes(
                known,
                np.int64(table[place + 1]),
                data,
                np.int64(key[1]),
                np.int64(length >> LENGTH_SHIFT),
            ):
                return place
        at = (at + U64(1)) & mask


@njit(nogil=True, cache=True)
def build_bytes(data: Any, offsets: Any, valid: Any, table: Any, firsts: Any) -> int:
    """The same for keys that are bytes."""
    nulls = valid.size > 0
    n = offsets.size - 1
    again = 0
    keys = np.empty((_BLOCK, 4), np.uint64)
    for block in range(0, n, _BLOCK):
        end = min(block + _BLOCK, n)
        _read_keys(data, offsets, block, end, keys, table)
        for row in range(block, end):
            if nulls and not valid[row]:
                firsts[row] = NONE
                continue
            key = keys[row - block]
            at = _place_of(key, data, table, data)
            if table[at + 2] == U64(0):
                table[at] = key[0]
                table[at + 1] = key[1]
                table[at + 2] = key[2] | U64(row + 1)
                firsts[row] = row
            else:
                firsts[row] = np.int64(table[at + 2] & ROW_MASK) - 1
                again += 1
    return again


@njit(nogil=True, cache=True)
def find_bytes(
    data: Any, offsets: Any, valid: Any, table: Any, known: Any, starts: Any, firsts: Any
) -> int:
    """The same for keys that are bytes; ``known`` are those that the table is of."""
    mask = U64(table.size // 4 - 1)
    nulls = valid.size > 0
    n = offsets.size - 1
    found = 0
    keys = np.empty((_BLOCK, 4), np.uint64)
    for block in range(0, n, _BLOCK):
        end = min(block + _BLOCK, n)
        _read_keys(data, offsets, block, end, keys, table)
        for i in range(end - block):
            if keys[i, 2] > U64(INLINE) << LENGTH_SHIFT:
                at = 4 * np.int64(keys[i, 3] & mask)
                if table[at] == keys[i, 0] and table[at + 2] != U64(0):
                    prefetch(known, np.int64(table[at + 1]))
        for row in range(block, end):
            first = NONE
            if not nulls or valid[row]:
                at = _place_of(keys[row - block], data, table, known)
                first = np.int64(table[at + 2] & ROW_MASK) - 1
            firsts[row] = first
            found += _rows_of(first, starts)
    return found


@njit(nogil=True, cache=True)
def list_rows(firsts: Any, starts: Any, rows: Any) -> None:
    """The rows by the first with the same key, in order, and where each list begins."""
    starts[:] = 0
    for row in range(firsts.size):
        if firsts[row] >= 0:
            starts[firsts[row] + 1] += 1
    for i in range(1, starts.size):
        starts[i] += starts[i - 1]
    for row in range(firsts.size):
        if firsts[row] >= 0:
            at = starts[firsts[row]]
            rows[at] = row
            starts[firsts[row]] = at + 1
    for i in range(starts.size - 1, 0, -1):
        starts[i] = starts[i - 1]
    starts[0] = 0


@njit(nogil=True, cache=True)
def write_pairs(firsts: Any, starts: Any, rows: Any, alone: bool, left: Any, right: Any) -> None:
    """Each row with all rows of its key; with ``alone`` one that has none with NONE."""
    at = 0
    many = starts.size > 0
    for row in range(firsts.size):
        first = firsts[row]
        if first < 0 or not many:
            if first >= 0 or alone:
                left[at] = row
                right[at] = first
                at += 1
            continue
        for i in range(starts[first], starts[first + 1]):
            left[at] = row
            right[at] = rows[i]
            at += 1


@njit(nogil=True, cache=True)
def mark_rows(rows: Any, marks: Any) -> None:
    """Mark some rows; threads may do so at once, and any that is NONE is left out."""
    for i in range(rows.size):
        if rows[i] >= 0 and not marks[rows[i]]:
            marks[rows[i]] = True


@njit(nogil=True, cache=True)
def write_words(words: Any, places: Any, data: Any) -> None:
    """Append a word to the bytes of each row, which end at its place."""
    for row in range(words.size):
        store64(data, places[row], U64(words[row]))
        places[row] += 8


@njit(nogil=True, cache=True)
def write_bytes(text: Any, offsets: Any, measured: bool, places: Any, data: Any) -> None:
    """Append a string to the bytes of each row, ``measured`` if after its length."""
    for row in range(offsets.size - 1):
        start = offsets[row]
        length = offsets[row + 1] - start
        at = places[row]
        if measured:
            store64(data, at, U64(length))
            at += 8
        i = 0
        while i + 8 <= length:
            store64(data, at + i, word_at(text, start + i, 8))
            i += 8
        while i < length:
            data[at + i] = text[start + i]
            i += 1
        places[row] = at + length
