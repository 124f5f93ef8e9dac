"""Lists and structs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.errors import ExpressionError, PlanError, nearest
from headrace.kernels.columns import numbers, validity
from headrace.kernels.expressions.casts import cast
from headrace.kernels.expressions.codes import decoded, is_coded
from headrace.kernels.expressions.kernel import (
    Kernel,
    Scope,
    apply,
    apply_arrays,
    function,
    literal_value,
    node,
    want,
)
from headrace.kernels.expressions.logic import comparer
from headrace.kernels.expressions.promotion import common, common_of
from headrace.kernels.native import lists
from headrace.types import type_name

INT = pa.int32()


@node(exp.Column)
def build_column(scope: Scope, tree: exp.Column) -> Kernel:
    path = [part.name for part in tree.parts]
    index = scope.schema.get_field_index(path[0])
    if index < 0:
        raise PlanError(f"there is no column '{path[0]}'{nearest(path[0], scope.schema.names)}")
    kind = scope.schema.field(index).type
    kernel = Kernel(kind, lambda batch: batch.column(index))
    if is_coded(kind):
        kernel = Kernel(kind.value_type, lambda batch: decoded(batch.column(index)))
    for name in path[1:]:
        kernel = field_of(kernel, name)
    return kernel


def field_of(kernel: Kernel, name: str) -> Kernel:
    """A field of a struct."""
    if not pa.types.is_struct(kernel.type):
        raise PlanError(f"a {type_name(kernel.type)} has no field '{name}'; only a struct has")
    names = [f.name for f in kernel.type]
    if name not in names:
        raise PlanError(f"the struct has no field '{name}'{nearest(name, names)}")
    index = names.index(name)
    return apply(kernel.type.field(index).type, lambda v: pc.struct_field(v, index), kernel)


@node(exp.Dot)
def build_dot(scope: Scope, tree: exp.Dot) -> Kernel:
    return field_of(scope.compile(tree.this), tree.expression.name)


@function("named_struct")
def build_named_struct(scope: Scope, *args: Kernel) -> Kernel:
    names = [str(literal_value(a, "a field's name", "named_struct")) for a in args[::2]]
    values = args[1::2]
    if not names or len(names) != len(values):
        raise PlanError("named_struct takes names and values by turns")
    kind = pa.struct([pa.field(n, v.type) for n, v in zip(names, values, strict=True)])
    fields = list(kind)
    return apply_arrays(
        kind, lambda *arrays: pa.StructArray.from_arrays(list(arrays), fields=fields), *values
    )


def elements(kernel: Kernel, where: str) -> pa.DataType:
    want(kernel, pa.types.is_list, "a list", where)
    if pa.types.is_null(kernel.type):
        raise PlanError(f"{where} takes a list, not null")
    return kernel.type.value_type


@function("array")
def build_array(scope: Scope, *args: Kernel) -> Kernel:
    if not args:
        raise PlanError("array takes at least one value")
    inner = common_of([a.type for a in args], "array")
    width = len(args)
    kind = pa.list_(inner)

    def run(*columns: pa.Array) -> pa.Array:
        rows = len(columns[0])
        flat = pa.concat_arrays(list(columns))
        order = np.arange(rows * width).reshape(width, rows).T.ravel()
        offsets = np.arange(0, rows * width + 1, width, dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), flat.take(pa.array(order)), type=kind)

    return apply_arrays(kind, run, *(cast(a, inner, scope.zone) for a in args))


@function("size", "cardinality", "array_size")
def build_size(scope: Scope, value: Kernel) -> Kernel:
    elements(value, "size")
    return apply(INT, lambda v: pc.list_value_length(v).cast(INT), value)


def _at(array: pa.Array, index: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Any, Any]:
    """Elements by index from 0, and where the index was outside."""
    offsets = numbers_of_offsets(array)
    sizes = np.diff(offsets)
    place = numbers(index.cast(pa.int64()), np.int64)
    outside = (place < 0) | (place >= sizes)
    valid = _valid(array) & _valid(index)
    rows = np.where(outside | ~valid, 0, offsets[:-1] + place)
    taken = array.values.take(pa.array(rows, mask=outside | ~valid))
    return taken.cast(kind) if not taken.type.equals(kind) else taken, outside & valid, sizes


def _valid(array: pa.Array) -> np.ndarray[Any, Any]:
    valid = validity(array)
    return valid if valid.size else np.ones(len(array), np.bool_)


def numbers_of_offsets(array: pa.Array) -> np.ndarray[Any, Any]:
    """A list array's offsets into its values."""
    return np.asarray(array.offsets)


