"""Scans: a state taken through the records of each key, by event time or as they come.

Records that are taken by event time wait until the watermark has passed it, so that none can come
before them. The states of a shard's keys are kept in buckets by hash, so that what a checkpoint
writes is what has changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.expressions import col
from headrace.kernels.aggregate import key_hashes
from headrace.kernels.chain import compile_chain
from headrace.kernels.expressions.kernel import as_column, filled
from headrace.kernels.group import Grouper
from headrace.kernels.native import panes, scans
from headrace.kernels.scans import Records, Steps, steps_of
from headrace.kernels.scans.steps import grown
from headrace.kernels.window import event_times
from headrace.operators.operator import (
    Description,
    Hosting,
    Input,
    Kind,
    Operator,
    Part,
    PassedOn,
    Result,
    State,
    by_keys,
)
from headrace.operators.ordering import in_pieces, together
from headrace.operators.stores import Note, Order, Retained, Store
from headrace.plan.rows import Project
from headrace.plan.scans import CountStep, OnceStep, Scan, UserStep
from headrace.windows import BEGINNING, FOREVER

_LAST = "__last"
"""When the last record of a key was, beside its state."""
_BUCKET_BITS = 5
"""There are 32 buckets."""
_LAST_OF_ALL = 1 << 62
"""By arrival, what comes of the end follows all that came of records, by their own numbers."""
_MANY_GONE = 4096
"""So many forgotten keys are worth making the table anew."""


class Scanned(Operator):
    """A scan of the records of each key."""

    of: ClassVar[type | None] = Scan
    every_watermark: ClassVar[bool] = True

    def __init__(self, node: Scan, inputs: Sequence[Input], zone: str) -> None:
        self.node, self.zone = node, zone
        self.is_keyed = bool(node.keys)
        steps = inputs[0].steps
        if isinstance(node.what, CountStep):  # what no window reads is not sent to it
            columns = tuple((name, col(name).tree) for name in node.what.columns)
            steps = (*steps, Project(node.input.schema, node.step, node.input, columns))
        self.chains = (compile_chain(steps, inputs[0].schema, None, zone),)
        self.schema = self.chains[0].schema
        self.keys = [self.schema.field(name) for name in node.keys]
        self.ttl = node.what.within if isinstance(node.what, OnceStep) else node.ttl
        last = [pa.field(_LAST, pa.int64())] if self.ttl is not None else []
        self.kept_schema = pa.schema([*self.keys, *last, *self.steps().fields])
        self.by_arrival = not node.by_time
        self.has_timers = self.steps().fires
        self.by_clock = node.clock is None and self.has_timers

    @property
    def emits_early(self) -> bool:  # type: ignore[override]
        return not self.node.by_time

    def steps(self) -> Steps:
        """Fresh states."""
        return steps_of(self.node, self.schema, self.zone)

    def partial(self, lane: int, hosting: Hosting) -> PassedOn:
        return by_keys(self.node.keys, lane, hosting)

    def state(self, store: Store, note: Note) -> ScanState:
        return ScanState(self, store, note)

    def advances(self, before: int, now: int) -> bool:
        return True

    def kinds(self) -> dict[int, Kind]:
        keys = tuple(self.node.keys)
        return {
            0: Kind("records that wait", self.schema, keys),
            1: Kind("keys", self.kept_schema, keys),
        }

    def describe(self) -> Description:
        what = self.node.what
        functions = what.written if isinstance(what, (UserStep, CountStep)) else ""
        text = f"{self.node.name} {self.node.detail}"
        keeps = (*self.schema, *self.kept_schema)
        return Description(text, self.version, keeps, functions)


class Keys:
    """The keys of a shard, each with a slot, and when each was seen last."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self.grouper = Grouper(kinds)
        self.room = 0
        self.last = np.zeros(0, np.int64)
        self.there = np.zeros(0, np.bool_)
        """Whether a slot has a state; else it was forgotten."""
        self.touched = np.zeros(0, np.bool_)
        """Whether it has changed since it was saved."""
        self.bucket = np.zeros(0, np.int8)
        self.known = 0
        """The slots whose buckets are known."""

    @property
    def size(self) -> int:
        return int(self.grouper.size)

    @property
    def nbytes(self) -> int:
        return int(self.grouper.nbytes) + 11 * self.room

    def slots(self, columns: Sequence[pa.Array], rows: int) -> Any:
        """The slot of each row's key."""
        if columns:
            slots, _ = self.grouper.groups(columns)
        else:
            slots = self.grouper.all_rows(rows)
        if self.size > self.room:
            self.room = max(64, 2 * self.size)
            self.last = grown(self.last, self.room, BEGINNING)
            self.there = grown(self.there, self.room, False)
            self.touched = grown(self.touched, self.room, False)
            self.bucket = grown(self.bucket, self.room, 0)
        return slots

    def columns(self, slots: Any) -> list[pa.Array]:
        """The keys of some slots."""
        if not self.grouper.kinds:
            return []
        rows = as_column(slots)
        return [column.take(rows) for column in self.grouper.keys()]  # noqa: SIM118

    def buckets(self) -> Any:
        """The bucket of every slot."""
        if self.known < self.size and self.grouper.kinds:
            new = np.arange(self.known, self.size)
            self.bucket[new] = buckets_of(self.columns(new), new.size)
        self.known = self.size
        return self.bucket[: self.size]


