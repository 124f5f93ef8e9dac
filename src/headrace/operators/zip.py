"""``zip``: pairs by place, the n-th record of one stream with the n-th of another.

A record has its place once none can come before it: with event time when the watermark has passed
it, else when its input has ended. The state keeps records that wait for their place, and those that
have one and wait for their partner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.kernels.chain import compile_chain
from headrace.kernels.columns import as_column
from headrace.kernels.window import backwards, event_times
from headrace.operators.operator import (
    Description,
    Hosting,
    Input,
    Kind,
    Operator,
    Part,
    PassedOn,
    Phases,
    Result,
    State,
)
from headrace.operators.ordering import PIECE, together
from headrace.operators.shards import Shards
from headrace.operators.stores import Note, Order, Retained, Store
from headrace.plan.joins import Zip
from headrace.windows import BEGINNING, FOREVER

_SIDES = (0, 1)
_WAIT, _PLACED = 0, 2
"""The first of the two kinds of bundles: without a place, and with one."""


class ByPlace(Operator):
    """Pairs of records that have the same place."""

    of: ClassVar[type | None] = Zip
    is_keyed = False

    def __init__(self, node: Zip, inputs: Sequence[Input], zone: str) -> None:
        self.node = node
        self.chains = tuple(compile_chain(i.steps, i.schema, None, zone) for i in inputs)

    @property
    def every_watermark(self) -> bool:  # type: ignore[override]
        return bool(self.node.by_time)

    def partial(self, lane: int, hosting: Hosting) -> PassedOn:
        return PassedOn(lambda batch, order: [(0, Part(0, batch, order, lane))])

    def state(self, store: Store, note: Note) -> ZipState:
        return ZipState(self, store, note)

    def advances(self, before: int, now: int) -> bool:
        return self.node.by_time or now == FOREVER

    def advance(
        self, shards: Shards, lane: int, watermark: int, emit: Callable[[int, Result], None]
    ) -> Phases:
        """One task, which goes on with one input only.

        What comes of it has a record of that input that the watermark before had not passed, and so
        belongs after that watermark.
        """

        def run() -> None:
            for result in shards.take(0, (), lane):
                emit(0, result)

        return iter([[run]])

    def kinds(self) -> dict[int, Kind]:
        found = {}
        for side, (name, chain) in enumerate(zip(("left", "right"), self.chains, strict=True)):
            found[_WAIT + side] = Kind(f"{name} records without a place", chain.schema, ())
            found[_PLACED + side] = Kind(f"{name} records without a partner", chain.schema, ())
        return found

    def describe(self) -> Description:
        keeps = tuple(field for chain in self.chains for field in chain.schema)
        return Description(f"{self.node.name} {self.node.detail}", self.version, keeps)


class ZipState(State):
    """Records of both sides that wait, for their place or for their partner."""

    def __init__(self, operator: ByPlace, store: Store, note: Note) -> None:
        self.operator, self.node, self.note = operator, operator.node, note
        schemas = [chain.schema for chain in operator.chains]
        self.waiting = [Retained(store, note, _WAIT + s, schemas[s]) for s in _SIDES]
        """By the time of the first record of a bundle."""
        self.lines = [Line(Retained(store, note, _PLACED + s, schemas[s])) for s in _SIDES]
        note.setdefault("placed", [0, 0])
        note.setdefault("paired", 0)
        note.setdefault("watermarks", [BEGINNING, BEGINNING])

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        for part in parts:
            if part.batch.num_rows:
                self._wait(part)
        for side in _SIDES:
            if watermarks[side] > self.note["watermarks"][side]:
                self._place(side, watermarks[side])
                self.note["watermarks"][side] = watermarks[side]
        self.note["watermark"] = min(self.note["watermarks"])
        yield from self._pairs()
        if self._is_over():
            for side in _SIDES:
                self.lines[side].clear()
                for slice in self.waiting[side].numbers():
                    self.waiting[side].drop(slice)

    def _is_over(self) -> bool:
        """Whether one side has ended, and all of its records have their partner."""
        return any(
            self.note["watermarks"][side] == FOREVER
            and self.note["placed"][side] == self.note["paired"]
            for side in _SIDES
        )

    # Places

    def _wait(self, part: Part) -> None:
        side, first = part.lane, 0
        if self._is_over():
            return
        clock = self.node.clocks[side]
        if clock is not None:
            first, passed = int(event_times(part.batch, clock).min()), self.note["watermarks"][side]
            if first < passed:
                raise backwards(self.node.label, passed)
        self.waiting[side].append(first, part.batch, part.order)

    def _place(self, side: int, watermark: int) -> None:
        """Give their places to the records that no other can come before any more."""
        waiting, clock = self.waiting[side], self.node.clocks[side]
        if clock is None and watermark < FOREVER:
            return
        due = [n for n in waiting.numbers() if n < watermark]
        bundles = [bundle for slice in due for bundle in waiting.pop(slice)]
        bundles.sort(key=lambda bundle: bundle[0])
        if clock is None:
            placed = [batch for _, batch in bundles]
        else:
            timed = [(o, b, event_times(b, clock)) for o, b in bundles]
            placed = self._in_order(side, [self._passed(side, each, watermark) for each in timed])
        for batch in placed:
            self.lines[side].add(self.note["placed"][side], batch)
            self.note["placed"][side] += batch.num_rows

    def _passed(self, side: int, held: Timed, watermark: int) -> Timed:
        """The records before a watermark; the others go on waiting."""
        order, batch, times = held
        if watermark == FOREVER:
            return held
        is_due = times < watermark
        if is_due.all():
            return held
        rest = batch.filter(pa.array(~is_due))
        self.waiting[side].append(int(times[~is_due].min()), rest, order)
        return order, batch.filter(pa.array(is_due)), times[is_due]

    def _in_order(self, side: int, held: list[Timed]) -> list[pa.RecordBatch]:
        """Records by event time, those of one time in the order of the input."""
        times = np.concatenate([times for *_, times in held]) if held else np.zeros(0, np.int64)
        if (times[1:] >= times[:-1]).all():
            return [batch for _, batch, _ in held]
        schema = self.operator.chains[side].schema
        batch = together([(order, batch) for order, batch, _ in held], schema, self.node.label)
        return [batch.take(as_column(np.argsort(times, kind="stable")))]

    # Pairs

    def _pairs(self) -> Iterator[Result]:
        """Pairs of all records that have a partner, a bundle of ordinary size at a time."""
        begin, end = self.note["paired"], min(self.note["placed"])
        pieces: list[pa.RecordBatch] = []
        rows = 0
        while self.note["paired"] < end:
            place = self.note["paired"]
            left, right = (line.since(place) for line in self.lines)
            count = min(left.num_rows, right.num_rows)
            columns = [*left.slice(0, count).columns, *right.slice(0, count).columns]
            pieces.append(pa.RecordBatch.from_arrays(columns, schema=self.node.schema))
            rows += count
            self.note["paired"] = place + count
            for line in self.lines:
                line.forget(place + count)
            if rows >= PIECE or place + count == end:
                yield begin, pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
                begin, pieces, rows = place + count, [], 0


Timed = tuple[Order, pa.RecordBatch, Any]
"""Records, where they stand in the input, and their times."""


class Line:
    """Records of one side in their places; a bundle is kept by the place of its first."""

    def __init__(self, retained: Retained) -> None:
        self.retained = retained
        self.places = deque(sorted(retained.numbers()))

    def add(self, place: int, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self.retained.append(place, batch)
            self.places.append(place)

    def since(self, place: int) -> pa.RecordBatch:
        """The records from a place on, as many as are kept together."""
        first = self.places[0]
        for _, batch in self.retained.load(first):
            if place < first + batch.num_rows:
                return batch.slice(place - first)
            first += batch.num_rows
        raise AssertionError(f"there is no record with the place {place}")

    def forget(self, upto: int) -> None:
        """Forget bundles whose records are all before a place."""
        while self.places and self.places[0] + self._rows(self.places[0]) <= upto:
            self.retained.drop(self.places.popleft())

    def _rows(self, place: int) -> int:
        return sum(int(rows) for _, rows, _ in self.retained.slices[place])

    def clear(self) -> None:
        while self.places:
            self.retained.drop(self.places.popleft())
