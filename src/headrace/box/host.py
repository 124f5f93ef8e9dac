"""The box as a host of operators: what the vertices of the graph do with bundles and watermarks."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.box.bundle import Bundle
from headrace.box.cores import are_crowded
from headrace.kernels.chain import Chain
from headrace.operators.operator import Operator, Phases, Placed, Result
from headrace.operators.shards import Shards
from headrace.operators.stores import Note, TrackedStore, of_lane
from headrace.windows import BEGINNING, FOREVER


class Outbox:
    """Where a vertex puts what it makes of a bundle or a watermark."""

    __slots__ = ("bundles", "epoch", "lane", "order", "watermark", "worker")

    def __init__(self, epoch: int, order: tuple[int, ...], worker: int, lane: int = 0) -> None:
        self.epoch, self.order, self.worker, self.lane = epoch, order, worker, lane
        self.bundles: list[Bundle] = []
        self.watermark: int | None = None
        """What to tell those downstream, set before ``on_watermark``; None cancels it."""

    def emit(self, batch: pa.RecordBatch, order: tuple[int, ...] | None = None) -> None:
        """Send records on."""
        if batch.num_rows:
            place = (*self.order, len(self.bundles)) if order is None else order
            self.bundles.append(Bundle(batch, place, self.epoch))


class Stateless:
    """A chain of narrow steps."""

    nbytes = 0

    def __init__(self, chain: Chain, lanes: Sequence[int] = ()) -> None:
        self.chain, self.lanes = chain, lanes
        """Of a union: how many streams there are before those of each of its own."""

    def process(self, bundle: Bundle, out: Outbox) -> None:
        if self.lanes:
            first, *rest = bundle.order
            out.order = (of_lane(self.lanes[out.lane], first), *rest)
        for batch in self.chain.bundles(selected(bundle.batch, self.chain)):
            out.emit(batch)

    def on_watermark(self, time: int, out: Outbox) -> None:
        """A watermark passes through."""


def selected(batch: pa.RecordBatch, chain: Chain) -> pa.RecordBatch:
    """The columns a chain reads."""
    if len(chain.columns) == batch.num_columns and tuple(batch.schema.names) == chain.columns:
        return batch
    return batch.select(list(chain.columns))


_MANY_SHARDS, _SHARED_SHARDS = 8, 16
_MANY, _SMALL = 4, 1 << 16


def _shards(operator: Operator, workers: int) -> int:
    """How many shards to have: a power of two."""
    if operator.is_shared:  # more of them, so that few workers seldom meet at one
        return _SHARED_SHARDS
    if operator.by_arrival:
        # So that few keys with many records do not keep one worker busy and the others waiting.
        return min(64, 1 << (4 * workers - 1).bit_length())
    # Where records go to their shards one by one, more shards are more hand-overs.
    shards = min(workers, _MANY_SHARDS) if operator.emits_early else workers
    return 1 << (shards - 1).bit_length()


class Hosted:
    """An operator: evaluators fill its partials, watermark tasks run its states by shard."""

    def __init__(
        self,
        operator: Operator,
        workers: int,
        saved: Sequence[tuple[TrackedStore, Note]] | None = None,
    ) -> None:
        self.operator = operator
        self.schema = operator.node.schema
        count = _shards(operator, workers) if saved is None else len(saved)
        self.shards = Shards(operator, count, workers, saved, crowded=are_crowded(workers))
        self.passed = BEGINNING
        self.passes_all = False
        """Whether watermarks that bring no results are passed on too: timers downstream fire up to
        the last one."""

    @property
    def nbytes(self) -> int:
        return self.shards.nbytes

    def is_due(self, now: int) -> bool:
        """Whether a timer that goes by the clock is to go off."""
        return any(state.next_timer() <= now for state in self.shards.states)

    def ring(self, now: int, out: Outbox) -> None:
        """Have the timers go off that are due."""
        for shard, lock in enumerate(self.shards.locks):
            with lock:
                for number, batch in self.shards.states[shard].rung(now):
                    out.emit(batch, (number, shard))

    @property
    def keys_held(self) -> int:
        """The keys that its states remember."""
        return sum(state.keys_held for state in self.shards.states)

    def promised(self) -> int:
        """What those downstream have been promised."""
        reached = min(self.shards.watermarks)
        return min(state.promised(reached) for state in self.shards.states)

    def process(self, bundle: Bundle, out: Outbox) -> None:
        chain = self.operator.chains[out.lane]
        for i, batch in enumerate(chain.bundles(selected(bundle.batch, chain))):
            if batch.num_rows:
                order = (*bundle.order, i)
                results = self.shards.add(out.lane, batch, order, out.worker)
                batches = [result for _, result in results]
                # As one where they are many and small: a bundle costs something by itself.
                if len(batches) > _MANY and sum(b.num_rows for b in batches) <= _SMALL:
                    batches = [pa.concat_batches(batches)]
                for result in batches:
                    out.emit(result)

    def on_watermark(self, time: int, out: Outbox) -> Phases | None:
        before = self.shards.watermarks[out.lane]
        self.shards.watermarks[out.lane] = time
        if not self.operator.advances(before, time):
            if not self.passes_all:
                out.watermark = None
            return None
        return self._advance(time, out)

    def _advance(self, time: int, out: Outbox) -> Phases:
        def emit(shard: int, result: Result | Placed) -> None:
            number, batch = result
            if not batch.schema.equals(self.schema):
                batch = batch.cast(self.schema)
            out.emit(batch, (number, shard) if isinstance(number, int) else number)

        yield from self.operator.advance(self.shards, out.lane, time, emit)
        promised = min(state.promised(time) for state in self.shards.states)
        if promised < time < FOREVER:
            out.watermark = promised if promised > self.passed else None
        self.passed = max(self.passed, promised)
