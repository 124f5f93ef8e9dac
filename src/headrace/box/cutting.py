"""The moment of a checkpoint: nothing new is taken in, what is under way is finished, states are
made to hold all that came; then the job goes on while a thread writes what they hold.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.box.arrival import Reader
from headrace.box.checkpoint import Keeper
from headrace.box.evaluator import FlushWork
from headrace.box.host import Hosted
from headrace.box.manifest import Snapshot
from headrace.box.sinks import WrittenByEpoch
from headrace.windows import BEGINNING

if TYPE_CHECKING:
    from headrace.box.run import Run

_LONG = 10.0
"""How long, in seconds, readers wait for the last of them before a checkpoint is put off."""


class Cutting:
    """Finds the moments for a job's checkpoints. Its methods are called with the lock held."""

    def __init__(self, run: Run, keeper: Keeper, hosted: Sequence[Hosted | None]) -> None:
        self.run, self.keeper, self.hosted = run, keeper, hosted
        self.is_on = False
        """Whether one has begun: readers come to stand between two steps."""
        self.slow: list[Reader] = []
        """The readers that were in a step when it began: till they are done, others go on."""
        self.is_last = False
        """Whether the job ends with this one."""
        self.is_flushing = False
        self.since = 0.0
        self.snapshot: Snapshot | None = None
        self.to_flush = 0
        self.written: Any = None
        """What had been read and delivered at the last one."""

    def look(self) -> None:
        """Begin one if it is time."""
        now = time.monotonic()
        if self.is_last or self.run.over:
            return
        if self.is_on and not self.is_flushing and now - self.since > _LONG:
            self.is_on = False  # a step takes long: go on, and try again
            self.keeper.last = now
            self.run.cascade.room.notify_all()
        elif not self.is_on and self.keeper.is_due() and self.written != self._so_far():
            self.is_on, self.since = True, now
            self._begin()

    def _begin(self) -> None:
        readers = [reader for ingress in self.run.ingresses for reader in ingress.readers]
        self.slow = [reader for reader in readers if reader.in_step]

    def holds(self, reader: Reader) -> bool:
        """Whether a reader must not begin a step now."""
        if not self.is_on:
            return False
        waits = any(other.in_step for other in self.slow)
        return self.is_last or not waits or any(reader is other for other in self.slow)

    def end(self) -> None:
        """The job ends with the next one."""
        self.is_on = self.is_last = True
        self.run.cascade.room.notify_all()

    def _so_far(self) -> Any:
        """What tells whether anything has happened."""
        read = [(i.records, i.bad, i.promises.promised, i.ended) for i in self.run.ingresses]
        return read, [vertex.records for vertex in self.run.sinks]

    def flush(self) -> FlushWork | None:
        """Have states hold all that came; None while something else is under way.

        Asked when an evaluator finds nothing else to do.
        """
        run = self.run
        if run.dispatch.active or not self.keeper.is_idle:
            return None
        if not all(ingress.between_steps for ingress in run.ingresses):
            return None
        for ingress in run.ingresses:
            ingress.release()
        run.cascade.send_all()
        news = [ingress.promises.catch_up() for ingress in run.ingresses if self.is_last]
        if any(news):
            return None  # what comes of that is for this checkpoint, too
        if run.cascade.in_flight:
            if run.scheduler.pick(run.cascade) is None:  # it holds epochs until they end
                for ingress in run.ingresses:
                    ingress.end_epoch()
            return None
        self.snapshot = Snapshot([ingress.state() for ingress in run.ingresses])
        self.written = self._so_far()
        self.is_flushing = True
        hosts = [v for v in run.cascade.vertices if isinstance(v.transform, Hosted)]
        works = [FlushWork(run, vertex) for vertex in hosts]
        if not works:
            self._hand_over()
            return None
        self.to_flush = len(works)
        run.urgent.extend(works[1:])
        return works[0]

    def flushed(self) -> None:
        """The states of a vertex hold all that came."""
        self.to_flush -= 1
        if self.to_flush == 0:
            self._hand_over()

    def _hand_over(self) -> None:
        """Have what the states hold written, and go on."""
        snapshot, self.snapshot = self.snapshot, None
        assert snapshot is not None
        for number, hosted in enumerate(self.hosted):
            stores: Any = [] if hosted is None else hosted.shards.stores
            notes = [] if hosted is None else hosted.shards.notes
            snapshot.notes.append(json.loads(json.dumps(notes)))
            snapshot.promised.append(BEGINNING if hosted is None else hosted.promised())
            for shard, store in enumerate(stores):
                for name, batch in store.changes().items():
                    snapshot.changes[(number, shard, *name)] = batch
        for vertex in self.run.sinks:
            by_epoch = isinstance(vertex.transform, WrittenByEpoch)
            snapshot.writers.append(vertex.transform.cut() if by_epoch else None)
        snapshot.finished = all(ingress.ended for ingress in self.run.ingresses)
        snapshot.final = self.is_last
        self.is_flushing = self.is_on = self.is_last  # nothing more is done after the last
        self.keeper.take(snapshot)
        self.run.cascade.room.notify_all()
        self.run.cascade.changes += 1
