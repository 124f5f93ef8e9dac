"""Rows of a streaming job: what travels between its workers, and the branches that make them.

A row says which shard and which operator it is for, where in the input it belongs, and carries one
bundle. Rows whose target is no operator are on their way to the driver: messages of sinks, records
that are kept there, and reports of what was done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from headrace.kernels.aggregate import PartialPlan, by_shard, compile_partial
from headrace.kernels.chain import Chain, compile_chain
from headrace.kernels.expressions.hashing import hash_columns
from headrace.kernels.join import sharded
from headrace.kernels.paned import PanedPartials
from headrace.kernels.window import Spans, session_spans
from headrace.spark.bundles import Batches, gathered, pack, parts_of
from headrace.spark.flow import Branch, ToJoin, ToOutput, ToRelay, ToSessions, ToWindows
from headrace.spark.python.shipping import PARTS

ROWS = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("target", pa.int32()),
        pa.field("lane", pa.int32()),
        pa.field("pane", pa.int64()),
        pa.field("place", pa.int64()),
        pa.field("bundle", pa.binary()),
    ]
)
OUTPUT, REPORT = -1, -2
"""Targets that are no operator; an output's number is the lane."""
MARK = -1
"""The lane of rows that carry a watermark and no records."""
START, LAST = "__start", "__last"
"""The columns of a span of time beside its partials."""


_ROWS, _TASKS = 24, 28
"""The bits of a place that count a task's rows, and that number the task."""


def first_place(of: int, task: int) -> int:
    """The place before the first row of a task of a source or a level."""
    return of << (_ROWS + _TASKS) | (task & (1 << _TASKS) - 1) << _ROWS


def task_of(place: int) -> int:
    """Which task sent a row."""
    return place >> _ROWS


def input_of(lane: int, place: int) -> int:
    """Which part of the input a row belongs to, in the input's order: the streams of a union one
    after the other, then sources, then their splits."""
    return lane << (_TASKS - PARTS + 11) | place >> (_ROWS + PARTS)


Row = tuple[int, int, int, int, int, bytes]
_MOST_GROUPS, _MOST_BYTES = 1 << 20, 128 << 20
"""Past this partials are sent and begun anew, which bounds a worker's memory."""


def as_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as Arrow sees them."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def labels_of(shards: int) -> tuple[int, ...]:
    """A number for each shard, such that Spark's hash puts each in a partition of its own."""
    found: dict[int, int] = {}
    numbers = np.arange(64 * shards, dtype=np.int32)
    hashes = hash_columns([pa.array(numbers)], numbers.size, "hash").view(np.int32)
    for number, hashed in zip(numbers.tolist(), (hashes % shards).tolist(), strict=True):
        found.setdefault(hashed, number)
    return tuple(found[i] for i in range(shards))


@dataclass
class Sender:
    """Numbers rows in the order of the input, and knows the shards."""

    labels: tuple[int, ...]
    place: int
    writers: int = 0

    @property
    def shards(self) -> int:
        return len(self.labels)

    def row(self, shard: int, target: int, lane: int, pane: int, data: bytes) -> Row:
        self.place += 1
        return self.labels[shard], target, lane, pane, self.place, data

    def bundles(
        self, shard: int, target: int, lane: int, pane: int, batch: pa.RecordBatch
    ) -> Iterator[Row]:
        """A bundle as rows, several where it is too large for one."""
        for part in parts_of(batch):
            yield self.row(shard, target, lane, pane, pack(part))

    def to_all(self, target: int, said: dict[str, Any]) -> Iterator[Row]:
        """A watermark, or who is there to send one, to every shard of an operator."""
        data = json.dumps(said).encode()
        for shard in range(self.shards):
            yield self.row(shard, target, MARK, 0, data)

    def report(self, said: dict[str, Any]) -> Row:
        """Something for the driver to know."""
        return self.row(self.place % self.shards, REPORT, 0, 0, json.dumps(said).encode())


