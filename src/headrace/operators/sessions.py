"""Session windows: a key's records with less than a gap between each and the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from headrace.kernels.aggregate import Aggregation, compile_partial
from headrace.kernels.columns import numbers
from headrace.kernels.window import Sessions, Spans, backwards, session_spans
from headrace.operators.group import describe_group
from headrace.operators.operator import (
    Description,
    Hosting,
    Input,
    Kind,
    Operator,
    Part,
    PassedOn,
    Result,
    State,
)
from headrace.operators.stores import Note, Order, Retained, Store
from headrace.plan.groups import GroupBy
from headrace.windows import BEGINNING, Session

_START, _LAST = "__start", "__last"
"""The columns of a span of time beside its partials."""


class SessionWindows(Operator):
    """Sessions of each key."""

    of: ClassVar[type | None] = Session
    every_watermark: ClassVar[bool] = True

    version: ClassVar[int] = 2

    def __init__(self, node: GroupBy, inputs: Sequence[Input], zone: str) -> None:
        assert isinstance(node.window, Session)
        self.node = node
        plan = compile_partial(inputs[0].steps, inputs[0].schema, node, zone)
        self.aggregation: Aggregation = plan.aggregation
        self.chains = (plan.chain,)
        self.is_keyed = bool(node.keys)
        moments = [pa.field(n, pa.int64()) for n in (_START, _LAST)]
        self.spans = pa.schema([*self.aggregation.partial_schema, *moments])

    def part_schema(self, lane: int, slice: int) -> pa.Schema:
        return self.spans

    def partial(self, lane: int, hosting: Hosting) -> PassedOn:
        shards = hosting.shards if self.is_keyed else 1

        def split(batch: pa.RecordBatch, order: Order) -> Iterator[tuple[int, Part]]:
            for shard, spans in session_spans(self.aggregation, batch, shards):
                yield shard, Part(0, _as_batch(spans, self.spans), order)

        return PassedOn(split)

    def state(self, store: Store, note: Note) -> SessionState:
        return SessionState(self, store, note)

    def advances(self, before: int, now: int) -> bool:
        return True

    def kinds(self) -> dict[int, Kind]:
        keys = tuple(self.spans.names[: len(self.node.keys)])
        return {0: Kind("open sessions", self.spans, keys, pickled=self.node.python)}

    def describe(self) -> Description:
        return describe_group(self)


def _as_batch(spans: Spans, schema: pa.Schema) -> pa.RecordBatch:
    columns = [*spans.batch.columns, pa.array(spans.starts), pa.array(spans.lasts)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as_spans(batch: pa.RecordBatch) -> Spans:
    starts, lasts = (numbers(batch.column(batch.num_columns - i), np.int64) for i in (2, 1))
    return Spans(batch.select(list(range(batch.num_columns - 2))), starts, lasts)


class SessionState(State):
    """The open sessions of one shard: spans of time, put together when one may have ended."""

    def __init__(self, operator: SessionWindows, store: Store, note: Note) -> None:
        self.operator, self.note = operator, note
        self.is_ordered = operator.node.is_ordered
        merge = None if self.is_ordered else pa.concat_batches
        self.retained = Retained(store, note, 0, operator.spans, merge)

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        operator, note = self.operator, self.note
        before: int = note.get("watermark", BEGINNING)
        now = max(before, watermarks[0])
        note["watermark"] = now
        sessions = Sessions(operator.aggregation, operator.node.schema)
        for part in parts:
            spans = _as_spans(part.batch)
            if spans.starts.size and int(spans.starts.min()) < before:
                raise backwards(operator.node.label, before)
            sessions.add(part.order, spans)
        dues = [d for d in (note.get("due"), sessions.due) if d is not None]
        if not dues:
            return
        due: int | None = min(dues)
        if min(dues) <= now:
            for order, batch in self.retained.pop(0):
                sessions.add(order, _as_spans(batch))
            sessions.due = due
            closed = sessions.close(now)
            due = sessions.due
            if closed is not None:
                yield now, closed
        note["due"] = due
        for order, spans in sessions.pending:
            batch = _as_batch(spans, operator.spans)
            self.retained.append(0, batch, order if self.is_ordered else ())
