"""Operators with state on Spark: windows, sessions, temporal joins, on one shard of the keys.

An operator is called once in a micro-batch, with the bundles that came for it and the watermark its
lanes have reached. What it must remember are bundles in Spark's state, by time, and a note of
which there are. It appends rather than rewrites: a pane that is still open costs what was added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import StepError
from headrace.kernels.aggregate import Merge, compile_aggregation, compile_partial
from headrace.kernels.expressions.kernel import numbers
from headrace.kernels.join import Bucket, TemporalJoin
from headrace.kernels.paned import ROW, PanedPartials
from headrace.kernels.sliding import slid, sliding_state
from headrace.kernels.window import Sessions, Spans, ending_with, event_times
from headrace.plan.nodes import GroupBy, JoinWithin
from headrace.spark.bundles import pack, unpack
from headrace.spark.rows import LAST, START, spans_as_batch
from headrace.windows import BEGINNING, Session, Window, show_time

Note = dict[str, Any]
_MANY_PARTS = 8
"""So many bundles of a pane are put together into one."""
_LARGE = 64 << 20
"""About the largest value that is put into Spark's state."""


@dataclass(frozen=True)
class Came:
    """A bundle that came for an operator."""

    place: int
    lane: int
    pane: int
    data: bytes


class Store(Protocol):
    """The bundles an operator keeps: by a kind, a number (of a pane), and a count."""

    def get(self, kind: int, pane: int, part: int) -> bytes: ...
    def put(self, kind: int, pane: int, part: int, data: bytes) -> None: ...
    def remove(self, kind: int, pane: int, part: int) -> None: ...