@node(exp.Bracket)
def build_bracket(scope: Scope, tree: exp.Bracket) -> Kernel:
    if len(tree.expressions) != 1:
        raise PlanError("x[i] takes one index")
    value, index = scope.compile(tree.this), scope.compile(tree.expressions[0])
    if pa.types.is_struct(value.type):
        return field_of(value, str(literal_value(index, "the field", "x[…]")))
    kind = elements(value, "x[i]")
    want(index, pa.types.is_integer, "a whole number", "x[i]")

    def run(array: pa.Array, at: pa.Array) -> pa.Array:
        taken, outside, sizes = _at(array, at, kind)
        if outside.any():
            row = int(np.flatnonzero(outside)[0])
            raise ExpressionError(
                f"index {at[row].as_py()} is outside a list of {sizes[row]}; use get(x, i) for null"
            )
        return taken

    return apply_arrays(kind, run, value, index, raises=True)


@function("get")
def build_get(scope: Scope, value: Kernel, index: Kernel) -> Kernel:
    kind = elements(value, "get")
    want(index, pa.types.is_integer, "a whole number", "get")
    index = cast(index, INT) if index.type.bit_width > 32 else index
    return apply_arrays(kind, lambda array, at: _at(array, at, kind)[0], value, index)


@function("element_at")
def build_element_at(scope: Scope, value: Kernel, index: Kernel) -> Kernel:
    kind = elements(value, "element_at")
    want(index, pa.types.is_integer, "a whole number", "element_at")
    if index.type.equals(pa.int64()):
        raise PlanError("element_at takes an index of type int; cast it, as in cast(x as int)")

    def run(array: pa.Array, at: pa.Array) -> pa.Array:
        place = numbers(at.cast(pa.int64()), np.int64)
        sizes = np.diff(numbers_of_offsets(array))
        zero_based = np.where(place > 0, place - 1, sizes + place)
        zero_based = np.where(place == 0, -1, zero_based)
        valid = validity(at)
        shifted = pa.array(zero_based, mask=~valid if valid.size else None)
        taken, outside, _ = _at(array, shifted, kind)
        if outside.any():
            row = int(np.flatnonzero(outside)[0])
            raise ExpressionError(
                f"element_at: {int(place[row])} is outside a list of {int(sizes[row])}; "
                "use get(x, i) for null"
            )
        return taken

    return apply_arrays(kind, run, value, index, raises=True)


@function("array_contains")
def build_contains(scope: Scope, value: Kernel, sought: Kernel) -> Kernel:
    inner = elements(value, "array_contains")
    kind = common(inner, sought.type)
    if kind is None or pa.types.is_null(sought.type):
        raise PlanError(
            f"array_contains looks for a {type_name(inner)}, not a {type_name(sought.type)}"
        )
    equal = comparer(exp.EQ, kind)

    def run(array: pa.Array, what: pa.Array) -> pa.Array:
        offsets = numbers_of_offsets(array)
        parents = np.repeat(np.arange(len(array)), np.diff(offsets))
        flat = array.values.slice(offsets[0], offsets[-1] - offsets[0]).cast(kind)
        hit = equal(flat, what.take(pa.array(parents)))
        found = np.zeros(len(array), np.bool_)
        found[parents[hit.fill_null(False).to_numpy(zero_copy_only=False)]] = True
        unsure = np.zeros(len(array), np.bool_)
        unsure[parents[flat.is_null().to_numpy(zero_copy_only=False)]] = True
        null = (unsure & ~found) | ~_valid(array) | ~_valid(what)
        return pa.array(found, mask=null)

    return apply_arrays(pa.bool_(), run, value, cast(sought, kind, scope.zone))


@function("array_distinct")
def build_distinct(scope: Scope, value: Kernel) -> Kernel:
    inner = elements(value, "array_distinct")
    if pa.types.is_nested(inner):
        raise PlanError(f"array_distinct does not compare {type_name(inner)}")
    kind = value.type

    def run(array: pa.Array) -> pa.Array:
        from headrace.kernels.group import Grouper

        offsets = numbers_of_offsets(array)
        flat = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        lengths = np.diff(offsets)
        if len(flat) == 0:
            return array
        if pa.types.is_floating(inner):
            flat = pc.add(flat, pa.scalar(0.0, inner))  # as in Spark: no zero below zero
        codes, _ = Grouper([flat.type]).groups([flat])
        sizes = np.empty(len(array), np.int64)
        kept = np.empty(len(flat), np.int64)
        if lengths.max() <= _SHORT:
            kept = kept[: lists.first_of_each(offsets, codes, kept, sizes)]
        else:
            parents = np.repeat(np.arange(len(array)), lengths)
            pairs = [pa.array(parents), pa.array(codes)]
            _, kept = Grouper([pa.int64(), pa.int64()]).groups(pairs)
            sizes = np.bincount(parents[kept], minlength=len(array))
        ends = np.zeros(len(array) + 1, np.int32)
        np.cumsum(sizes, out=ends[1:])
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(
            pa.array(ends), flat.take(pa.array(kept)), type=kind, mask=mask
        )

    return apply_arrays(kind, run, value)


_SHORT = 64
"""Lists up to this long are searched rather than hashed."""
