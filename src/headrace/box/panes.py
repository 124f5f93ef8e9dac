"""Panes: the state of one slice of event time, that evaluators add to at once.

What one adds is its own (a table for each evaluator), or goes to the one of several tables that a
key's hash says, so that they seldom wait for each other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.box.transforms import Task
from headrace.kernels.aggregate import (
    Aggregation,
    Merge,
    Partial,
    TokenCounts,
    by_shard,
    single_partials,
)
from headrace.kernels.cells import CellPlan, Cells
from headrace.kernels.sliding import Placed
from headrace.kernels.tokenise import Text, Tokeniser


class Pane(Protocol):
    """The state of one slice of time."""

    def groups(self) -> int:
        """About how many keys it has."""

    def prepare(self, shards: int) -> list[Task]:
        """What must be done, in parallel, before the parts can be asked for."""

    def partial(self, shard: int, shards: int) -> pa.RecordBatch | None:
        """The merged partials of one part of the keys."""

    def result(self, shard: int, shards: int) -> pa.RecordBatch | None:
        """The results of one part of the keys."""


class Tables:
    """Tables that closed panes leave, to be used again: their room is the right one by then."""

    def __init__(self, make: Callable[[], Any], most: int) -> None:
        self.make, self.most = make, most
        self.free: list[Any] = []

    def take(self) -> Any:
        try:
            return self.free.pop()
        except IndexError:
            return self.make()

    def give(self, table: Any) -> None:
        # One that was hardly used is too large for what comes: a small one is cheaper to clear.
        if len(self.free) < self.most and 16 * table.used >= table.room:
            table.reset()
            self.free.append(table)


class TokenPane:
    """Words counted as they are cut, a table for each evaluator.

    Records of a pane that is not due yet wait as they are until its own time comes: counting them
    at once would have the tables of several panes push each other out of the cache.
    """

    def __init__(self, tables: Tables, workers: int) -> None:
        self.tables, self.workers = tables, workers
        self.own: dict[int, TokenCounts] = {}
        self.early: deque[tuple[Text, Tokeniser]] = deque()
        self.early_bytes = 0

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in list(self.own.values())) + self.early_bytes

    def wait(self, text: Text, tokeniser: Tokeniser) -> None:
        """Keep some text until the pane's own time."""
        self.early.append((text, tokeniser))
        self.early_bytes += text.nbytes

    def catch_up(self, worker: int, most: int) -> None:
        """Count some of the text that waits."""
        for _ in range(most):
            try:
                text, tokeniser = self.early.popleft()
            except IndexError:
                return
            self.early_bytes -= text.nbytes
            self.table(worker).add_text(text, tokeniser)

    def table(self, worker: int) -> TokenCounts:
        found = self.own.get(worker)
        return found if found is not None else self.own.setdefault(worker, self.tables.take())

    def groups(self) -> int:
        return max((t.groups for t in self.own.values()), default=0)

    def prepare(self, shards: int) -> list[Task]:
        """Count what still waits, by all evaluators."""
        tasks = min(self.workers, len(self.early))
        return [lambda w=w: self.catch_up(w, 1 << 30) for w in range(tasks)]  # type: ignore[misc]

    def partial(self, shard: int, shards: int) -> pa.RecordBatch | None:
        tables = sorted(self.own.values(), key=lambda t: -t.groups)
        if shards == 1:  # the others into the largest, which is not needed any more
            for table in tables[1:]:
                tables[0].merge(table, 0, 0)
            found = tables[0].bundle()
        else:
            merged: TokenCounts = self.tables.take()
            for table in tables:
                merged.merge(table, shard, (shards - 1).bit_length())
            found = merged.bundle()
            self.tables.give(merged)
        return found if found.num_rows else None

    result = partial


class LocalPane:
    """Partial aggregates, each evaluator's its own."""

    def __init__(self, aggregation: Aggregation) -> None:
        self.aggregation = aggregation
        self.own: dict[int, Partial] = {}
        self.parts: dict[int, list[pa.RecordBatch]] = {}

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in list(self.own.values()))

    def add(self, batch: pa.RecordBatch, order: tuple[int, ...], worker: int) -> None:
        found = self.own.get(worker)
        if found is None:
            found = self.own.setdefault(worker, Partial(self.aggregation))
        found.add(batch)

    def groups(self) -> int:
        return sum(p.groups for p in self.own.values())

    def prepare(self, shards: int) -> list[Task]:
        return [lambda p=p: self._split(p.bundle(), shards) for p in self.own.values()]  # type: ignore[misc]

    def _split(self, batch: pa.RecordBatch, shards: int) -> None:
        keys = batch.columns[: len(self.aggregation.keys)]
        for shard, part in by_shard(batch, keys, shards):
            self.parts.setdefault(shard, []).append(part)

    def _merge(self, shard: int) -> Merge | None:
        parts = self.parts.pop(shard, [])
        if not parts:
            return None
        merge = Merge(self.aggregation)
        for part in parts:
            merge.add(part)
        return merge

    def partial(self, shard: int, shards: int) -> pa.RecordBatch | None:
        merge = self._merge(shard)
        return None if merge is None else merge.bundle()

    def result(self, shard: int, shards: int) -> pa.RecordBatch | None:
        merge = self._merge(shard)
        return None if merge is None else merge.finish()


