"""Operators with state on Spark: windows, sessions, temporal joins, on one shard of the keys.

An operator is called once in a micro-batch, with the bundles that came for it and the watermark its
lanes have reached. What it must remember are bundles in Spark's state, by time, and a note of
which there are. It appends rather than rewrites: a pane that is still open costs what was added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.kernels.aggregate import Merge, compile_aggregation, compile_partial
from headrace.kernels.expressions.kernel import numbers
from headrace.kernels.join import Bucket, TemporalJoin
from headrace.kernels.paned import ROW, PanedPartials
from headrace.kernels.sliding import slid, sliding_state
from headrace.kernels.window import Sessions, Spans, backwards, ending_with, event_times
from headrace.plan.nodes import GroupBy, JoinWithin
from headrace.spark.bundles import pack, unpack
from headrace.spark.rows import LAST, START, input_of, spans_as_batch, task_of
from headrace.windows import BEGINNING, Session, Window

Note = dict[str, Any]
Part = tuple[int, pa.RecordBatch]
"""Partials, and the split they are of where the order of the input matters."""
Panes = dict[str, list[int]]
"""The parts that are kept of each pane, by the split each is of."""
_MANY_PARTS = 8
"""So many bundles of a pane are put together into one."""
_LARGE = 64 << 20
"""About the largest value that is put into Spark's state."""


@dataclass
class Came:
    """A bundle that came for an operator."""

    place: int
    lane: int
    pane: int
    data: bytes
    rows: int = 0

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """What is in it."""
        found = unpack(self.data, schema)
        self.rows = found.num_rows
        return found

    @property
    def input(self) -> int:
        """Which part of the input it belongs to."""
        return input_of(self.lane, self.place)


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
            yield item.batch(self.schema)


class Numbering:
    """Gives records their places among all that ever came of their split.

    A task numbers its records from nought; one task's come after those of the task before it.
    """

    def __init__(self, tops: dict[str, int]) -> None:
        self.tops = tops
        self.tasks: dict[str, tuple[int, int]] = {}

    def numbered(self, item: Came, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The bundle with its column of places moved to where it belongs."""
        split, task = str(item.input), task_of(item.place)
        known, base = self.tasks.get(split, (None, 0))
        if known != task:
            base = self.tops.get(split, 0)
            self.tasks[split] = (task, base)
        rows = numbers(batch.column(batch.num_columns - 1), np.int64) + base
        self.tops[split] = max(self.tops.get(split, 0), int(rows.max()) + 1)
        columns = [*batch.columns[:-1], pa.array(rows)]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


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
        panes: Panes = note.setdefault("panes", {})
        new: dict[int, list[Part]] = {}
        numbering = Numbering(note.setdefault("order", {}))
        for item in came:
            batch = item.batch(self.schema)
            if self.singly:
                batch = numbering.numbered(item, batch)
            split = item.input if self.node.is_ordered else 0
            new.setdefault(item.pane, []).append((split, batch))
        before = note.get("mark", BEGINNING)
        mark = max(before, marks[0])
        if new and before > BEGINNING and min(new) < self._complete(before):
            raise backwards(self.node.label, before)
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
        return self.window.pane_at(mark)

    def _loaded(self, pane: int, panes: Panes, store: Store) -> list[Part]:
        splits = panes.get(str(pane), [])
        return [
            (split, unpack(store.get(0, pane, i), self.schema)) for i, split in enumerate(splits)
        ]

    def _dropped(self, pane: int, panes: Panes, store: Store) -> None:
        for i, _ in enumerate(panes.pop(str(pane), [])):
            store.remove(0, pane, i)

    def _append(self, pane: int, parts: list[Part], panes: Panes, store: Store) -> None:
        if len(panes.get(str(pane), [])) >= _MANY_PARTS:
            parts = [*self._loaded(pane, panes, store), *parts]
            self._dropped(pane, panes, store)
        kept = panes.setdefault(str(pane), [])
        for split, batch in self._by_split(parts):
            for piece in _pieces(batch):
                store.put(0, pane, len(kept), pack(piece))
                kept.append(split)

    def _by_split(self, parts: list[Part]) -> list[Part]:
        """The parts of each split as one, in the order of the splits."""
        by_split: dict[int, list[pa.RecordBatch]] = {}
        for split, batch in parts:
            by_split.setdefault(split, []).append(batch)
        found = []
        for split, batches in sorted(by_split.items()):
            if len(batches) == 1:
                found.append((split, batches[0]))
            elif self.singly:
                found.append((split, pa.concat_batches(batches)))
            else:
                found.append((split, self._merged(batches).bundle()))
        return found

    def _merged(self, batches: Iterable[pa.RecordBatch]) -> Merge:
        merge = Merge(self.aggregation)
        for batch in batches:
            merge.add(batch)
        return merge

    def _tumbled(
        self, new: dict[int, list[Part]], complete: int | None, panes: Panes, store: Store
    ) -> Iterator[pa.RecordBatch]:
        if complete is None:
            return
        for pane in sorted(p for p in {*map(int, panes), *new} if p < complete):
            parts = [*self._loaded(pane, panes, store), *new.pop(pane, ())]
            parts.sort(key=lambda part: part[0])
            self._dropped(pane, panes, store)
            found = self._merged(batch for _, batch in parts).finish()
            yield ending_with(found, self.keys, pane, self.window, self.node.schema)

    def _slid(
        self, complete: int, panes: Panes, note: Note, store: Store
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

    def _entering(self, pane: int, panes: Panes, store: Store) -> Any:
        parts = self._loaded(pane, panes, store)
        if not self.singly:
            return self._merged(batch for _, batch in parts).bundle()
        width = self.schema.get_field_index(ROW)
        return [
            ((split,), numbers(b.column(width), np.int64), b.drop_columns([ROW]))
            for split, b in parts
        ]


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
        kept: list[list[int]] = note.setdefault("kept", [])
        before = note.get("mark", BEGINNING)
        mark = max(before, marks[0])
        note["mark"] = mark
        sessions = Sessions(self.aggregation, self.node.schema)
        order = note.get("order", 0)
        for item in came:
            spans = self._unpacked(item.batch(self.schema))
            if int(spans.starts.min()) < before:
                raise backwards(self.node.label, before)
            split = item.input if self.node.is_ordered else 0
            sessions.add((split, order), spans)
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
        for split, place in kept:
            sessions.add((split, place), self._spans(store.get(0, place, 0)))
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

    def _keep(self, sessions: Sessions, kept: list[list[int]], store: Store) -> None:
        for (split, place), spans in sessions.pending:
            store.put(0, place, 0, pack(spans_as_batch(spans)))
            kept.append([split, place])


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
        bundles = [(c.lane, c.batch(self.schemas[c.lane])) for c in came]
        loaded = self._load(join, bundles, kept, store)
        for lane, batch in bundles:
            yield from join.add(lane, batch)
        for side in (0, 1):
            for number, bucket in join.buckets[side].items():
                self._append(side, number, bucket, loaded.get((side, number), 0), kept, store)
        marks = [max(a, b) for a, b in zip(join.watermarks, marks, strict=True)]
        note["marks"] = marks
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
            first = join.span.pane_at(int(times.min()) - low)
            last = join.span.pane_at(int(times.max()) + high)
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
