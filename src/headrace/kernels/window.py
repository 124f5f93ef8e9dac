"""Windows over bundles: which pane of time each record is in, and sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import ExpressionError, StepError
from headrace.kernels.aggregate import Aggregation, _rows, by_shard
from headrace.kernels.chain import blame
from headrace.kernels.columns import filled, numbers
from headrace.kernels.group import Grouper, normal_key
from headrace.kernels.native import panes
from headrace.plan.time import END, START
from headrace.windows import EventClock, Session, Window, show_time


def event_times(batch: pa.RecordBatch, clock: EventClock) -> np.ndarray[Any, Any]:
    """The event time of each record, in microseconds."""
    times = numbers(batch.column(clock.columns[0]), np.int64)
    for name in clock.columns[1:]:
        times = np.maximum(times, numbers(batch.column(name), np.int64))
    return times + clock.shift if clock.shift else times


def backwards(label: str, watermark: int) -> StepError:
    """The fault of a function that gave a record another event time than it came with."""
    return StepError(
        f"{label}: a record came that is older than the watermark {show_time(watermark)}; a "
        "function before this step gave it another event time: leave that column as it is, or "
        "compute it before event_time"
    )


def pane_ids(times: Any, window: Window) -> tuple[Any, int, int]:
    """The pane of each record, the first and the last; no array where there is just one."""
    span = np.empty(2, np.int64)
    panes.pane_span(times, window.offset, window.every, window.short, span)
    low, high = int(span[0]), int(span[1])
    if low == high:
        return _NONE, low, high
    ids = np.empty(times.size, np.int64)
    panes.pane_of(times, window.offset, window.every, window.short, low, high, ids)
    return ids, low, high


_NONE = np.zeros(0, np.int64)


def rows_by_pane(ids: Any, low: int, high: int) -> Iterator[tuple[int, Any]]:
    """Each pane and the rows that are in it, in order."""
    if high - low > 4 * ids.size + 64:  # few records over a long time
        order = np.argsort(ids, kind="stable")
        edges = np.flatnonzero(np.diff(ids[order])) + 1
        for rows in np.split(order, edges):
            yield int(ids[rows[0]]), rows
        return
    starts, rows = np.empty(high - low + 2, np.int64), np.empty(ids.size, np.int64)
    panes.split_rows(ids, low, starts, rows)
    for i in range(high - low + 1):
        if starts[i + 1] > starts[i]:
            yield low + i, rows[starts[i] : starts[i + 1]]


def windowed(
    result: pa.RecordBatch, keys: int, starts: Any, ends: Any, schema: pa.Schema
) -> pa.RecordBatch:
    """Results with the start and the end of their windows beside the keys."""
    kind = schema.field(START).type
    times = [filled(t, result.num_rows, kind) for t in (starts, ends)]
    columns = [*result.columns[:keys], *times, *result.columns[keys:]]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def ending_with(
    result: pa.RecordBatch, keys: int, pane: int, window: Window, schema: pa.Schema
) -> pa.RecordBatch:
    """Results of the window that ends with a pane."""
    end = window.pane_end(pane)
    return windowed(result, keys, end - window.size, end, schema)


def window_schema(bare: pa.Schema, keys: int, kind: pa.DataType) -> pa.Schema:
    """The columns of a windowed result."""
    fields = list(bare)
    times = [pa.field(START, kind), pa.field(END, kind)]
    return pa.schema([*fields[:keys], *times, *fields[keys:]])


@dataclass
class Spans:
    """Partials of stretches of a key's time, each with its first and last moment."""

    batch: pa.RecordBatch
    starts: Any
    lasts: Any

    def take(self, rows: Any) -> Spans:
        return Spans(self.batch.take(pa.array(rows)), self.starts[rows], self.lasts[rows])


