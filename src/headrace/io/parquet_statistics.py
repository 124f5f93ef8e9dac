"""What the statistics of a row group rule out: whether any of its records can meet a condition.

They are bounds, so that text may be cut off in them, and they may be missing. They leave out nulls,
which no comparison is true of, and NaN, which counts as greater than all numbers here: so nothing
is known of how great a column of floats may be.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.errors import PlanError
from headrace.io.parquet_footer import RowGroup
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.plan.prune import columns_of
from headrace.types import normal_batch, normal_type

Holds = Callable[["Bounds"], bool]
_FLIPPED = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE, exp.EQ: exp.EQ}


_PHYSICAL: dict[str, Callable[[pa.DataType], Any]] = {
    "INT32": lambda kind: kind.equals(pa.int32()) or kind.equals(pa.date32()),
    "INT64": lambda kind: kind.equals(pa.int64()) or pa.types.is_timestamp(kind),
    "FLOAT": pa.types.is_float32,
    "DOUBLE": pa.types.is_float64,
    "BYTE_ARRAY": lambda kind: kind.equals(pa.string()),
}
"""The types whose statistics are in their own order, by Parquet's physical type."""
_FORMATS = {pa.float32(): "<f", pa.float64(): "<d"}


def comparable_columns(parquet: Any) -> dict[str, tuple[int, pa.DataType]]:
    """The columns whose statistics are used, by name: their number and their stored type."""
    schema, places = parquet.schema, range(parquet.metadata.num_columns)
    columns = {schema.column(place).path: (place, schema.column(place)) for place in places}
    comparable: dict[str, tuple[int, pa.DataType]] = {}
    if len(columns) < len(places):  # two columns have the same name
        return comparable
    for arrow, stored in zip(parquet.schema_arrow, schema.to_arrow_schema(), strict=True):
        place, column = columns.get(stored.name, (0, None))
        fits = None if column is None else _PHYSICAL.get(column.physical_type)
        if (
            column is not None
            and fits is not None
            and fits(stored.type)
            and column.path == column.name
            and "." not in column.name
            and column.max_repetition_level == 0
            and column.max_definition_level <= 1
            and _is_same(arrow.type, stored.type)
        ):
            comparable[stored.name] = place, stored.type
    return comparable


def _is_same(given: pa.DataType, stored: pa.DataType) -> bool:
    """Whether a column has the stored type, and the Arrow schema in the footer has no other."""
    try:
        return bool(normal_type(given).equals(normal_type(stored)))
    except PlanError:
        return False


class Bounds:
    """What is known of the columns of a row group."""

    def __init__(
        self, group: RowGroup, columns: Mapping[str, tuple[int, pa.DataType]], rows: int
    ) -> None:
        self.group, self.columns, self.rows = group, columns, rows

    def nulls(self, name: str) -> tuple[bool, bool]:
        """Whether a column may have nulls, and whether it may have anything else."""
        count = self._statistic(name, 3)
        if not isinstance(count, int):
            return True, True
        return count > 0, count < self.rows

    def least(self, name: str) -> pa.Array | None:
        """No value of a column is less than this one."""
        return self._value(name, 6)

    def greatest(self, name: str) -> pa.Array | None:
        """No value of a column is greater than this one."""
        if name in self.columns and pa.types.is_floating(self.columns[name][1]):
            return None
        return self._value(name, 5)

    def _statistic(self, name: str, field: int) -> Any:
        """A field of ``Statistics``: 3 is null_count, 5 max_value, 6 min_value."""
        if name not in self.columns:
            return None
        return self.group.column(self.columns[name][0]).statistics.get(field)

    def _value(self, name: str, field: int) -> pa.Array | None:
        raw = self._statistic(name, field)
        if not isinstance(raw, bytes):
            return None
        kind = self.columns[name][1]
        if pa.types.is_string(kind):
            try:
                return pa.array([raw.decode()], kind)
            except UnicodeDecodeError:  # it was cut off within a character
                return None
        if 8 * len(raw) != kind.bit_width:
            return None
        if pa.types.is_floating(kind):
            (number,) = struct.unpack(_FORMATS[kind], raw)
            return None if math.isnan(number) else pa.array([number], kind)
        whole = int.from_bytes(raw, "little", signed=True)
        return pa.array([whole], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


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
