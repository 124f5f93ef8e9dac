"""The watermark of a source: what its splits, or the clock, allow it to promise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.box.arrival import Reader
from headrace.box.clock import Clock
from headrace.box.epochs import Epochs
from headrace.plan.time import EventTime
from headrace.watermarks import Activity, SourceFrontier, least_awake, waiting_for
from headrace.windows import BEGINNING, FOREVER, show_duration


class Promises:
    """What a source has promised, and when it promises more. The lock is held.

    The watermark is the least over the splits that have not ended and are not idle, or where
    records happen when they are read, the time of day. A new one may cut the epoch.
    """

    def __init__(
        self,
        source: str,
        event: EventTime | None,
        epochs: Epochs,
        clock: Clock,
        note: Callable[[str], None],
    ) -> None:
        self.source, self.event, self.epochs = source, event, epochs
        self.clock, self.note = clock, note
        self.readers: list[Reader] = []
        self.frontier = SourceFrontier()
        self.activity = Activity(None if event is None else event.idle)
        self.by_clock = event is not None and event.by_clock
        self.time_of_day: Callable[[], float] = getattr(clock, "time_of_day", time.time)
        """What processing time goes by."""
        self.moment = BEGINNING
        """The time of day when it was last asked for; it does not go back."""
        self.has_room = True

    def begin(self, readers: list[Reader], saved: Mapping[str, Any]) -> None:
        """Its splits are known; ``saved`` is what a checkpoint kept of it."""
        now = self.clock.now()
        self.readers = readers
        if "frontier" in saved:
            self.frontier = SourceFrontier(**saved["frontier"])
        self.frontier.live = [reader.name for reader in readers]
        self.frontier.ended = False
        for reader in readers:
            self.activity.found(reader.name, now)
        self.epochs.cut_at = now
        self.epochs.open(self.promised)
        if self.promised > BEGINNING and readers:  # once more, so that all steps know it
            self.epochs.cut(self.promised)
            if self.by_clock:
                self.advance(said=True)

    def end(self) -> None:
        """Nothing more will be read: the last watermark, if timers wait for it, and the end."""
        frontier = self.frontier
        before = BEGINNING if frontier.promised == FOREVER else frontier.promised
        if frontier.promised < FOREVER:  # else it has ended before the job was started again
            frontier.last = frontier.final()
        if self.event is not None and self.epochs.last_watermark and frontier.last > before:
            self.epochs.cut(frontier.last)
        frontier.ended = True
        frontier.promised = FOREVER
        self.epochs.end()

    @property
    def promised(self) -> int:
        """The watermark of the last epoch."""
        return self.frontier.promised

    # What splits bring

    def arriving(self, reader: Reader) -> None:
        """Something of a split is about to be looked at."""
        if self.event is not None:
            self.alive(reader)
            reader.is_arriving = True
            known = self.frontier.splits.get(reader.name, BEGINNING)
            reader.floor = max(reader.floor, known)
            reader.moment = self._now() if self.by_clock else None

    def alive(self, reader: Reader) -> None:
        """A split has sent something."""
        self.activity.sent(reader.name, self.clock.now())
        if reader.name in self.frontier.idle:
            self.frontier.wake(reader.name)
            self.note(f"split {reader.number} of {self.source} sends again")

    def reached(self, reader: Reader, watermark: int, *, said: bool = False) -> None:
        """A split's own watermark has moved on."""
        self.frontier.reached(reader.name, watermark)
        self.advance(said)

    def done(self, reader: Reader) -> None:
        """A split has ended."""
        assert self.frontier.live is not None
        self.frontier.live.remove(reader.name)
        self.frontier.idle = [n for n in self.frontier.idle if n != reader.name]
        self.advance()

    # Silence and the clock

    def is_silent(self, reader: Reader, now: float) -> bool:
        """Whether a split has just been silent for too long."""
        if reader.pending or reader.is_arriving or not self.activity.is_quiet(reader.name, now):
            return False
        return not reader.done and reader.name not in self.frontier.idle

    def leave_out(self, reader: Reader) -> None:
        """A silent split does not hold the watermark back."""
        self.frontier.idle.append(reader.name)
        self.note(
            f"split {reader.number} of {self.source} has been silent for "
            f"{show_duration(self.activity.idle or 0)}: it no longer holds back the watermark"
        )
        self.advance(said=True)

    def tick(self, now: float) -> None:
        """Time goes on."""
        if self.event is not None and self.event.follows_clock and self.is_idle:
            self.frontier.silent = self.activity.silence(self.frontier.live or (), now)
            self._promise(self.frontier.watermark(), said=False)
            self.frontier.silent = 0
        if self.has_room or not self.by_clock:  # what cannot be read now counts as it is read
            self.advance()
        self.has_room = True

    def waits_for_room(self) -> None:
        """Nothing is read just now for want of room, which is not silence."""
        self.activity.pause(self.clock.now())
        self.has_room = False

    @property
    def is_idle(self) -> bool:
        """Whether all splits that have not ended are silent."""
        return self.frontier.is_idle

    @property
    def idle(self) -> tuple[int, ...]:
        """The splits that are silent."""
        idle = set(self.frontier.idle)
        return tuple(reader.number for reader in self.readers if reader.name in idle)

    def waits(self, others: Iterable[Promises]) -> str:
        """What the watermark waits for, in a job that has some other sources."""
        event = self.event
        if event is None or self.by_clock:
            return ""
        others_awake = least_awake(o.frontier for o in others if not o.by_clock) is not None
        return waiting_for(
            self.frontier, self.activity, self.clock.now(),
            follows=event.follows_clock, is_alone=not others_awake,
        )  # fmt: skip

    # Promising

    def advance(self, said: bool = False) -> None:
        """The splits' watermarks may have moved; ``said`` where the input itself said so."""
        if self.event is not None and self.frontier.live:
            self._promise(self._allowed(), said)

    def catch_up(self) -> bool:
        """Promise all that the splits have reached; whether that was news."""
        before = self.promised
        if not self.by_clock:  # which would have news every time
            self.advance(said=True)
        return self.promised > before

    def follow(self, watermark: int) -> None:
        """While idle, keep up with the other sources, so that what joins them is not held back."""
        if self.is_idle:
            self._promise(watermark, said=True)

    def _promise(self, watermark: int, said: bool) -> None:
        before = self.promised
        if watermark > before and (said or self.epochs.is_worth(before, watermark)):
            self.frontier.promised = watermark
            self.epochs.cut(watermark)

    def _allowed(self) -> int:
        """The watermark that the splits, or the clock, allow."""
        if not self.by_clock:
            return self.frontier.watermark()
        held = [r.moment for r in self.readers if r.moment is not None]
        held += [r.pending[0].moment for r in self.readers if r.pending]
        held += [self._first_waiting(r) for r in self.readers if r.waiting.rows]
        return min(held, default=self._now())

    def _now(self) -> int:
        """The time of day in microseconds, which no record that was read comes after."""
        self.moment = max(self.moment, self.promised, int(self.time_of_day() * 1e6))
        return self.moment

    def _first_waiting(self, reader: Reader) -> int:
        """The time of the first record that waits in a split's buffer."""
        assert self.event is not None
        first = next(each for each, *_ in reader.waiting.batches if each.num_rows)
        return int(first.column(self.event.column)[0].value)
