"""Branches of a plan, compiled: bundles in, rows for other workers and for the driver out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle
import pyarrow as pa

from headrace.kernels.chain import Chain, compile_chain
from headrace.operators import operator_of
from headrace.operators.operator import Hosting, Input, Operator, Part
from headrace.spark.graph import Branch, ToOperator, ToOutput, ToRelay
from headrace.spark.wire import OUTPUT, WATERMARK, Row, RowSender, gathered, pack, parts_of

_MOST_GROUPS, _MOST_BYTES = 1 << 20, 128 << 20
"""Past this partial results are sent and begun anew, which bounds a worker's memory."""


class Compiled:
    """A branch compiled once in a worker's life; ``start`` gives what one task pushes through."""

    def __init__(self, branch: Branch, zone: str) -> None:
        self.branch = branch
        self.operator: Operator | None = None
        ending = branch.ending
        if isinstance(ending, ToOperator):
            inputs = [Input(branch.steps, branch.schema)] * ending.inputs
            self.operator = operator_of(ending.node, inputs, zone)
            self.chain: Chain = self.operator.chains[ending.side]
        else:
            self.chain = compile_chain(branch.steps, branch.schema, None, zone)
        self.forks = [Compiled(b, zone) for b in branch.forks]

    def start(self, sender: RowSender, task: str) -> Pipe:
        ending = self.branch.ending
        end: Any
        if isinstance(ending, ToOperator):
            assert self.operator is not None
            end = PartialPipe(self.operator, ending.side, sender, ending.operator, ending.lane)
        elif isinstance(ending, ToRelay):
            end = _RelayPipe(ending, sender)
        elif isinstance(ending, ToOutput) and ending.sink is not None:
            end = _WritePipe(ending, sender, task)
        elif isinstance(ending, ToOutput):
            end = _KeepPipe(ending, sender)
        else:
            end = _ForkPipe([fork.start(sender, task) for fork in self.forks])
        return Pipe(self.chain, end)


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


class PartialPipe:
    """An operator's partial: what it gives goes to the shards of the operator."""

    def __init__(
        self, operator: Operator, side: int, sender: RowSender, target: int, lane: int
    ) -> None:
        self.operator, self.sender, self.target, self.lane = operator, sender, target, lane
        self.shards = sender.shards if operator.is_keyed else 1
        self.partial = operator.partial(side, Hosting(self.shards))
        self.pending: dict[int, list[Part]] = {}
        self.held = 0

    @property
    def is_full(self) -> bool:
        """Whether more bundles would make no difference."""
        return self.partial.is_full

    def add(self, batch: pa.RecordBatch) -> Iterator[Row]:
        self._gather(self.partial.add(batch, (), 0))
        held = self.held + self.partial.nbytes
        if self.partial.groups > _MOST_GROUPS or held > _MOST_BYTES:
            yield from self._flushed()

    def _gather(self, parts: Iterable[tuple[int, Part]]) -> None:
        for shard, part in parts:
            self.pending.setdefault(shard, []).append(part)
            self.held += part.batch.nbytes

    def finish(self) -> Iterator[Row]:
        yield from self._flushed()
        if not self.operator.is_keyed:  # its state runs even if no record comes
            yield self.sender.row(0, self.target, WATERMARK, 0, b"{}")

    def _flushed(self) -> Iterator[Row]:
        for task in self.partial.seal(None):
            task()
        for shard in range(self.shards):
            parts = [*self.pending.pop(shard, ()), *self.partial.sealed(shard)]
            for part in _together(parts):
                yield from self.sender.part(shard, self.target, self.lane, part)
        self.partial.release()
        self.held = 0


def _together(parts: list[Part]) -> Iterator[Part]:
    """Small bundles of one slice put together."""
    by_slice: dict[int, list[pa.RecordBatch]] = {}
    for part in parts:
        by_slice.setdefault(part.slice, []).append(part.batch)
    for slice, batches in by_slice.items():
        yield Part(slice, batches[0] if len(batches) == 1 else pa.concat_batches(batches))


class _ForkPipe:
    def __init__(self, pipes: list[Pipe]) -> None:
        self.pipes = pipes

    def add(self, batch: pa.RecordBatch) -> Iterator[Row]:
        for pipe in self.pipes:
            yield from pipe.add(batch)

    def finish(self) -> Iterator[Row]:
        for pipe in self.pipes:
            yield from pipe.finish()


class _RelayPipe:
    """Records dealt out evenly to some of the shards."""

    def __init__(self, ending: ToRelay, sender: RowSender) -> None:
        self.operator, self.sender = ending.operator, sender
        self.shards = min(sender.shards, ending.most or sender.shards)
        self.turn = sender.place

    def add(self, batch: pa.RecordBatch) -> Iterator[Row]:
        size = -(-batch.num_rows // self.shards)
        for start in range(0, batch.num_rows, size):
            self.turn += 1
            part = Part(0, batch.slice(start, size))
            yield from self.sender.part(self.turn % self.shards, self.operator, 0, part)

    def finish(self) -> Iterator[Row]:
        yield from ()


class _KeepPipe:
    """Records that are kept on the driver."""

    def __init__(self, ending: ToOutput, sender: RowSender) -> None:
        self.ending, self.sender = ending, sender
        self.pending: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> Iterator[Row]:
        self.pending.append(batch)
        if sum(b.nbytes for b in self.pending) >= _MOST_BYTES // 32:
            yield from self.finish()

    def finish(self) -> Iterator[Row]:
        pending, self.pending = self.pending, []
        for batch in gathered(iter(pending)):
            for part in parts_of(batch):
                yield self.sender.anywhere(OUTPUT, self.ending.number, pack(part))


class _WritePipe:
    """Records into a sink's writer; what it says when it closes goes to the driver."""

    def __init__(self, ending: ToOutput, sender: RowSender, task: str) -> None:
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
            yield self.sender.anywhere(OUTPUT, self.ending.number, message)
            yield self.sender.report({"output": self.ending.number, "records": self.records})
            self.writer, self.records = None, 0