class Sessions:
    """The sessions of one shard of keys: what has come, put together when a watermark allows.

    Records of one bundle are first put together by themselves, so that a key's burst is one span.
    Where the order of the input matters each record stays a span of its own until its session
    closes.
    """

    def __init__(self, aggregation: Aggregation, schema: pa.Schema) -> None:
        window = aggregation.node.window
        assert isinstance(window, Session)
        self.aggregation, self.schema, self.gap = aggregation, schema, window.gap
        self.ordered = aggregation.node.is_ordered
        self.pending: list[tuple[Any, Spans]] = []
        self.due: int | None = None

    @property
    def nbytes(self) -> int:
        return sum(s.batch.nbytes + 16 * s.batch.num_rows for _, s in self.pending)

    def add(self, order: Any, spans: Spans) -> None:
        """Take in spans of this shard's keys; ``order`` is the bundle's place in the input."""
        if spans.batch.num_rows:
            self.pending.append((order, spans))
            due = int(spans.lasts.min()) + self.gap
            self.due = due if self.due is None else min(self.due, due)

    def close(self, watermark: int) -> pa.RecordBatch | None:
        """The sessions that end at or before a watermark."""
        if self.due is None or self.due > watermark:
            return None
        if not self.pending:
            self.due = None
            return None
        self.pending.sort(key=lambda item: item[0])
        parts = [spans for _, spans in self.pending]
        spans = Spans(
            pa.concat_batches([p.batch for p in parts]),
            np.concatenate([p.starts for p in parts]),
            np.concatenate([p.lasts for p in parts]),
        )
        keys = len(self.aggregation.keys)
        ids, first, last = self._cut(spans, spans.batch.columns[:keys])
        done = last + self.gap <= watermark
        closed = done[ids]
        left = np.flatnonzero(~closed)
        before, self.pending, self.due = self.pending, [], None
        if not self.ordered and left.size:
            self.add(before[-1][0], self._merged(spans.take(left), ids[left]))
        elif left.size:  # spans that go on must keep their places in the input
            start = 0
            for place, part in before:
                end = start + part.starts.size
                self.add(place, part.take(np.flatnonzero(~closed[start:end])))
                start = end
        if not closed.any():
            return None
        return self._finished(spans.take(np.flatnonzero(closed)), ids[closed], first, last)

    def _cut(self, spans: Spans, keys: Sequence[pa.Array]) -> tuple[Any, Any, Any]:
        rows = spans.starts.size
        groups = _groups(keys, rows)
        order = np.lexsort((spans.starts, groups))
        ids = np.empty(rows, np.int64)
        count = panes.cut_sessions(order, groups, spans.starts, spans.lasts, self.gap, ids)
        first, last = np.full(count, 2**63 - 1), np.full(count, -(2**63))
        panes.session_spans(ids, spans.starts, spans.lasts, first, last)
        return ids, first, last

    def _states(self, spans: Spans, ids: Any) -> tuple[Any, Any, list[Any]]:
        """The sessions by new numbers, a row of each, and their merged states."""
        known, rows, numbers_ = np.unique(ids, return_index=True, return_inverse=True)
        keys = len(self.aggregation.keys)
        states = self.aggregation.accumulators()
        for state, column in zip(states, spans.batch.columns[keys:], strict=True):
            state.merge(numbers_.astype(np.int64), known.size, column)
        return known, rows, states

    def _merged(self, spans: Spans, ids: Any) -> Spans:
        known, rows, states = self._states(spans, ids)
        keys = [c.take(pa.array(rows)) for c in spans.batch.columns[: len(self.aggregation.keys)]]
        first, last = np.full(known.size, 2**63 - 1), np.full(known.size, -(2**63))
        panes.session_spans(np.searchsorted(known, ids), spans.starts, spans.lasts, first, last)
        columns = [*keys, *(s.partials(known.size) for s in states)]
        return Spans(_batch(columns, self.aggregation.partial_schema, known.size), first, last)

    def _finished(self, spans: Spans, ids: Any, first: Any, last: Any) -> pa.RecordBatch:
        known, rows, states = self._states(spans, ids)
        count = len(self.aggregation.keys)
        keys = [c.take(pa.array(rows)) for c in spans.batch.columns[:count]]
        try:
            columns = [*keys, *(s.finish(known.size) for s in states)]
        except ExpressionError as error:
            raise StepError(f"{self.aggregation.node.label}: {error}") from error
        bare = _batch(columns, self.aggregation.result_schema, known.size)
        return windowed(bare, count, first[known], last[known] + self.gap, self.schema)


def _batch(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    if not columns:
        return _rows(rows)
    cast = [c.cast(f.type) if not c.type.equals(f.type) else c
            for c, f in zip(columns, schema, strict=True)]  # fmt: skip
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def _groups(keys: Sequence[pa.Array], rows: int) -> Any:
    if not keys:
        return np.zeros(rows, np.int64)
    return Grouper([k.type for k in keys]).groups(keys)[0]


def session_spans(
    aggregation: Aggregation, batch: pa.RecordBatch, shards: int
) -> Iterator[tuple[int, Spans]]:
    """A bundle's records as spans, by the shard of their keys."""
    node = aggregation.node
    assert node.clock is not None
    assert isinstance(node.window, Session)
    try:
        keys, inputs = aggregation.evaluate(batch)
    except (ExpressionError, pa.ArrowException) as error:
        raise blame(node.label, aggregation.evaluate, batch, error) from error
    times, rows = event_times(batch, node.clock), batch.num_rows
    if node.is_ordered:
        ids, count = np.arange(rows), rows
    else:
        groups = _groups(keys, rows)
        order, ids = np.lexsort((times, groups)), np.empty(rows, np.int64)
        count = panes.cut_sessions(order, groups, times, times, node.window.gap, ids)
    first, last = np.full(count, 2**63 - 1), np.full(count, -(2**63))
    panes.session_spans(ids, times, times, first, last)
    owners = np.empty(count, np.int64)
    owners[ids[::-1]] = np.arange(rows)[::-1]
    keys = [normal_key(k.take(pa.array(owners))) for k in keys]
    states = aggregation.accumulators()
    for state, columns in zip(states, inputs, strict=True):
        state.update(ids, count, columns)
    partials = _batch(
        [*keys, *(s.partials(count) for s in states)], aggregation.partial_schema, count
    )
    order_column = pa.array(np.arange(count))
    numbered = pa.RecordBatch.from_arrays(
        [*partials.columns, order_column], names=[*map(str, range(partials.num_columns)), "row"]
    )
    for shard, part in by_shard(numbered, keys, shards):
        mine = numbers(part.column(part.num_columns - 1), np.int64)
        bare = _batch(part.columns[:-1], aggregation.partial_schema, part.num_rows)
        yield shard, Spans(bare, first[mine], last[mine])
