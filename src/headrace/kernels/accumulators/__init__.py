"""How each aggregate is kept: columns of numbers where it can be, kept rows where it must be.

An accumulator holds one state for each group of a ``Grouper``. It takes input (``update``) or
partials of its own making (``merge``), and gives partials or the result. Neither the number of
bundles nor where they were cut changes a result, except the last digits of floating sums.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.errors import PlanError
from headrace.kernels.accumulators.kept import (
    Distinct,
    DistinctRows,
    Kept,
    Sketch,
    by_group,
    element_at,
    first_fields,
    keep_best,
    keep_first,
    keep_last,
    keep_ranked,
    keep_top,
    list_field,
)
from headrace.kernels.accumulators.numeric import Count, DecimalSum, Extreme, Mean, Moments, Sum
from headrace.kernels.accumulators.protocol import Accumulator
from headrace.kernels.accumulators.states import States
from headrace.kernels.expressions.hashing import hashable
from headrace.kernels.expressions.kernel import is_number
from headrace.kernels.group import is_fixed
from headrace.types import to_type, type_name


def accumulator(aggregate: Any, kinds: list[pa.DataType]) -> Accumulator:
    """The accumulator of an aggregate whose inputs (and ``by``, last) have these types."""
    kind, name = (kinds[0] if kinds else None), aggregate.kind
    if name == "count":
        return Count()
    if name in ("sum", "mean", "var", "std"):
        if not is_number(kind):
            raise PlanError(f"{aggregate} takes numbers, not {type_name(kind)}")
        if pa.types.is_decimal(kind) and name != "sum":
            raise PlanError(f"{aggregate} of a decimal is not supported; cast it to double")
        if name == "sum":
            return DecimalSum(kind) if pa.types.is_decimal(kind) else Sum(kind)
        return Mean() if name == "mean" else Moments(root=name == "std")
    if name in ("min", "max"):
        if pa.types.is_nested(kind):
            raise PlanError(f"{aggregate} takes values with an order, not {type_name(kind)}")
        if is_fixed(kind):
            return Extreme(kind, name == "max")
        return Kept([kind], keep_ranked(0, name == "max"), kind, element_at(0, None), 0)
    if aggregate.by is not None and pa.types.is_nested(kinds[-1]):
        raise PlanError(f"{aggregate}: by= takes values with an order, not {type_name(kinds[-1])}")
    if name in ("first", "last"):
        if aggregate.by is None:
            return Kept(
                [kind],
                keep_first if name == "first" else keep_last,
                kind,
                element_at(0, None),
                None,
            )
        return Kept(kinds, keep_ranked(1, name == "last"), kind, element_at(0, 0), 1)
    if name == "count_distinct":
        return Distinct(kinds)
    if name == "approx_distinct":
        if not hashable(kind):
            raise PlanError(f"{aggregate} does not take {type_name(kind)}")
        return Sketch()
    if name == "collect":
        return Kept([kind], lambda g, a: by_group(g), pa.list_(kind), lambda lists: lists, 0)
    if name == "top_k":
        by = len(kinds) - 1
        values = (lambda lists: lists) if by == 0 else list_field
        return Kept(kinds, keep_top(aggregate.k, by), pa.list_(kind), values, by)
    if name == "distinct_rows":
        return DistinctRows(kinds)
    if name == "top_rows":
        count = len(kinds) - len(aggregate.down)
        columns = pa.struct([pa.field(str(i), k) for i, k in enumerate(kinds[:count])])
        keep = keep_best(aggregate.k, count, aggregate.down)
        return Kept(kinds, keep, pa.list_(columns), first_fields(columns), None)
    if name == "user":
        user = aggregate.user
        kind = to_type(user.returns)
        return States(kind, user.partial, user.merge, user.finish, repr(aggregate))
    raise AssertionError(name)


__all__ = ["Accumulator", "accumulator"]
