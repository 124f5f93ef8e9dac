"""Scans: a state taken through the records of each key, by event time or as they come.

Records that are taken by event time wait until the watermark has passed it, so that none can come
before them: a bundle is written once, and read when one of its records is due. The states of a
shard's keys are kept in buckets by hash, so that a checkpoint writes about what has changed, in
pieces that are worth a round trip to the store.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.expressions import col
from headrace.kernels.aggregate import key_hashes
from headrace.kernels.chain import compile_chain
from headrace.kernels.columns import as_column, filled
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
_BUCKET = 256 << 10
"""About the bytes of a bucket: one that is read and written as a whole in a millisecond or two."""
_MOST_BITS = 8
"""Of a key's hash that may say its bucket: there are at most 256."""
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
        self.by_arrival = not node.by_time
        self.has_timers = isinstance(node.what, UserStep) and node.what.on_timer is not None
        self.by_clock = node.clock is None and self.has_timers

    @property
    def emits_early(self) -> bool:  # type: ignore[override]
        return not self.node.by_time

    @functools.cached_property
    def kept_schema(self) -> pa.Schema:
        """What is kept of a key. It depends on whether the step can be compiled, which whoever only
        sends records to the shards need not know."""
        last = [pa.field(_LAST, pa.int64())] if self.ttl is not None else []
        return pa.schema([*self.keys, *last, *self.steps().fields])

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
            1: Kind("keys", self.kept_schema, keys, pickled=self.steps().pickles),
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
        self.prefix = np.zeros(0, np.uint8)
        self.known = 0
        """The slots whose prefixes are known."""

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
            self.prefix = grown(self.prefix, self.room, 0)
        return slots

    def columns(self, slots: Any) -> list[pa.Array]:
        """The keys of some slots."""
        if not self.grouper.kinds:
            return []
        rows = as_column(slots)
        return [column.take(rows) for column in self.grouper.keys()]  # noqa: SIM118

    def prefixes(self) -> Any:
        """The prefix of every slot."""
        if self.known < self.size and self.grouper.kinds:
            new = np.arange(self.known, self.size)
            self.prefix[new] = prefixes_of(self.columns(new), new.size)
        self.known = self.size
        return self.prefix[: self.size]


def prefixes_of(columns: Sequence[pa.Array], rows: int) -> Any:
    """Of each row's key the bits that say its bucket: others of its hash than say its shard."""
    if not columns:
        return np.zeros(rows, np.uint8)
    hashes = key_hashes(columns, rows).astype(np.uint64)
    mixed = hashes * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(64 - _MOST_BITS)).astype(np.uint8)


_OLD_BITS = 5
"""Once there were 32 buckets always, and a bucket's slice was its number."""
_BITS = 32
"""Where in the number of a slice the bits are."""


def slice_of(bits: int, bucket: int) -> int:
    """The slice of a bucket: the keys whose hash begins with some bits."""
    return (bits + 1) << _BITS | bucket


def bucket_of(slice: int) -> tuple[int, int]:
    """How many bits the keys of a slice have in common, and which."""
    bits = slice >> _BITS
    return (_OLD_BITS, slice) if not bits else (bits - 1, slice & (1 << _BITS) - 1)


