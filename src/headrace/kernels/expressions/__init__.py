"""Expressions compiled to Arrow: a tree and a schema in, one function of a bundle out.

Each module registers the syntax and the functions it knows; ``compile_expression`` walks the tree
once and puts their kernels together. Nothing is looked up again when a bundle comes.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.errors import PlanError, nearest
from headrace.kernels.expressions import (  # noqa: F401  (each registers what it knows)
    arithmetic,
    casts,
    collections,
    digests,
    hashing,
    logic,
    regexes,
    strings,
    times,
)
from headrace.kernels.expressions.codes import decoded, is_coded, plain_schema
from headrace.kernels.expressions.kernel import (
    FUNCTIONS,
    MAX_DEPTH,
    NODES,
    TOO_DEEP,
    Kernel,
    Scope,
    spread,
)
from headrace.plan.prune import columns_of
from headrace.trees import AggregateCall

AGGREGATES = {"count", "sum", "avg", "mean", "min", "max", "first", "last", "stddev", "variance"}


_CLOCK = (
    "what the clock says differs each time a pipeline runs; use the record's own time, or a "
    "constant: hr.lit(datetime.now())"
)
_REFUSED = dict.fromkeys(
    ("now", "current_timestamp", "current_date", "curdate", "today", "localtimestamp"), _CLOCK
) | dict.fromkeys(
    ("rand", "random", "randn", "uuid", "shuffle"),
    "what it gives differs each time a pipeline runs; use hr.hash_of(column) for a spread",
)
"""Functions that would give another answer when a batch runs again."""


def compile_expression(tree: exp.Expr, schema: pa.Schema, zone: str = "UTC") -> Kernel:
    """Compile an expression over the columns of ``schema``; ``zone`` is the wall clock's."""

    coded = {field.name for field in schema if is_coded(field.type)}
    compiled: dict[int, tuple[exp.Expr, Kernel]] = {}  # with the tree, so that its id stays its own
    depth = 0

    def walk(tree: exp.Expr) -> Kernel:
        # A builder may ask for the same part twice; nested parts must not double at each level.
        nonlocal depth
        if id(tree) not in compiled:
            if depth >= MAX_DEPTH:
                raise PlanError(TOO_DEEP)
            depth += 1
            compiled[id(tree)] = tree, build(tree)
            depth -= 1
        return compiled[id(tree)][1]

    def build(tree: exp.Expr) -> Kernel:
        while isinstance(tree, (exp.Paren, exp.Alias)):
            tree = tree.this
        if coded and not isinstance(tree, exp.Column):
            names = columns_of([tree])
            if len(names) == 1 and names <= coded:
                kernel = compile_expression(tree, plain_schema(schema), zone)
                if not kernel.raises:
                    return _by_value(kernel, schema.get_field_index(*names), len(schema))
        builder = NODES.get(type(tree))
        if builder is not None:
            return builder(scope, tree)
        if isinstance(tree, exp.Anonymous):
            return _call(scope, tree)
        if isinstance(tree, AggregateCall):
            raise PlanError(f"{tree.this!r} is an aggregate; use it in group_by(…).agg(…)")
        raise PlanError(f"'{tree.sql(dialect='spark')}' is not supported in an expression")

    scope = Scope(schema, zone, walk)
    try:
        return walk(tree)
    except RecursionError:
        raise PlanError(TOO_DEEP) from None


def _by_value(kernel: Kernel, index: int, width: int) -> Kernel:
    """What reads one coded column, computed once for each value and null, and spread to the rows.

    Values that no row has are computed as well, which must not fail.
    """

    def run(batch: pa.RecordBatch) -> Any:
        column = batch.column(index)
        if len(column.dictionary) >= len(column):
            values, rows = decoded(column), None
        else:
            values = pa.concat_arrays([column.dictionary, pa.nulls(1, pa.string())])
            rows = column.indices.fill_null(len(values) - 1)
        # By place: the kernel reads no other column.
        small = pa.RecordBatch.from_arrays([values] * width, [str(i) for i in range(width)])
        found = kernel.run(small)
        return found if rows is None or isinstance(found, pa.Scalar) else found.take(rows)

    return replace(kernel, run=run, elements=None)


def _call(scope: Scope, tree: exp.Anonymous) -> Kernel:
    name = tree.name.lower()
    builder = FUNCTIONS.get(name)
    if builder is None:
        if name in AGGREGATES:
            raise PlanError(f"{name}() is an aggregate; use it in group_by(…).agg(…)")
        if name in _REFUSED:
            raise PlanError(f"there is no function '{name}': {_REFUSED[name]}")
        raise PlanError(f"there is no function '{name}'{nearest(name, FUNCTIONS)}")
    args = [scope.compile(arg) for arg in tree.expressions]
    try:
        inspect.signature(builder).bind(scope, *args)
    except TypeError:
        wanted = list(inspect.signature(builder).parameters)[1:]
        raise PlanError(f"{name} takes ({', '.join(wanted)}), not {len(args)} arguments") from None
    return builder(scope, *args)


def evaluate(kernel: Kernel, batch: pa.RecordBatch) -> pa.Array:
    """The kernel's values for every row of a bundle."""
    return spread(kernel.run(batch), batch.num_rows)


__all__ = ["Kernel", "compile_expression", "evaluate"]