class Relay:
    """Passes records on where they were sent."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def run(
        self, came: Sequence[Came], marks: Sequence[int], note: Note, store: Store
    ) -> Iterator[pa.RecordBatch]:
        for item in came:
            yield unpack(item.data, self.schema)


class Windows:
    """Tumbling and sliding windows: partials by pane, finished when the watermark passes."""

    def __init__(self, node: GroupBy, schema: pa.Schema, zone: str) -> None:
        assert isinstance(node.window, Window)
        self.node, self.window = node, node.window
        plan = compile_partial((), schema, node, zone)
        self.aggregation = plan.aggregation
        paned = PanedPartials(plan, node)
        self.singly, self.schema = paned.singly, paned.schema
        self.keys = len(node.keys)

    def run(
        self, came: Sequence[Came], marks: Sequence[int], note: Note, store: Store
    ) -> Iterator[pa.RecordBatch]:
        panes: dict[str, int] = note.setdefault("panes", {})
        new: dict[int, list[pa.RecordBatch]] = {}
        for item in came:
            new.setdefault(item.pane, []).append(unpack(item.data, self.schema))
        before, mark = note.get("mark", BEGINNING), marks[0]
        if new and before > BEGINNING and min(new) < self._complete(before):
            raise StepError(_BACKWARDS.format(self.node.label, show_time(before)))
        if self.singly:
            self._number(came, new, note)
        note["mark"] = mark
        complete = None if mark == BEGINNING else self._complete(mark)
        if self.window.panes == 1:
            yield from self._tumbled(new, complete, panes, store)
        for pane, batches in new.items():
            self._append(pane, batches, panes, store)
        if self.window.panes > 1 and complete is not None:
            yield from self._slid(complete, panes, note, store)

    def _complete(self, mark: int) -> int:
        """The first pane that is not complete at a watermark."""
        return (mark - self.window.offset) // self.window.pane

    def _number(
        self, came: Sequence[Came], new: dict[int, list[pa.RecordBatch]], note: Note
    ) -> None:
        """Give records their places among all that ever came, for windows that follow the input."""
        batches = {pane: iter(found) for pane, found in new.items()}
        numbered: dict[int, list[pa.RecordBatch]] = {}
        base, most, task = note.get("order", 0), -1, -1
        for item in came:
            if item.place >> 28 != task:
                base, most, task = base + most + 1, -1, item.place >> 28
            batch = next(batches[item.pane])
            rows = numbers(batch.column(batch.num_columns - 1), np.int64)
            most = max(most, int(rows.max()))
            columns = [*batch.columns[:-1], pa.array(rows + base)]
            renumbered = pa.RecordBatch.from_arrays(columns, schema=self.schema)
            numbered.setdefault(item.pane, []).append(renumbered)
        note["order"] = base + most + 1
        new.update(numbered)

    def _loaded(self, pane: int, panes: dict[str, int], store: Store) -> list[pa.RecordBatch]:
        count = panes.get(str(pane), 0)
        return [unpack(store.get(0, pane, i), self.schema) for i in range(count)]

    def _dropped(self, pane: int, panes: dict[str, int], store: Store) -> None:
        for i in range(panes.pop(str(pane), 0)):
            store.remove(0, pane, i)

    def _append(
        self, pane: int, batches: list[pa.RecordBatch], panes: dict[str, int], store: Store
    ) -> None:
        count = panes.get(str(pane), 0)
        if count >= _MANY_PARTS:
            old = self._loaded(pane, panes, store)
            self._dropped(pane, panes, store)
            batches, count = [*old, *batches], 0
        if len(batches) > 1 and not self.singly:
            merge = Merge(self.aggregation)
            for batch in batches:
                merge.add(batch)
            batches = [merge.bundle()]
        batch = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
        for part in _pieces(batch):
            store.put(0, pane, count, pack(part))
            count += 1
        panes[str(pane)] = count

    def _tumbled(
        self,
        new: dict[int, list[pa.RecordBatch]],
        complete: int | None,
        panes: dict[str, int],
        store: Store,
    ) -> Iterator[pa.RecordBatch]:
        if complete is None:
            return
        for pane in sorted(p for p in {*map(int, panes), *new} if p < complete):
            merge = Merge(self.aggregation)
            for batch in (*self._loaded(pane, panes, store), *new.pop(pane, ())):
                merge.add(batch)
            self._dropped(pane, panes, store)
            yield ending_with(merge.finish(), self.keys, pane, self.window, self.node.schema)

    def _slid(
        self, complete: int, panes: dict[str, int], note: Note, store: Store
    ) -> Iterator[pa.RecordBatch]:
        """Panes enter the windows one by one, those that had before once more."""
        entered, count = note.get("entered"), self.window.panes
        if entered is not None and complete <= entered:
            return
        ready = sorted(p for p in map(int, panes) if p < complete)
        if ready:
            parts: dict[int, Callable[[], Any]] = {
                p: partial(self._entering, p, panes, store) for p in ready
            }
            state = sliding_state(self.aggregation, self.singly)
            first = ready[0] if entered is None else entered - count
            for number, found in slid(state, self.window, parts, first, complete):
                if entered is None or number >= entered:
                    yield ending_with(found, self.keys, number, self.window, self.node.schema)
        for pane in ready:
            if pane <= complete - count:
                self._dropped(pane, panes, store)
        note["entered"] = complete

    def _entering(self, pane: int, panes: dict[str, int], store: Store) -> Any:
        batches = self._loaded(pane, panes, store)
        if not self.singly:
            merge = Merge(self.aggregation)
            for batch in batches:
                merge.add(batch)
            return merge.bundle()
        width = self.schema.get_field_index(ROW)
        return [((0,), numbers(b.column(width), np.int64), b.drop_columns([ROW])) for b in batches]


_BACKWARDS = (
    "{}: a record came that is older than the watermark {}; a function before this step gave it "
    "another event time: leave that column as it is, or compute it before event_time"
)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A bundle in pieces that a value of Spark's state can hold."""
    count = max(1, -(-batch.nbytes // _LARGE))
    size = max(1, -(-batch.num_rows // count))
    for start in range(0, max(1, batch.num_rows), size):
        yield batch.slice(start, size)


class SessionWindows:
    """Sessions: open spans are kept, and put together when one of them may have ended."""

    def __init__(self, node: GroupBy, schema: pa.Schema, zone: str) -> None:
        assert isinstance(node.window, Session)
        self.node, self.gap = node, node.window.gap
        self.aggregation = compile_aggregation(node, schema, zone)
        fields = [*self.aggregation.partial_schema, *(pa.field(n, pa.int64()) for n in _SPAN)]
        self.schema = pa.schema(fields)

    def run(
        self, came: Sequence[Came], marks: Sequence[int], note: Note, store: Store
    ) -> Iterator[pa.RecordBatch]:
        kept: list[int] = note.setdefault("kept", [])
        before, mark = note.get("mark", BEGINNING), marks[0]
        note["mark"] = mark
        sessions = Sessions(self.aggregation, self.node.schema)
        order = note.get("order", 0)
        for item in came:
            spans = self._spans(item.data)
            if int(spans.starts.min()) < before:
                raise StepError(_BACKWARDS.format(self.node.label, show_time(before)))
            sessions.add(order, spans)
            order += 1
        note["order"] = order
        dues = [d for d in (note.get("due"), sessions.due) if d is not None]
        due = min(dues, default=None)
        if due is None:
            return
        if due > mark and len(kept) + len(sessions.pending) <= _MANY_PARTS * 8:
            note["due"] = due
            self._keep(sessions, kept, store)
            return
        for place in kept:
            sessions.add(place, self._spans(store.get(0, place, 0)))
            store.remove(0, place, 0)
        kept.clear()
        sessions.due = due
        found = sessions.close(mark)
        if found is None and not sessions.ordered:
            sessions = self._together(sessions)
        note["due"] = sessions.due
        self._keep(sessions, kept, store)
        if found is not None:
            yield found

    def _together(self, sessions: Sessions) -> Sessions:
        """Many small pieces as one."""
        batch = pa.concat_batches([spans_as_batch(s) for _, s in sessions.pending])
        last = max(place for place, _ in sessions.pending)
        whole = Sessions(self.aggregation, self.node.schema)
        whole.add(last, self._unpacked(batch))
        return whole

    def _spans(self, data: bytes) -> Spans:
        return self._unpacked(unpack(data, self.schema))

    def _unpacked(self, batch: pa.RecordBatch) -> Spans:
        starts, lasts = (numbers(batch.column(batch.num_columns - i), np.int64) for i in (2, 1))
        bare = batch.select(list(range(batch.num_columns - 2)))
        return Spans(bare, starts, lasts)

    def _keep(self, sessions: Sessions, kept: list[int], store: Store) -> None:
        for place, spans in sessions.pending:
            store.put(0, place, 0, pack(spans_as_batch(spans)))
            kept.append(place)


_SPAN = (START, LAST)


class Joins:
    """The temporal join: records of both sides by slices of time, kept while they may match."""

    def __init__(self, node: JoinWithin) -> None:
        self.node = node
        self.schemas = (node.left.schema, node.right.schema)
        self.clocks = (node.left_clock, node.right_clock)

    def run(
        self, came: Sequence[Came], marks: Sequence[int], note: Note, store: Store
    ) -> Iterator[pa.RecordBatch]:
        kept: list[dict[str, list[int]]] = note.setdefault("kept", [{}, {}])
        join = TemporalJoin(self.node)
        join.watermarks = list(note.get("marks", [BEGINNING, BEGINNING]))
        bundles = [(c.lane, unpack(c.data, self.schemas[c.lane])) for c in came]
        loaded = self._load(join, bundles, kept, store)
        for lane, batch in bundles:
            yield from join.add(lane, batch)
        for side in (0, 1):
            for number, bucket in join.buckets[side].items():
                self._append(side, number, bucket, loaded.get((side, number), 0), kept, store)
        note["marks"] = list(marks)
        for side in (0, 1):
            if marks[1 - side] == BEGINNING:
                continue
            oldest = marks[1 - side] - join.reach[side][1]
            for name, (count, most) in list(kept[side].items()):
                if most < oldest:
                    for i in range(count):
                        store.remove(side, int(name), i)
                    del kept[side][name]

    def _load(
        self,
        join: TemporalJoin,
        bundles: list[tuple[int, pa.RecordBatch]],
        kept: list[dict[str, list[int]]],
        store: Store,
    ) -> dict[tuple[int, int], int]:
        """The slices of each side that what came to the other may match; how many rows each has."""
        wanted: set[tuple[int, int]] = set()
        for lane, batch in bundles:
            times = event_times(batch, self.clocks[lane])
            low, high = join.reach[lane]
            first = (int(times.min()) - low) // join.span.pane
            last = (int(times.max()) + high) // join.span.pane
            other = kept[1 - lane]
            wanted |= {(1 - lane, int(n)) for n in other if first <= int(n) <= last}
        rows: dict[tuple[int, int], int] = {}
        for side, number in sorted(wanted):
            bucket = join.buckets[side].setdefault(number, Bucket())
            for i in range(kept[side][str(number)][0]):
                batch = unpack(store.get(side, number, i), self.schemas[side])
                words = join.sides[side].words(batch)
                bucket.add(batch, words, event_times(batch, self.clocks[side]))
            rows[side, number] = bucket.rows
        return rows

    def _append(
        self,
        side: int,
        number: int,
        bucket: Bucket,
        loaded: int,
        kept: list[dict[str, list[int]]],
        store: Store,
    ) -> None:
        if bucket.rows == loaded:
            return
        count, most = kept[side].get(str(number), [0, BEGINNING])
        whole = pa.concat_batches(bucket.chunks)
        if count >= _MANY_PARTS and loaded:  # all of it is here: write it as one
            for i in range(count):
                store.remove(side, number, i)
            count, loaded = 0, 0
        for part in _pieces(whole.slice(loaded)):
            store.put(side, number, count, pack(part))
            count += 1
        kept[side][str(number)] = [count, max(most, bucket.most)]


def operator_of(node: Any, schema: pa.Schema, zone: str) -> Any:
    """What runs a step with state; ``schema`` is what comes to it."""
    if isinstance(node, JoinWithin):
        return Joins(node)
    if isinstance(node, GroupBy):
        kind = SessionWindows if isinstance(node.window, Session) else Windows
        return kind(node, schema, zone)
    return Relay(schema)
