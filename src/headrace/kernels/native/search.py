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
def rows_with(data: Any, offsets: Any, needle: Any, first: int, second: int, rows: Any) -> int:
    """The rows that hold the bytes of ``needle``, in order; how many there are.

    ``first`` and ``second`` are the places in the needle of the bytes that are looked for through
    all rows as one text; they should be rare ones.
    """
    end = np.int64(offsets[offsets.size - 1])
    length = needle.size
    gap = second - first
    reach = BLOCK + max(first, second)
    found = 0
    row = 0
    at = np.int64(offsets[0])
    while at + length <= end:
        if at + reach <= end:
            mask = _both_at(data, at + first, needle[first], gap, needle[second])
            step = BLOCK
        else:  # the last places one by one
            mask = U64(1)
            step = 1
        following = at + step
        while mask != U64(0):
            start = at + np.int64(trailing_zeros(mask))
            mask &= mask - U64(1)
            if start + length > end or not same_bytes(data, start, needle, 0, length):
                continue
            while np.int64(offsets[row + 1]) <= start:
                row += 1
            after = np.int64(offsets[row + 1])
            if start + length <= after:
                rows[found] = row
                found += 1
                following = max(following, after)  # the rest of this row does not matter
                if after - at >= step:
                    break
                mask &= ~((U64(1) << U64(after - at)) - U64(1))
        at = following
    return found
