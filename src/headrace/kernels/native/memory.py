"""Reading machine words out of byte buffers, the way the hash tables need it."""

from __future__ import annotations

import ctypes
import os
import random
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic

U64 = np.uint64
SEED = "HEADRACE_HASH_SEED"
"""An environment variable: a number makes the tables of all processes alike, for debugging."""


def hash_seeds() -> list[int]:
    """Three numbers that nobody outside this process knows; the last two are odd."""
    said = os.environ.get(SEED)
    draw = random.SystemRandom() if not said else random.Random(int(said))
    return [draw.getrandbits(64), draw.getrandbits(64) | 1, draw.getrandbits(64) | 1]


def cleared(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """Zeros for a table that is read before it is written, in memory that is there already.

    ``np.zeros`` leaves that to the first use: a page that is read first is the kernel's one page of
    zeros, and when it is written it is replaced, for which every core that runs a thread of this
    process is interrupted. Many threads that fill their tables spent an eighth of their time so.
    """
    table = np.empty(shape, dtype)
    table.fill(0)
    return table


@intrinsic
def _load64(typingctx: Any, data: Any, at: Any) -> Any:
    """Eight bytes of ``data`` starting at ``at``, unaligned, little-endian."""
    signature = types.uint64(data, types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, args[0])
        pointer = builder.gep(array.data, [args[1]])
        word = builder.bitcast(pointer, ir.PointerType(ir.IntType(64)))
        return builder.load(word, align=1)

    return signature, codegen


@intrinsic
def store64(typingctx: Any, data: Any, at: Any, word: Any) -> Any:
    """Write eight bytes to ``data`` at ``at``, unaligned, little-endian."""
    signature = types.void(data, types.int64, types.uint64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, args[0])
        pointer = builder.gep(array.data, [args[1]])
        place = builder.bitcast(pointer, ir.PointerType(ir.IntType(64)))
        builder.store(args[2], place, align=1)
        return context.get_dummy_value()

    return signature, codegen


_SEEDS = (ctypes.c_uint64 * 3)(*hash_seeds())
binding.add_symbol("headrace_hash_seeds", ctypes.addressof(_SEEDS))


@intrinsic
def _seed(typingctx: Any, number: Any) -> Any:
    """One of this process's secret numbers. Compiled code refers to it by name, so that it can be
    kept in a cache and still have another number in every process."""
    signature = types.uint64(types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.ArrayType(ir.IntType(64), len(_SEEDS))
        found = builder.module.globals.get("headrace_hash_seeds")
        seeds = found or ir.GlobalVariable(builder.module, kind, "headrace_hash_seeds")
        seeds.linkage = "external"
        seeds.global_constant = True  # so that it is read once, before a loop
        place = builder.gep(seeds, [ir.IntType(64)(0), args[0]])
        return builder.load(place)

    return signature, codegen


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> Any:
    """The place of a word's lowest bit; the word must not be zero."""
    signature = types.uint64(types.uint64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return signature, codegen


@intrinsic
def leading_zeros(typingctx: Any, word: Any) -> Any:
    """How many bits are above a word's highest one; the word must not be zero."""
    signature = types.uint64(types.uint64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))

    return signature, codegen


@intrinsic
def prefetch(typingctx: Any, data: Any, at: Any) -> Any:
    """Ask for the cache line of a word that will be needed soon."""
    signature = types.void(data, types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, args[0])
        pointer = builder.bitcast(builder.gep(array.data, [args[1]]), ir.PointerType(ir.IntType(8)))
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        name = "llvm.prefetch.p0"
        found = builder.module.globals.get(name)
        function = found or ir.Function(builder.module, kind, name)
        builder.call(function, [pointer, i32(1), i32(3), i32(1)])
        return context.get_dummy_value()

    return signature, codegen


@njit(nogil=True, cache=True, inline="always")
def first_byte(mask: Any) -> Any:
    """Which byte of a word is the first whose high bit is set; the mask must not be zero."""
    return np.int64(trailing_zeros(mask) >> U64(3))


@njit(nogil=True, cache=True, inline="always")
def top_byte(word: Any) -> Any:
    """Which byte of a word is the last that is not zero; the word must not be zero."""
    return np.int64(U64(7) - (leading_zeros(word) >> U64(3)))


ONES = U64(0x0101010101010101)
HIGHS = U64(0x8080808080808080)


@njit(nogil=True, cache=True, inline="always")
def bytes_between(word: Any, low: Any, high: Any) -> Any:
    """High bits of the bytes of a word that are ASCII and in ``[low, high]``; all 8 at once."""
    plain = word & ~HIGHS
    above = plain + (U64(128) - low) * ONES
    beyond = plain + (U64(127) - high) * ONES
    return above & ~beyond & ~word & HIGHS


@njit(nogil=True, cache=True, inline="always")
def word_at(data: Any, at: int, length: int) -> Any:
    """The first ``min(length, 8)`` bytes at ``at`` as one integer, the rest zero."""
    if length >= 8:
        return _load64(data, at)
    if at + 8 <= data.size:
        return _load64(data, at) & ((U64(1) << U64(8 * length)) - U64(1))
    word = U64(0)
    for i in range(length):
        word |= U64(data[at + i]) << U64(8 * i)
    return word


@njit(nogil=True, cache=True, inline="always")
def mix(a: Any, b: Any) -> Any:
    """A well-spread 64-bit hash of two words, another in every process.

    Keys come from outside: whoever knows the hash could send such as all fall in one place. It is
    for tables of this process alone; what travels is hashed with ``xxhash64``.
    """
    h = (a ^ (a >> U64(32)) ^ _seed(0)) * _seed(1)
    h ^= (b ^ (b >> U64(29))) * _seed(2)
    h ^= h >> U64(32)
    h *= U64(0xD6E8FEB86659FD93)
    h ^= h >> U64(32)
    return h


@njit(nogil=True, cache=True)
def hash_bytes(data: Any, at: int, length: int) -> Any:
    """A 64-bit hash of a run of bytes."""
    h = U64(length) * U64(0x9E3779B97F4A7C15)
    i = 0
    while i + 8 <= length:
        h = mix(h, word_at(data, at + i, 8))
        i += 8
    if i < length:
        h = mix(h, word_at(data, at + i, length - i))
    return h


@njit(nogil=True, cache=True)
def same_bytes(a: Any, at: int, b: Any, bt: int, length: int) -> bool:
    """Whether two runs of bytes are equal."""
    i = 0
    while i + 8 <= length:
        if word_at(a, at + i, 8) != word_at(b, bt + i, 8):
            return False
        i += 8
    return i == length or word_at(a, at + i, length - i) == word_at(b, bt + i, length - i)