def buckets_of(columns: Sequence[pa.Array], rows: int) -> Any:
    """The bucket of each row's key: other bits of its hash than those that say its shard."""
    if not columns:
        return np.zeros(rows, np.int8)
    hashes = key_hashes(columns, rows).astype(np.uint64)
    mixed = hashes * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(64 - _BUCKET_BITS)).astype(np.int8)


def _time_of_day() -> int:
    """In microseconds since 1970: what timers go by where there is no event time."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class Held:
    """Records that wait for the watermark, and their times."""

    order: Order
    batch: pa.RecordBatch
    times: Any
    low: int
    high: int

    def some(self, mask: Any) -> Held:
        """Some of the records."""
        times = self.times[mask]
        return Held(self.order, self.batch.filter(pa.array(mask)), times, *panes.span(times))


class ScanState(State):
    """The keys of one shard, and the records that wait for the watermark."""

    def __init__(self, operator: Scanned, store: Store, note: Note) -> None:
        self.operator, self.node, self.note = operator, operator.node, note
        self.waiting = Retained(store, note, 0, operator.schema)
        self.kept = Retained(store, note, 1, operator.kept_schema)
        self.pending: list[Held] = []
        self.saved = 0
        """How many of those that are pending the store has; -1 if it must be told all anew."""
        self.stored = len(self.waiting.slices.get(0, ()))
        self.asleep = self.stored > 0
        """Whether there are more in the store alone, where they stay until one is due."""
        self.given = 0
        """How many results there were."""
        self._new_table()
        self.unread = set(self.kept.numbers())
        """The buckets that are only in the store."""
        self.changed: set[int] = set()
        """Buckets that have changed beside those of keys that are touched."""

    def _new_table(self) -> None:
        self.keys = Keys([field.type for field in self.operator.keys])
        self.steps = self.operator.steps()
        self.steps.key_columns = self.keys.columns

    @property
    def nbytes(self) -> int:
        pending = sum(held.batch.nbytes for held in list(self.pending))
        return int(pending) + self.keys.nbytes + self.steps.nbytes

    @property
    def keys_held(self) -> int:
        unread = (self.kept.slices.get(bucket, ()) for bucket in list(self.unread))
        return int(self.keys.there.sum()) + sum(int(rows) for kept in unread for _, rows, _ in kept)

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        if self.operator.by_arrival and watermarks[0] == FOREVER:
            self.given = max(self.given, _LAST_OF_ALL)
        yield from self._numbered(self._taken(parts, watermarks))

    def _numbered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Result]:
        """Results, each with a number by which it follows all before it."""
        for batch in batches:
            yield self.given, batch
            self.given += 1

    def _taken(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[pa.RecordBatch]:
        before: int = self.note.get("watermark", BEGINNING)
        now = max(before, watermarks[0])
        self.note["watermark"] = now
        new = [(part.order, part.batch) for part in parts if part.batch.num_rows]
        if self.node.by_time:
            self.pending.extend(self._hold(*each) for each in new)
            due = self._due(now) if now > before else None
        else:
            due = together(new, self.operator.schema, self.node.label) if new else None
        if due is not None and due.num_rows:
            yield from self._given(self.arrived(due)[0])
        if now > before:
            yield from self._passed(now)
        if self.operator.by_clock:
            yield from self._rung(_time_of_day())

    @staticmethod
    def _given(batch: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
        if batch is not None and batch.num_rows:
            yield from (piece for _, piece in in_pieces(batch))

    # Records that wait

    def _wake(self) -> None:
        """Have the records at hand that are in the store alone."""
        stored = [self._hold(*kept) for kept in self.waiting.load(0)[: self.stored]]
        self.pending = stored + self.pending
        self.saved += len(stored)
        self.asleep = False

    def _hold(self, order: Order, batch: pa.RecordBatch) -> Held:
        assert self.node.clock is not None
        times = event_times(batch, self.node.clock)
        return Held(order, batch, times, *panes.span(times))

    def _due(self, now: int) -> pa.RecordBatch | None:
        """The records that no other can come before any more, by event time."""
        if self.asleep and self.note.get("low", BEGINNING) < now:
            self._wake()
        due: list[Held] = []
        left: list[Held] = []
        for held in self.pending:
            if held.low >= now and now < FOREVER:
                left.append(held)
            elif held.high < now or now == FOREVER:
                due.append(held)
            else:
                mask = held.times < now
                due.append(held.some(mask))
                left.append(held.some(~mask))
        if not due:
            return None
        if self.asleep and self.saved:  # the store is told all anew
            self._wake()
            left = self.pending[: self.stored] + left
        self.pending = left
        self.saved = 0 if self.asleep else -1
        due.sort(key=lambda held: held.order)
        parts = [(held.order, held.batch) for held in due]
        batch = together(parts, self.operator.schema, self.node.label)
        times = np.concatenate([held.times for held in due])
        if (times[1:] >= times[:-1]).all():
            return batch
        return batch.take(as_column(np.argsort(times, kind="stable")))

    # States

    def arrived(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch | None, Any]:
        """Take records whose turn it is; what comes of them, and of which."""
        node, keys = self.node, self.keys
        columns = [batch.column(name) for name in node.keys]
        if self.unread:
            found = np.unique(buckets_of(columns, batch.num_rows)).tolist()
            self._read(self.unread & set(found))
        slots = keys.slots(columns, batch.num_rows)
        self.steps.grow(keys.size)
        times = None if node.clock is None else event_times(batch, node.clock)
        self.steps.now = _time_of_day() if self.operator.by_clock else BEGINNING
        records = Records(batch, slots, times)
        ttl = self.operator.ttl
        if ttl is not None and times is not None:
            resets, ends = np.empty(slots.size, np.bool_), np.empty(slots.size, np.int64)
            # What is unique is told by its own times; others are forgotten as a whole.
            if scans.long_ago(slots, times, keys.last, ttl, resets, ends) and node.ttl is not None:
                records.resets, records.ends = resets, ends
        out, origin = self.steps.run(records)
        keys.there[slots] = True
        keys.touched[slots] = True
        return out, origin

    def next_timer(self) -> int:
        timers = self.steps.timers[: self.keys.size]
        unread = self.note.get("due", FOREVER) if self.unread else FOREVER
        return min(unread, int(timers.min()) if timers.size else FOREVER)

    def rung(self, now: int) -> Iterator[Result]:
        yield from self._numbered(self._rung(now))

    def _rung(self, now: int) -> Iterator[pa.RecordBatch]:
        if self.unread and self.note.get("due", FOREVER) <= now:
            self._read(set(self.unread))
        keys, until = self.keys, min(now, FOREVER - 1)
        slots = np.flatnonzero(keys.there[: keys.size])
        untils = np.full(slots.size, until)
        if self.operator.ttl is not None:  # a timer after that is forgotten with its key
            untils = np.minimum(untils, keys.last[slots] + self.operator.ttl)
        due = self.steps.timers[slots] <= untils
        slots, untils = slots[due], untils[due]
        if slots.size:
            fired = self.steps.fire(slots, untils)
            keys.touched[slots] = True
            if fired is not None:
                yield from self._given(self._fired(*fired))

    def _passed(self, now: int) -> Iterator[pa.RecordBatch]:
        """What comes of the watermark alone: timers, and keys that are forgotten."""
        ttl, due = self.operator.ttl, self.note.get("due", FOREVER)
        if ttl is not None and self.unread and due <= now:
            self._read(set(self.unread))
        keys = self.keys
        if self.steps.fires and (now == FOREVER or not self.operator.by_clock):
            yield from self._rung(now)
        if self.unread and (now == FOREVER or due <= now):
            self._read(set(self.unread))
        given, changed = self.steps.passed(now)
        keys.touched[changed] = True
        yield from self._given(given)
        if ttl is not None and now < FOREVER:
            there = keys.there[: keys.size]
            gone = np.flatnonzero(there & (keys.last[: keys.size] <= max(now - ttl, BEGINNING + 1)))
            if gone.size:
                self.steps.reset(gone)
                keys.there[gone] = False
                keys.touched[gone] = True
                keys.last[gone] = BEGINNING
                self._shrink()

    def _shrink(self) -> None:
        """Make the table anew where most of its keys are forgotten."""
        keys = self.keys
        live = np.flatnonzero(keys.there[: keys.size])
        if keys.size - live.size < max(_MANY_GONE, live.size):
            return
        self.changed |= set(keys.buckets()[keys.touched[: keys.size]].tolist())
        rows = self._rows(live)
        self._new_table()
        self._restore(rows)

    def _fired(self, slots: Any, times: Any, made: pa.RecordBatch) -> pa.RecordBatch:
        """What timers gave, with their keys and times beside it."""
        node, clock = self.node, self.node.clock
        names = dict(zip(node.keys, self.keys.columns(slots), strict=True))
        kept = []
        for name in node.kept:
            kind = self.operator.schema.field(name).type
            if name not in names:  # the event time
                assert clock is not None
                names[name] = filled(times - clock.shift, times.size, kind)
            kept.append(names[name])
        return pa.RecordBatch.from_arrays([*kept, *made.columns], schema=node.schema)

    def promised(self, watermark: int) -> int:
        if self.unread and type(self.steps).promised is not Steps.promised:
            self._read(set(self.unread))
        return self.steps.promised(watermark)

    # What lasts

    def _read(self, buckets: set[int]) -> None:
        """Have the keys of some buckets at hand."""
        for bucket in sorted(buckets):
            self.unread.discard(bucket)
            for _, batch in self.kept.load(bucket):
                self._restore(batch)

    def _restore(self, batch: pa.RecordBatch) -> None:
        count = len(self.operator.keys)
        slots = self.keys.slots(batch.columns[:count], batch.num_rows)
        self.steps.grow(self.keys.size)
        rest = batch.columns[count:]
        if self.operator.ttl is not None:
            self.keys.last[slots] = np.asarray(rest.pop(0))
        self.steps.restore(slots, rest)
        self.keys.there[slots] = True

    def save(self) -> None:
        held = self.pending
        if self.saved != len(held):
            if self.saved < 0:
                self.waiting.drop(0)
                self.saved = 0
            for each in held[self.saved :]:
                self.waiting.append(0, each.batch, each.order)
            self.saved = len(held)
            lows = [each.low for each in held]
            if self.asleep:
                lows.append(self.note.get("low", BEGINNING))
            self.note["low"] = min(lows, default=FOREVER)
        keys = self.keys
        touched = keys.touched[: keys.size]
        if not touched.any() and not self.changed:
            return
        buckets = keys.buckets()
        there = keys.there[: keys.size]
        for bucket in sorted({*np.unique(buckets[touched]).tolist(), *self.changed}):
            slots = np.flatnonzero(there & (buckets == bucket))
            self.kept.drop(bucket)
            if slots.size:
                self.kept.append(bucket, self._rows(slots))
        keys.touched[:] = False
        self.changed = set()
        self._note_due(there)

    def _rows(self, slots: Any) -> pa.RecordBatch:
        last = [as_column(self.keys.last[slots])] if self.operator.ttl is not None else []
        columns = [*self.keys.columns(slots), *last, *self.steps.state(slots)]
        return pa.RecordBatch.from_arrays(columns, schema=self.operator.kept_schema)

    def _note_due(self, there: Any) -> None:
        """Write down when the store must be looked at although no record comes."""
        if self.unread and "due" in self.note:
            soonest = [int(self.note["due"])]  # of those that are not at hand
        else:
            soonest = []
        slots = np.flatnonzero(there)
        if self.steps.fires and slots.size:
            soonest.append(int(self.steps.timers[slots].min()))
        soonest.append(self.steps.soonest())
        if self.operator.ttl is not None and slots.size:
            soonest.append(int(self.keys.last[slots].min()) + self.operator.ttl)
        if min(soonest) < FOREVER:
            self.note["due"] = min(soonest)
        else:
            self.note.pop("due", None)
