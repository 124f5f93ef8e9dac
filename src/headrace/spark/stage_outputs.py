"""What leaves the Spark Python worker that runs a stage of a bounded job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import cloudpickle
import pyarrow as pa

from headrace.io.sink import Sink
from headrace.operators import operator_of
from headrace.operators.operator import Input, Operator, Part
from headrace.plan.node import Node
from headrace.spark.last_watermark import LastWatermark
from headrace.spark.pipes import PartialPipe
from headrace.spark.wire import MESSAGES, Batches, Place, Row, RowSender, gathered, in_batches


@dataclass(frozen=True)
class FrameOutput:
    """The records themselves, as rows of a DataFrame."""

    schema: pa.Schema

    def finish(self, batches: Batches, place: Place) -> Batches:
        for batch in batches:
            if batch.num_rows:
                yield batch


@dataclass(frozen=True)
class BundlesOutput:
    """The records as bundles: in order, or dealt out evenly to some shards."""

    shards: int = 1

    def finish(self, batches: Batches, place: Place) -> Batches:
        sender = RowSender(range(self.shards), place.first)
        return in_batches(self._rows(batches, place, sender))

    def _rows(self, batches: Batches, place: Place, sender: RowSender) -> Iterator[Row]:
        turn = place.branch + place.partition
        for batch in gathered(batches):
            size = -(-batch.num_rows // self.shards)
            for start in range(0, batch.num_rows, size):
                part = Part(0, batch.slice(start, size))
                yield from sender.part(turn % self.shards, 0, 0, part)
                turn += 1


@dataclass(frozen=True)
class PartialOutput:
    """What an operator's partial makes of the records, by shard of the keys."""

    node: Node
    shards: int
    side: int = 0
    """Which of the operator's inputs the records are."""
    inputs: int = 1
    tells_watermark: bool = False
    """Whether the shards receive the last watermark before the end, because there are timers."""

    def compiled(self, inputs: Iterable[Input], zone: str) -> Operator:
        return operator_of(self.node, list(inputs) * self.inputs, zone)

    def finish(
        self, batches: Batches, place: Place, operator: Operator, last: LastWatermark
    ) -> Batches:
        sender = RowSender(range(self.shards), place.first)
        pipe = PartialPipe(operator, self.side, sender, 0, self.side)
        return in_batches(self._rows(batches, pipe, last))

    def _rows(self, batches: Batches, pipe: PartialPipe, last: LastWatermark) -> Iterator[Row]:
        for batch in batches:
            if batch.num_rows:
                yield from pipe.add(batch)
            if pipe.is_full:
                break
        yield from pipe.finish()
        if self.tells_watermark:
            yield from pipe.sender.to_all(0, last.message(self.side))


@dataclass(frozen=True)
class WriteOutput:
    """The records into a sink; their number and the writer's message leave."""

    sink: Sink
    schema: pa.Schema

    def finish(self, batches: Batches, place: Place) -> Batches:
        writer = self.sink.open(self.schema, str(place))
        records = 0
        for batch in batches:
            writer.write(batch)
            records += batch.num_rows
        yield _message(cloudpickle.dumps((records, writer.close())))


@dataclass(frozen=True)
class NoOutput:
    """Nothing: the steps were run for their effect."""

    def finish(self, batches: Batches, place: Place) -> Batches:
        for _ in batches:
            pass
        yield _message(b"")


def _message(data: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], schema=MESSAGES)


StageOutput = FrameOutput | BundlesOutput | PartialOutput | WriteOutput | NoOutput
