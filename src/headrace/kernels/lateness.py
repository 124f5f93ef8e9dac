"""Event time as it comes in: which records announce a watermark, and what a late one becomes."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import StepError
from headrace.kernels.columns import filled, numbers
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.native import panes
from headrace.kernels.rows import rows_of
from headrace.plan.time import EventTime
from headrace.types import INTERVAL, unique_names
from headrace.windows import BEGINNING, LATEST, micros_of, show_duration

Punctuation = Callable[[pa.RecordBatch], Iterator[tuple[int, int]]]


def times_of(event: EventTime, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """The event time of each record, in microseconds."""
    return numbers(batch.column(event.column), np.int64)


def stamped(event: EventTime, batch: pa.RecordBatch, micros: int) -> pa.RecordBatch:
    """Records with the time at which they were read."""
    times = filled(micros, batch.num_rows, PROCESSING_TIME)
    place = batch.schema.get_field_index(event.column)
    if place < 0:
        return batch.append_column(event.column, times)
    return batch.set_column(place, event.column, times)


PROCESSING_TIME = pa.timestamp("us", "UTC")


def late_schema(event: EventTime, schema: pa.Schema) -> pa.Schema:
    """The columns of late records: those of ``schema``, and what is told of each."""
    kind = schema.field(event.column).type
    told = {"late_by": INTERVAL, "watermark": kind, "reason": pa.string()}
    names = [f"_{n}" if n in schema.names else n for n in told]
    fields = [pa.field(n, t) for n, t in zip(names, told.values(), strict=True)]
    unique_names([*schema.names, *names])
    return pa.schema([*schema, *fields])


LATE = "below the watermark"


def on_time(
    event: EventTime, batch: pa.RecordBatch, floor: int, newest: int | None = None
) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """The records of a split at or above its watermark, and those below it as late ones.

    ``floor`` is the watermark before the bundle. With ``newest``, the latest time before it, the
    watermark moves with each record, so that which ones are late depends on their order alone.
    """
    on_time, late, _ = sorted_out(event, batch, floor, newest)
    return on_time, late


def sorted_out(
    event: EventTime, batch: pa.RecordBatch, floor: int, newest: int | None
) -> tuple[pa.RecordBatch, pa.RecordBatch | None, int]:
    """What ``on_time`` gives, and the latest time of all."""
    if not batch.num_rows:
        return batch, None, BEGINNING
    times = times_of(event, batch)
    delay = -1 if event.delay is None or newest is None else event.delay
    before = 0 if newest is None else max(newest, int(times[0]))
    may_be_late, latest = panes.any_late(times, before, delay, floor)
    if not may_be_late:
        return batch, None, latest
    marks = np.empty(batch.num_rows, np.int64)
    if not panes.late_rows(times, before, delay, floor, marks):
        return batch, None, latest
    mask = marks > times
    late = late_records(event, batch.filter(pa.array(mask)), times[mask], marks[mask])
    return batch.filter(pa.array(~mask)), late, latest


class SplitWatermark:
    """The watermark that bounded input reaches before its end, of what one task reads."""

    def __init__(self, event: EventTime, zone: str) -> None:
        self.event, self.zone = event, zone
        self.reached = BEGINNING
        self._punctuation: Punctuation | None = None

    def observe(self, batch: pa.RecordBatch) -> None:
        """Take records at the event_time step."""
        event = self.event
        if event.delay is not None and batch.num_rows:
            self.reached = max(self.reached, int(times_of(event, batch).max()) - event.delay)
        elif event.punctuation is not None:
            self._punctuation = self._punctuation or punctuation_of(event, batch.schema, self.zone)
            assert self._punctuation is not None
            self.reached = max([self.reached, *(time for _, time in self._punctuation(batch))])

    def announce(self, watermark: int) -> None:
        """Take a watermark of the source's own."""
        if self.event.is_by_source:
            self.reached = max(self.reached, watermark)


def first_late(event: EventTime, late: pa.RecordBatch) -> tuple[int, int]:
    """The event time of the first of some late records, and the watermark it came after."""
    return int(times_of(event, late)[0]), int(numbers(late.column(-2), np.int64)[0])


def late_records(event: EventTime, batch: pa.RecordBatch, times: Any, marks: Any) -> pa.RecordBatch:
    """Records below the watermark promised, with how late they are and what it was."""
    kind = batch.schema.field(event.column).type
    told = [pa.array(marks - times).cast(INTERVAL), pa.array(marks).cast(kind)]
    reasons = pa.array([LATE] * batch.num_rows, pa.string())
    schema = late_schema(event, batch.schema)
    return pa.RecordBatch.from_arrays([*batch.columns, *told, reasons], schema=schema)


def ahead_of(
    event: EventTime, batch: pa.RecordBatch, now: float
) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """A bundle without the records whose time cannot be right, and those records as late ones.

    ``now`` is the time of day in seconds; input that ends is taken as it is.
    """
    if event.ahead is None or not batch.num_rows:
        return batch, None
    times = times_of(event, batch)
    horizon = min(int(now * 1e6) + event.ahead, LATEST)
    low, high = panes.span(times)
    if high <= horizon and low >= -LATEST:
        return batch, None
    wrong = (times > horizon) | (times < -LATEST)
    early = f"more than {show_duration(event.ahead)} ahead of the clock"
    old = "before any time that can be counted"
    mine = batch.filter(pa.array(wrong))
    rows = mine.num_rows
    reasons = pa.array([early if t > 0 else old for t in times[wrong].tolist()], pa.string())
    schema = late_schema(event, batch.schema)
    kind = batch.schema.field(event.column).type
    told = [pa.nulls(rows, INTERVAL), pa.nulls(rows, kind), reasons]
    aside = pa.RecordBatch.from_arrays([*mine.columns, *told], schema=schema)
    return batch.filter(pa.array(~wrong)), aside


def punctuation_of(event: EventTime, schema: pa.Schema, zone: str = "UTC") -> Punctuation | None:
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
                    yield i, micros_of(time)
                elif time is not None:
                    raise StepError(f"{label} gave {time!r}; give a datetime or None")

        return called
    kernel = compile_expression(said, schema, zone)

    def evaluated(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
        found = evaluate(kernel, batch)
        for i in np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False)).tolist():
            yield i, found[i].value

    return evaluated
