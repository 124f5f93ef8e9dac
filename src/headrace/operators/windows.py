"""Tumbling and sliding windows: aggregates of each key by slices of event time.

Time is cut into *panes* at the edges of windows: a tumbling window is one pane, a sliding one is
several. State is kept by pane (StreamBox calls it a slide, §7.2), and a window's results are put
together from its panes when the watermark passes its end. Where many windows have few records
each, a table for each pane would cost more than the records: then the pane is one more key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.expressions import col
from headrace.kernels.aggregate import (
    Aggregation,
    GeneralTable,
    Merge,
    PartialPlan,
    by_shard,
    compile_aggregation,
    compile_partial,
)
from headrace.kernels.columns import numbers
from headrace.kernels.sliding import slid, sliding_state
from headrace.kernels.window import (
    backwards,
    ending_with,
    event_times,
    pane_ids,
    rows_by_pane,
    windowed,
)
from headrace.operators.group import Merging, closing, describe_group, padded
from headrace.operators.operator import (
    MANY,
    Bundles,
    Description,
    Hosting,
    Input,
    Kind,
    Operator,
    Part,
    Phases,
    Result,
    State,
    Task,
    advance_shards,
)
from headrace.operators.shards import Shards
from headrace.operators.sliced_tables import SlicedTables
from headrace.operators.stores import Note, Order, Retained, Store, origin, place_in
from headrace.operators.tables import MANY_SLICES, ROW
from headrace.plan.groups import GroupBy
from headrace.plan.node import named
from headrace.plan.time import END, START
from headrace.windows import BEGINNING, FOREVER, Window

PANE = "__pane"
_PLACES = ("__sequence", "__step", ROW)
"""A record's place in its part of the input: the two numbers of its bundle's, and its own."""
_FEW_RECORDS = 128
"""A pane of a bundle with fewer records than this costs more than its records."""
_MOST_PANES = 32
"""A sparse record is merged once for each window it is in; beyond this it is not worth it."""


class Windows(Operator):
    """Tumbling and sliding windows."""

    of: ClassVar[type | None] = Window
    version: ClassVar[int] = 2

    def __init__(self, node: GroupBy, inputs: Sequence[Input], zone: str) -> None:
        assert isinstance(node.window, Window)
        self.node, self.window = node, node.window
        self.plan: PartialPlan = compile_partial(inputs[0].steps, inputs[0].schema, node, zone)
        self.aggregation = self.plan.aggregation
        self.chains = (self.plan.chain,)
        self.is_keyed = bool(node.keys)
        self.per_record = node.is_ordered and self.window.panes > 1
        partials = list(self.aggregation.partial_schema)
        places = [pa.field(name, pa.int64()) for name in _PLACES]
        self.dense_schema = pa.schema([*partials, *places[2:]] if self.per_record else partials)
        self.kept_schema = pa.schema([*partials, *places] if self.per_record else partials)
        """Where windows share panes and follow the input's order, each record keeps its place."""
        self.by_pane: Aggregation | None = None
        """The aggregation with the pane as one more key, for panes of few records."""
        if self.plan.split is None and not node.is_ordered and self.window.panes <= _MOST_PANES:
            keys = (*node.keys, (PANE, col(PANE).tree))
            schema = self.plan.chain.schema.append(pa.field(PANE, pa.int64()))
            keyed = replace(node, keys=keys, window=None, clock=None)
            self.by_pane = compile_aggregation(keyed, schema, zone)

    def part_schema(self, lane: int, slice: int) -> pa.Schema:
        if slice != MANY:
            return self.dense_schema
        assert self.by_pane is not None
        return self.by_pane.partial_schema

    def partial(self, lane: int, hosting: Hosting) -> WindowPartial:
        return WindowPartial(self, hosting)

    def state(self, store: Store, note: Note) -> WindowState:
        return WindowState(self, store, note)

    def advances(self, before: int, now: int) -> bool:
        return now == FOREVER or self.window.pane_at(now) > self.window.pane_at(before)

    def advance(
        self, shards: Shards, lane: int, watermark: int, emit: Callable[[int, Result], None]
    ) -> Phases:
        part: WindowPartial = shards.partials[0]  # type: ignore[assignment]
        states: list[WindowState] = shards.states  # type: ignore[assignment]
        complete = self.window.pane_at(watermark)
        alone = self.window.panes == 1 and part.least >= complete
        if not alone or any(state.holds(complete) for state in states):
            return advance_shards(shards, lane, watermark, emit)
        # All that tumbling windows need is in their tables, which give the results themselves.
        part.closed = watermark
        for state in states:
            state.note["watermark"] = watermark
        return self._closing(part.tables.take(complete), shards.count, emit)

    def _closing(self, tables: Any, shards: int, emit: Callable[[int, Result], None]) -> Phases:
        yield from closing(
            tables, shards, lambda shard, result: emit(shard, (result[0], self.finished(*result)))
        )
        for _, table in tables:
            table.recycle()

    def finished(self, pane: int, results: pa.RecordBatch) -> pa.RecordBatch:
        """Results of the window that ends with a pane."""
        return ending_with(results, len(self.node.keys), pane, self.window, self.node.schema)

    def kinds(self) -> dict[int, Kind]:
        count = len(self.node.keys)
        keys, pickled = tuple(self.kept_schema.names[:count]), self.node.python
        kinds = {0: Kind("panes", self.kept_schema, keys, self.window, pickled)}
        if self.by_pane is not None:
            schema = self.by_pane.partial_schema
            keys = tuple(schema.names[:count])
            kinds[1] = Kind("panes of few records", schema, keys, pickled=pickled)
        return kinds

    def describe(self) -> Description:
        node = self.node
        if node.is_ordered or not node.aggregates:
            return describe_group(self)
        keys = ", ".join(named(name, tree) for name, tree in node.keys)
        aggregates = tuple((name, repr(aggregate)) for name, aggregate in node.aggregates)
        what = f"{keys} in {self.window!r}, state version {self.version}"
        return replace(describe_group(self), grouping=what, aggregates=aggregates)

    def adapt(self, kept: list[tuple[Note, Bundles]], before: dict[int, pa.Schema]) -> None:
        """New aggregates begin with the first window of which nothing has come yet."""
        since = BEGINNING
        names = list(self.node.schema.names)
        for _, bundles in kept:
            for (kind, slice, _), batch in bundles.items():
                last = slice
                if kind == 1:
                    last = int(np.max(numbers(batch.column(PANE), np.int64), initial=BEGINNING))
                since = max(since, last + 1)
        for note, bundles in kept:
            grown: list[list[Any]] = note.setdefault("grown", [])
            for name, batch in bundles.items():
                aggregation = self.aggregation if name[0] == 0 else self.by_pane
                assert aggregation is not None
                schema = self.kept_schema if name[0] == 0 else aggregation.partial_schema
                bundles[name] = padded(aggregation, batch, schema)
            old = set(before[0].names)
            new = [n for n in names if n not in old and n not in (START, END)]
            grown.append([new, since])