# Branches, compiled


class Compiled:
    """A branch compiled once in a worker's life; ``start`` gives what one task pushes through."""

    def __init__(self, branch: Branch, zone: str) -> None:
        self.branch = branch
        self.plan: PartialPlan | None = None
        if isinstance(branch.ending, (ToWindows, ToSessions)):
            self.plan = compile_partial(branch.steps, branch.schema, branch.ending.node, zone)
            self.chain: Chain = self.plan.chain
        else:
            self.chain = compile_chain(branch.steps, branch.schema, None, zone)
        self.forks = [Compiled(b, zone) for b in branch.forks]

    def start(self, sender: Sender, task: str) -> Pipe:
        ending = self.branch.ending
        pipe: Any
        if isinstance(ending, ToWindows):
            assert self.plan is not None
            pipe = _WindowPipe(ending, self.plan, sender)
        elif isinstance(ending, ToSessions):
            assert self.plan is not None
            pipe = _SessionPipe(ending, self.plan, sender)
        elif isinstance(ending, ToJoin):
            pipe = _JoinPipe(ending, sender)
        elif isinstance(ending, ToRelay):
            pipe = _RelayPipe(ending, sender)
        elif isinstance(ending, ToOutput) and ending.sink is not None:
            pipe = _WritePipe(ending, sender, task)
        elif isinstance(ending, ToOutput):
            pipe = _KeepPipe(ending, sender)
        else:
            pipe = _ForkPipe([fork.start(sender, task) for fork in self.forks])
        return Pipe(self.chain, pipe)


class Pipe:
    """Bundles in, rows out; what is still held comes with ``finish``."""

    def __init__(self, chain: Chain, end: Any) -> None:
        self.chain, self.end = chain, end

    def add(self, batch: pa.RecordBatch) -> Iterator[Row]:
        columns = self.chain.columns
        if tuple(batch.schema.names) != columns:
            batch = batch.select(list(columns))
        for part in self.chain.bundles(batch):
            if part.num_rows:
                yield from self.end.add(part)

    def finish(self) -> Iterator[Row]:
        yield from self.end.finish()


class _ForkPipe:
    def __init__(self, pipes: list[Pipe]) -> None:
        self.pipes = pipes

    def add(self, batch: pa.RecordBatch) -> Iterator[Row]:
        for pipe in self.pipes:
            yield from pipe.add(batch)

    def finish(self) -> Iterator[Row]:
        for pipe in self.pipes:
            yield from pipe.finish()


class _WindowPipe:
    def __init__(self, ending: ToWindows, plan: PartialPlan, sender: Sender) -> None:
        self.operator, self.lane, self.sender = ending.operator, ending.lane, sender
        self.keys = len(ending.node.keys)
        self.partials = PanedPartials(plan, ending.node)

    def add(self, batch: pa.RecordBatch) -> Iterator[Row]:
        self.partials.add(batch)
        if self.partials.groups > _MOST_GROUPS or self.partials.nbytes > _MOST_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[Row]:
        for pane, batch in self.partials.take():
            keys = batch.columns[: self.keys]
            shards = self.sender.shards if keys else 1
            for shard, part in by_shard(batch, keys, shards):
                yield from self.sender.bundles(shard, self.operator, self.lane, pane, part)


