"""What the statistics of a row group rule out: whether any of its records can meet a condition.

They are bounds, so that text may be cut off in them, and they may be missing. They leave out nulls,
which no comparison is true of, and NaN, which counts as greater than all numbers here: so nothing
is known of how great a column of floats may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.kernels.expressions import compile_expression, evaluate
from headrace.plan.prune import columns_of
from headrace.types import normal_batch

Holds = Callable[["Bounds"], bool]
_FLIPPED = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE, exp.EQ: exp.EQ}


class Bounds:
    """What is known of the columns of a row group."""

    def __init__(self, meta: Any, columns: Mapping[str, tuple[int, Any, Any]], rows: int) -> None:
        self.meta, self.columns, self.rows = meta, columns, rows

    def nulls(self, name: str) -> tuple[bool, bool]:
        """Whether a column may have nulls, and whether it may have anything else."""
        found = self._statistics(name)
        if found is None or not found.has_null_count:
            return True, True
        return found.null_count > 0, found.null_count < self.rows

    def least(self, name: str) -> pa.Array | None:
        """No value of a column is less than this one."""
        found = self._statistics(name)
        return None if found is None or not found.has_min_max else self._value(name, found.min_raw)

    def greatest(self, name: str) -> pa.Array | None:
        """No value of a column is greater than this one."""
        found = self._statistics(name)
        if found is None or not found.has_min_max or pa.types.is_floating(self.columns[name][2]):
            return None
        return self._value(name, found.max_raw)

    def _statistics(self, name: str) -> Any:
        if name not in self.columns:
            return None
        chunk = self.meta.column(self.columns[name][0])
        return chunk.statistics if chunk.is_stats_set else None

    def _value(self, name: str, raw: Any) -> pa.Array | None:
        kind = self.columns[name][2]
        if pa.types.is_string(kind):
            try:
                return pa.array([raw.decode()], kind)
            except UnicodeDecodeError:  # it was cut off within a character
                return None
        if pa.types.is_floating(kind):
            return None if math.isnan(raw) else pa.array([raw], kind)
        return pa.array([raw], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def may_hold(tree: exp.Expr, schema: pa.Schema, zone: str) -> Holds:
    """Whether a row group with some bounds can have a record of which a condition is true."""
    if isinstance(tree, exp.Paren):
        return may_hold(tree.this, schema, zone)
    if isinstance(tree, (exp.And, exp.Or)):
        left, right = (may_hold(t, schema, zone) for t in (tree.this, tree.expression))
        if isinstance(tree, exp.And):
            return lambda bounds: left(bounds) and right(bounds)
        return lambda bounds: left(bounds) or right(bounds)
    if isinstance(tree, exp.Between):
        value, low, high = (tree.args[k] for k in ("this", "low", "high"))
        both = exp.GTE(this=value, expression=low), exp.LTE(this=value, expression=high)
        return may_hold(exp.And(this=both[0], expression=both[1]), schema, zone)
    if isinstance(tree, exp.In) and tree.expressions:
        any_of = [may_hold(exp.EQ(this=tree.this, expression=e), schema, zone)
                  for e in tree.expressions]  # fmt: skip
        return lambda bounds: any(holds(bounds) for holds in any_of)
    if isinstance(tree, exp.Is) and isinstance(tree.expression, exp.Null) and _name(tree.this):
        name = _name(tree.this)
        return lambda bounds: bounds.nulls(name)[0]
    if isinstance(tree, exp.Not) and isinstance(tree.this, exp.Is):
        inner = tree.this
        if isinstance(inner.expression, exp.Null) and _name(inner.this):
            name = _name(inner.this)
            return lambda bounds: bounds.nulls(name)[1]
    if type(tree) in _FLIPPED:
        return _compared(type(tree), tree.this, tree.expression, schema, zone)
    return lambda bounds: True


def _name(tree: exp.Expr) -> str:
    """The column that an expression is, and nothing else; else nothing."""
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return tree.name if isinstance(tree, exp.Column) and len(tree.parts) == 1 else ""


def _compared(sign: Any, left: exp.Expr, right: exp.Expr, schema: pa.Schema, zone: str) -> Holds:
    if not _name(left):
        sign, left, right = _FLIPPED[sign], right, left
    name = _name(left)
    if not name or columns_of([right]):
        return lambda bounds: True
    low = _true_of(exp.LTE if sign is exp.EQ else sign, left, right, schema, zone)
    high = _true_of(exp.GTE if sign is exp.EQ else sign, left, right, schema, zone)

    def holds(bounds: Bounds) -> bool:
        if not bounds.nulls(name)[1]:
            return False
        least = bounds.least(name) if sign not in (exp.GT, exp.GTE) else None
        greatest = bounds.greatest(name) if sign not in (exp.LT, exp.LTE) else None
        return (least is None or low(least)) and (greatest is None or high(greatest))

    return holds


def _true_of(
    sign: Any, left: exp.Expr, right: exp.Expr, schema: pa.Schema, zone: str
) -> Callable[[pa.Array], bool]:
    """Whether a comparison, by the very kernel that rows go through, is true of one value."""
    name = _name(left)
    only = pa.schema([schema.field(name)])
    kernel = compile_expression(sign(this=left.copy(), expression=right.copy()), only, zone)

    def true_of(value: pa.Array) -> bool:
        batch = normal_batch(pa.RecordBatch.from_arrays([value], names=[name]), only)
        return evaluate(kernel, batch)[0].as_py() is True

    return true_of
