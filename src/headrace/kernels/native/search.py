"""Looking for a few bytes in many strings at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from headrace.kernels.native.memory import U64, same_bytes, trailing_zeros

BLOCK = 64


@intrinsic
def _both_at(typingctx: Any, data: Any, at: Any, first: Any, gap: Any, second: Any) -> Any:
    """A bit for each of the 64 places from ``at`` that holds ``first``, and ``second`` ``gap``
    places later. Vectors of LLVM's, so that a machine uses the widest it has."""
    signature = types.uint64(data, types.int64, types.uint8, types.int64, types.uint8)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lane, place = ir.IntType(8), ir.IntType(32)
        block = ir.VectorType(lane, BLOCK)
        nothing = ir.Constant(block, ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(place, BLOCK), [0] * BLOCK)
        array = context.make_array(sig.args[0])(context, builder, args[0])

        def equal(at: Any, byte: Any) -> Any:
            pointer = builder.bitcast(builder.gep(array.data, [at]), ir.PointerType(block))
            one = builder.insert_element(nothing, byte, place(0))
            sought = builder.shuffle_vector(one, nothing, everywhere)
            return builder.icmp_unsigned("==", builder.load(pointer, align=1), sought)

        later = equal(builder.add(args[1], args[3]), args[4])
        both = builder.and_(equal(args[1], args[2]), later)
        return builder.bitcast(both, ir.IntType(BLOCK))

    return signature, codegen


@njit(nogil=True, cache=True)
def next_place(data: Any, at: int, end: int, needle: Any, first: int, second: int) -> int:
    """Where the bytes of ``needle`` are next between ``at`` and ``end``; -1 if nowhere.

    ``first`` and ``second`` are the places in the needle of the bytes that are looked for; they
    should be rare ones.
    """
    length = needle.size
    gap = second - first
    reach = BLOCK + max(first, second)
    a, b = needle[first], needle[second]
    while at + reach <= end:
        mask = _both_at(data, at + first, a, gap, b)
        while mask != U64(0):
            start = at + np.int64(trailing_zeros(mask))
            if start + length <= end and same_bytes(data, start, needle, 0, length):
                return start
            mask &= mask - U64(1)
        at += BLOCK
    while at + length <= end:
        if same_bytes(data, at, needle, 0, length):
            return at
        at += 1
    return -1


@njit(nogil=True, cache=True)
def rows_with(data: Any, offsets: Any, needle: Any, first: int, second: int, rows: Any) -> int:
    """The rows that hold the bytes of ``needle``, in order; how many there are.

    All rows are gone through as one text.
    """
    end = np.int64(offsets[offsets.size - 1])
    found = 0
    row = 0
    at = next_place(data, np.int64(offsets[0]), end, needle, first, second)
    while at >= 0:
        while np.int64(offsets[row + 1]) <= at:
            row += 1
        after = np.int64(offsets[row + 1])
        if at + needle.size <= after:
            rows[found] = row
            found += 1
            at = after  # the rest of this row does not matter
        else:
            at += 1
        at = next_place(data, at, end, needle, first, second)
    return found