def bits_for(size: int) -> int:
    """How many bits say the bucket where there are so many bytes in all."""
    return min(_MOST_BITS, max(0, -(-size // _BUCKET) - 1).bit_length())


def _time_of_day() -> int:
    """In microseconds since 1970: what timers go by where there is no event time."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class Held:
    """Records that wait for the watermark, and their times; asleep if only the store has them."""

    order: Order
    low: int
    high: int
    batch: pa.RecordBatch | None
    times: Any
    saved: tuple[int, ...] = ()
    """Their numbers in the store."""

    def some(self, mask: Any) -> Held:
        """Some of the records."""
        assert self.batch is not None
        times = self.times[mask]
        low, high = panes.span(times)
        return Held(self.order, low, high, self.batch.filter(pa.array(mask)), times)


class ScanState(State):
    """The keys of one shard, and the records that wait for the watermark."""

    def __init__(self, operator: Scanned, store: Store, note: Note) -> None:
        self.operator, self.node, self.note = operator, operator.node, note
        self.waiting = Retained(store, note, 0, operator.schema)
        self.kept = Retained(store, note, 1, operator.kept_schema)
        self.pending = self._asleep()
        self.over: list[int] = []
        """Those of the store that no longer wait."""
        self.given = 0
        """How many results there were."""
        self._new_table()
        self.unread = set(self.kept.numbers())
        """The slices of keys that are only in the store."""
        self.changed: set[int] = set()
        """The prefixes of keys that have changed beside those that are touched."""

    def _new_table(self) -> None:
        self.keys = Keys([field.type for field in self.operator.keys])
        self.steps = self.operator.steps()
        self.steps.key_columns = self.keys.columns

    @property
    def nbytes(self) -> int:
        pending = sum(0 if held.batch is None else held.batch.nbytes for held in list(self.pending))
        return int(pending) + self.keys.nbytes + self.steps.nbytes

    @property
    def keys_held(self) -> int:
        unread = (self.kept.slices.get(slice, ()) for slice in list(self.unread))
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

    def _asleep(self) -> list[Held]:
        """The records that the store has."""
        lows, rest = self.note.get("lows", {}), self.note.get("low", BEGINNING)
        # A store that was cut into other shards does not say of each bundle when it is due.
        return [
            Held(tuple(order), lows.get(str(number), rest), FOREVER, None, None, (number,))
            for number, _, order in self.waiting.slices.get(0, ())
        ]

    def _awake(self, held: Held) -> Held:
        """Records at hand."""
        if held.batch is not None:
            return held
        return self._hold(held.order, self.waiting.one(0, *held.saved), held.saved)

    def _hold(self, order: Order, batch: pa.RecordBatch, saved: tuple[int, ...] = ()) -> Held:
        assert self.node.clock is not None
        times = event_times(batch, self.node.clock)
        low, high = panes.span(times)
        return Held(order, low, high, batch, times, saved)

    def _due(self, now: int) -> pa.RecordBatch | None:
        """The records that no other can come before any more, by event time."""
        due: list[Held] = []
        left: list[Held] = []
        for held in self.pending:
            if held.low >= now and now < FOREVER:
                left.append(held)
                continue
            held = self._awake(held)
            if held.low >= now and now < FOREVER:
                left.append(held)
                continue
            self.over += held.saved
            if held.high < now or now == FOREVER:
                due.append(held)
            else:
                mask = held.times < now
                due.append(held.some(mask))
                left.append(held.some(~mask))
        self.pending = left
        if not due:
            return None
        due.sort(key=lambda held: held.order)
        parts = [(held.order, held.batch) for held in due if held.batch is not None]
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
            self._read(self._unread_of(prefixes_of(columns, batch.num_rows)))
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
            # At the end each fires once: one that is set again would never stop.
            fired = self.steps.fire(slots, untils, once=now == FOREVER)
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
        self.changed |= set(keys.prefixes()[keys.touched[: keys.size]].tolist())
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

    def _unread_of(self, prefixes: Any) -> set[int]:
        """The slices that are only in the store and may have some of these keys."""
        found: dict[int, set[int]] = {}
        for slice in self.unread:
            bits, _ = bucket_of(slice)
            if bits not in found:
                found[bits] = set(np.unique(prefixes >> (_MOST_BITS - bits)).tolist())
        return {s for s in self.unread if bucket_of(s)[1] in found[bucket_of(s)[0]]}

    def _read(self, slices: set[int]) -> None:
        """Have the keys of some slices at hand."""
        for slice in sorted(slices):
            self.unread.discard(slice)
            for _, batch in self.kept.load(slice):
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
        self._save_waiting()
        keys = self.keys
        touched = keys.touched[: keys.size]
        if touched.any() or self.changed:
            self._save_keys({*np.unique(keys.prefixes()[touched]).tolist(), *self.changed})
            keys.touched[:] = False
            self.changed = set()
            self._note_due(keys.there[: keys.size])

    def _save_waiting(self) -> None:
        """Tell the store of records that wait, and of those that no longer do."""
        new: set[Order] = set()
        for i, held in enumerate(self.pending):
            if held.saved and held.order in new:  # it follows one that is written now: so must it
                self.pending[i] = self._awake(held)
                self.over += held.saved
                self.pending[i].saved = ()
            elif not held.saved:
                new.add(held.order)
        self.waiting.remove(0, self.over)
        self.over = []
        for held in self.pending:
            if not held.saved:
                assert held.batch is not None
                before = self.waiting.last(0)
                self.waiting.append(0, held.batch, held.order)
                held.saved = tuple(range(before + 1, self.waiting.last(0) + 1))
        self.note.pop("low", None)
        self.note["lows"] = {str(n): held.low for held in self.pending for n in held.saved}

    def _save_keys(self, changed: set[int]) -> None:
        """Write the buckets of keys with some prefixes; all of them where the size is wrong."""
        levels = {slice >> _BITS for slice in self.kept.numbers()}
        bits = max(levels, default=1) - 1
        is_one = 0 not in levels and len(levels) < 2  # not old, nor of shards that were others
        rows = self._by_bucket(bits, changed) if is_one else {}
        count = sum(batch.num_rows for batch in rows.values())
        if is_one and count:
            size = sum(batch.nbytes for batch in rows.values()) * self.keys_held // count
            is_one = abs(bits_for(size) - bits) < 2
        if not is_one:
            self._read(set(self.unread))
            for slice in self.kept.numbers():
                self.kept.drop(slice)
            changed = set(range(1 << _MOST_BITS))
            bits = bits_for(self._by_bucket(0, changed)[0].nbytes)
            rows = self._by_bucket(bits, changed)
        for bucket, batch in rows.items():
            slice = slice_of(bits, bucket)
            self.kept.drop(slice)
            if batch.num_rows:
                self.kept.append(slice, batch)

    def _by_bucket(self, bits: int, changed: set[int]) -> dict[int, pa.RecordBatch]:
        """The keys of the buckets that have some of the prefixes."""
        keys, shift = self.keys, _MOST_BITS - bits
        slots = np.flatnonzero(keys.there[: keys.size])
        buckets = keys.prefixes()[slots] >> shift
        order = np.argsort(buckets, kind="stable")
        wanted = np.unique(np.array(sorted(changed)) >> shift)
        starts = np.searchsorted(buckets[order], wanted).tolist()
        ends = np.searchsorted(buckets[order], wanted, "right").tolist()
        return {
            bucket: self._rows(slots[order[start:end]])
            for bucket, start, end in zip(wanted.tolist(), starts, ends, strict=True)
        }

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