class WindowPartial:
    """Bundles in; a table for each pane they touch, and one for all panes of few records."""

    is_full = False

    def __init__(self, operator: Windows, hosting: Hosting) -> None:
        self.operator, self.hosting = operator, hosting
        self.tables = SlicedTables(operator.plan, operator.node, hosting)
        self.closed = BEGINNING
        self.lock = threading.Lock()
        self.sparse: dict[int, tuple[threading.Lock, GeneralTable]] = {}
        self.least = FOREVER
        """The first pane of those with few records."""
        self.taken: list[tuple[int, Any]] = []
        self.parts: dict[int, list[pa.RecordBatch]] = {}

    @property
    def nbytes(self) -> int:
        return self.tables.nbytes + sum(t.nbytes for _, t in list(self.sparse.values()))

    @property
    def groups(self) -> int:
        return self.tables.groups + sum(t.groups for _, t in list(self.sparse.values()))

    def add(self, batch: pa.RecordBatch, order: Order, worker: int) -> Iterable[tuple[int, Part]]:
        operator = self.operator
        assert operator.node.clock is not None
        ids, low, high = pane_ids(event_times(batch, operator.node.clock), operator.window)
        if low < operator.window.pane_at(self.closed):
            raise backwards(operator.node.label, self.closed)
        if operator.by_pane is not None and _is_sparse(ids, low, high):
            self._add_sparse(operator.by_pane, batch, ids, low, worker)
        else:
            self.tables.add(batch, ids, low, high, order, worker)
        return ()

    def _add_sparse(
        self, by_pane: Aggregation, batch: pa.RecordBatch, ids: Any, low: int, worker: int
    ) -> None:
        with self.lock:
            if worker not in self.sparse:
                self.sparse[worker] = (threading.Lock(), GeneralTable(by_pane))
            lock, table = self.sparse[worker]
        with lock:
            table.add(batch.append_column(pa.field(PANE, pa.int64()), pa.array(ids)))
        with self.lock:  # afterwards: whoever takes the table in between must not forget it
            self.least = min(self.least, low)

    def seal(self, watermark: int | None) -> list[Task]:
        if watermark is not None:
            self.closed = watermark
        before = self.operator.window.pane_at(FOREVER if watermark is None else watermark)
        self.taken, self.parts = self.tables.take(before), {}
        shards = self.hosting.shards
        tasks = [task for _, table in self.taken for task in table.prepare(shards, whole=False)]
        if self.least < before:
            with self.lock:
                self.least = FOREVER
                sparse = list(self.sparse.values())
            tasks += [partial(self._split, *each) for each in sparse]
        return tasks

    def _split(self, lock: threading.Lock, table: GeneralTable) -> None:
        with lock:
            batch = table.bundle()
            table.reset()
        keys = len(self.operator.node.keys)
        for shard, part in by_shard(batch, batch.columns[:keys], self.hosting.shards):
            self.parts.setdefault(shard, []).append(part)

    def sealed(self, shard: int) -> Iterator[Part]:
        for number, table in self.taken:
            for order, batch in table.partials(shard, self.hosting.shards):
                yield Part(number, batch, order)
        for batch in self.parts.pop(shard, ()):
            yield Part(MANY, batch)

    def release(self) -> None:
        for _, table in self.taken:
            table.recycle()
        self.taken = []


