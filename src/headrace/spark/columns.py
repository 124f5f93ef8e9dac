"""Steps of expressions as plain Spark columns, and types across the border."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from sqlglot import exp

from headrace.errors import PlanError
from headrace.kernels.expressions import compile_expression
from headrace.plan.groups import GroupBy
from headrace.plan.joins import LookUp
from headrace.plan.node import Narrow
from headrace.plan.partitions import Buffered
from headrace.plan.rows import Explode, Filter, Project, Route
from headrace.plan.time import EventTime
from headrace.trees import to_sql
from headrace.types import normal_schema

SQL_AGGREGATES = {
    "count": F.count,
    "sum": F.sum,
    "min": F.min,
    "max": F.max,
    "mean": F.avg,
    "var": F.var_samp,
    "std": F.stddev_samp,
    "count_distinct": F.count_distinct,
}


def frame_schema(frame: Any) -> pa.Schema:
    """Our columns of a Spark DataFrame."""
    if not hasattr(frame, "schema") or not hasattr(frame, "mapInArrow"):
        raise PlanError(f"from_spark takes a Spark DataFrame, not {type(frame).__name__}")
    names = frame.columns
    twice = [n for n in names if names.count(n) > 1]
    if twice:
        raise PlanError(f"from_spark: the DataFrame has the column '{twice[0]}' twice")
    try:
        return normal_schema(to_arrow_schema(frame.schema, timezone="UTC"))
    except Exception as error:
        raise PlanError(f"from_spark: a column has a type we do not take: {error}") from None


def spark_schema(schema: pa.Schema) -> Any:
    """A Spark schema of our columns."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def column(tree: exp.Expr) -> Any:
    """An expression as a Spark column."""
    return F.expr(to_sql(tree))


def quoted(name: str) -> Any:
    """The column of a name, whatever characters it has."""
    return F.col("`" + name.replace("`", "``") + "`")


def is_plain(steps: Sequence[Narrow]) -> bool:
    """Whether steps are expressions only."""
    return plain_prefix(steps) == len(steps)


def plain_prefix(steps: Sequence[Narrow]) -> int:
    """How many of the first steps are expressions."""
    for i, step in enumerate(steps):
        if step.python or isinstance(step, (EventTime, LookUp, Route)) or _differs(step):
            return i
    return len(steps)


def _differs(step: Narrow) -> bool:
    """Whether a step computes something that Spark, or some Java, answers otherwise."""
    if isinstance(step, Project):
        trees = [tree for _, tree in step.columns]
    elif isinstance(step, Filter):
        trees = [step.condition]
    else:
        trees = [step.elements] if isinstance(step, Explode) else []
    return any(compile_expression(t, step.input.schema).differs_in_spark for t in trees)


def apply_steps(frame: Any, steps: Sequence[Narrow]) -> Any:
    """Steps of expressions over a DataFrame, with no Python in them."""
    for step in steps:
        if isinstance(step, Project):
            frame = frame.select([column(t).alias(n) for n, t in step.columns])
        elif isinstance(step, Filter):
            frame = frame.filter(column(step.condition))
            if len(step.schema) < len(frame.columns):
                frame = frame.select([quoted(name) for name in step.schema.names])
        elif isinstance(step, Buffered):
            continue
        else:
            assert isinstance(step, Explode)
            kept = [quoted(name) for name in step.keep]
            frame = frame.select([*kept, F.explode(column(step.elements)).alias(step.column)])
        frame = as_schema(frame, step.schema)
    return frame


def as_schema(frame: Any, schema: pa.Schema) -> Any:
    """The frame with exactly our types, cast only where Spark's own differ."""
    wanted = spark_schema(schema)
    have = frame.schema
    if all(
        a.dataType == b.dataType or b.dataType.simpleString() == "interval day to second"
        for a, b in zip(have, wanted, strict=True)
    ):
        return frame
    return frame.select(
        [
            quoted(a.name)
            if a.dataType == b.dataType
            else quoted(a.name).cast(b.dataType).alias(a.name)
            for a, b in zip(have, wanted, strict=True)
        ]
    )


def sql_can(node: GroupBy) -> bool:
    """Whether Spark SQL computes every aggregate of a step with our answer."""
    trees = [t for _, t in node.keys] + [t for _, a in node.aggregates for t in a.inputs]
    return all(a.kind in SQL_AGGREGATES and a.by is None for _, a in node.aggregates) and not any(
        compile_expression(t, node.input.schema).differs_in_spark for t in trees
    )


def sql_group(frame: Any, node: GroupBy) -> Any:
    """A ``GroupBy`` as Spark SQL."""
    keys = [column(tree).alias(name) for name, tree in node.keys]
    if not node.aggregates:
        return as_schema(frame.select(keys).distinct(), node.schema)
    results = []
    for name, aggregate in node.aggregates:
        inputs = [column(tree) for tree in aggregate.inputs] or [F.lit(1)]
        results.append(SQL_AGGREGATES[aggregate.kind](*inputs).alias(name))
    return as_schema(frame.groupBy(*keys).agg(*results), node.schema)
