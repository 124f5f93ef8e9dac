"""A stage's narrow steps, compiled once into functions of a bundle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.errors import ExpressionError, HeadraceError, PlanError, StepError
from headrace.kernels import rows
from headrace.kernels.columns import Text, as_column, numbers
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.expressions.codes import decoded, is_coded, plain_schema
from headrace.kernels.expressions.kernel import Kernel
from headrace.kernels.join import Lookup
from headrace.kernels.lateness import PROCESSING_TIME, stamped
from headrace.kernels.memo import memo_rows
from headrace.kernels.native import panes
from headrace.kernels.routing import route_rows
from headrace.kernels.row_steps import RowStep
from headrace.kernels.table_join import Finder
from headrace.kernels.tokenise import Tokeniser
from headrace.plan.joins import LookUp
from headrace.plan.node import Narrow
from headrace.plan.prune import prune
from headrace.plan.rows import Explode, Filter, MapBatches, MapMemo, MapRows, Project, Route
from headrace.plan.table_join import TableJoin
from headrace.plan.time import EventTime
from headrace.types import arrow_table, normal_batch, type_name
from headrace.windows import LATEST

_MOST_BYTES = 64 << 20
"""A step that copies columns makes no larger bundle than this, unless one record does."""


class TooLarge(Exception):
    """A bundle from which a step would make too large a one; cut it."""


Run = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps in a row. ``columns`` are those it reads; ``schema`` is what it gives."""

    columns: tuple[str, ...]
    schema: pa.Schema
    runs: tuple[tuple[str, Run], ...]
    reads: pa.Schema
    """The columns it reads, with their types."""
    pure: int
    """How many of ``runs`` come before the first that calls a Python function or reads a table."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The bundle that comes of a bundle."""
        parts = list(self.bundles(batch))
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def bundles(self, batch: pa.RecordBatch, start: int = 0) -> Iterator[pa.RecordBatch]:
        """The bundles that come of one: several where a step would make too large a bundle."""
        for i in range(start, len(self.runs)):
            label, run = self.runs[i]
            try:
                batch = run(batch)
            except TooLarge:
                half = batch.num_rows // 2
                yield from self.bundles(batch.slice(0, half), i)
                yield from self.bundles(batch.slice(half), i)
                return
            except StepError:
                raise
            except (ExpressionError, pa.ArrowException) as error:
                raise blame(label, run, batch, error) from error
        yield batch


def compile_chain(
    steps: Sequence[Narrow],
    schema: pa.Schema,
    needed: Iterable[str] | None = None,
    zone: str = "UTC",
    coded: bool = False,
) -> Chain:
    """Compile steps over bundles of ``schema``; ``needed`` are the columns wanted at the end.

    Columns that are coded at the beginning may be so at the end with ``coded``, else they are not.
    """
    kept, columns = prune(steps, schema.names, needed)
    reads = current = pa.schema([schema.field(name) for name in columns])
    runs: list[tuple[str, Run]] = []
    pure: int | None = None
    i = 0
    while i < len(kept):
        step = kept[i]
        if not isinstance(step, (Project, Filter)):
            current = _decode(current, runs)
        if isinstance(step, Explode):
            following = kept[i + 1] if i + 1 < len(kept) else None
            drop_empty = is_not_empty(following, step.column)
            run, current = _explode(step, current, zone, drop_empty)
            i += 1 if drop_empty else 0
        else:
            run, current = compile_step(step, current, zone)
        if pure is None and (step.python or isinstance(step, (LookUp, TableJoin))):
            pure = len(runs)
        runs.append((step.label, run))
        i += 1
    current = current if coded else _decode(current, runs)
    pure = len(runs) if pure is None else pure
    return Chain(tuple(columns), current, tuple(runs), reads, pure)


def _decode(schema: pa.Schema, runs: list[tuple[str, Run]]) -> pa.Schema:
    """Add what makes plain text of coded columns, if there are any; the columns after it."""
    after = plain_schema(schema)
    if after.equals(schema):
        return schema

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(map(decoded, batch.columns)), schema=after)

    runs.append(("", run))
    return after


