"""``hash`` and ``xxhash64``, equal to Spark's to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import PlanError
from headrace.kernels import recycled
from headrace.kernels.columns import Text, numbers, validity
from headrace.kernels.expressions.kernel import Kernel, Scope, apply_arrays, function
from headrace.kernels.native import hashing as native
from headrace.types import type_name

_NATIVE = {
    "xxhash64": (native.xxhash_ints, native.xxhash_longs, native.xxhash_strings, np.uint64),
    "hash": (native.murmur_ints, native.murmur_longs, native.murmur_strings, np.uint32),
}


def hash_columns(arrays: Sequence[pa.Array], rows: int, name: str = "xxhash64") -> Any:
    """One hash a row over all columns, chained as Spark chains them, from the seed 42."""
    ints, longs, strings, dtype = _NATIVE[name]
    hashes = recycled.empty(rows, dtype)
    hashes.fill(42)
    for array in arrays:
        kind, t = array.type, pa.types
        if t.is_string(kind) or t.is_binary(kind):
            text = Text.of(array)
            strings(text.data, text.offsets, text.valid, hashes)
            continue
        valid = validity(array)
        if t.is_boolean(kind):
            ints(numbers(array.cast(pa.int8()), np.int8), valid, hashes)
        elif (t.is_integer(kind) and kind.bit_width < 64) or t.is_date(kind):
            ints(numbers(array, f"i{kind.bit_width // 8}"), valid, hashes)
        elif t.is_float32(kind):
            ints(float_bits(numbers(array, np.float32), np.int32), valid, hashes)
        elif t.is_float64(kind):
            longs(float_bits(numbers(array, np.float64), np.int64), valid, hashes)
        elif t.is_int64(kind) or t.is_timestamp(kind) or t.is_duration(kind):
            longs(numbers(array, np.int64), valid, hashes)
        else:
            raise PlanError(f"{name} does not take {type_name(kind)}")
    return hashes


def float_bits(values: Any, dtype: Any) -> Any:
    """Floats by their bits, with one zero and one NaN."""
    plain = values + values.dtype.type(0)
    return np.where(np.isnan(plain), values.dtype.type(np.nan), plain).view(dtype)


def hashable(kind: pa.DataType) -> bool:
    """Whether ``hash_columns`` takes a type."""
    return not (pa.types.is_nested(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind))


def _build(name: str, kind: pa.DataType, signed: Any) -> None:
    @function(name)
    def build(scope: Scope, *args: Kernel) -> Kernel:
        if not args:
            raise PlanError(f"{name} takes at least one value")
        for arg in args:
            if not hashable(arg.type):
                raise PlanError(f"{name} does not take {type_name(arg.type)}")
        return apply_arrays(
            kind,
            lambda *arrays: pa.array(hash_columns(arrays, len(arrays[0]), name).view(signed)),
            *args,
        )


_build("xxhash64", pa.int64(), np.int64)
_build("hash", pa.int32(), np.int32)
