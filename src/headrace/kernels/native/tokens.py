"""Cutting text at a class of bytes, and counting the pieces without making them.

``table`` maps each byte to the byte it becomes inside a token, or to ``CUT`` where it separates.
With ``runs`` a run of separators cuts once (``[^a-z]+``), without it each one cuts (``,``).
Pieces are Java's ``split(…, -1)``: a separator at either end leaves an empty piece there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.kernels.native.memory import (
    HIGHS,
    U64,
    bytes_between,
    first_byte,
    store64,
    word_at,
)
from headrace.kernels.native.short_words import count_short, is_short, room_in
from headrace.kernels.native.strings import ARENA, GROUPS, find_long, find_short

CUT = 0xFFFF


@njit(nogil=True, cache=True, inline="always")
def _cuts(word: Any, ranges: Any, foreign: Any) -> Any:
    """High bits of the bytes of a word that separate; ``foreign`` marks bytes beyond ASCII."""
    inside = U64(0)
    for i in range(ranges.shape[0]):
        inside |= bytes_between(word, ranges[i, 0], ranges[i, 1])
    return ~(inside | (word & foreign)) & HIGHS


@njit(nogil=True, cache=True)
def count_tokens(
    data: Any,
    offsets: Any,
    valid: Any,
    rows: Any,
    first: int,
    last: int,
    table: Any,
    ranges: Any,
    foreign: Any,
    fold: Any,
    runs: bool,
    slots: Any,
    meta: Any,
    arena: Any,
    shorts: Any,
    size: Any,
    scratch: Any,
    empties: Any,
) -> int:
    """Add one to the counter of every non-empty token from row ``first`` up to ``last``; where it
    stopped for want of room.

    ``rows`` are the rows to take, or empty for all; ``first`` and the result are places in it.
    A token's end is found eight bytes at a time: ``fold`` is all high bits if capitals become small
    first, ``ranges`` are the ASCII bytes that tokens are made of then, and ``foreign`` is all high
    bits if they take bytes beyond ASCII and zero if those cut. ``table`` says the same byte by
    byte, for the end of the buffer and for tokens too long for a slot; ``scratch`` holds one of
    those while it is looked up, so it is as long as the longest row. Short tokens go to ``shorts``,
    of ``size[0]`` words, the others to ``slots``. ``empties[0]`` counts the empty pieces.
    """
    some = rows.size > 0
    nulls = valid.size > 0
    safe = data.size - 16
    room, short_room = room_in(slots), room_in(shorts)
    for place in range(first, last):
        row = np.int64(rows[place]) if some else place
        if nulls and not valid[row]:
            continue
        start = np.int64(offsets[row])
        end = np.int64(offsets[row + 1])
        most = ((end - start) >> 1) + 1  # a row has at most one token for two bytes
        if meta[GROUPS] + most >= room or meta[ARENA] + end - start > arena.size:
            return place
        if size[0] + most >= short_room:
            return place
        at = start
        pieces = 0
        tokens = 0
        while True:
            token = at
            w0 = U64(0)
            w1 = U64(0)
            if at <= safe:
                w0 = word_at(data, at, 8)
                w0 |= (bytes_between(w0, U64(65), U64(90)) & fold) >> U64(2)
                cuts = _cuts(w0, ranges, foreign)
                left = end - at
                if left < 8:
                    cuts |= U64(128) << U64(8 * left)
                if cuts != U64(0):
                    length = first_byte(cuts)
                    w0 &= (U64(1) << U64(8 * length)) - U64(1)
                    at += length
                else:
                    w1 = word_at(data, at + 8, 8)
                    w1 |= (bytes_between(w1, U64(65), U64(90)) & fold) >> U64(2)
                    cuts = _cuts(w1, ranges, foreign)
                    left -= 8
                    if left < 8:
                        cuts |= U64(128) << U64(8 * left)
                    if cuts != U64(0):
                        length = first_byte(cuts)
                        w1 &= (U64(1) << U64(8 * length)) - U64(1)
                        at += 8 + length
                    else:
                        at += 16
                        while at < end and table[data[at]] != CUT:
                            at += 1
            else:
                while at < end:
                    c = table[data[at]]
                    if c == CUT:
                        break
                    if at < token + 8:
                        w0 |= U64(c) << U64(8 * (at - token))
                    elif at < token + 16:
                        w1 |= U64(c) << U64(8 * (at - token - 8))
                    at += 1
            length = at - token
            pieces += 1
            if length > 0:
                tokens += 1
                if is_short(w0, length):
                    count_short(shorts, size, w0, U64(1))
                else:
                    if length <= 16:
                        slot = find_short(slots, meta, w0, w1, length)
                    else:
                        for i in range(length):
                            scratch[i] = table[data[token + i]]
                        slot = find_long(slots, meta, arena, scratch, 0, length)
                    slots[slot, 3] += U64(1)
            if at >= end:
                break
            at += 1
            if runs:
                while at < end and table[data[at]] == CUT:
                    at += 1
        empties[0] += pieces - tokens
    return last


@njit(nogil=True, cache=True, inline="always")
def _cuts_of(word: Any, bounds: Any, foreign: Any) -> Any:
    """``_cuts`` for ranges given as a tuple of their ends."""
    inside = U64(0)
    for i in range(len(bounds) // 2):
        inside |= bytes_between(word, bounds[2 * i], bounds[2 * i + 1])
    return ~(inside | (word & foreign)) & HIGHS


@njit(nogil=True, cache=True)
def count_words(
    data: Any,
    offsets: Any,
    valid: Any,
    rows: Any,
    first: int,
    last: int,
    table: Any,
    bounds: Any,
    foreign: Any,
    fold: Any,
    small: Any,
    slots: Any,
    meta: Any,
    arena: Any,
    shorts: Any,
    size: Any,
    scratch: Any,
) -> int:
    """``count_tokens`` where empty pieces do not matter: whatever separates is stepped over.

    ``bounds`` are the ranges as one tuple, so that the loop over them is unrolled, and ``fold`` is
    an empty tuple where nothing is to be folded; ``small`` is or-ed to every byte, which makes
    capitals small where tokens are nothing but letters.
    """
    some = rows.size > 0
    nulls = valid.size > 0
    safe = data.size - 16
    room, short_room = room_in(slots), room_in(shorts)
    for place in range(first, last):
        row = np.int64(rows[place]) if some else place
        if nulls and not valid[row]:
            continue
        at = np.int64(offsets[row])
        end = np.int64(offsets[row + 1])
        most = ((end - at) >> 1) + 1
        if meta[GROUPS] + most >= room or meta[ARENA] + end - at > arena.size:
            return place
        if size[0] + most >= short_room:
            return place
        while at < end:
            w1 = U64(0)
            if at <= safe:
                w0 = word_at(data, at, 8) | small
                if len(fold) > 0:
                    w0 |= bytes_between(w0, U64(65), U64(90)) >> U64(2)
                cuts = _cuts_of(w0, bounds, foreign)
                left = end - at
                if left < 8:
                    cuts |= U64(128) << U64(8 * left)
                if cuts != U64(0):
                    length = first_byte(cuts)
                    if length == 0:
                        at += 1
                        continue
                    w0 &= (U64(1) << U64(8 * length)) - U64(1)
                else:
                    w1 = word_at(data, at + 8, 8) | small
                    if len(fold) > 0:
                        w1 |= bytes_between(w1, U64(65), U64(90)) >> U64(2)
                    cuts = _cuts_of(w1, bounds, foreign)
                    left -= 8
                    if left < 8:
                        cuts |= U64(128) << U64(8 * left)
                    if cuts != U64(0):
                        length = first_byte(cuts)
                        w1 &= (U64(1) << U64(8 * length)) - U64(1)
                        length += 8
                    else:
                        length = 16
                        while at + length < end and table[data[at + length]] != CUT:
                            length += 1
            else:
                w0 = U64(0)
                length = 0
                while at + length < end:
                    c = table[data[at + length]]
                    if c == CUT:
                        break
                    if length < 8:
                        w0 |= U64(c) << U64(8 * length)
                    elif length < 16:
                        w1 |= U64(c) << U64(8 * (length - 8))
                    length += 1
                if length == 0:
                    at += 1
                    continue
            if is_short(w0, length):
                count_short(shorts, size, w0, U64(1))
            else:
                if length <= 16:
                    slot = find_short(slots, meta, w0, w1, length)
                else:
                    for i in range(length):
                        scratch[i] = table[data[at + i]]
                    slot = find_long(slots, meta, arena, scratch, 0, length)
                slots[slot, 3] += U64(1)
            at += length + 1
    return last


@njit(nogil=True, cache=True)
def gather_rows(data: Any, offsets: Any, rows: Any, places: Any, out: Any) -> None:
    """Some rows of a text one after the other, eight bytes at a time.

    What is too much of a row the next one overwrites, so ``out`` has 8 bytes more than they take.
    """
    used = 0
    safe = data.size - 8
    places[0] = 0
    for i in range(rows.size):
        at = np.int64(offsets[rows[i]])
        length = np.int64(offsets[rows[i] + 1]) - at
        done = 0
        while done < length and at + done <= safe:
            store64(out, used + done, word_at(data, at + done, 8))
            done += 8
        while done < length:
            out[used + done] = data[at + done]
            done += 1
        used += length
        places[i + 1] = used


@njit(nogil=True, cache=True)
def measure_tokens(
    data: Any, offsets: Any, valid: Any, table: Any, runs: bool, keep_empty: bool, sizes: Any
) -> int:
    """How many pieces each row has, into ``sizes``; returns the bytes they take in all."""
    n = offsets.size - 1
    nulls = valid.size > 0
    total = 0
    for row in range(n):
        sizes[row] = 0
        if nulls and not valid[row]:
            continue
        at = np.int64(offsets[row])
        end = np.int64(offsets[row + 1])
        pieces = 0
        while True:
            start = at
            while at < end and table[data[at]] != CUT:
                at += 1
            total += at - start
            if at > start or keep_empty:
                pieces += 1
            if at >= end:
                break
            at += 1
            if runs:
                while at < end and table[data[at]] == CUT:
                    at += 1
        sizes[row] = pieces
    return total


@njit(nogil=True, cache=True)
def write_tokens(
    data: Any,
    offsets: Any,
    valid: Any,
    table: Any,
    runs: bool,
    keep_empty: bool,
    parents: Any,
    out_offsets: Any,
    out: Any,
) -> None:
    """The pieces themselves, with the row each came from in ``parents``."""
    n = offsets.size - 1
    nulls = valid.size > 0
    piece = 0
    used = 0
    out_offsets[0] = 0
    for row in range(n):
        if nulls and not valid[row]:
            continue
        at = np.int64(offsets[row])
        end = np.int64(offsets[row + 1])
        while True:
            start = at
            while at < end:
                c = table[data[at]]
                if c == CUT:
                    break
                out[used + at - start] = c
                at += 1
            if at > start or keep_empty:
                used += at - start
                parents[piece] = row
                piece += 1
                out_offsets[piece] = used
            if at >= end:
                break
            at += 1
            if runs:
                while at < end and table[data[at]] == CUT:
                    at += 1
