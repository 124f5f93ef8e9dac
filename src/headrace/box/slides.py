"""Slides: the state of windows, a pane of event time at a time (StreamBox §7.2).

Evaluators add to panes of any time, in any order, at once. What one adds is its own (a table for
each evaluator and pane), or goes to the one of several tables that a key's hash says, so that they
seldom wait for each other. When a watermark passes a pane's end its parts are merged by key hash,
as several tasks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.box.bundle import Bundle
from headrace.box.transforms import Out, Phases, Task, rotated, selected
from headrace.errors import ExpressionError
from headrace.kernels.aggregate import (
    Aggregation,
    Merge,
    Partial,
    PartialPlan,
    TokenCounts,
    by_shard,
    single_partials,
)
from headrace.kernels.cells import CellPlan, Cells, bucket
from headrace.kernels.chain import blame
from headrace.kernels.sliding import Placed, slid, sliding_state
from headrace.kernels.tokenise import Text, Tokeniser
from headrace.kernels.window import (
    Sessions,
    event_times,
    is_ordered,
    pane_ids,
    rows_by_pane,
    session_spans,
    windowed,
)
from headrace.plan.nodes import GroupBy
from headrace.windows import FOREVER, Session, Window

SMALL = 4096
"""Below this many keys a pane is merged by one task."""
MANY_WORDS = 1 << 16
"""The same for words, whose tables are merged in place while they are few."""
EARLY_BYTES = 64 << 20
"""The text of a pane that may wait for its own time."""
FEW_ROWS, CAUGHT_UP = 256, 4
"""Fewer rows than this do not wait; so many bundles that did are counted with each that comes."""
MANY_PANES = 64
"""Beyond this a bundle's records are first cut by pane, and not by pane and key at once."""


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
        return sum(c.nbytes for c in self.cells)

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