class OrderedPane(LocalPane):
    """Partial aggregates of each bundle, merged in the order of the input.

    A pane of a sliding window is not merged: what its bundles gave goes into the window with its
    place in the input.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        self.bundles: list[Placed] = []
        self.placed: dict[int, list[Placed]] = {}

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for _, _, b in list(self.bundles))

    def add(self, batch: pa.RecordBatch, order: tuple[int, ...], worker: int) -> None:
        own = Partial(self.aggregation)
        own.add(batch)
        found = own.bundle()
        self.bundles.append((order, np.zeros(found.num_rows, np.int64), found))

    def add_singly(self, batch: pa.RecordBatch, order: tuple[int, ...], rows: Any) -> None:
        """Take in some rows of a bundle whose others are in other panes of the same windows."""
        self.bundles.append((order, rows, single_partials(self.aggregation, batch)))

    def groups(self) -> int:
        return sum(b.num_rows for _, _, b in self.bundles)

    def prepare(self, shards: int) -> list[Task]:
        def split() -> None:
            self.bundles.sort(key=lambda item: item[0])
            for order, rows, batch in self.bundles:
                numbered = batch.append_column("row", pa.array(rows))
                keys = batch.columns[: len(self.aggregation.keys)]
                for shard, part in by_shard(numbered, keys, shards):
                    places = part.column(part.num_columns - 1).to_numpy()
                    bare = part.select(list(range(part.num_columns - 1)))
                    self.parts.setdefault(shard, []).append(bare)
                    self.placed.setdefault(shard, []).append((order, places, bare))
            self.bundles = []

        return [split]

    def partial(self, shard: int, shards: int) -> Any:
        return self.placed.pop(shard, None)


class CellPane:
    """Numbers beside their keys, in one table for each part of the key hashes.

    ``whole`` says that it closes by itself; a pane of a sliding window is put into the shards that
    the panes before it were.
    """

    def __init__(self, plan: CellPlan, shards: int, tables: Tables, whole: bool) -> None:
        self.plan, self.whole = plan, whole
        self.tables = tables
        self.parts: list[Cells | None] = [None] * shards
        self.locks = [threading.Lock() for _ in range(shards)]
        self.rest: LocalPane | None = None

    @property
    def cells(self) -> list[Cells]:
        """The tables that have been needed."""
        return [c for c in self.parts if c is not None]

    def part(self, number: int) -> Cells:
        """The table of a part, whose lock is held."""
        found = self.parts[number]
        if found is None:
            found = self.parts[number] = self.tables.take()
        return found

    @property
    def nbytes(self) -> int:
        rest = 0 if self.rest is None else self.rest.nbytes
        return rest + sum(c.nbytes for c in self.cells)

    def general(self) -> LocalPane:
        """Where rows with nulls go."""
        if self.rest is None:
            with self.locks[0]:
                if self.rest is None:
                    self.rest = LocalPane(self.plan.aggregation)
        return self.rest

    def groups(self) -> int:
        return sum(c.size for c in self.cells)

    def prepare(self, shards: int) -> list[Task]:
        if self.whole:
            return [] if self.rest is None else self.rest.prepare(1)
        rest = self.general()
        return [*rest.prepare(shards), *(lambda c=c: self._move(c, shards) for c in self.cells)]

    def _move(self, cells: Cells, shards: int) -> None:
        batch = self._batch(cells, finished=False)
        if batch is not None:
            self.general()._split(batch, shards)

    def _batch(self, cells: Cells, finished: bool) -> pa.RecordBatch | None:
        if not cells.size:
            return None
        aggregation = self.plan.aggregation
        schema = aggregation.result_schema if finished else aggregation.partial_schema
        return pa.RecordBatch.from_arrays(cells.columns(finished), schema=schema)

    def _merge(self) -> Merge:
        """Everything, where some rows went the general way."""
        assert self.rest is not None
        merge = Merge(self.plan.aggregation)
        rest = self.rest.partial(0, 1)
        for batch in (rest, *(self._batch(c, finished=False) for c in self.cells)):
            if batch is not None:
                merge.add(batch)
        return merge

    def partial(self, shard: int, shards: int) -> pa.RecordBatch | None:
        return self.general().partial(shard, shards)

    def result(self, shard: int, shards: int) -> pa.RecordBatch | None:
        if self.rest is not None:
            return None if shard else self._merge().finish()
        own = self.parts if shards == 1 else [self.parts[shard]]
        batches = (self._batch(c, finished=True) for c in own if c is not None)
        found = [b for b in batches if b is not None]
        if not found:
            return None
        return found[0] if len(found) == 1 else pa.concat_batches(found)
