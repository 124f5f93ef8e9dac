"""Keyed tables by slice of time: partial aggregates of what was read, that threads add to at once.

One slice of time has one table, of one of three kinds: *words* are counted as they are cut;
*numbers* of one or two fixed-width keys are kept beside their keys; *general* takes any key and
any aggregate. All give the same partials, so that a state cannot tell them apart.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.kernels.aggregate import (
    Aggregation,
    GeneralTable,
    Merge,
    by_shard,
)
from headrace.kernels.cells import NumberPlan, NumberTable
from headrace.kernels.columns import Text
from headrace.kernels.tokenise import Tokeniser
from headrace.kernels.words import ALL_ROWS, PartedWords, WordTable, WordTurns
from headrace.operators.operator import Hosting, Task
from headrace.operators.stores import Order

ROW = "__row"
"""Where the order of the input matters across slices: a record's place in its bundle."""
SMALL = 1 << 18
"""The keys of a slice that one task merges."""
MANY_WORDS = 1 << 16
"""The same for words, whose tables are merged natively."""
MANY_SLICES = 64
"""Beyond this many a bundle's records are first cut by slice, not by slice and key at once."""
EARLY_BYTES = 64 << 20
"""The text of a slice that may wait for its own time."""
FEW_ROWS, CAUGHT_UP = 256, 4
"""Fewer rows than this do not wait; up to CAUGHT_UP waiting bundles are counted with each new."""

Ordered = tuple[Order, pa.RecordBatch]


class SliceTable(Protocol):
    """The partial aggregates of one slice of time."""

    @property
    def nbytes(self) -> int:
        """The memory it holds."""

    @property
    def groups(self) -> int:
        """About how many keys it has."""

    def prepare(self, shards: int, whole: bool) -> list[Task]:
        """What must be done, in parallel, before the shards can be asked for.

        ``whole`` if they will be asked for results, else for partials.
        """

    def partials(self, shard: int, shards: int) -> list[Ordered]:
        """The partials of one shard of the keys."""

    def results(self, shard: int, shards: int) -> pa.RecordBatch | None:
        """The results of one part of the keys, where nothing else has records of this slice.

        Which keys are in which part is the table's own affair.
        """

    def recycle(self) -> None:
        """It is not needed any more."""


class SpareTables:
    """Tables that closed slices leave, to be used again: their room is the right one by then."""

    def __init__(self, make: Callable[[], Any], limit: int) -> None:
        self.make, self.limit = make, limit
        self.free: list[Any] = []

    def take(self) -> Any:
        try:
            return self.free.pop()
        except IndexError:
            return self.make()

    def give(self, table: Any) -> None:
        # One that was hardly used is too large for what comes: a small one is cheaper to clear.
        if len(self.free) < self.limit and 16 * table.used >= table.room:
            table.reset()
            self.free.append(table)


