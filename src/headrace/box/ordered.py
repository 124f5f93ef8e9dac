"""Ordered processing: bundles are worked on at once, and what comes of them goes on in their order.

A bundle has a serial number at each transform whose order matters. A stateless transform works on
bundles in parallel, and a reorder buffer lets their outputs go on by number. A transform with state
by key has each bundle cut by partition of the keys, and the parts put, by number, into a worklist
that keeps each partition's order; a bundle's outputs come together again in the order of its
records, and go on by number.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.box.bundle import Bundle
from headrace.box.host import Hosted, selected
from headrace.box.reordering import LockingReorder, NonBlockingReorder, Reorder
from headrace.box.worklists import HybridQueue, PartitionedQueue, SharedQueue, Worklist
from headrace.errors import PlanError, nearest
from headrace.kernels.aggregate import key_hashes, rows_by_shard
from headrace.kernels.columns import as_column, numbers
from headrace.kernels.order import by_hash

if TYPE_CHECKING:
    from headrace.box.evaluator import BundleWork

REORDERS: dict[str, Callable[[Callable[[Any], None]], Reorder]] = {
    "non-blocking": NonBlockingReorder,
    "locking": LockingReorder,
}
WORKLISTS: dict[str, Callable[[int], Worklist]] = {
    "hybrid": HybridQueue,
    "partitioned": PartitionedQueue,
    "shared": SharedQueue,
}


@dataclass(frozen=True)
class Ordering:
    """How the box keeps order: ``Box(ordered=hr.Ordering(worklist="partitioned"))``.

    ``reorder`` is ``"non-blocking"`` or ``"locking"``, ``worklist`` is ``"hybrid"``,
    ``"partitioned"`` or ``"shared"``. The first of each is what to use; the others are there to
    compare with.
    """

    reorder: str = "non-blocking"
    worklist: str = "hybrid"

    def __post_init__(self) -> None:
        for name, known in ((self.reorder, REORDERS), (self.worklist, WORKLISTS)):
            if name not in known:
                raise PlanError(f"Ordering: there is no {name!r}{nearest(str(name), known)}")


@dataclass(frozen=True)
class Settling:
    """How what comes of a watermark is put in order: by time, and by the hash of its key."""

    times: tuple[str, ...]
    keys: tuple[str, ...]

    def __call__(self, bundles: list[Bundle]) -> list[Bundle]:
        """The same as one bundle, in order."""
        if not bundles:
            return bundles
        bundles = sorted(bundles, key=lambda bundle: bundle.order)
        batch = pa.concat_batches([bundle.batch for bundle in bundles])
        times = [numbers(batch.column(name), np.int64) for name in self.times]
        order = np.arange(batch.num_rows)
        if times:
            order = (
                np.lexsort(times[::-1]) if len(times) > 1 else np.argsort(times[0], kind="stable")
            )
        if self.keys:
            order = self._by_key(batch, order, times)
        return [Bundle(batch.take(as_column(order)), bundles[0].order, bundles[0].epoch)]

    def _by_key(self, batch: pa.RecordBatch, order: Any, times: list[Any]) -> Any:
        """Rows in order of time, those of one time by the hashes of their keys."""
        if all((each == each[:1]).all() for each in times):
            return by_hash(key_hashes([batch.column(n) for n in self.keys], batch.num_rows))
        same = np.ones(max(0, order.size - 1), np.bool_)
        for each in times:
            same &= each[order[1:]] == each[order[:-1]]
        tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
        rows = order[tied]
        if rows.size:
            some = as_column(rows)
            hashes = key_hashes([batch.column(n).take(some) for n in self.keys], rows.size)
            moment = np.cumsum(~np.insert(same, 0, False))[tied]
            within = by_hash(hashes)
            within = within[np.argsort(moment[within], kind="stable")]
            order = order.copy()
            order[tied] = rows[within]
        return order


class Restored:
    """A transform whose outputs go on in the order of its inputs."""

    def __init__(self, ordering: Ordering) -> None:
        self.ready: deque[BundleWork] = deque()
        """What may go on, in order."""
        self.reorder = REORDERS[ordering.reorder](self.ready.append)
        self.aside: deque[BundleWork] = deque()
        """What the reorder buffer had no room for."""

    def run(self, work: BundleWork) -> None:
        """Process a bundle. Any evaluator calls this, without the lock."""
        work.container.lane.vertex.transform.process(work.bundle, work.out)
        self.finished(work)

    def finished(self, work: BundleWork) -> None:
        """What came of a bundle is there."""
        if not self.reorder.send(work.bundle.serial, work):
            self.aside.append(work)

    def released(self) -> Iterator[BundleWork]:
        """The bundles whose outputs go on now. The lock is held."""
        while self.aside:
            before = self.reorder.next
            for _ in range(len(self.aside)):
                self.finished(self.aside.popleft())
            if self.reorder.next == before:
                break
        while self.ready:
            yield self.ready.popleft()


@dataclass(slots=True)
class Entry:
    """A bundle on its way through the partitions."""

    work: BundleWork
    parts: list[tuple[int, Part]] = field(default_factory=list)
    outputs: list[tuple[Any, pa.RecordBatch]] = field(default_factory=list)
    """The rows each output came of, and what it is."""
    left: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class Part:
    """The records of a bundle that are of one partition."""

    entry: Entry
    rows: Any
    batch: pa.RecordBatch


class ByPartition(Restored):
    """A scan by arrival: each key's records in order, the keys of partitions in parallel."""

    def __init__(self, hosted: Hosted, ordering: Ordering) -> None:
        super().__init__(ordering)
        self.hosted, self.operator, self.shards = hosted, hosted.operator, hosted.shards
        self.worklist = WORKLISTS[ordering.worklist](self.shards.count)
        self.entrance = REORDERS[ordering.reorder](self._enter)
        self.outside: deque[Entry] = deque()

    def run(self, work: BundleWork) -> None:
        entry = Entry(work, list(self._parts(work)))
        for _, part in entry.parts:
            part.entry = entry
        entry.left = len(entry.parts)
        if not self.entrance.send(work.bundle.serial, entry):
            self.outside.append(entry)
        self._let_in()
        self.worklist.consume(self._operate)

    def _let_in(self) -> None:
        """Try again with bundles that there was no room for, as long as there is room now."""
        while True:
            before = self.entrance.next
            for _ in range(len(self.outside)):
                try:
                    entry = self.outside.popleft()
                except IndexError:  # another worker sees to it
                    break
                if not self.entrance.send(entry.work.bundle.serial, entry):
                    self.outside.append(entry)
            # Who put one back while others were let in relies on the second look.
            if not self.outside or self.entrance.next == before:
                return

    def _parts(self, work: BundleWork) -> Iterator[tuple[int, Part]]:
        chain, keys, count = self.operator.chains[0], self.operator.node.keys, self.shards.count
        before = 0
        for batch in chain.bundles(selected(work.bundle.batch, chain)):
            rows = np.arange(before, before + batch.num_rows)
            before += batch.num_rows
            if not batch.num_rows:
                continue
            if count == 1:
                yield 0, Part(None, rows, batch)  # type: ignore[arg-type]
                continue
            columns = [batch.column(name) for name in keys]
            order, edges = rows_by_shard(columns, batch.num_rows, count)
            gathered = batch.take(as_column(order))
            for shard, (start, end) in enumerate(itertools.pairwise(edges)):
                if end > start:
                    piece = gathered.slice(start, end - start)
                    yield shard, Part(None, rows[order[start:end]], piece)  # type: ignore[arg-type]

    def _enter(self, entry: Entry) -> None:
        """A bundle's turn has come: its parts follow those of the bundles before it."""
        if not entry.parts:
            self.finished(entry.work)
        for shard, part in entry.parts:
            self.worklist.add(shard, part)

    def _operate(self, shard: int, part: Part) -> None:
        with self.shards.locks[shard]:  # a watermark may look at the shard meanwhile
            output, origin = self.shards.states[shard].arrived(part.batch)
        entry = part.entry
        with entry.lock:
            if output is not None and output.num_rows:
                rows = part.rows if origin is None else part.rows[origin]
                entry.outputs.append((rows, output))
            entry.left -= 1
            last = entry.left == 0
        if last:
            self._together(entry)
            self.finished(entry.work)

    @staticmethod
    def _together(entry: Entry) -> None:
        """A bundle's outputs in the order of its records."""
        if not entry.outputs:
            return
        rows = np.concatenate([rows for rows, _ in entry.outputs])
        batch = pa.concat_batches([output for _, output in entry.outputs])
        if not (rows[1:] >= rows[:-1]).all():
            batch = batch.take(as_column(np.argsort(rows, kind="stable")))
        entry.work.out.emit(batch)
