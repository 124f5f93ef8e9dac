"""What evaluators do next, and how much may be under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.box.arrival import Reader
from headrace.box.desk import Seat
from headrace.box.evaluator import BundleWork, ReadWork, WatermarkWork, Work
from headrace.box.ingress import Ingress

if TYPE_CHECKING:
    from headrace.box.run import Run

_MOST_EPOCHS = 64
"""Epochs of one input of a transform that may wait; beyond that nothing more is read."""
_FEW_EPOCHS = 4
"""The same while there is enough else to do."""


class Dispatch:
    """Gives work to the evaluators of a run, and has readers wait for room."""

    def __init__(self, run: Run, most_bundles: int) -> None:
        self.run, self.cascade, self.scheduler = run, run.cascade, run.scheduler
        self.most_bundles = most_bundles
        """That may be in flight."""
        self.lanes = [lane for vertex in run.cascade.vertices for lane in vertex.lanes]
        self.idle: list[Seat] = []
        """The evaluators that wait for work."""
        self.active = 0
        """Those that have some."""
        self.blocked = 0
        """The readers that wait for room, or for a checkpoint."""

    # Evaluators

    def serve(self) -> None:
        """Take what evaluators handed in, and give work to those that wait. The lock is held."""
        try:
            while self.cascade.lock.handed_in:
                self._take_back(self.cascade.lock.handed_in.popleft())
            while self.idle and not self.run.over:
                before = self.cascade.changes
                work = self.next_work()
                if work is not None:
                    self.active += 1
                    self._give(self.idle.pop(), work)
                elif self.cascade.changes == before:
                    break
        except BaseException as error:
            self.run.fail(error)
        if self.run.over:
            while self.idle:
                self._give(self.idle.pop(), None)

    def _take_back(self, seat: Seat) -> None:
        work, error = seat.given, seat.error
        seat.given = seat.error = None
        self.idle.append(seat)
        if work is None:  # it comes for the first time
            return
        self.active -= 1
        if error is not None:
            self.run.fail(error)
        elif not self.run.over:
            work.complete()
            if self.blocked and self.has_room():
                self.cascade.room.notify_all()

    @staticmethod
    def _give(seat: Seat, work: Work | None) -> None:
        seat.given = work
        seat.ready.release()

    def next_work(self) -> Work | None:
        """What an evaluator does next: watermark tasks, then what the scheduler picks, then
        reading. The lock is held."""
        if self.run.urgent:
            return self.run.urgent.popleft()
        cutting = self.run.cutting
        if cutting is not None and cutting.is_flushing:
            return None
        picked = self.scheduler.pick(self.cascade)
        if picked is not None:
            container, watermark = picked
            if watermark:
                container = self.cascade.latest_due(container)
                return WatermarkWork(self.run, container, self.cascade.retrieve(container))
            return BundleWork(self.run, container, self.cascade.claim(container))
        if cutting is not None and cutting.is_on:
            work = cutting.flush()
            if work is not None or cutting.is_flushing:
                return work
        else:
            for ingress in self.run.ingresses:
                ingress.hand_over()
        return self._reading() if self._may_read_on() or self.active == 0 else None

    def _may_read_on(self) -> bool:
        """Whether an evaluator may read more of what is bounded, which does not press.

        Not where windows wait to be closed while there is enough to do: what is read would only
        fill the tables of more windows.
        """
        if not self.has_room():
            return False
        if self.cascade.in_flight < 2 * self.run.workers:
            return True
        return all(len(lane) < _FEW_EPOCHS for lane in self.lanes)

    def _reading(self) -> ReadWork | None:
        """The next step of a bounded source: of a join's table before what is looked up in it,
        else of the one furthest behind, so that a join holds little."""
        cutting = self.run.cutting
        for ingress in sorted(self.run.ingresses, key=_behind):
            reader = ingress.next_reader(self.run.workers)
            if cutting is not None and cutting.is_on and ingress.between_steps:
                continue
            if reader is not None:
                reader.busy = True
                ingress.promises.arriving(reader)
                return ReadWork(ingress, reader, max(1, min(4, len(self.idle))))
        return None

    # Room

    def has_room(self) -> bool:
        """Whether bytes in flight, and epochs whose watermarks wait, are below their bounds."""
        if self.cascade.bytes >= self.run.memory or self.cascade.in_flight >= self.most_bundles:
            return False
        return all(len(lane) < _MOST_EPOCHS for lane in self.lanes)

    def wait_for_room(self) -> bool:
        """Wait until there is room for more records; false when the job is over."""
        with self.cascade.lock:
            while not self.run.over and not self._may_read():
                self.blocked += 1
                self.cascade.room.wait(0.05)
                self.blocked -= 1
            return not self.run.over

    def _may_read(self) -> bool:
        """Whether more may be read: there is room, or nothing else can be done."""
        if self.has_room():
            return True
        return (
            self.active == 0 and not self.run.urgent and self.scheduler.pick(self.cascade) is None
        )

    def wait_for_step(self, reader: Reader) -> bool:
        """Wait until a step of a source may begin; false when the job is over. The lock is held."""
        while self.run.cutting is not None and self.run.cutting.holds(reader) and not self.run.over:
            self.blocked += 1
            self.cascade.room.wait(0.05)
            self.blocked -= 1
        return not self.run.over


def _behind(ingress: Ingress) -> tuple[int, int, int]:
    return ingress.turn, ingress.promises.promised, ingress.records
