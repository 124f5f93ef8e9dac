"""Endings: what leaves a Spark Python worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import cloudpickle
import pyarrow as pa

from headrace.io.sink import Sink
from headrace.kernels.aggregate import PartialPlan, by_shard, compile_aggregation
from headrace.plan.nodes import GroupBy, TopK
from headrace.spark.bundles import MESSAGES, Batches, Place, Sender, gathered
from headrace.spark.heads import top_of

_MAX_GROUPS = 1 << 20
_MAX_STATE = 128 << 20
"""Past this a partial aggregate is sent and begun anew, which bounds a worker's memory."""


@dataclass(frozen=True)
class RowsEnding:
    """The records themselves, as Spark rows."""

    schema: pa.Schema

    def finish(self, batches: Batches, place: Place) -> Batches:
        for batch in batches:
            if batch.num_rows:
                yield batch


@dataclass(frozen=True)
class CollectEnding:
    """The records as bundles, to be put together in order."""

    def finish(self, batches: Batches, place: Place) -> Batches:
        return Sender(place).rows((0, batch) for batch in gathered(batches))


@dataclass(frozen=True)
class LimitEnding:
    """The first records as bundles."""

    count: int

    def finish(self, batches: Batches, place: Place) -> Batches:
        return Sender(place).rows((0, batch) for batch in gathered(self._first(batches)))

    def _first(self, batches: Batches) -> Batches:
        left = self.count
        for batch in batches:
            if left <= 0:
                return
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)


@dataclass(frozen=True)
class ScatterEnding:
    """The records spread evenly over shards."""

    shards: int

    def finish(self, batches: Batches, place: Place) -> Batches:
        return Sender(place).rows(self._dealt(batches, place))

    def _dealt(self, batches: Batches, place: Place) -> Iterator[tuple[int, pa.RecordBatch]]:
        turn = place.branch + place.partition
        for batch in gathered(batches):
            size = -(-batch.num_rows // self.shards)
            for start in range(0, batch.num_rows, size):
                yield turn % self.shards, batch.slice(start, size)
                turn += 1


@dataclass(frozen=True)
class KeyEnding:
    """The records by the shard of their key."""

    keys: tuple[str, ...]
    shards: int

    def finish(self, batches: Batches, place: Place) -> Batches:
        return Sender(place).rows(
            part
            for batch in gathered(batches)
            for part in by_shard(batch, [batch.column(k) for k in self.keys], self.shards)
        )


@dataclass(frozen=True)
class SessionEnding:
    """The records themselves, by the shard of the keys their sessions have."""

    node: GroupBy
    schema: pa.Schema
    shards: int
    zone: str

    def finish(self, batches: Batches, place: Place) -> Batches:
        aggregation = compile_aggregation(self.node, self.schema, self.zone)
        return Sender(place).rows(
            part
            for batch in gathered(batches)
            for part in by_shard(batch, aggregation.evaluate(batch)[0], self.shards)
        )


@dataclass(frozen=True)
class TopEnding:
    """The top records of this part, by the shard of their key."""

    node: TopK
    shards: int
    zone: str

    def finish(self, batches: Batches, place: Place) -> Batches:
        top = top_of(self.node, self.zone)
        for batch in batches:
            top.add(batch)
        kept = top.bundle()
        keys = [kept.column(k) for k in self.node.keys]
        yield from Sender(place).rows(by_shard(kept, keys, self.shards))


@dataclass(frozen=True)
class PartialEnding:
    """Partial aggregates, by the shard of their key."""

    node: GroupBy
    shards: int
    zone: str
    by: int | None = None
    """How many of the keys say which shard; all unless told."""

    def finish(self, batches: Batches, place: Place, plan: PartialPlan) -> Batches:
        partial, sender = plan.start(), Sender(place)
        keys = len(self.node.keys) if self.by is None else self.by

        def send() -> Batches:
            bundle = partial.bundle()
            yield from sender.rows(by_shard(bundle, bundle.columns[:keys], self.shards))

        for batch in batches:
            partial.add(batch)
            if partial.groups > _MAX_GROUPS or partial.nbytes > _MAX_STATE:
                yield from send()
                partial.reset()
        yield from send()


@dataclass(frozen=True)
class WriteEnding:
    """The records into a sink; what the writer says is what leaves."""

    sink: Sink
    schema: pa.Schema

    def finish(self, batches: Batches, place: Place) -> Batches:
        writer = self.sink.open(self.schema, str(place))
        for batch in batches:
            writer.write(batch)
        yield _message(cloudpickle.dumps(writer.close()))


@dataclass(frozen=True)
class RunEnding:
    """Nothing: the steps were run for their effect."""

    def finish(self, batches: Batches, place: Place) -> Batches:
        for _ in batches:
            pass
        yield _message(b"")


def _message(data: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], schema=MESSAGES)


Ending = (
    RowsEnding | CollectEnding | LimitEnding | ScatterEnding | KeyEnding | SessionEnding | TopEnding
    | PartialEnding | WriteEnding | RunEnding
)  # fmt: skip
