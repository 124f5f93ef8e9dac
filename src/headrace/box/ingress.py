"""Ingress: a source's records become bundles, and its watermarks cut epochs (StreamBox §2, §8)."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.box.arrival import Arrivals, Arrived, Reader
from headrace.box.cascade import Cascade
from headrace.box.clock import Clock
from headrace.box.epochs import Epochs
from headrace.box.late import LateRecords
from headrace.box.pace import LEAST, Pace
from headrace.box.promises import Promises
from headrace.box.splits import END, Splits
from headrace.buffers import Buffer
from headrace.errors import StepError
from headrace.io.offsets import Followed, OffsetSource, Reached
from headrace.io.source import SetAside, Watermark
from headrace.kernels.lateness import SplitWatermark
from headrace.operators.stores import input_number
from headrace.plan.sources import Read
from headrace.plan.time import EventTime

_READING = 0.002
"""Seconds after which what was read is handed over, if there is something."""
log = logging.getLogger("headrace")


class Ingress:
    """Reads a source and deposits what it reads in the containers of the current epoch.

    Splits of bounded input are read by evaluators, those of other input by threads of their own.
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
        self.event = node if isinstance(node, EventTime) else None
        self.splits, self.zone = Splits(node, columns, zone), zone
        self.name = self.splits.name
        self.cascade, self.pace, self.clock, self.flush = cascade, pace, clock, flush
        self.epochs = Epochs(cascade, clock, flush)
        self.promises = Promises(self.name, self.event, self.epochs, clock, self._note)
        self.late = LateRecords(self.name, self.epochs, self._note)
        wall: Callable[[], float] = getattr(clock, "wall", time.time)
        wall = self.promises.time_of_day if self.promises.by_clock else wall
        self.arrivals = Arrivals(self.event, self.splits.schema, zone, wall)
        self.readers: list[Reader] = []
        self.followed: list[OffsetSource] = []
        self.number = self.turn = 0
        """The last: of input that ends, what is to be read before what."""
        self.buffer: Buffer | None = None
        """When records are sent on; None where that adapts."""
        self.in_turn = False
        """Whether splits of bounded input are read one after the other."""
        self.width = 0.0
        """Bytes of a record, about."""
        self.records = self.bad = 0
        self.told_ignored = False
        self.notes: list[str] = []
        self.ended = False
        self.stopping = False
        self.holding = False
        """Whether to stop where steps end, and leave windows open."""

    @property
    def bounded(self) -> bool:
        """Whether it is read by evaluators, to its end."""
        return self.splits.bounded

    @property
    def is_away(self) -> bool:
        """Whether its server cannot be reached."""
        return any(source.is_away for source in self.followed)

    # Beginning and end

    def start(self, workers: int) -> None:
        """Find the splits and open the first epoch. The lock is held."""
        splits, saved = self.splits.find(workers), self.splits.saved
        self.readers = [Reader(i, str(i)) for i in range(len(splits))]
        self.followed = [split.source for split in splits if isinstance(split, Followed)]
        for reader, split in zip(self.readers, splits, strict=True):
            if self.splits.offsets is not None and isinstance(split, Followed):
                reader.name, reader.position = split.name, split.start
                reader.sequence = saved.get("sequence", {}).get(split.name, 0)
        if self.event is not None and self.event.is_never_late and self.epochs.last_watermark:
            for reader in self.readers:
                reader.last = SplitWatermark(self.event, self.zone)
        self.promises.begin(self.readers, saved)
        if not splits:
            self._end()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it. The lock is held, and nothing is being read."""
        at = {reader.name: reader.position for reader in self.readers}
        if self.splits.is_read_once:
            at = {"all": int(self.ended)}
        elif self.ended:
            at = {**self.splits.saved.get("at", {}), **at}
        state = {
            "at": at, "frontier": self.promises.frontier.saved(), "ended": self.ended,
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
        if self.splits.is_read_once:
            return self.ended or all(r.items is None for r in self.readers)
        return not any(reader.in_step for reader in self.readers)

    def end_epoch(self) -> None:
        """End the epoch without a watermark of its own. The lock is held."""
        if not self.ended:
            self.epochs.cancel(self.promises.promised)

    def release(self) -> None:
        """Send on what waits to become a larger bundle. The lock is held."""
        for reader in self.readers:
            self.send_on(reader)

    def _end(self) -> None:
        """Nothing more will be read: the watermark at infinity."""
        if not self.ended:
            self.ended = True
            for reader in self.readers:
                if reader.last is not None:
                    self.promises.frontier.reached(reader.name, reader.last.reached)
            self.promises.end()

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
                self.send_on(reader)
            self._end()

    def close(self) -> None:
        """Give back what the splits hold, where no thread reads them, and the source."""
        for reader in self.readers if self.bounded else ():
            if reader.items is not None and hasattr(reader.items, "close"):
                with contextlib.suppress(Exception):
                    reader.items.close()
        self.splits.close()

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
        if self.event is None or self.event.is_never_late:
            # No watermark waits for the slowest split: open few at a time.
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
            reader.items = self.splits.open(reader.number)
        until = time.thread_time() + _READING
        items: list[Any] = []
        while len(items) < most and (not items or time.thread_time() < until):
            item = self.splits.next(reader.items)
            if item is END:
                break
            items.append(self.arrived(reader, item))
            if not isinstance(items[-1], list):  # which may change what is late
                break
        return items

    def arrived(self, reader: Reader, item: Any) -> Any:
        """Records, and what they bring, or what else a split says; the lock is not held."""
        if not isinstance(item, pa.RecordBatch):
            return item
        return [self.arrivals.take(reader, batch) for batch in self.splits.batches(item)]

    def accept(self, reader: Reader, items: list[Any]) -> None:
        """What ``read_some`` read. The lock is held."""
        reader.is_arriving, reader.moment = False, None
        if not items:
            self.send_on(reader)
            reader.done, reader.in_step = True, False
            self.promises.done(reader)
            self._end_if_done()
            return
        for item in items:
            if isinstance(item, list):
                self.promises.alive(reader)
                if self.buffer is None:
                    self._take(reader, item)
                else:
                    self._buffer(reader, item)
            elif isinstance(item, Watermark):
                self.promises.alive(reader)
                if self._by_source:
                    self.send_on(reader)
                    self.promises.reached(reader, item.micros, said=True)
                else:
                    self._tell_ignored()
            elif isinstance(item, SetAside):
                self.bad += item.records
            elif isinstance(item, Reached):
                reader.position, reader.in_step = item.position, False
                self.cascade.changes += 1
            elif item is not None:
                raise StepError(f"{self.name} gave {item!r}, which is not a record batch")
        if self.stopping:
            self._end_if_done()

    def _tell_ignored(self) -> None:
        if self.event is not None and not self.promises.by_clock and not self.told_ignored:
            self.told_ignored = True
            self._note(
                f"{self.name} sends watermarks, but event_time has a delay or punctuation of its "
                "own, or the source does not say watermarks = True: they are ignored"
            )

    @property
    def _by_source(self) -> bool:
        return self.event is not None and self.event.is_by_source

    # Reading, by threads of their own: see ``pump.py``

    def is_over(self, reader: Reader) -> bool:
        """Whether no more is taken in of a split."""
        return self.stopping or self.ended or (self.holding and not reader.in_step)

    def gather(self, reader: Reader, arrived: list[Arrived]) -> None:
        """Take in what a thread has read, once there is enough of it. The lock is held."""
        now = self.clock.now()
        self.promises.alive(reader)
        reader.is_arriving, reader.moment = False, None
        if self.buffer is not None:
            self._buffer(reader, arrived)
            return
        if not reader.pending:
            reader.waiting_since = now
        reader.pending.extend(arrived)
        is_overdue = now - reader.waiting_since >= self.flush
        if is_overdue or self._rows_waiting(reader) >= self._enough():
            self.send_on(reader)

    @staticmethod
    def _rows_waiting(reader: Reader) -> int:
        return sum(each.records for each in reader.pending)

    def _enough(self) -> int:
        """The records that need not wait for more of them.

        Few, for only small batches are worth putting together; but where all evaluators have
        something to do, a whole bundle, which takes them less time than many small ones.
        """
        rows = self._bundle_rows()
        return rows if self.cascade.unclaimed >= self.pace.workers else min(LEAST, rows)

    def _bundle_rows(self) -> int:
        return self.pace.rows(self.epochs.usual, bounded=self.bounded)

    def hand_over(self) -> None:
        """An evaluator has nothing to do: what waited for more need not. The lock is held."""
        for reader in self.readers:
            if reader.pending and self._rows_waiting(reader) >= min(LEAST, self._bundle_rows()):
                self.send_on(reader)

    def send_on(self, reader: Reader) -> None:
        """Send on what waits of a split. The lock is held."""
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
                    self.send_on(reader)
        while reader.waiting.rows >= self.buffer.size:
            self._send(reader)

    def _send(self, reader: Reader) -> None:
        """As many records as a buffer holds, or all there are, and the watermark they bring."""
        assert self.buffer is not None
        parts, nbytes, watermarks = reader.waiting.take(self.buffer.size)
        self.cascade.bytes -= nbytes
        if parts:
            self._put(reader, parts, nbytes)
        reached = [watermark for watermark in watermarks if watermark is not None]
        if reached:
            said = self.arrivals.punctuation is not None
            self.promises.reached(reader, reached[-1], said=said)

    def tick(self) -> None:
        """Send on what has waited long enough, and look for idle splits. The lock is held."""
        if self.ended:
            return
        now = self.clock.now()
        for reader in self.readers:
            if reader.pending and now - reader.waiting_since >= self.flush:
                self.send_on(reader)
        for reader in self.readers:
            if self.promises.is_silent(reader, now):
                self.send_on(reader)
                self.promises.leave_out(reader)
        self.promises.tick(now)

    def send_overdue(self) -> None:
        """Send on what has waited for as long as the policy lets it. The lock is held."""
        if self.ended or self.buffer is None or self.buffer.timeout is None:
            return
        before = self.clock.now() - self.buffer.timeout / 1e6
        for reader in self.readers:
            if reader.waiting.batches and reader.waiting.since <= before:
                self.send_on(reader)

    def _note(self, text: str) -> None:
        self.notes = [*self.notes[-99:], text]
        log.warning(text)

    # Records in, epochs cut

    def _take(self, reader: Reader, arrived: list[Arrived]) -> None:
        """Deposit records, and go by the watermarks they bring."""
        reader.is_arriving = False
        rows = self._bundle_rows()
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
                    self.promises.reached(reader, watermark, said=True)
        self._deposit(reader, waiting, rows)
        if reached is not None and self.arrivals.punctuation is None:
            self.promises.reached(reader, reached)

    def _count(self, reader: Reader, arrived: Arrived) -> None:
        """Count what has come, and set aside what is not on time."""
        self.width = arrived.width
        self.records += arrived.records
        reader.records += arrived.records
        if self.event is not None:
            if arrived.ahead is not None:
                self.late.take_ahead(self.event, arrived.ahead)
            for late in arrived.late:
                self.late.take_late(self.event, late)

    def _deposit(self, reader: Reader, batches: list[pa.RecordBatch], rows: int) -> None:
        """Records as bundles of the current epoch, of about the same size."""
        batches = [batch for batch in batches if batch.num_rows]
        if len(batches) > 1 and min(b.num_rows for b in batches) < min(LEAST, rows):
            batches = [pa.concat_batches(batches)]
        for batch in _put_together(batches, rows):
            size = -(-batch.num_rows // max(1, round(batch.num_rows / rows)))
            nbytes = int(self.width * size)
            for start in range(0, batch.num_rows, size):
                self._put(reader, [batch.slice(start, size)], nbytes)

    def _put(self, reader: Reader, parts: list[pa.RecordBatch], nbytes: int) -> None:
        """A bundle of the current epoch."""
        order = (input_number(self.number, reader.number), reader.sequence)
        reader.sequence += 1
        self.epochs.put(parts, order, nbytes)


def _put_together(batches: list[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Batches as larger ones, of no more than so many records where they have fewer."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        if group and sum(each.num_rows for each in group) + batch.num_rows > rows:
            yield pa.concat_batches(group) if len(group) > 1 else group[0]
            group = []
        group.append(batch)
    if group:
        yield pa.concat_batches(group) if len(group) > 1 else group[0]