class WordTables:
    """Words counted as they are cut, in as many tables as workers count at once.

    Text of a slice that is not due yet waits as it is until its own time comes: counting it at
    once would have the tables of several slices push each other out of the cache.
    """

    def __init__(self, spare: SpareTables, keep_empty: bool, hosting: Hosting) -> None:
        self.spare, self.hosting = spare, hosting
        self.turns = WordTurns(spare.take, hosting.workers, keep_empty, hosting.crowded)
        self.parts: dict[int, pa.RecordBatch] | None = None
        self.cutting: dict[int, threading.Lock] = {}
        self.parted: dict[int, PartedWords] = {}
        self.early: deque[tuple[Text, Tokeniser]] = deque()
        self.early_bytes = 0
        self.lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.turns.tables) + self.early_bytes

    @property
    def groups(self) -> int:
        return max((t.groups for t in self.turns.tables), default=0)

    def add(self, text: Text, tokeniser: Tokeniser, rows: Any = ALL_ROWS) -> None:
        """Count the words of some rows, or of all."""
        self.turns.add_text(text, tokeniser, rows)

    def wait(self, text: Text, tokeniser: Tokeniser) -> None:
        """Keep some text until the slice's own time."""
        with self.lock:
            self.early_bytes += text.nbytes
        self.early.append((text, tokeniser))

    def catch_up(self, limit: int) -> None:
        """Count some of the text that waits."""
        for _ in range(limit):
            try:
                text, tokeniser = self.early.popleft()
            except IndexError:
                return
            with self.lock:
                self.early_bytes -= text.nbytes
            self.add(text, tokeniser)

    def prepare(self, shards: int, whole: bool) -> list[Task]:
        """Count what still waits, by all workers."""
        if not whole and self.hosting.stable:
            return [partial(self._split, shards)]
        tasks = min(self.hosting.workers, len(self.early))
        return [partial(self.catch_up, 1 << 30)] * tasks

    def _split(self, shards: int) -> None:
        self.catch_up(1 << 30)
        batch = self.results(0, 1)
        self.parts = {} if batch is None else dict(by_shard(batch, batch.columns[:1], shards))

    def results(self, shard: int, shards: int) -> pa.RecordBatch | None:
        tables = self.turns.tables
        if not tables:
            return None
        if shards == 1:  # the others into the largest, which is not needed any more
            first, *others = sorted(tables, key=lambda table: -table.groups)
            for table in others:
                first.merge(table)
            return _nonempty(first.bundle())
        merged: WordTable = self.spare.make()
        for i in range(len(tables)):  # each task begins with another, which it cuts for all
            self._parted(tables[(shard + i) % len(tables)], shards).add_to(merged, shard)
        return _nonempty(merged.bundle())

    def _parted(self, table: WordTable, shards: int) -> PartedWords:
        """A table's words by shard, cut by the first who asks."""
        with self.lock:
            lock = self.cutting.setdefault(id(table), threading.Lock())
        with lock:
            parted = self.parted.get(id(table))
            if parted is None:
                parted = self.parted[id(table)] = PartedWords(table, shards)
            return parted

    def partials(self, shard: int, shards: int) -> list[Ordered]:
        stable = self.parts is not None
        batch = self.parts.pop(shard, None) if self.parts is not None else None
        # Else shards may be parts of the hashes, which are those of this process alone.
        batch = batch if stable else self.results(shard, shards)
        return [] if batch is None else [((), batch)]

    def recycle(self) -> None:
        for table in self.turns.tables:
            self.spare.give(table)


class GeneralTables:
    """Any key and any aggregate, a table for each worker."""

    def __init__(self, aggregation: Aggregation) -> None:
        self.aggregation = aggregation
        self.own: dict[int, GeneralTable] = {}
        self.parts: dict[int, list[pa.RecordBatch]] = {}

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in list(self.own.values()))

    @property
    def groups(self) -> int:
        return sum(p.groups for p in self.own.values())

    def add(self, batch: pa.RecordBatch, order: Order, worker: int) -> None:
        table = self.own.get(worker)
        if table is None:
            table = self.own.setdefault(worker, GeneralTable(self.aggregation))
        table.add(batch)

    def prepare(self, shards: int, whole: bool) -> list[Task]:
        return [partial(self._split, table, shards) for table in self.own.values()]

    def _split(self, table: GeneralTable, shards: int) -> None:
        self.split(table.bundle(), shards)

    def split(self, batch: pa.RecordBatch, shards: int) -> None:
        """Put partials to those of their shards."""
        for shard, part in by_shard(batch, batch.columns[: len(self.aggregation.keys)], shards):
            self.parts.setdefault(shard, []).append(part)

    def merged(self, shard: int) -> Merge | None:
        parts = self.parts.pop(shard, [])
        if not parts:
            return None
        merge = Merge(self.aggregation)
        for part in parts:
            merge.add(part)
        return merge

    def partials(self, shard: int, shards: int) -> list[Ordered]:
        if len(self.parts.get(shard, ())) == 1:
            return [((), self.parts.pop(shard)[0])]
        merge = self.merged(shard)
        return [] if merge is None else [((), merge.bundle())]

    def results(self, shard: int, shards: int) -> pa.RecordBatch | None:
        merge = self.merged(shard)
        return None if merge is None else merge.finish()

    def recycle(self) -> None:
        """Nothing is used again."""