class Aggregate:
    """The transform of ``group_by`` and of windows: bundles into panes, watermarks close them."""

    def __init__(self, plan: PartialPlan, node: GroupBy, schema: pa.Schema, workers: int) -> None:
        self.plan, self.node, self.schema = plan, node, schema
        self.aggregation = plan.aggregation
        self.workers = workers
        self.window = node.window if isinstance(node.window, Window) else None
        self.shards = 1 << (2 * workers - 1).bit_length() if node.keys else 1
        self.bits = (self.shards - 1).bit_length()
        self.panes: dict[int, Any] = {}
        self.lock = threading.Lock()
        self.closed = -(2**63)
        self.cells = None
        if plan.split is None and not is_ordered(node):
            self.cells = CellPlan.of(self.aggregation)
        most = 2 * self.shards + 2 * workers
        self.tables = Tables(self._table, most)
        self.sliding: list[Any] = []
        self.entered = -(2**63)
        """The first pane that has not entered a sliding window yet."""
        if self.window is not None and self.window.panes > 1:
            ordered = is_ordered(node)
            self.sliding = [sliding_state(self.aggregation, ordered) for _ in range(self.shards)]

    def _table(self) -> Any:
        return Cells(self.cells) if self.cells is not None else self.plan.start()

    @property
    def nbytes(self) -> int:
        held = sum(p.nbytes for p in list(self.panes.values()))
        return held + sum(s.nbytes for s in self.sliding)

    # Records

    def process(self, bundle: Bundle, out: Out) -> None:
        chain = self.plan.chain
        for i, batch in enumerate(chain.bundles(selected(bundle.batch, chain))):
            if batch.num_rows:
                self._add(batch, (*bundle.order, i), out.worker)

    def _add(self, batch: pa.RecordBatch, order: tuple[int, ...], worker: int) -> None:
        ids, low, high = _ONE_PANE
        if self.window is not None:
            assert self.node.clock is not None
            ids, low, high = pane_ids(event_times(batch, self.node.clock), self.window)
        if self.plan.split is not None:
            self._count_words(batch, ids, low, high, worker)
        elif self.cells is not None and high - low > MANY_PANES:
            for pane, rows in rows_by_pane(ids, low, high):
                part = batch.take(pa.array(rows))
                self._add_numbers(part, _ONE_PANE[0], pane, pane, order, worker)
        elif self.cells is not None:
            self._add_numbers(batch, ids, low, high, order, worker)
        elif low == high:
            self._pane(low).add(batch, order, worker)
        elif self.sliding and is_ordered(self.node):
            for pane, rows in rows_by_pane(ids, low, high):
                self._pane(pane).add_singly(batch.take(pa.array(rows)), order, rows)
        else:
            for pane, rows in rows_by_pane(ids, low, high):
                self._pane(pane).add(batch.take(pa.array(rows)), order, worker)

    def _count_words(
        self, batch: pa.RecordBatch, ids: Any, low: int, high: int, worker: int
    ) -> None:
        if low == high:
            pane = self._pane(low)
            pane.table(worker).add(batch)
            pane.catch_up(worker, CAUGHT_UP)
            return
        assert self.plan.split is not None
        array, tokeniser = self.plan.split.input(batch)
        text = Text.of(array)
        for number, rows in rows_by_pane(ids, low, high):
            pane = self._pane(number)
            now = number == low or rows.size < FEW_ROWS or text.valid.size > 0
            if now or pane.early_bytes > EARLY_BYTES:
                pane.table(worker).add_text(text, tokeniser, rows)
                pane.catch_up(worker, CAUGHT_UP)
            else:
                pane.wait(text.some(rows), tokeniser)

    def _add_numbers(
        self,
        batch: pa.RecordBatch,
        ids: Any,
        low: int,
        high: int,
        order: tuple[int, ...],
        worker: int,
    ) -> None:
        assert self.cells is not None
        try:
            keys, inputs = self.aggregation.evaluate(batch)
        except (ExpressionError, pa.ArrowException) as error:
            raise blame(self.node.label, self.aggregation.evaluate, batch, error) from error
        rows = self.cells.rows(keys, inputs)
        if rows is None:
            parts = [(low, None)] if low == high else rows_by_pane(ids, low, high)
            for pane, mine in parts:
                part = batch if mine is None else batch.take(pa.array(mine))
                self._pane(pane).general().add(part, order, worker)
            return
        places, starts = bucket(rows, ids, low, high, self.bits)
        edges = starts.tolist()
        for pane in range(low, high + 1):
            first = (pane - low) << self.bits
            if edges[first] == edges[first + self.shards]:
                continue
            state = self._pane(pane)
            for part in rotated(list(range(self.shards)), worker * 2):
                start, end = edges[first + part], edges[first + part + 1]
                if end > start:
                    with state.locks[part]:
                        state.part(part).add(places, start, end, rows)

    def _pane(self, number: int) -> Any:
        found = self.panes.get(number)
        if found is not None:
            return found
        with self.lock:
            if number not in self.panes:
                self.panes[number] = self._new_pane()
            return self.panes[number]

    def _new_pane(self) -> Any:
        if self.plan.split is not None:
            return TokenPane(self.tables, self.workers)
        if self.cells is not None:
            return CellPane(self.cells, self.shards, self.tables, whole=not self.sliding)
        return (OrderedPane if is_ordered(self.node) else LocalPane)(self.aggregation)

    # Watermarks

    def on_watermark(self, time: int, out: Out) -> Phases | None:
        if self.window is None:
            if time < FOREVER:
                out.watermark = None
                return None
            return self._last(out)
        before, now = (self._complete(t) for t in (self.closed, time))
        self.closed = time
        if now == before and time < FOREVER:
            out.watermark = None
            return None
        return self._slid(now, out) if self.sliding else self._tumbled(now, out)

    def _complete(self, time: int) -> int:
        """The first pane that is not complete at a watermark."""
        assert self.window is not None
        return (time - self.window.offset) // self.window.pane

    def _last(self, out: Out) -> Phases:
        with self.lock:
            pane = self.panes.pop(0, None)
        if pane is None:
            if self.node.keys:
                return
            pane = LocalPane(self.aggregation)
            pane.parts = {0: [Partial(self.aggregation).bundle()]}
        shards = self._parts(pane)
        yield pane.prepare(shards)

        def task(shard: int) -> Task:
            def run() -> None:
                found = pane.result(shard, shards)
                if found is not None:
                    out.emit(_typed(found, self.schema), (shard,))

            return run

        yield [task(s) for s in range(shards)]

    def _parts(self, pane: Any) -> int:
        """As how many tasks to close a pane."""
        small = MANY_WORDS if isinstance(pane, TokenPane) else SMALL
        return self.shards if pane.groups() > small else 1

    def _taken(self, complete: int) -> list[tuple[int, Any]]:
        """The panes that are complete, in order, taken out."""
        with self.lock:
            numbers = sorted(n for n in self.panes if n < complete)
            return [(n, self.panes.pop(n)) for n in numbers]

    def _tumbled(self, complete: int, out: Out) -> Phases:
        assert self.window is not None
        panes = [(n, p, self._parts(p)) for n, p in self._taken(complete)]
        prepared = [task for _, p, shards in panes for task in p.prepare(shards)]
        if prepared:
            yield prepared

        def task(number: int, pane: Pane, shard: int, shards: int) -> Task:
            def run() -> None:
                found = pane.result(shard, shards)
                if found is not None:
                    self._emit(found, number, (shard,), out)

            return run

        yield [task(n, p, s, shards) for n, p, shards in panes for s in range(shards)]
        for _, pane, _ in panes:
            self._reuse(pane)

    def _emit(self, found: pa.RecordBatch, pane: int, order: tuple[int, ...], out: Out) -> None:
        """Results of the window that ends with a pane."""
        assert self.window is not None
        end = (pane + 1) * self.window.pane + self.window.offset
        batch = windowed(found, len(self.node.keys), end - self.window.size, end, self.schema)
        out.emit(batch, (end, *order))

    def _reuse(self, pane: Any) -> None:
        tables: Iterable[Any] = pane.cells if isinstance(pane, CellPane) else ()
        if isinstance(pane, TokenPane):
            tables = pane.own.values()
        for table in tables:
            self.tables.give(table)

    def _slid(self, complete: int, out: Out) -> Phases:
        """Panes enter the sliding windows one by one; every shard of keys goes its own way."""
        panes = self._taken(complete)
        prepared = [task for _, p in panes for task in p.prepare(self.shards)]
        if prepared:
            yield prepared
        first, end = self.entered, complete
        if panes and panes[0][0] < first:
            raise AssertionError("a pane was filled after it had closed")

        def task(shard: int) -> Task:
            def run() -> None:
                self._advance(shard, panes, first, end, out)

            return run

        yield [task(s) for s in range(self.shards)]
        self.entered = complete
        for _, pane in panes:
            self._reuse(pane)

    def _advance(
        self, shard: int, panes: list[tuple[int, Any]], first: int, end: int, out: Out
    ) -> None:
        assert self.window is not None
        parts: dict[int, Callable[[], Any]] = {
            n: partial(pane.partial, shard, self.shards) for n, pane in panes
        }
        for number, found in slid(self.sliding[shard], self.window, parts, first, end):
            self._emit(found, number, (shard,), out)


