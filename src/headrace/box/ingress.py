"""Ingress: a source's records become bundles, and its watermarks cut epochs (StreamBox §2, §8)."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.box.arrival import Arrivals, Arrived, Reader
from headrace.box.buffering import Gathered
from headrace.box.bundle import Bundle
from headrace.box.cascade import Cascade, Vertex
from headrace.box.clock import Clock
from headrace.box.container import Container
from headrace.box.pace import LEAST, MOST, Pace
from headrace.buffers import Buffer
from headrace.errors import EngineError, HeadraceError, StepError
from headrace.io.offsets import Followed, OffsetSource, Once, Reached, UpToDate
from headrace.io.source import SetAside, Split, Watermark, as_split, at_most, sequences
from headrace.kernels.chain import Chain, compile_chain
from headrace.kernels.expressions.codes import coded_schema
from headrace.kernels.lateness import (
    first_late,
    is_by_source,
    times_of,
)
from headrace.operators.stores import input_number
from headrace.plan.node import Narrow
from headrace.plan.sources import Read
from headrace.plan.time import EventTime
from headrace.types import normal_batch
from headrace.watermarks import Activity, SourceFrontier, waiting_for
from headrace.windows import BEGINNING, FOREVER, Window, show_duration, show_time

_MOST_SPLITS = 64
_KEPT_LATE = 10_000
_READING = 0.002
"""Seconds after which what was read is handed over, if there is something."""
log = logging.getLogger("headrace")


class Ingress:
    """Reads a source and deposits what it reads in the containers of the current epoch.

    The watermark is the least over the splits that have not ended and are not idle. A new one cuts
    an epoch when it may close a window somewhere; where nothing says when that is, now and then.
    """

    def __init__(
        self,
        node: EventTime | Read,
        columns: Sequence[str] | None,
        cascade: Cascade,
        pace: Pace,
        clock: Clock,
        flush: float,
        zone: str = "UTC",
    ) -> None:
        steps: list[Narrow] = []
        step: Any = node
        while isinstance(step, Narrow):
            steps.append(step)
            step = step.input
        assert isinstance(step, Read)
        self.event = node if isinstance(node, EventTime) else None
        self.source = step.source
        self.bounded = bool(self.source.bounded)
        self.chain: Chain = compile_chain(steps[::-1], step.schema, columns, zone)
        self.wanted = pa.schema([step.schema.field(c) for c in self.chain.columns])
        self.schema = self.chain.schema
        self.coded: frozenset[str] = frozenset()
        """The text columns that are given coded."""
        self.cascade, self.pace, self.clock, self.flush = cascade, pace, clock, flush
        self.name = str(self.source)
        self.outputs: list[tuple[Vertex, int]] = []
        self.late_outputs: list[tuple[Vertex, int]] = []
        self.grains: list[Window] = []
        """Windows downstream: an epoch is cut where one of their panes ends."""
        self.every_watermark = False
        """Whether something downstream can use any watermark, not just those."""
        self.failed = f"reading {self.name} failed"
        self.containers: list[Container] = []
        self.readers: list[Reader] = []
        self.epoch = self.number = self.turn = 0
        """The last: of input that ends, what is to be read before what."""
        self.frontier = SourceFrontier()
        self.activity = Activity(None if self.event is None else self.event.idle)
        self.buffer: Buffer | None = None
        """When records are sent on; None where that adapts."""
        self.in_turn = False
        """Whether splits of bounded input are read one after the other."""
        self.width = 0.0
        """Bytes of a record, about."""
        self.since_cut = 0
        self.cut_at = 0.0
        self.records = self.late = self.ahead = self.bad = 0
        self.wall: Callable[[], float] = getattr(clock, "wall", time.time)
        self.time_of_day: Callable[[], float] = getattr(clock, "time_of_day", time.time)
        """What processing time goes by."""
        self.by_clock = self.event is not None and self.event.by_clock
        self.moment = BEGINNING
        """The time of day when it was last asked for; it does not go back."""
        self.has_room = True
        self.kept_late: deque[pa.RecordBatch] = deque()
        self.kept_rows = 0
        self.told_ignored = False
        self.notes: list[str] = []
        self.ended = False
        self.stopping = False
        self.holding = False
        """Whether to stop where steps end, and leave windows open."""
        self.offsets: OffsetSource | None = None
        """The source by its positions, where there is a checkpoint."""
        self.saved: Mapping[str, Any] = {}
        self.only_now = False
        wall = self.time_of_day if self.by_clock else self.wall
        self.arrivals = Arrivals(self.event, self.schema, zone, wall)

    # Beginning and end

    def give_coded(self, names: frozenset[str]) -> None:
        """Give some text columns coded."""
        self.coded, self.wanted = names, coded_schema(self.wanted, names)

    def by_positions(
        self, offsets: OffsetSource, saved: Mapping[str, Any], folder: str | None, only_now: bool
    ) -> None:
        """Read by positions, from those of a checkpoint if there are any.

        With ``only_now`` read no further than there is now.
        """
        self.saved, self.only_now = saved, only_now
        if not isinstance(offsets, Once):  # which is read as it is, and counts when it has ended
            self.bounded = False
        self.offsets = copy.copy(offsets).in_small_steps()
        if folder is not None:
            self.offsets.keep_in(folder)

    def start(self, workers: int) -> None:
        """Find the splits and open the first epoch. The lock is held."""
        # With event time a split's order matters, so it must not depend on the number of workers.
        parallel = workers if self.bounded and self.event is None else 1
        splits = self._splits(parallel)
        if self.event is not None and self.bounded:
            splits = at_most(sequences(splits), _MOST_SPLITS)
        self.splits = splits
        now = self.clock.now()
        self.readers = [Reader(i, str(i)) for i in range(len(splits))]
        for reader, split in zip(self.readers, splits, strict=True):
            if self.offsets is not None and isinstance(split, Followed):
                reader.name, reader.position = split.name, split.start
                reader.sequence = self.saved.get("sequence", {}).get(split.name, 0)
        if "frontier" in self.saved:
            self.frontier = SourceFrontier(**self.saved["frontier"])
        self.frontier.live = [reader.name for reader in self.readers]
        self.frontier.ended = False
        for reader in self.readers:
            self.activity.sent(reader.name, now)
        self.cut_at = now
        self._open()
        if self.promised > BEGINNING and splits:  # once more, so that all steps know it
            self._cut(self.promised)
            if self.by_clock:
                self._advance(said=True)
        if not splits:
            self._end()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it. The lock is held, and nothing is being read."""
        at = {reader.name: reader.position for reader in self.readers}
        if isinstance(self.offsets, Once):
            at = {"all": int(self.ended)}
        elif self.ended:
            at = {**self.saved.get("at", {}), **at}
        state = {
            "at": at, "frontier": self.frontier.saved(), "ended": self.ended,
            "sequence": {reader.name: reader.sequence for reader in self.readers},
        }  # fmt: skip
        copied: dict[str, Any] = json.loads(json.dumps(state))
        return copied

    @property
    def is_up_to_date(self) -> bool:
        """Whether all has come that was to be read."""
        return self.ended or all(r.is_up_to_date or r.done for r in self.readers)

    @property
    def between_steps(self) -> bool:
        """Whether all that was taken in has a position."""
        if isinstance(self.offsets, Once):
            return self.ended or all(r.items is None for r in self.readers)
        return not any(reader.in_step for reader in self.readers)

    def end_epoch(self) -> None:
        """End the epoch without a watermark of its own. The lock is held."""
        if not self.ended:
            for container in self.containers:
                self.cascade.cancel(container)
            self._open()

    def release(self) -> None:
        """Send on what waits to become a larger bundle. The lock is held."""
        for reader in self.readers:
            self._release(reader)

    def _splits(self, parallel: int) -> list[Split]:
        try:
            if self.saved.get("ended"):
                return []
            if self.offsets is not None and not isinstance(self.offsets, Once):
                at = self.saved.get("at") or {}
                at = {**at, **{n: p for n, p in self.offsets.initial().items() if n not in at}}
                now = self.only_now
                return [Followed(self.offsets.only(n), n, p, now) for n, p in at.items()]
            splits = self.source.splits(parallel)
            return [as_split(s).with_codes(self.coded) for s in splits] if self.coded else [*splits]
        except HeadraceError:
            raise
        except Exception as error:
            raise EngineError(f"{self.failed}: {type(error).__name__}: {error}") from error

    def _open(self) -> None:
        self.epoch += 1
        self.containers = [
            self.cascade.open(vertex, lane, self.epoch, self.promised)
            for vertex, lane in (*self.outputs, *self.late_outputs)
        ]
        self.since_cut = 0

    def _end(self) -> None:
        """Nothing more will be read: the watermark at infinity."""
        if not self.ended:
            self.ended = self.frontier.ended = True
            self.frontier.promised = FOREVER
            now = self.clock.now()
            for container in self.containers:
                self.cascade.assign(container, FOREVER, now)

    def stop(self) -> None:
        """Read no more; what is being read now still counts. The lock is held."""
        self.stopping = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        left = [r for r in self.readers if not r.done]
        # A thread that waits for an unbounded source is not waited for: what it may still get was
        # not taken in.
        busy = self.bounded and any(r.busy for r in left)
        if not self.ended and (not left or (self.stopping and not busy)):
            for reader in left:
                self._release(reader)
            self._end()

    def close(self) -> None:
        """Give back what the splits hold, where no thread reads them, and the source."""
        for reader in self.readers if self.bounded else ():
            if reader.items is not None and hasattr(reader.items, "close"):
                with contextlib.suppress(Exception):
                    reader.items.close()
        source = self.offsets or self.source
        if isinstance(source, OffsetSource):
            with contextlib.suppress(Exception):
                source.close()

    # Reading, by evaluators

    def next_reader(self, open_at_most: int) -> Reader | None:
        """A split to read from now, the one that was read least. The lock is held."""
        if self.ended or self.stopping or not self.bounded:
            return None
        if self.in_turn:
            first = next((r for r in self.readers if not r.done), None)
            return first if first is not None and not first.busy else None
        free = [r for r in self.readers if not r.done and not r.busy]
        if not free:
            return None
        if self.event is None:
            # Without event time order between splits is nothing to wait for: few at a time.
            begun = [r for r in self.readers if r.items is not None and not r.done]
            if len(begun) >= open_at_most:
                free = [r for r in free if r.items is not None]
            return free[0] if free else None
        return min(free, key=lambda r: r.records)

    def read_some(self, reader: Reader, most: int) -> list[Any]:
        """The next items of a split, at most so many; the lock is not held.

        An empty list means its end.
        """
        if reader.items is None:
            reader.items = self._opened(reader)
        until = time.perf_counter() + _READING
        items: list[Any] = []
        while len(items) < most and (not items or time.perf_counter() < until):
            item = self._next(reader.items)
            if item is _END:
                break
            items.append(self._prepared(reader, item))
            if not isinstance(items[-1], list):  # which may change what is late
                break
        return items

    def arriving(self, reader: Reader) -> None:
        """Something of a split is about to be looked at. The lock is held."""
        if self.event is not None:
            self._alive(reader)
            reader.is_arriving = True
            known = self.frontier.splits.get(reader.name, BEGINNING)
            reader.floor = max(reader.floor, known)
            reader.moment = self._now() if self.by_clock else None

    def _now(self) -> int:
        """The time of day in microseconds, which no record that was read comes after."""
        self.moment = max(self.moment, self.promised, int(self.time_of_day() * 1e6))
        return self.moment

    def _reached(self) -> int:
        """The watermark that the splits, or the clock, allow."""
        if not self.by_clock:
            return self.frontier.watermark()
        held = [r.moment for r in self.readers if r.moment is not None]
        held += [r.pending[0].moment for r in self.readers if r.pending]
        held += [self._first_waiting(r) for r in self.readers if r.waiting.rows]
        return min(held, default=self._now())

    def _first_waiting(self, reader: Reader) -> int:
        """The time of the first record that waits in a split's buffer."""
        assert self.event is not None
        first = next(each for each, *_ in reader.waiting.batches if each.num_rows)
        return int(first.column(self.event.column)[0].value)

    def _next(self, items: Iterator[Any]) -> Any:
        try:
            return next(items, _END)
        except HeadraceError:
            raise
        except Exception as error:
            raise EngineError(f"{self.failed}: {type(error).__name__}: {error}") from error

    def _prepared(self, reader: Reader, item: Any) -> Any:
        """Records as the steps before ``event_time`` leave them, or what else a split says."""
        if not isinstance(item, pa.RecordBatch):
            return item
        batch = normal_batch(item, self.wanted)
        batches = list(self.chain.bundles(batch)) if self.chain.runs else [batch]
        return [self.arrivals.take(reader, batch) for batch in batches if batch.num_rows]

    def accept(self, reader: Reader, items: list[Any]) -> None:
        """What ``read_some`` read. The lock is held."""
        reader.is_arriving, reader.moment = False, None
        if not items:
            self._release(reader)
            reader.done, reader.in_step = True, False
            assert self.frontier.live is not None
            self.frontier.live.remove(reader.name)
            self.frontier.idle = [n for n in self.frontier.idle if n != reader.name]
            self._advance()
            self._end_if_done()
            return
        for item in items:
            if isinstance(item, list):
                self._alive(reader)
                if self.buffer is None:
                    self._take(reader, item)
                else:
                    self._buffer(reader, item)
            elif isinstance(item, Watermark):
                self._alive(reader)
                if self._by_source:
                    self._release(reader)
                    self.frontier.reached(reader.name, item.micros)
                    self._advance(said=True)
                elif self.event is not None and not self.by_clock and not self.told_ignored:
                    self.told_ignored = True
                    self._note(
                        f"{self.name} sends watermarks, but event_time has a delay or punctuation "
                        "of its own, or the source does not say watermarks = True: they are ignored"
                    )
            elif isinstance(item, SetAside):
                self.bad += item.records
            elif isinstance(item, Reached):
                reader.position, reader.in_step = item.position, False
                self.cascade.changes += 1
            elif item is not None:
                raise StepError(f"{self.name} gave {item!r}, which is not a record batch")
        if self.stopping:
            self._end_if_done()

    def _alive(self, reader: Reader) -> None:
        self.activity.sent(reader.name, self.clock.now())
        if reader.name in self.frontier.idle:
            self.frontier.wake(reader.name)
            self._note(f"split {reader.number} of {self.name} sends again")

    @property
    def _by_source(self) -> bool:
        return self.event is not None and is_by_source(self.event)

    # Reading, by threads of their own

    def pump(
        self,
        reader: Reader,
        wait: Callable[[], bool],
        enter: Callable[[], bool],
        accepted: Callable[[], None],
    ) -> None:
        """Read a split of an unbounded source until the job stops.

        ``wait`` is for room; ``enter`` waits, with the lock held, until a step may begin. Both are
        false when the job is over.
        """
        reader.items = self._opened(reader)
        try:
            self._pump(reader, reader.items, wait, enter, accepted)
        finally:
            if hasattr(reader.items, "close"):
                reader.items.close()

    def _opened(self, reader: Reader) -> Iterator[Any]:
        try:
            return iter(self.splits[reader.number].read(list(self.chain.columns)))
        except Exception as error:
            raise EngineError(f"{self.failed}: {type(error).__name__}: {error}") from error

    def _pump(
        self,
        reader: Reader,
        items: Iterator[Any],
        wait: Callable[[], bool],
        enter: Callable[[], bool],
        accepted: Callable[[], None],
    ) -> None:
        while wait():
            if self._over(reader):
                break
            item = self._next(items)
            ended = item is _END
            if isinstance(item, pa.RecordBatch) and self.event is not None:
                with self.cascade.lock:
                    self.arriving(reader)
            item = None if ended else self._prepared(reader, item)
            with self.cascade.lock:
                begins = not reader.in_step and not ended
                begins = begins and item is not None and not isinstance(item, (Reached, UpToDate))
                if isinstance(item, UpToDate):
                    reader.is_up_to_date = True
                    break
                if (begins or ended) and not enter():
                    break
                if self._over(reader):  # read, but not yet taken in: neither counted nor processed
                    break
                reader.in_step = reader.in_step or begins
                if isinstance(item, list):
                    self._gather(reader, item)
                elif isinstance(item, Reached):
                    self.accept(reader, [item])
                else:
                    if self.buffer is None:
                        self._release(reader)
                    if not ended:
                        self.accept(reader, [item])
                if ended:
                    self.accept(reader, [])
            accepted()
            if ended:
                return
            if item is None:
                threading.Event().wait(0.001)
        accepted()

    def _over(self, reader: Reader) -> bool:
        return self.stopping or self.ended or (self.holding and not reader.in_step)

    def _gather(self, reader: Reader, arrived: list[Arrived]) -> None:
        now = self.clock.now()
        self._alive(reader)
        reader.is_arriving, reader.moment = False, None
        if self.buffer is not None:
            self._buffer(reader, arrived)
            return
        if not reader.pending:
            reader.waiting_since = now
        reader.pending.extend(arrived)
        # What is large enough goes on at once; only small batches wait to be put together.
        rows = sum(each.records for each in reader.pending)
        if rows >= min(LEAST, self.pace.rows()) or now - reader.waiting_since >= self.flush:
            self._release(reader)

    def _release(self, reader: Reader) -> None:
        if reader.pending:
            pending, reader.pending = reader.pending, []
            self._take(reader, pending)
        while reader.waiting.batches:
            self._send(reader)

    def _buffer(self, reader: Reader, arrived: list[Arrived]) -> None:
        """Have records wait until the policy says so, and watermarks with those they come of.

        One that the input itself says does not wait: it sends on what is before it.
        """
        assert self.buffer is not None
        reader.is_arriving = False
        now, said = self.clock.now(), self.arrivals.punctuation is not None
        for each in arrived:
            self._count(reader, each)
            for batch, watermark in each.parts:
                nbytes = int(each.width * batch.num_rows)
                reader.waiting.add(batch, nbytes, now, watermark)
                self.cascade.bytes += nbytes
                if said and watermark is not None:
                    self._release(reader)
        while reader.waiting.rows >= self.buffer.size:
            self._send(reader)

    def _send(self, reader: Reader) -> None:
        """As many records as a buffer holds, or all there are, and the watermark they bring."""
        assert self.buffer is not None
        parts, nbytes, watermarks = reader.waiting.take(self.buffer.size)
        self.cascade.bytes -= nbytes
        if parts:
            self._put(reader, parts, sum(part.num_rows for part in parts), nbytes)
        reached = [watermark for watermark in watermarks if watermark is not None]
        if reached:
            self.frontier.reached(reader.name, reached[-1])
            self._advance(said=self.arrivals.punctuation is not None)

    def tick(self) -> None:
        """Now and then: send on what has waited long enough, look for idle splits. Lock held."""
        if self.ended:
            return
        now = self.clock.now()
        for reader in self.readers:
            if reader.pending and now - reader.waiting_since >= self.flush:
                self._release(reader)
        for reader in self.readers:
            waits = reader.pending or reader.is_arriving
            quiet = not waits and self.activity.is_quiet(reader.name, now)
            if quiet and not reader.done and reader.name not in self.frontier.idle:
                self._release(reader)
                self.frontier.idle.append(reader.name)
                self._note(
                    f"split {reader.number} of {self.name} has been silent for "
                    f"{show_duration(self.activity.idle or 0)}: it no longer holds back the "
                    "watermark"
                )
                self._advance(said=True)
        if self.event is not None and self.event.follows_clock and self.is_idle:
            self.frontier.silent = self.activity.silence(self.frontier.live or (), now)
            self._promise(self.frontier.watermark(), said=False)
            self.frontier.silent = 0
        if self.has_room or not self.by_clock:  # what cannot be read now counts as it is read
            self._advance()
        self.has_room = True

    def send_overdue(self) -> None:
        """Send on what has waited for as long as the policy lets it. The lock is held."""
        if self.ended or self.buffer is None or self.buffer.timeout is None:
            return
        before = self.clock.now() - self.buffer.timeout / 1e6
        for reader in self.readers:
            if reader.waiting.batches and reader.waiting.since <= before:
                self._release(reader)

    def waits_for_room(self) -> None:
        """Nothing is read just now for want of room, which is not silence. The lock is held."""
        self.activity.pause(self.clock.now())
        self.has_room = False

    @property
    def promised(self) -> int:
        """The watermark of the last epoch."""
        return self.frontier.promised

    @property
    def is_idle(self) -> bool:
        """Whether all splits that have not ended are silent."""
        return self.frontier.is_idle

    @property
    def idle(self) -> tuple[int, ...]:
        """The splits that are silent."""
        idle = set(self.frontier.idle)
        return tuple(reader.number for reader in self.readers if reader.name in idle)

    @property
    def waits(self) -> str:
        """What the watermark waits for."""
        if self.event is None or self.by_clock or self.ended:
            return ""
        frontier, event = self.frontier, self.event
        left = {split: frontier.splits.get(split, BEGINNING) for split in frontier.live or ()}
        idle = set(frontier.idle)
        return waiting_for(self.promised, left, idle, event.idle, event.follows_clock)

    def _note(self, text: str) -> None:
        self.notes = [*self.notes[-99:], text]
        log.warning(text)

    # Records in, epochs cut

    def _take(self, reader: Reader, arrived: list[Arrived]) -> None:
        """Deposit records, and go by the watermarks they bring."""
        reader.is_arriving = False
        rows = self.pace.rows()
        waiting: list[pa.RecordBatch] = []
        reached: int | None = None
        for each in arrived:
            self._count(reader, each)
            for batch, watermark in each.parts:
                waiting.append(batch)
                reached = reached if watermark is None else watermark
                if watermark is not None and self.arrivals.punctuation is not None:
                    self._deposit(reader, waiting, rows)
                    waiting = []
                    self.frontier.reached(reader.name, watermark)
                    self._advance(said=True)
        self._deposit(reader, waiting, rows)
        if reached is not None and self.arrivals.punctuation is None:
            self.frontier.reached(reader.name, reached)
            self._advance()

    def _count(self, reader: Reader, arrived: Arrived) -> None:
        """Count what has come, and set aside what is not on time."""
        self.width = arrived.width
        self.records += arrived.records
        reader.records += arrived.records
        if arrived.ahead is not None:
            self._keep_ahead(arrived.ahead)
        for late in arrived.late:
            self._keep_late(late)

    def _deposit(self, reader: Reader, batches: list[pa.RecordBatch], rows: int) -> None:
        """Records as bundles of the current epoch, of about the same size."""
        batches = [batch for batch in batches if batch.num_rows]
        if len(batches) > 1 and min(b.num_rows for b in batches) < min(LEAST, rows):
            batches = [pa.concat_batches(batches)]
        for batch in batches:
            size = -(-batch.num_rows // max(1, round(batch.num_rows / rows)))
            nbytes = int(self.width * size)
            for start in range(0, batch.num_rows, size):
                piece = batch.slice(start, size)
                self._put(reader, [piece], piece.num_rows, nbytes)

    def _put(self, reader: Reader, parts: list[pa.RecordBatch], rows: int, nbytes: int) -> None:
        """A bundle of the current epoch."""
        order = (input_number(self.number, reader.number), reader.sequence)
        reader.sequence += 1
        self.since_cut += rows
        for container in self.containers[: len(self.outputs)]:
            if len(parts) == 1:
                bundle = Bundle(parts[0], order, self.epoch, nbytes)
            else:
                bundle = Gathered(parts, order, self.epoch, nbytes)
            self.cascade.deposit(container, bundle)

    def _keep_ahead(self, aside: pa.RecordBatch) -> None:
        assert self.event is not None
        if not self.ahead:
            times = times_of(self.event, aside)
            self._note(
                f"{self.name}: a record of {show_time(int(times[0]))} is {aside.columns[-1][0]}; "
                "it does not move the watermark; such records go to .late, and are counted"
            )
        self.ahead += aside.num_rows
        self._set_aside(aside)

    def _keep_late(self, late: pa.RecordBatch) -> None:
        assert self.event is not None
        if self.late == self.ahead:
            moment, watermark = first_late(self.event, late)
            self._note(
                f"{self.name}: a record of {show_time(moment)} came after the watermark "
                f"{show_time(watermark)}; late records go to .late, and are counted"
            )
        self._set_aside(late)

    def _set_aside(self, told: pa.RecordBatch) -> None:
        self.late += told.num_rows
        self.kept_late.append(told)
        self.kept_rows += told.num_rows
        while self.kept_rows > _KEPT_LATE and len(self.kept_late) > 1:
            self.kept_rows -= self.kept_late.popleft().num_rows
        for container in self.containers[len(self.outputs) :]:
            self.cascade.deposit(container, Bundle(told, (self.late,), self.epoch))

    def _advance(self, said: bool = False) -> None:
        """The splits' watermarks may have moved; ``said`` where the input itself said so."""
        if self.event is not None and self.frontier.live:
            self._promise(self._reached(), said)

    def catch_up(self) -> bool:
        """Promise all that the splits have reached; whether that was news. The lock is held."""
        before = self.promised
        if not self.by_clock:  # which would have news every time
            self._advance(said=True)
        return self.promised > before

    def follow(self, watermark: int) -> None:
        """While idle, keep up with the other sources, so that what joins them is not held back."""
        if not self.ended and self.is_idle:
            self._promise(watermark, said=True)

    def _promise(self, watermark: int, said: bool) -> None:
        if watermark <= self.promised or not (said or self._is_worth(watermark)):
            return
        self.frontier.promised = watermark
        self._cut(watermark)

    def _cut(self, watermark: int) -> None:
        now = self.clock.now()
        for container in self.containers:
            self.cascade.assign(container, watermark, now)
        self.cut_at = now
        self._open()

    def _is_worth(self, watermark: int) -> bool:
        """Whether to cut an epoch here: something downstream may close, or it has been long."""
        for window in self.grains:
            if self.promised == BEGINNING:
                return True
            if window.pane_at(watermark) > window.pane_at(self.promised):
                return True
        if self.every_watermark:
            return self.since_cut >= MOST or self.clock.now() - self.cut_at >= self.flush
        return not self.grains and self.since_cut >= 16 * MOST


_END = object()