def compile_step(step: Narrow, schema: pa.Schema, zone: str = "UTC") -> tuple[Run, pa.Schema]:
    """One step, and the columns after it."""
    if isinstance(step, Project):
        return _project(step, schema, zone)
    if isinstance(step, Filter):
        return _filter(step, schema, zone)
    if isinstance(step, Explode):
        return _explode(step, schema, zone, drop_empty=False)
    if isinstance(step, Route):
        return route_rows(step, schema, zone)
    if isinstance(step, MapMemo):
        return memo_rows(step, schema, zone)
    if isinstance(step, MapRows):
        return _map_rows(step, schema)
    if isinstance(step, EventTime):
        return _event_time(step, schema)
    if isinstance(step, LookUp):
        table, join, side = step.table, step.join, step.side
        return _look_up(lambda: table.lookup(join, side), step.schema), step.schema
    if isinstance(step, TableJoin):
        return _look_up(Finder(step).lookup, step.schema), step.schema
    assert isinstance(step, MapBatches)
    return _map_batches(step), step.schema


def _project(step: Project, schema: pa.Schema, zone: str) -> tuple[Run, pa.Schema]:
    kernels = [
        as_stored(tree, schema) or compile_expression(tree, schema, zone)
        for _, tree in step.columns
    ]
    after = pa.schema(
        [pa.field(n, storable(k.type)) for (n, _), k in zip(step.columns, kernels, strict=True)]
    )

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [evaluate(k, batch) for k in kernels]
        arrays = [
            a if a.type.equals(f.type) else a.cast(f.type)
            for a, f in zip(arrays, after, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=after)

    return run, after


def as_stored(tree: exp.Expr, schema: pa.Schema) -> Kernel | None:
    """A coded column as it is, if an expression is nothing but that."""
    if not isinstance(tree, exp.Column) or len(tree.parts) != 1:
        return None
    index = schema.get_field_index(tree.name)
    if index < 0 or not is_coded(schema.field(index).type):
        return None
    return Kernel(schema.field(index).type, lambda batch: batch.column(index))


def storable(kind: pa.DataType) -> pa.DataType:
    """The type a column gets: a bare NULL is text, as it must be something."""
    return pa.string() if pa.types.is_null(kind) else kind


def _filter(step: Filter, schema: pa.Schema, zone: str) -> tuple[Run, pa.Schema]:
    kernel = compile_expression(step.condition, schema, zone)
    if not (pa.types.is_boolean(kernel.type) or pa.types.is_null(kernel.type)):
        raise PlanError(f"a filter takes a condition, not a {type_name(kernel.type)}")
    kept_names = set(step.schema.names)
    used = [n for n in schema.names if n in kept_names] or schema.names[:1]
    after = schema if len(used) == len(schema) else pa.schema([schema.field(n) for n in used])
    some = after is not schema
    if pa.types.is_null(kernel.type):
        return lambda batch: batch.slice(0, 0).select(used), after

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        mask = kernel.run(batch)
        if some:
            batch = batch.select(used)
        if isinstance(mask, pa.Scalar):
            return batch if mask.as_py() else batch.slice(0, 0)
        kept = mask.true_count
        # Rows are marked first, and copied only where some stay and some go.
        if kept == len(mask):
            return batch
        return batch.filter(mask) if kept else batch.slice(0, 0)

    return run, after


@dataclass(frozen=True, slots=True)
class SplitText:
    """``split(text, pattern)`` cut by a tokeniser, ``lower`` folded in where the text is ASCII."""

    text: Kernel
    lowered: Kernel | None
    tokeniser: Tokeniser
    folding: Tokeniser

    def input(self, batch: pa.RecordBatch) -> tuple[pa.Array, Tokeniser]:
        """The text to cut, and what cuts it."""
        array = evaluate(self.text, batch)
        if self.lowered is None:
            return array, self.tokeniser
        if Text.of(array).is_ascii:
            return array, self.folding
        return evaluate(self.lowered, batch), self.tokeniser


def as_split(tree: exp.Expr, schema: pa.Schema, zone: str) -> SplitText | None:
    """The expression as a tokeniser's work, if it is."""
    if not (isinstance(tree, exp.Anonymous) and tree.name.lower() == "split"):
        return None
    if len(tree.expressions) != 2:
        return None
    text, pattern = tree.expressions
    if not (isinstance(pattern, exp.Literal) and pattern.is_string):
        return None
    lower = isinstance(text, exp.Anonymous) and text.name.lower() in ("lower", "lcase")
    plain, folding = Tokeniser.of(pattern.this), Tokeniser.of(pattern.this, lower=True)
    if plain is None or folding is None:
        return None
    inner = compile_expression(text.expressions[0] if lower else text, schema, zone)
    if not pa.types.is_string(inner.type):
        return None
    lowered = compile_expression(text, schema, zone) if lower else None
    return SplitText(inner, lowered, plain, folding)


def is_not_empty(step: Narrow | None, column: str) -> bool:
    """Whether a step keeps the records whose ``column`` is not ``''``, and does nothing else."""
    if not isinstance(step, Filter):
        return False
    tree = step.condition
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return (
        isinstance(tree, exp.NEQ)
        and isinstance(tree.this, exp.Column)
        and len(tree.this.parts) == 1
        and tree.this.name == column
        and isinstance(tree.expression, exp.Literal)
        and tree.expression.is_string
        and tree.expression.this == ""
    )


def _explode(
    step: Explode, schema: pa.Schema, zone: str, drop_empty: bool
) -> tuple[Run, pa.Schema]:
    split = as_split(step.elements, schema, zone)
    kernel = compile_expression(step.elements, schema, zone)
    if not pa.types.is_list(kernel.type):
        raise PlanError(f"flat_map takes a list, not a {type_name(kernel.type)}")
    kept = [schema.get_field_index(name) for name in step.keep]
    after = pa.schema(
        [schema.field(i) for i in kept] + [pa.field(step.column, kernel.type.value_type)]
    )

    def with_parents(batch: pa.RecordBatch, parents: Any, values: pa.Array) -> pa.RecordBatch:
        copied = sum(_copied_bytes(batch.column(i), parents) for i in kept)
        if copied > _MOST_BYTES and batch.num_rows > 1:
            raise TooLarge
        owners = as_column(parents)
        columns = [batch.column(i).take(owners) for i in kept]
        return pa.RecordBatch.from_arrays([*columns, values], schema=after)

    if split is not None:

        def run(batch: pa.RecordBatch) -> pa.RecordBatch:
            array, tokeniser = split.input(batch)
            values, parents = tokeniser.pieces(array, keep_empty=not drop_empty)
            return with_parents(batch, parents, values)

        return run, after

    def general(batch: pa.RecordBatch) -> pa.RecordBatch:
        if kernel.elements is not None:
            parents, values = kernel.elements(batch)
        else:
            lists = evaluate(kernel, batch)
            parents, values = np.asarray(pc.list_parent_indices(lists)), pc.list_flatten(lists)
        result = with_parents(batch, parents, values)
        return result.filter(pc.not_equal(result.column(len(kept)), "")) if drop_empty else result

    return general, after


def _copied_bytes(column: pa.Array, rows: Any) -> int:
    """How large a column of these rows of it is."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = Text.of(column).offsets
        return int((offsets[rows + 1] - offsets[rows]).sum(dtype=np.int64))
    width = kind.bit_width // 8 if pa.types.is_primitive(kind) else None
    return len(rows) * (column.nbytes // max(1, len(column)) if width is None else width)


def _processing_time(step: EventTime, schema: pa.Schema) -> tuple[Run, pa.Schema]:
    """The time of day; what reads a stream has a clock of its own, and says another."""
    after = schema.append(pa.field(step.column, PROCESSING_TIME))
    return lambda batch: stamped(step, batch, time.time_ns() // 1000), after


def _event_time(step: EventTime, schema: pa.Schema) -> tuple[Run, pa.Schema]:
    if step.by_clock:
        return _processing_time(step, schema)
    kind = schema.field(step.column).type
    if not pa.types.is_timestamp(kind):
        name = step.column
        fix = f"{name}=col('{name}').to_time()"
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            fix = f'{name}="timestamp_millis({name})"'
            fix += ") if it counts milliseconds, timestamp_seconds or timestamp_micros if not"
            raise PlanError(
                f"'{name}' is {type_name(kind)}; event time is a timestamp, so make it one: "
                f"with_columns({fix}"
            )
        if pa.types.is_date(kind):
            fix = f"{name}=col('{name}').cast('timestamp')"
        raise PlanError(
            f"'{name}' is {type_name(kind)}; event time is a timestamp, so make it one: "
            f"with_columns({fix})"
        )
    index = schema.get_field_index(step.column)

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column(index).null_count:
            raise ExpressionError(f"its event time '{step.column}' is null; filter such records")
        if step.ahead is None and batch.num_rows:
            low, high = panes.span(numbers(batch.column(index), np.int64))
            if high > LATEST or low < -LATEST:
                raise ExpressionError(
                    f"its event time '{step.column}' is further away than windows can count; "
                    "filter such records"
                )
        return batch

    return run, schema


def _map_rows(step: MapRows, schema: pa.Schema) -> tuple[Run, pa.Schema]:
    if step.method in ("inspect", "for_each"):
        return rows.inspect_rows(step.function, f"{step.label} ({step.detail})"), schema
    return RowStep(step, schema), schema if step.method == "filter" else step.schema


def _look_up(lookup: Callable[[], Lookup], schema: pa.Schema) -> Run:
    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        joined = list(lookup().join(batch))
        if len(joined) == 1:
            return joined[0]
        if not joined:
            return pa.RecordBatch.from_pylist([], schema)
        if batch.num_rows > 1 and sum(part.nbytes for part in joined) > _MOST_BYTES:
            raise TooLarge
        return pa.concat_batches(joined)

    return run


def _map_batches(step: MapBatches) -> Run:
    label, after, function = f"{step.label} ({step.detail})", step.schema, step.function

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return as_bundle(function(batch), after)
        except StepError:
            raise
        except rows.FAILURES as error:
            first = next(rows.rows_of(batch.slice(0, 1)), None)
            what = f"a bundle of {batch.num_rows} records, the first"
            raise rows.failure(label, error, first, what) from error

    return run


def as_bundle(result: Any, schema: pa.Schema) -> pa.RecordBatch:
    """What a function of a bundle returned, as one bundle of ``schema``."""
    table = arrow_table(result).combine_chunks()
    batches = table.to_batches()
    result = batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
    missing = [n for n in schema.names if n not in result.schema.names]
    if missing:
        raise TypeError(f"the function's result has no column {missing[0]!r}")
    return normal_batch(result, schema)


def blame(
    label: str, run: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch, error: Exception
) -> HeadraceError:
    """The error of a step on a bundle, narrowed to the first record that causes it."""
    low, high = 0, batch.num_rows
    while high - low > 1:
        middle = (low + high) // 2
        try:
            run(batch.slice(low, middle - low))
            low = middle
        except (ExpressionError, pa.ArrowException) as narrower:
            high, error = middle, narrower
    return StepError(f"{label} failed on record {_described(batch.slice(low, 1))}: {error}")


def _described(batch: pa.RecordBatch) -> str:
    """The first record of a bundle, times that Python has no name for by their microseconds."""
    try:
        return rows.describe(next(rows.rows_of(batch), None))
    except (OverflowError, ValueError):
        times = [pa.types.is_timestamp(f.type) for f in batch.schema]
        columns = [
            c.cast(pa.int64()) if t else c for c, t in zip(batch.columns, times, strict=True)
        ]
        plain = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        return rows.describe(next(rows.rows_of(plain), None))
