"""An operator's partials and states in one process, for a host whose threads share them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.operators.operator import Hosting, Operator, Part, Phases, Result, State, Task
from headrace.operators.stores import MemoryStore, Note, Order, TrackedStore
from headrace.windows import BEGINNING

_MANY_PARTS, _MANY_ROWS = 256, 1 << 18
"""So much may wait in an inbox."""


class Shards:
    """An operator's partials and states in one process, which threads share.

    Parts that do not go on at once wait in an inbox for the next watermark, or until there are
    many. Where there is a checkpoint, ``saved`` has the store and the note of each shard, which
    then has the same keys after a restart, and no part waits.
    """

    def __init__(
        self,
        operator: Operator,
        shards: int,
        workers: int,
        saved: Sequence[tuple[TrackedStore, Note]] | None = None,
        *,
        crowded: bool = False,
    ) -> None:
        self.operator = operator
        self.count = shards if operator.is_keyed else 1
        lanes = range(len(operator.chains))
        self.hosting = Hosting(
            self.count, workers, in_order=False, stable=saved is not None, crowded=crowded
        )
        self.partials = [operator.partial(i, self.hosting) for i in lanes]
        fresh: list[tuple[MemoryStore, Note]] = [(MemoryStore(), {}) for _ in range(self.count)]
        kept = fresh if saved is None else list(saved[: self.count])
        self.stores = [store for store, _ in kept]
        self.notes = [note for _, note in kept]
        self.states = [operator.state(store, note) for store, note in kept]
        self.is_kept = saved is not None
        """Whether a checkpoint keeps the stores."""
        self.early = operator.emits_early or self.is_kept
        self.locks = [threading.Lock() for _ in range(self.count)]
        self.inboxes: list[list[Part]] = [[] for _ in range(self.count)]
        self.watermarks = [BEGINNING for _ in lanes]
        self.told = [list(self.watermarks) for _ in range(self.count)]
        """What each shard knows of them: it is told by the watermark's own tasks."""
        self.rows = [0] * self.count
        """That wait in each inbox."""
        self.shared = operator.shared_state(self)

    @property
    def nbytes(self) -> int:
        waiting = sum(int(p.batch.nbytes) for inbox in self.inboxes for p in list(inbox))
        parts: list[Any] = [*self.partials, *self.stores, *self.states]
        parts += [] if self.shared is None else [self.shared]
        return waiting + sum(int(part.nbytes) for part in parts)

    def add(self, lane: int, batch: pa.RecordBatch, order: Order, worker: int) -> Iterator[Result]:
        """Take in a bundle of one input; the results that come at once."""
        if self.shared is not None:
            yield from self.shared.add(lane, batch, order, worker)
            return
        parts = list(self.partials[lane].add(batch, order, worker))
        # From another shard on for each worker, so that they seldom meet at a lock.
        cut = worker % len(parts) if parts else 0
        for shard, part in parts[cut:] + parts[:cut]:
            part.lane = lane
            with self.locks[shard]:
                inbox = self.inboxes[shard]
                inbox.append(part)
                self.rows[shard] += part.batch.num_rows
                if self.early or len(inbox) >= _MANY_PARTS or self.rows[shard] >= _MANY_ROWS:
                    self.inboxes[shard], self.rows[shard] = [], 0
                    yield from self.states[shard].take(inbox, self.told[shard])

    def flush(self) -> Phases:
        """Have the states hold all that the partials do, at the watermarks they know."""
        if self.shared is not None:
            yield [self.shared.flush]
        for lane, partial in enumerate(self.partials):
            sealing = partial.seal(None)
            if sealing:
                yield sealing
            yield [self._flushed(lane, shard) for shard in range(self.count)]
            partial.release()
        if any(type(state).save is not State.save for state in self.states):
            yield [self._saved(shard) for shard in range(self.count)]

    def _saved(self, shard: int) -> Task:
        def run() -> None:
            with self.locks[shard]:
                self.states[shard].save()

        return run

    def _flushed(self, lane: int, shard: int) -> Task:
        def run() -> None:
            parts = list(self.partials[lane].sealed(shard))
            if parts:
                with self.locks[shard]:
                    for _ in self.states[shard].take(parts, self.told[shard]):
                        raise AssertionError("results without a watermark")

        return run

    def take(self, shard: int, parts: Iterable[Part], lane: int | None = None) -> Iterator[Result]:
        """Have a shard go on to the watermarks, with what waits for it and some parts.

        With ``lane`` to that of one input alone.
        """
        with self.locks[shard]:
            inbox, self.inboxes[shard] = self.inboxes[shard], []
            self.rows[shard] = 0
            if lane is None:
                self.told[shard] = list(self.watermarks)
            else:
                self.told[shard][lane] = self.watermarks[lane]
            yield from self.states[shard].take([*inbox, *parts], self.told[shard])
