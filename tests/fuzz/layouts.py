"""The same values laid out in memory in any way that Arrow allows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.types import normal_batch
from tests.fuzz.values import maybe, value


def fresh(values: list[Any], kind: pa.DataType) -> pa.Array:
    """The plainest array of some values."""
    return pa.array(values, kind)


def any_layout(rng: random.Random, values: list[Any], kind: pa.DataType) -> pa.Array:
    """An array of the values that may be a slice, hide rubbish under its nulls, or come by a
    cast from another type that holds the same."""
    array = rubbish_under_nulls(rng, values, kind) if rng.random() < 0.5 else pa.array(values, kind)
    array = _sliced(rng, array, kind)
    if pa.types.is_string(kind):
        array = _through(rng, array, [pa.large_string(), pa.string_view(), _WORDS, _MORE_WORDS])
    elif pa.types.is_binary(kind):
        array = _through(rng, array, [pa.large_binary(), pa.binary_view()])
    elif pa.types.is_list(kind):
        array = _through(rng, array, [pa.large_list(kind.value_type)])
    if rng.random() < 0.3:
        array = _sliced(rng, array, kind)
    assert array.type.equals(kind)
    assert repr(array.to_pylist()) == repr(pa.array(values, kind).to_pylist())
    return array


_WORDS = pa.dictionary(pa.int32(), pa.string())
_MORE_WORDS = pa.dictionary(pa.int8(), pa.large_string())


def rubbish_under_nulls(rng: random.Random, values: list[Any], kind: pa.DataType) -> pa.Array:
    """An array whose nulls have values in its buffers, as a filter or a join may leave them."""
    full = pa.array([value(rng, kind) if v is None else v for v in values], kind)
    null = np.array([v is None for v in values], bool)
    t = pa.types
    if not null.any():
        return full
    if t.is_list(kind):
        return pa.ListArray.from_arrays(full.offsets, full.values, type=kind, mask=pa.array(null))
    if t.is_struct(kind):
        children = [full.field(i) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array(null))
    bits = pa.py_buffer(np.packbits(~null, bitorder="little").tobytes())
    return pa.Array.from_buffers(kind, len(full), [bits, *full.buffers()[1:]])


def _sliced(rng: random.Random, array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array as a slice of a longer one."""
    before, after = rng.choice([0, 0, 1, 7, 8, 9, 70]), rng.choice([0, 1, 5])
    if not before and not after:
        return array
    ends = [pa.array([maybe(rng, kind) for _ in range(n)], kind) for n in (before, after)]
    return pa.concat_arrays([ends[0], array, ends[1]]).slice(before, len(array))


def _through(rng: random.Random, array: pa.Array, kinds: list[pa.DataType]) -> pa.Array:
    """The array by way of another type, normalised as every source's batches are."""
    if rng.random() < 0.4:
        return array
    kind = rng.choice(kinds)
    if pa.types.is_dictionary(kind):
        if len(array.unique()) > 100:
            return array
        other = array.cast(kind.value_type).dictionary_encode()
        other = pa.DictionaryArray.from_arrays(
            other.indices.cast(kind.index_type), other.dictionary
        )
    else:
        other = pc.cast(array, kind)
    if rng.random() < 0.5:  # a slice of the other type
        before = min(rng.choice([1, 3, 9]), len(other))
        other = pa.concat_arrays([other.slice(0, before), other]).slice(before)
    batch = pa.RecordBatch.from_arrays([other], names=["v"])
    return normal_batch(batch, pa.schema([("v", array.type)])).column(0)
