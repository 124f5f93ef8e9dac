"""Event time as it comes in: which records announce a watermark, and what a late one becomes."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import StepError
from headrace.io.source import Watermark
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.expressions.kernel import numbers
from headrace.kernels.rows import rows_of
from headrace.plan.nodes import EventTime
from headrace.types import INTERVAL

Punctuation = Callable[[pa.RecordBatch], Iterator[tuple[int, int]]]


def times_of(event: EventTime, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """The event time of each record, in microseconds."""
    return numbers(batch.column(event.column), np.int64)


def is_by_source(event: EventTime) -> bool:
    """Whether watermarks are those the source itself sends."""
    return event.delay is None and event.punctuation is None


def late_records(event: EventTime, batch: pa.RecordBatch, times: Any, marks: Any) -> pa.RecordBatch:
    """Records below the watermark promised, with how late they are and what it was."""
    kind = batch.schema.field(event.column).type
    lateness, promised = pa.array(marks - times).cast(INTERVAL), pa.array(marks).cast(kind)
    taken = batch.schema.names
    names = [f"_{n}" if n in taken else n for n in ("late_by", "watermark")]
    fields = [pa.field(names[0], INTERVAL), pa.field(names[1], kind)]
    return pa.RecordBatch.from_arrays(
        [*batch.columns, lateness, promised], schema=pa.schema([*batch.schema, *fields])
    )


def punctuation_of(event: EventTime, schema: pa.Schema) -> Punctuation | None:
    """What finds the rows of a bundle that announce a watermark, and which."""
    said = event.punctuation
    if said is None:
        return None
    label = f"{event.label}, punctuation="
    if callable(said):
        function = said

        def called(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
            for i, row in enumerate(rows_of(batch)):
                try:
                    time = function(row)
                except Exception as error:
                    raise StepError(f"{label} failed on {row!r}: {error}") from error
                if isinstance(time, (int, datetime.datetime)) and not isinstance(time, bool):
                    yield i, Watermark(time).micros
                elif time is not None:
                    raise StepError(f"{label} gave {time!r}; give a datetime or None")

        return called
    kernel = compile_expression(said, schema)

    def evaluated(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
        found = evaluate(kernel, batch)
        for i in np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False)).tolist():
            yield i, found[i].value

    return evaluated
