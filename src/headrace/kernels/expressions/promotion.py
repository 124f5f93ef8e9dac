"""Which type two types meet in, as Spark's ANSI mode has it."""

from __future__ import annotations

from functools import reduce

import pyarrow as pa

from headrace.errors import PlanError
from headrace.types import type_name

_INTEGERS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}


def as_decimal(kind: pa.DataType) -> pa.DataType:
    """The decimal that holds every value of an integer type."""
    return kind if pa.types.is_decimal(kind) else pa.decimal128(_INTEGERS[kind], 0)


def wider_decimal(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The decimal that holds every value of both, if 38 digits suffice."""
    a, b = as_decimal(a), as_decimal(b)
    scale = max(a.scale, b.scale)
    precision = max(a.precision - a.scale, b.precision - b.scale) + scale
    return pa.decimal128(precision, scale) if precision <= 38 else None


def common(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The type both are cast to when they meet; None where they must not."""
    t = pa.types
    if a.equals(b) or t.is_null(b):
        return a
    if t.is_null(a):
        return b
    if t.is_integer(a) and t.is_integer(b):
        return a if a.bit_width >= b.bit_width else b
    numeric = (t.is_integer, t.is_floating, t.is_decimal)
    if any(f(a) for f in numeric) and any(f(b) for f in numeric):
        if t.is_floating(a) or t.is_floating(b):
            return pa.float64()
        return wider_decimal(a, b)
    if t.is_date(a) and t.is_timestamp(b):
        return b
    if t.is_timestamp(a) and t.is_date(b):
        return a
    if t.is_timestamp(a) and t.is_timestamp(b):
        return a if a.tz else b
    if t.is_list(a) and t.is_list(b):
        inner = common(a.value_type, b.value_type)
        return None if inner is None else pa.list_(inner)
    return None


def common_of(kinds: list[pa.DataType], where: str) -> pa.DataType:
    """The type that several meet in, or a refusal that names them."""

    def meet(a: pa.DataType, b: pa.DataType) -> pa.DataType:
        kind = common(a, b)
        if kind is None:
            raise PlanError(
                f"{where} cannot mix {type_name(a)} and {type_name(b)}; cast one of them"
            )
        return kind

    return reduce(meet, kinds)
