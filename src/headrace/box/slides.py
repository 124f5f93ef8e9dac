"""Slides: the state of windows, a pane of event time at a time (StreamBox §7.2).

Evaluators add to panes of any time, in any order, at once. When a watermark passes a pane's end its
parts are merged by key hash, as several tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.box.bundle import Bundle
from headrace.box.panes import CellPane, LocalPane, OrderedPane, Pane, Tables, TokenPane
from headrace.box.sparse import SparseWindows, can_be_sparse, is_sparse
from headrace.box.transforms import Out, Phases, Task, rotated, selected
from headrace.errors import ExpressionError
from headrace.kernels.aggregate import Partial, PartialPlan
from headrace.kernels.cells import CellPlan, Cells, bucket
from headrace.kernels.chain import blame
from headrace.kernels.sliding import slid, sliding_state
from headrace.kernels.tokenise import Text
from headrace.kernels.window import (
    Sessions,
    backwards,
    ending_with,
    event_times,
    pane_ids,
    rows_by_pane,
    session_spans,
)
from headrace.plan.nodes import GroupBy
from headrace.windows import BEGINNING, FOREVER, Session, Window

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


class Aggregate:
    """The transform of ``group_by`` and of windows: bundles into panes, watermarks close them."""

    def __init__(
        self, plan: PartialPlan, node: GroupBy, schema: pa.Schema, workers: int, zone: str = "UTC"
    ) -> None:
        self.plan, self.node, self.schema = plan, node, schema
        self.aggregation = plan.aggregation
        self.workers = workers
        self.window = node.window if isinstance(node.window, Window) else None
        self.shards = 1 << (2 * workers - 1).bit_length() if node.keys else 1
        self.bits = (self.shards - 1).bit_length()
        self.panes: dict[int, Any] = {}
        self.lock = threading.Lock()
        self.closed = BEGINNING
        self.cells = None
        if plan.split is None and not node.is_ordered:
            self.cells = CellPlan.of(self.aggregation)
        most = 2 * self.shards + 2 * workers
        self.tables = Tables(self._table, most)
        self.sliding: list[Any] = []
        self.entered = BEGINNING
        """The first pane that has not entered a sliding window yet."""
        if self.window is not None and self.window.panes > 1:
            ordered = node.is_ordered
            self.sliding = [sliding_state(self.aggregation, ordered) for _ in range(self.shards)]

        self.sparse: SparseWindows | None = None
        if self.window is not None and can_be_sparse(plan, node):
            self.sparse = SparseWindows(plan, node, zone)
        self.is_sparse = False
        """Whether all that is held is in ``sparse``; it may change when nothing is held."""
        self.busy = 0
        """Bundles and watermarks that are being processed: meanwhile it must not change."""

    def _table(self) -> Any:
        return Cells(self.cells) if self.cells is not None else self.plan.start()

    @property
    def nbytes(self) -> int:
        held = sum(p.nbytes for p in list(self.panes.values()))
        held += 0 if self.sparse is None else self.sparse.nbytes
        return held + sum(s.nbytes for s in self.sliding)

    # Records

    def process(self, bundle: Bundle, out: Out) -> None:
        chain = self.plan.chain
        for i, batch in enumerate(chain.bundles(selected(bundle.batch, chain))):
            if batch.num_rows:
                self._add(batch, (*bundle.order, i), out.worker)

    def _add(self, batch: pa.RecordBatch, order: tuple[int, ...], worker: int) -> None:
        if self.window is None:
            self._add_panes(batch, *_ONE_PANE, order, worker)
            return
        assert self.node.clock is not None
        times = event_times(batch, self.node.clock)
        ids, low, high = pane_ids(times, self.window)
        if low < self._complete(self.closed):
            raise backwards(self.node.label, self.closed)
        if self.sparse is None:
            self._add_panes(batch, ids, low, high, order, worker)
            return
        with self.lock:
            if not self.busy and self._is_empty():
                self.is_sparse = is_sparse(ids, low, high)
            self.busy += 1
        try:
            if self.is_sparse:
                self.sparse.add(batch, times, worker)
            else:
                self._add_panes(batch, ids, low, high, order, worker)
        finally:
            with self.lock:
                self.busy -= 1

    def _is_empty(self) -> bool:
        """Whether nothing is held. The lock is held."""
        assert self.sparse is not None
        return not self.panes and self.sparse.is_empty and all(s.is_empty for s in self.sliding)

    def _add_panes(
        self,
        batch: pa.RecordBatch,
        ids: Any,
        low: int,
        high: int,
        order: tuple[int, ...],
        worker: int,
    ) -> None:
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
        elif self.sliding and self.node.is_ordered:
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
        return (OrderedPane if self.node.is_ordered else LocalPane)(self.aggregation)

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
        with self.lock:
            self.busy += 1
        if self.is_sparse:
            return self._until_done(self._closed_together(time, now, out))
        return self._until_done(self._slid(now, out) if self.sliding else self._tumbled(now, out))

    def _until_done(self, phases: Phases) -> Phases:
        try:
            yield from phases
        finally:
            with self.lock:
                self.busy -= 1

    def _closed_together(self, time: int, complete: int, out: Out) -> Phases:
        assert self.sparse is not None
        for i, batch in enumerate(self.sparse.close(time)):
            out.emit(batch, (complete, i))
        self.entered = complete  # for panes of their own, which may follow
        yield []

    def _complete(self, time: int) -> int:
        """The first pane that is not complete at a watermark."""
        assert self.window is not None
        return self.window.pane_at(time)

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
        batch = ending_with(found, len(self.node.keys), pane, self.window, self.schema)
        out.emit(batch, (pane, *order))

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
        self.watermark = BEGINNING

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for _, s in self.shards)

    def process(self, bundle: Bundle, out: Out) -> None:
        chain = self.plan.chain
        for i, batch in enumerate(chain.bundles(selected(bundle.batch, chain))):
            if not batch.num_rows:
                continue
            assert self.node.clock is not None
            if int(event_times(batch, self.node.clock).min()) < self.watermark:
                raise backwards(self.node.label, self.watermark)
            for shard, spans in session_spans(self.plan.aggregation, batch, len(self.shards)):
                lock, sessions = self.shards[shard]
                with lock:
                    sessions.add((*bundle.order, i), spans)

    def on_watermark(self, time: int, out: Out) -> Phases | None:
        self.watermark = time
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
