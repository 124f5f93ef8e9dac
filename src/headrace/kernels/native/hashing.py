"""Spark's two hash functions, bit for bit: Murmur3 (``hash``) and ``xxhash64``.

Both chain over columns: the hash so far is the next column's seed, and a null leaves it alone.
The engines also use ``xxhash64`` to send keys to shards, so that a key's shard never depends on
the process that computed it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.kernels.native.memory import U64, word_at

U32 = np.uint32
P1 = U64(0x9E3779B185EBCA87)
P2 = U64(0xC2B2AE3D27D4EB4F)
P3 = U64(0x165667B19E3779F9)
P4 = U64(0x85EBCA77C2B2AE63)
P5 = U64(0x27D4EB2F165667C5)


@njit(nogil=True, cache=True, inline="always")
def _rotl64(x: Any, r: int) -> Any:
    return (x << U64(r)) | (x >> U64(64 - r))


@njit(nogil=True, cache=True, inline="always")
def _finish64(h: Any) -> Any:
    h ^= h >> U64(33)
    h *= P2
    h ^= h >> U64(29)
    h *= P3
    h ^= h >> U64(32)
    return h


@njit(nogil=True, cache=True)
def xxhash_longs(values: Any, valid: Any, hashes: Any) -> None:
    """Chain 8-byte values into ``hashes``."""
    nulls = valid.size > 0
    for i in range(values.size):
        if nulls and not valid[i]:
            continue
        h = hashes[i] + P5 + U64(8)
        h ^= _rotl64(U64(values[i]) * P2, 31) * P1
        h = _rotl64(h, 27) * P1 + P4
        hashes[i] = _finish64(h)


@njit(nogil=True, cache=True)
def xxhash_ints(values: Any, valid: Any, hashes: Any) -> None:
    """Chain 4-byte values into ``hashes``."""
    nulls = valid.size > 0
    for i in range(values.size):
        if nulls and not valid[i]:
            continue
        h = hashes[i] + P5 + U64(4)
        h ^= (U64(values[i]) & U64(0xFFFFFFFF)) * P1
        h = _rotl64(h, 23) * P2 + P3
        hashes[i] = _finish64(h)


@njit(nogil=True, cache=True)
def xxhash_strings(data: Any, offsets: Any, valid: Any, hashes: Any) -> None:
    """Chain byte strings into ``hashes``."""
    nulls = valid.size > 0
    for i in range(offsets.size - 1):
        if nulls and not valid[i]:
            continue
        at = np.int64(offsets[i])
        end = np.int64(offsets[i + 1])
        length = end - at
        seed = hashes[i]
        if length >= 32:
            v1 = seed + P1 + P2
            v2 = seed + P2
            v3 = seed
            v4 = seed - P1
            while at + 32 <= end:
                v1 = _rotl64(v1 + word_at(data, at, 8) * P2, 31) * P1
                v2 = _rotl64(v2 + word_at(data, at + 8, 8) * P2, 31) * P1
                v3 = _rotl64(v3 + word_at(data, at + 16, 8) * P2, 31) * P1
                v4 = _rotl64(v4 + word_at(data, at + 24, 8) * P2, 31) * P1
                at += 32
            h = _rotl64(v1, 1) + _rotl64(v2, 7) + _rotl64(v3, 12) + _rotl64(v4, 18)
            for v in (v1, v2, v3, v4):
                h ^= _rotl64(v * P2, 31) * P1
                h = h * P1 + P4
        else:
            h = seed + P5
        h += U64(length)
        while at + 8 <= end:
            h ^= _rotl64(word_at(data, at, 8) * P2, 31) * P1
            h = _rotl64(h, 27) * P1 + P4
            at += 8
        if at + 4 <= end:
            h ^= word_at(data, at, 4) * P1
            h = _rotl64(h, 23) * P2 + P3
            at += 4
        while at < end:
            h ^= U64(data[at]) * P5
            h = _rotl64(h, 11) * P1
            at += 1
        hashes[i] = _finish64(h)


@njit(nogil=True, cache=True, inline="always")
def _mix_k32(k: Any) -> Any:
    k = U32(k * U32(0xCC9E2D51))
    k = U32((k << U32(15)) | (k >> U32(17)))
    return U32(k * U32(0x1B873593))


@njit(nogil=True, cache=True, inline="always")
def _mix_h32(h: Any, k: Any) -> Any:
    h = U32(h ^ k)
    h = U32((h << U32(13)) | (h >> U32(19)))
    return U32(h * U32(5) + U32(0xE6546B64))


@njit(nogil=True, cache=True, inline="always")
def _finish32(h: Any, length: int) -> Any:
    h = U32(h ^ U32(length))
    h = U32(h ^ (h >> U32(16)))
    h = U32(h * U32(0x85EBCA6B))
    h = U32(h ^ (h >> U32(13)))
    h = U32(h * U32(0xC2B2AE35))
    return U32(h ^ (h >> U32(16)))


@njit(nogil=True, cache=True)
def murmur_ints(values: Any, valid: Any, hashes: Any) -> None:
    """Chain 4-byte values into ``hashes``."""
    nulls = valid.size > 0
    for i in range(values.size):
        if nulls and not valid[i]:
            continue
        k = _mix_k32(U32(U64(values[i]) & U64(0xFFFFFFFF)))
        hashes[i] = _finish32(_mix_h32(hashes[i], k), 4)


@njit(nogil=True, cache=True)
def murmur_longs(values: Any, valid: Any, hashes: Any) -> None:
    """Chain 8-byte values into ``hashes``."""
    nulls = valid.size > 0
    for i in range(values.size):
        if nulls and not valid[i]:
            continue
        word = U64(values[i])
        h = _mix_h32(hashes[i], _mix_k32(U32(word & U64(0xFFFFFFFF))))
        h = _mix_h32(h, _mix_k32(U32(word >> U64(32))))
        hashes[i] = _finish32(h, 8)


@njit(nogil=True, cache=True)
def murmur_strings(data: Any, offsets: Any, valid: Any, hashes: Any) -> None:
    """Chain byte strings into ``hashes``; the tail goes in byte by byte, signed, as in Spark."""
    nulls = valid.size > 0
    for i in range(offsets.size - 1):
        if nulls and not valid[i]:
            continue
        at = np.int64(offsets[i])
        end = np.int64(offsets[i + 1])
        length = end - at
        h = hashes[i]
        while at + 4 <= end:
            h = _mix_h32(h, _mix_k32(U32(word_at(data, at, 4))))
            at += 4
        while at < end:
            h = _mix_h32(h, _mix_k32(U32(np.int32(np.int8(data[at])))))
            at += 1
        hashes[i] = _finish32(h, length)
