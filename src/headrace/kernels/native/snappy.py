"""Snappy, decompressed by machine code for this very processor.

That which comes with Arrow is compiled for any, and takes twice as long on columns of numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.kernels.native.memory import U64, _load64, store64

MARGIN = 80
"""The bytes that an output must have to spare, so that words can be written past its end."""
_LITERAL, _NEAR, _FAR = 0, 1, 2
"""Kinds of elements: bytes as they are, and copies of what came before."""


@njit(nogil=True, cache=True)
def copy_bytes(data: Any, at: int, out: Any, to: int, count: int) -> None:
    """Some bytes of one array into another."""
    words = count >> 3
    for i in range(words):
        store64(out, to + 8 * i, _load64(data, at + 8 * i))
    for i in range(8 * words, count):
        out[to + i] = data[at + i]


@njit(nogil=True, cache=True)
def decompress(data: Any, at: int, end: int, out: Any, size: int) -> bool:
    """The ``size`` bytes that are compressed in some of ``data``; false if they are not."""
    length, shift = np.int64(0), 0
    while True:
        if at >= end or shift > 28:
            return False
        byte = np.int64(data[at])
        at += 1
        length |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    if length != size or end > data.size or size + MARGIN > out.size:
        return False
    done = 0
    within = end - 16  # up to here two words can be read
    while at < end:
        tag = np.int64(data[np.uint64(at)])
        at += 1
        kind = tag & 3
        if kind == _LITERAL:
            length = (tag >> 2) + 1
            if length <= 16 and at <= within and done < size:
                store64(out, done, _load64(data, at))
                store64(out, done + 8, _load64(data, at + 8))
                at += length
                done += length
                continue
            if length > 60:
                extra = length - 60
                if at + extra > end:
                    return False
                length = np.int64(0)
                for k in range(extra):
                    length |= np.int64(data[at + k]) << (8 * k)
                length += 1
                at += extra
            if length > end - at or length > size - done:
                return False
            copy_bytes(data, at, out, done, length)
            at += length
            done += length
            continue
        if at <= within:
            word = _load64(data, at)
        else:
            word = U64(0)
            for k in range(min(4, end - at)):
                word |= U64(data[at + k]) << U64(8 * k)
        if kind == _NEAR:
            length = 4 + ((tag >> 2) & 7)
            back = ((tag >> 5) << 8) | np.int64(word & U64(0xFF))
            at += 1
        elif kind == _FAR:
            length = 1 + (tag >> 2)
            back = np.int64(word & U64(0xFFFF))
            at += 2
        else:
            length = 1 + (tag >> 2)
            back = np.int64(word & U64(0xFFFFFFFF))
            at += 4
        if back == 0 or back > done or length > size - done:
            return False
        first = done - back
        if back >= 8:
            store64(out, done, _load64(out, first))
            k = 8
            while k < length:
                store64(out, done + k, _load64(out, first + k))
                k += 8
        else:
            for k in range(length):
                out[done + k] = out[first + k]
        done += length
    return done == size and at == end
