"""The epochs of a source: containers of its records, cut by its watermarks (StreamBox §2)."""

from __future__ import annotations

import math

import pyarrow as pa

from headrace.box.buffering import Gathered
from headrace.box.bundle import Bundle
from headrace.box.cascade import Cascade, Vertex
from headrace.box.clock import Clock
from headrace.box.container import Container
from headrace.windows import BEGINNING, FOREVER, Window

_RECENT = 0.2
"""The share of the newest epoch in what is usual."""
_MANY = 80 * 1024
"""So many records are worth an epoch where something waits for every watermark."""


class Epochs:
    """The current epoch of a source. Its methods are called with the lock held.

    A watermark cuts an epoch when it may close a window somewhere; where nothing says when that
    is, now and then.
    """

    def __init__(self, cascade: Cascade, clock: Clock, flush: float) -> None:
        self.cascade, self.clock, self.flush = cascade, clock, flush
        self.outputs: list[tuple[Vertex, int]] = []
        self.late_outputs: list[tuple[Vertex, int]] = []
        self.grains: list[Window] = []
        """Windows downstream: an epoch is cut where one of their panes ends."""
        self.every_watermark = False
        """Whether something downstream can use any watermark, not just those."""
        self.last_watermark = False
        """Whether the last watermark before the end matters: timers fire up to it."""
        self.number = 0
        self.containers: list[Container] = []
        self.since_cut = 0
        """The records of this one."""
        self.usual = math.inf
        """About how many the ones before had."""
        self.cut_at = 0.0

    def open(self, promised: int) -> None:
        """Begin the next one, after a watermark that was promised."""
        self.number += 1
        self.containers = [
            self.cascade.open(vertex, lane, self.number, promised)
            for vertex, lane in (*self.outputs, *self.late_outputs)
        ]
        self.since_cut = 0

    def put(self, parts: list[pa.RecordBatch], order: tuple[int, ...], nbytes: int) -> None:
        """Records as a bundle of this epoch."""
        self.since_cut += sum(part.num_rows for part in parts)
        for container in self.containers[: len(self.outputs)]:
            if len(parts) == 1:
                bundle = Bundle(parts[0], order, self.number, nbytes)
            else:
                bundle = Gathered(parts, order, self.number, nbytes)
            self.cascade.deposit(container, bundle)

    def put_late(self, batch: pa.RecordBatch, order: tuple[int, ...]) -> None:
        """Late records, for those who take them."""
        for container in self.containers[len(self.outputs) :]:
            self.cascade.deposit(container, Bundle(batch, order, self.number))

    def cut(self, watermark: int) -> None:
        """End it with a watermark, and begin the next."""
        if self.since_cut:
            more = self.since_cut - self.usual
            self.usual = self.usual + _RECENT * more if math.isfinite(more) else self.since_cut
        now = self._assign(watermark)
        self.cut_at = now
        self.open(watermark)

    def cancel(self, promised: int) -> None:
        """End it without a watermark of its own, and begin the next."""
        for container in self.containers:
            self.cascade.cancel(container)
        self.open(promised)

    def end(self) -> None:
        """Nothing more will come: the watermark at infinity."""
        self._assign(FOREVER)

    def _assign(self, watermark: int) -> float:
        now = self.clock.now()
        for container in self.containers:
            self.cascade.assign(container, watermark, now)
        return now

    def is_worth(self, promised: int, watermark: int) -> bool:
        """Whether to cut it here: something downstream may close, or it has been long."""
        for window in self.grains:
            if promised == BEGINNING:
                return True
            if window.pane_at(watermark) > window.pane_at(promised):
                return True
        if self.every_watermark:
            return self.since_cut >= _MANY or self.clock.now() - self.cut_at >= self.flush
        return not self.grains and self.since_cut >= 16 * _MANY
