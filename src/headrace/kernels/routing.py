"""Which of several ways each record goes: the first whose condition holds for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import PlanError
from headrace.kernels.columns import as_column
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.rows import results_of
from headrace.plan.node import function_name
from headrace.plan.prune import columns_of
from headrace.plan.rows import Condition, Route
from headrace.types import type_name

Holds = Callable[[pa.RecordBatch, Any], Any]
"""Whether a condition holds, for some rows of a bundle (None: for all); null does not."""


def route_rows(
    step: Route, schema: pa.Schema, zone: str
) -> tuple[Callable[[pa.RecordBatch], pa.RecordBatch], pa.Schema]:
    """The records with the number of their route beside them.

    A condition sees only the records for which none before it held.
    """
    tests = [_compiled(condition, schema, zone) for condition in step.conditions]
    after = schema.append(pa.field(step.column, pa.int32()))

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        routes = np.full(batch.num_rows, len(tests), np.int32)
        left: Any = None
        for number, holds in enumerate(tests):
            found = holds(batch, left)
            rows = np.flatnonzero(found) if left is None else left[found]
            routes[rows] = number
            if rows.size:
                left = np.flatnonzero(routes == len(tests))
        return pa.RecordBatch.from_arrays([*batch.columns, as_column(routes)], schema=after)

    return run, after


def _compiled(condition: Condition, schema: pa.Schema, zone: str) -> Holds:
    function = condition.function
    if callable(function):
        label = f"{condition.label} ({condition.name}: {function_name(function)})"

        def asked(batch: pa.RecordBatch, rows: Any) -> Any:
            results = results_of(function, _some(batch, rows), label)
            return np.array([bool(result) for _, result in results], np.bool_)

        return asked
    names = columns_of([function])
    used = [name for name in schema.names if name in names] or schema.names[:1]
    kernel = compile_expression(function, pa.schema([schema.field(n) for n in used]), zone)
    if not (pa.types.is_boolean(kernel.type) or pa.types.is_null(kernel.type)):
        raise PlanError(
            f"'{condition.name}' is a {type_name(kernel.type)}; a condition is true or false"
        )

    def holds(batch: pa.RecordBatch, rows: Any) -> Any:
        mask = evaluate(kernel, _some(batch.select(used), rows)).cast(pa.bool_())
        return mask.fill_null(False).to_numpy(zero_copy_only=False)

    return holds


def _some(batch: pa.RecordBatch, rows: Any) -> pa.RecordBatch:
    return batch if rows is None else batch.take(as_column(rows))
