"""Records as they arrive from a split: which are on time, and which watermark they bring.

It is done by whoever reads the split, without the lock of the cascade, for it takes as long as it
takes to look at every record's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.box.buffering import Waiting
from headrace.box.bundle import bytes_of
from headrace.kernels.lateness import SplitWatermark, ahead_of, punctuation_of, sorted_out, stamped
from headrace.plan.time import EventTime
from headrace.windows import BEGINNING, FOREVER


@dataclass(slots=True)
class Arrived:
    """Some records of a split in order, as far as they are on time."""

    records: int
    width: float = 0.0
    """Bytes of a record, about."""
    parts: list[tuple[pa.RecordBatch, int | None]] = field(default_factory=list)
    """Records, and the watermark that the split has reached with them, if they say one."""
    late: list[pa.RecordBatch] = field(default_factory=list)
    ahead: pa.RecordBatch | None = None
    """Those whose time cannot be right."""
    moment: int = FOREVER
    """When they were read, where that is their time."""


@dataclass
class Reader:
    """One split on its way in."""

    number: int
    name: str
    items: Iterator[Any] | None = None
    busy: bool = False
    done: bool = False
    sequence: int = 0
    floor: int = BEGINNING
    """Below this a record is late."""
    newest: int = BEGINNING
    """The latest event time seen."""
    records: int = 0
    pending: list[Arrived] = field(default_factory=list)
    waiting_since: float = 0.0
    waiting: Waiting = field(default_factory=Waiting)
    """What has come, where a buffering policy says when it is sent on; labelled with the watermark
    that each batch brings."""
    position: Any = None
    """Up to where all has been taken in."""
    in_step: bool = False
    """Whether more than that has been, which only the end of the step gives a position."""
    is_up_to_date: bool = False
    """Whether all has come that was to be read."""
    is_arriving: bool = False
    """Whether records have come that are not taken in yet: it is not silent."""
    last: SplitWatermark | None = None
    """The last watermark before the end, where no record is late and timers fire up to it."""
    moment: int | None = None
    """Before which none of those was read, where that is their time: the watermark waits."""


class Arrivals:
    """Tells records that are on time from those that are not, by their split's own watermark."""

    def __init__(
        self, event: EventTime | None, schema: pa.Schema, zone: str, wall: Callable[[], float]
    ) -> None:
        self.event, self.wall = event, wall
        self.punctuation = None if event is None else punctuation_of(event, schema, zone)

    def take(self, reader: Reader, batch: pa.RecordBatch) -> Arrived:
        """Look at the times of a batch."""
        arrived = Arrived(batch.num_rows, bytes_of(batch) / max(1, batch.num_rows))
        event = self.event
        if event is None or event.is_never_late:
            if reader.last is not None:
                reader.last.observe(batch)
            arrived.parts.append((batch, None))
            return arrived
        if event.by_clock:
            assert reader.moment is not None
            reader.newest = max(reader.newest, reader.moment, int(self.wall() * 1e6))
            arrived.moment = reader.newest
            arrived.parts.append((stamped(event, batch, reader.newest), reader.newest))
            return arrived
        now = self.wall()
        batch, arrived.ahead = ahead_of(event, batch, now)
        if not batch.num_rows:
            return arrived
        if self.punctuation is not None:
            furthest = FOREVER if event.ahead is None else int(now * 1e6) + event.ahead
            start = 0
            for row, announced in self.punctuation(batch):
                if announced > furthest:
                    continue
                part, _ = self.on_time(reader, batch.slice(start, row + 1 - start), arrived)
                arrived.parts.append((part, announced))
                reader.floor = max(reader.floor, announced)
                start = row + 1
            arrived.parts.append((self.on_time(reader, batch.slice(start), arrived)[0], None))
            return arrived
        part, latest = self.on_time(reader, batch, arrived)
        if event.delay is None:
            arrived.parts.append((part, None))
            return arrived
        reader.newest = max(reader.newest, latest)
        reader.floor = max(reader.floor, reader.newest - event.delay)
        arrived.parts.append((part, reader.newest - event.delay))
        return arrived

    def on_time(
        self, reader: Reader, batch: pa.RecordBatch, arrived: Arrived
    ) -> tuple[pa.RecordBatch, int]:
        """The records at or above their split's watermark, and the latest time of all; those below
        it are late."""
        assert self.event is not None
        batch, late, latest = sorted_out(self.event, batch, reader.floor, reader.newest)
        if late is not None:
            arrived.late.append(late)
        return batch, latest