class _GatheringPipe:
    """Puts small bundles together before it sends them on."""

    def __init__(self) -> None:
        self.pending: list[pa.RecordBatch] = []
        self.held = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[Row]:
        self.pending.append(batch)
        self.held += batch.nbytes
        if self.held >= _MOST_BYTES // 8:
            yield from self.finish()

    def finish(self) -> Iterator[Row]:
        if self.pending:
            batch = pa.concat_batches(self.pending)
            self.pending, self.held = [], 0
            yield from self.sent(batch)

    def sent(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """The rows of a bundle."""
        raise NotImplementedError


class _SessionPipe(_GatheringPipe):
    def __init__(self, ending: ToSessions, plan: PartialPlan, sender: Sender) -> None:
        super().__init__()
        self.operator, self.lane, self.sender = ending.operator, ending.lane, sender
        self.aggregation = plan.aggregation
        self.shards = sender.shards if ending.node.keys else 1

    def sent(self, batch: pa.RecordBatch) -> Iterator[Row]:
        for shard, spans in session_spans(self.aggregation, batch, self.shards):
            part = spans_as_batch(spans)
            yield from self.sender.bundles(shard, self.operator, self.lane, 0, part)


def spans_as_batch(spans: Spans) -> pa.RecordBatch:
    """Spans with their first and last moments as columns."""
    fields = [*spans.batch.schema, *(pa.field(n, pa.int64()) for n in (START, LAST))]
    columns = [*spans.batch.columns, pa.array(spans.starts), pa.array(spans.lasts)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


class _JoinPipe(_GatheringPipe):
    def __init__(self, ending: ToJoin, sender: Sender) -> None:
        super().__init__()
        self.ending, self.sender = ending, sender

    def sent(self, batch: pa.RecordBatch) -> Iterator[Row]:
        ending = self.ending
        for shard, part in sharded(batch, ending.keys, self.sender.shards, drop_null=True):
            yield from self.sender.bundles(shard, ending.operator, ending.lane, 0, part)


class _RelayPipe:
    def __init__(self, ending: ToRelay, sender: Sender) -> None:
        self.operator, self.sender = ending.operator, sender
        self.shards = min(sender.shards, ending.most or sender.shards)
        self.turn = sender.place

    def add(self, batch: pa.RecordBatch) -> Iterator[Row]:
        size = -(-batch.num_rows // self.shards)
        for start in range(0, batch.num_rows, size):
            self.turn += 1
            part = batch.slice(start, size)
            yield from self.sender.bundles(self.turn % self.shards, self.operator, 0, 0, part)

    def finish(self) -> Iterator[Row]:
        yield from ()


class _KeepPipe:
    def __init__(self, ending: ToOutput, sender: Sender) -> None:
        self.ending, self.sender = ending, sender
        self.pending: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> Iterator[Row]:
        self.pending.append(batch)
        if sum(b.nbytes for b in self.pending) >= _MOST_BYTES // 32:
            yield from self.finish()

    def finish(self) -> Iterator[Row]:
        pending, self.pending = self.pending, []
        for batch in gathered(iter(pending)):
            shard = self.sender.place % self.sender.shards
            yield from self.sender.bundles(shard, OUTPUT, self.ending.number, 0, batch)


class _WritePipe:
    def __init__(self, ending: ToOutput, sender: Sender, task: str) -> None:
        self.ending, self.sender = ending, sender
        self.task = f"{task}-{sender.writers}"  # a task may write to one sink from several places
        sender.writers += 1
        self.writer: Any = None
        self.records = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[Row]:
        if self.writer is None:
            self.writer = self.ending.sink.open(self.ending.schema, self.task)
        self.writer.write(batch)
        self.records += batch.num_rows
        yield from ()

    def finish(self) -> Iterator[Row]:
        if self.writer is not None:
            message = cloudpickle.dumps(self.writer.close())
            shard = self.sender.place % self.sender.shards
            yield self.sender.row(shard, OUTPUT, self.ending.number, 0, message)
            yield self.sender.report({"output": self.ending.number, "records": self.records})
            self.writer, self.records = None, 0


def in_batches(rows: Iterable[Row]) -> Batches:
    """Rows as Arrow batches of some megabytes."""
    pending: list[Row] = []
    held = 0
    for row in rows:
        pending.append(row)
        held += len(row[5])
        if held >= 8 << 20 or len(pending) >= 4096:
            yield as_batch(pending)
            pending, held = [], 0
    if pending:
        yield as_batch(pending)