def _is_sparse(ids: Any, low: int, high: int) -> bool:
    """Whether a bundle has few records in each of many panes."""
    if high - low <= MANY_SLICES:
        return False
    return bool(int(np.unique(ids).size) * _FEW_RECORDS > ids.size)


class WindowState(State):
    """The open windows of one shard of keys."""

    def __init__(self, operator: Windows, store: Store, note: Note) -> None:
        self.operator, self.window, self.note = operator, operator.window, note
        merge = pa.concat_batches if operator.per_record else self._merged
        self.panes = Retained(store, note, 0, operator.kept_schema, merge)
        self.sparse: Retained | None = None
        if operator.by_pane is not None:
            schema = operator.by_pane.partial_schema
            self.sparse = Retained(store, note, 1, schema, pa.concat_batches)
        self.sliding: Any = None
        """What keeps the panes of the open windows together; made again from the panes."""

    @property
    def nbytes(self) -> int:
        sliding = self.sliding  # which may be made anew meanwhile
        return 0 if sliding is None else int(sliding.nbytes)

    def holds(self, complete: int) -> bool:
        """Whether something is retained of the panes before one."""
        if self.sparse is not None and 0 in self.sparse:
            return True
        return any(number < complete for number in self.panes.numbers())

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        operator = self.operator
        before: int = self.note.get("watermark", BEGINNING)
        now = max(before, watermarks[0])
        closed, complete = self.window.pane_at(before), self.window.pane_at(now)
        new: dict[int, Merging] = {}
        rows: list[pa.RecordBatch] = []
        for part in parts:
            least = part.slice
            if part.slice == MANY:
                rows.append(part.batch)
                least = int(self._panes_of(part.batch).min())
            else:
                merging = new.get(part.slice)
                if merging is None:
                    merging = new[part.slice] = self._merging()
                merging.add(part.order, self._placed(part) if operator.per_record else part.batch)
            if least < closed:
                raise backwards(operator.node.label, before)
        self.note["watermark"] = now
        if complete > closed:
            if rows or (self.sparse is not None and 0 in self.sparse):
                yield from self._sparsely(new, rows, complete)
                return
            if self.window.panes == 1:
                yield from self._tumbled(new, complete)
        for number, merging in new.items():
            self._append(number, merging)
        for batch in rows:
            assert self.sparse is not None
            self.sparse.append(0, batch)
        if self.window.panes > 1 and complete > closed:
            yield from self._slid(complete)

    def _placed(self, part: Part) -> pa.RecordBatch:
        """Partials of single records with their places in their part of the input."""
        rows = part.batch.num_rows
        sequence, step = (pa.array(np.full(rows, n)) for n in place_in(part.order))
        columns = [*part.batch.columns[:-1], sequence, step, part.batch.columns[-1]]
        return pa.RecordBatch.from_arrays(columns, schema=self.operator.kept_schema)

    def _finished(self, number: int, results: pa.RecordBatch) -> pa.RecordBatch:
        finished = self.operator.finished(number, results)
        return self._without_new(finished, np.full(finished.num_rows, number))

    def _without_new(self, results: pa.RecordBatch, lasts: Any) -> pa.RecordBatch:
        """Results without aggregates that began while their windows were open already.

        ``lasts`` are the last panes of their windows.
        """
        for names, since in self.note.get("grown", ()):
            began = lasts - self.window.panes + 1 >= since
            if began.all():
                continue
            for name in names:
                place = results.schema.get_field_index(name)
                kept = pc.if_else(pa.array(began), results.column(place), None)
                results = results.set_column(place, results.schema.field(place), kept)
        return results

    def _merging(self) -> Merging:
        return Merging(self.operator.aggregation, self.operator.node.is_ordered)

    def _merged(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        merge = Merge(self.operator.aggregation)
        for batch in batches:
            merge.add(batch)
        return merge.bundle()

    def _append(self, number: int, merging: Merging) -> None:
        if not self.operator.node.is_ordered:
            self.panes.append(number, merging.partials())
            return
        for order, batch in merging.waiting:
            self.panes.append(number, batch, order)

    def _tumbled(self, new: dict[int, Merging], complete: int) -> Iterator[Result]:
        due = {n for n in (*self.panes.numbers(), *new) if n < complete}
        for number in sorted(due):
            merging = new.pop(number, None) or self._merging()
            for order, batch in self.panes.pop(number):
                merging.add(order, batch)
            yield number, self._finished(number, merging.results())

    # Sliding windows

    def _slid(self, complete: int) -> Iterator[Result]:
        """Panes enter the windows one by one."""
        entered: int | None = self.note.get("entered")
        count = self.window.panes
        ready = sorted(n for n in self.panes.numbers() if n < complete)
        first = complete if entered is None else entered
        if self.sliding is None:  # those that had entered before do so once more
            self.sliding = sliding_state(self.operator.aggregation, self.operator.per_record)
            first = ready[0] if entered is None and ready else first - count
        # A pane that has left the store may still have to leave the windows.
        if ready or not self.sliding.is_empty:
            entering: dict[int, Callable[[], Any]] = {
                n: partial(self._entering, n) for n in ready if n >= first
            }
            for number, results in slid(self.sliding, self.window, entering, first, complete):
                if entered is None or number >= entered:
                    yield number, self._finished(number, results)
            self._forget(complete - count)
        self.note["entered"] = complete

    def _forget(self, upto: int) -> None:
        for number in self.panes.numbers():
            if number <= upto:
                self.panes.drop(number)

    def _entering(self, number: int) -> Any:
        parts = self.panes.load(number)
        if not self.operator.per_record:
            merging = self._merging()
            for order, batch in parts:
                merging.add(order, batch)
            return merging.partials()
        return [
            (origin(order), [numbers(b.column(c), np.int64) for c in _PLACES],
             b.drop_columns(list(_PLACES)))
            for order, b in parts
        ]  # fmt: skip

    # Panes of few records

    def _panes_of(self, batch: pa.RecordBatch) -> Any:
        return numbers(batch.column(len(self.operator.node.keys)), np.int64)

    def _with_pane(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Partials of a pane with the pane as one more key."""
        assert self.operator.by_pane is not None
        keys = len(self.operator.node.keys)
        panes = pa.array(np.full(batch.num_rows, number))
        columns = [*batch.columns[:keys], panes, *batch.columns[keys:]]
        return pa.RecordBatch.from_arrays(columns, schema=self.operator.by_pane.partial_schema)

    def _sparsely(
        self, new: dict[int, Merging], rows: list[pa.RecordBatch], complete: int
    ) -> Iterator[Result]:
        """Close windows with the pane as one more key, all of them together."""
        operator, window = self.operator, self.window
        assert operator.by_pane is not None
        assert self.sparse is not None
        merge = Merge(operator.by_pane)
        for batch in [*(b for _, b in self.sparse.pop(0)), *rows]:
            merge.add(batch)
        for number in self.panes.numbers():
            for _, batch in self.panes.pop(number):
                merge.add(self._with_pane(number, batch))
        for number, merging in new.items():
            merge.add(self._with_pane(number, merging.partials()))
        self.sliding = None
        merged = merge.bundle()
        panes = self._panes_of(merged)
        entered = self.note.get("entered", BEGINNING)
        ends, which = _window_ends(panes, window, entered, min(complete, FOREVER))
        left = np.flatnonzero(panes > complete - window.panes)
        self._keep(merged.take(pa.array(left)), panes[left])
        self.note["entered"] = complete
        if not ends.size:
            return
        order = np.argsort(ends, kind="stable")
        keys = len(operator.node.keys)
        due = merged.take(pa.array(which[order]))
        due = due.set_column(keys, pa.field(PANE, pa.int64()), pa.array(ends[order]))
        final = Merge(operator.by_pane)
        final.add(due)
        results = final.finish()
        last = self._panes_of(results)
        finish = _pane_ends(last, window)
        bare = results.select([i for i in range(results.num_columns) if i != keys])
        schema = operator.node.schema
        closed = windowed(bare, keys, finish - window.size, finish, schema)
        yield complete - 1, self._without_new(closed, last)

    def _keep(self, batch: pa.RecordBatch, panes: Any) -> None:
        """Retain what is of windows that are still open, the way that costs less."""
        if not batch.num_rows:
            return
        assert self.sparse is not None
        low, high = int(panes.min()), int(panes.max())
        if _is_sparse(panes, low, high):
            self.sparse.append(0, batch)
            return
        keys = len(self.operator.node.keys)
        bare = batch.select([i for i in range(batch.num_columns) if i != keys])
        bare = bare.rename_columns(self.operator.dense_schema.names)
        for number, rows in rows_by_pane(panes, low, high):
            self.panes.append(number, bare.take(pa.array(rows)))


def _window_ends(panes: Any, window: Window, entered: int, complete: int) -> tuple[Any, Any]:
    """The last pane of each window that a record's pane is in and that ends now; and its row."""
    count = window.panes
    ends = panes[:, None] + np.arange(count)
    due = (ends >= entered) & (ends < complete) & ((ends + 1 - count) % window.step == 0)
    rows, _ = np.nonzero(due)
    return ends[due], rows


def _pane_ends(panes: Any, window: Window) -> Any:
    """The moment at which each pane ends."""
    if not window.short:
        return (panes + 1) * window.every + window.offset
    turn, second = np.divmod(panes, 2)
    return turn * window.every + np.where(second, window.every, window.short) + window.offset