_ONE_PANE = (np.zeros(0, np.int64), 0, 0)


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return batch if batch.schema.equals(schema) else batch.cast(schema)


class SessionStep:
    """The transform of session windows, by shard of the keys."""

    def __init__(self, plan: PartialPlan, node: GroupBy, schema: pa.Schema, workers: int) -> None:
        assert isinstance(node.window, Session)
        self.plan, self.node = plan, node
        count = 1 << (workers - 1).bit_length() if node.keys else 1
        self.shards = [(threading.Lock(), Sessions(plan.aggregation, schema)) for _ in range(count)]

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for _, s in self.shards)

    def process(self, bundle: Bundle, out: Out) -> None:
        chain = self.plan.chain
        for i, batch in enumerate(chain.bundles(selected(bundle.batch, chain))):
            if not batch.num_rows:
                continue
            for shard, spans in session_spans(self.plan.aggregation, batch, len(self.shards)):
                lock, sessions = self.shards[shard]
                with lock:
                    sessions.add((*bundle.order, i), spans)

    def on_watermark(self, time: int, out: Out) -> Phases | None:
        due = [s.due is not None and s.due <= time for _, s in self.shards]
        if not any(due) and time < FOREVER:
            return None

        def task(shard: int) -> Task:
            def run() -> None:
                lock, sessions = self.shards[shard]
                with lock:
                    found = sessions.close(time)
                if found is not None:
                    out.emit(found, (time, shard))

            return run

        return iter([[task(s) for s, ready in enumerate(due) if ready]])