class OrderedTables:
    """Partials of each bundle by themselves, for aggregates that follow the order of the input."""

    def __init__(self, aggregation: Aggregation, per_record: bool) -> None:
        self.aggregation, self.per_record = aggregation, per_record
        self.bundles: list[Ordered] = []
        self.parts: dict[int, list[Ordered]] = {}

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for _, b in list(self.bundles))

    @property
    def groups(self) -> int:
        return sum(b.num_rows for _, b in self.bundles)

    def add(self, batch: pa.RecordBatch, order: Order, worker: int) -> None:
        own = GeneralTable(self.aggregation)
        own.add(batch)
        partials = own.bundle()
        if self.per_record:
            partials = numbered(partials, np.zeros(partials.num_rows, np.int64))
        self.bundles.append((order, partials))

    def add_records(self, partials: pa.RecordBatch, order: Order) -> None:
        """Take in a partial for each record, some of whose bundle are in other slices."""
        self.bundles.append((order, partials))

    def prepare(self, shards: int, whole: bool) -> list[Task]:
        def split() -> None:
            self.bundles.sort(key=lambda item: item[0])
            for order, batch in self.bundles:
                keys = batch.columns[: len(self.aggregation.keys)]
                for shard, part in by_shard(batch, keys, shards):
                    self.parts.setdefault(shard, []).append((order, part))
            self.bundles = []

        return [split]

    def partials(self, shard: int, shards: int) -> list[Ordered]:
        return self.parts.pop(shard, [])

    def results(self, shard: int, shards: int) -> pa.RecordBatch | None:
        parts = self.parts.pop(shard, [])
        if not parts:
            return None
        merge = Merge(self.aggregation)
        for _, part in parts:
            merge.add(part)
        return merge.finish()

    def recycle(self) -> None:
        """Nothing is used again."""


class NumberTables:
    """Numbers beside their keys, in one table that all workers share."""

    def __init__(self, plan: NumberPlan, spare: SpareTables) -> None:
        self.plan, self.spare = plan, spare
        self.table: NumberTable = spare.take()
        self.lock = threading.Lock()
        self.rest: GeneralTables | None = None

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + (0 if self.rest is None else self.rest.nbytes)

    @property
    def groups(self) -> int:
        return self.table.groups

    def general(self) -> GeneralTables:
        """Where rows with nulls go."""
        with self.lock:
            if self.rest is None:
                self.rest = GeneralTables(self.plan.aggregation)
        return self.rest

    def prepare(self, shards: int, whole: bool) -> list[Task]:
        if whole:
            return [] if self.rest is None else self.rest.prepare(1, whole)
        rest = self.general()
        count = tasks_for(self, self.table.parts)
        each = self.table.parts // count
        moves = [partial(self._move, i * each, (i + 1) * each, shards) for i in range(count)]
        return [*rest.prepare(shards, whole), *moves]

    def _move(self, first: int, end: int, shards: int) -> None:
        batch = self.table.batch(finished=False, parts=range(first, end))
        if batch is not None:
            self.general().split(batch, shards)

    def partials(self, shard: int, shards: int) -> list[Ordered]:
        return self.general().partials(shard, shards)

    def results(self, shard: int, shards: int) -> pa.RecordBatch | None:
        if self.rest is not None:  # some rows went the general way
            return None if shard else self._merged(self.rest)
        each = self.table.parts // shards  # both are powers of two
        return self.table.batch(finished=True, parts=range(shard * each, (shard + 1) * each))

    def _merged(self, rest: GeneralTables) -> pa.RecordBatch:
        merge = Merge(self.plan.aggregation)
        for _, batch in rest.partials(0, 1):
            merge.add(batch)
        numbers = self.table.batch(finished=False)
        if numbers is not None:
            merge.add(numbers)
        return merge.finish()

    def recycle(self) -> None:
        self.spare.give(self.table)


def _nonempty(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    return batch if batch.num_rows else None


def numbered(partials: pa.RecordBatch, rows: Any) -> pa.RecordBatch:
    """Partials with the places of their records beside them."""
    return partials.append_column(pa.field(ROW, pa.int64()), pa.array(rows, pa.int64()))


def tasks_for(table: SliceTable, limit: int) -> int:
    """As how many tasks to merge a slice, a power of two: none is to have few keys."""
    each = MANY_WORDS if isinstance(table, WordTables) else SMALL
    return min(limit, 1 << max(0, (table.groups // each).bit_length()))
