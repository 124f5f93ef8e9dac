"""The two invariants of StreamBox §3, checked on every step of a debug run.

1. Records respect epoch boundaries: what is derived from an epoch's records is deposited in that
   epoch's containers, and never after the epoch's watermark.
2. Watermark ordering: a transform consumes a watermark only after all records of the epoch, and
   watermarks in order. So no record that reaches it later can be older: a watermark never lies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.box.bundle import Bundle
from headrace.box.container import Container, ContainerState
from headrace.errors import HeadraceError
from headrace.kernels.window import event_times
from headrace.windows import BEGINNING, EventClock, show_time

if TYPE_CHECKING:
    from headrace.box.cascade import Lane


class InvariantError(HeadraceError):
    """The engine broke one of its own rules; a fault of ours, not of a pipeline."""


class Checker:
    """Watches a cascade from outside: it keeps its own account of epochs and watermarks."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.clocks: dict[int, EventClock] = {}
        self.deposits = self.watermarks = 0

    def deposited(self, container: Container, bundle: Bundle) -> None:
        """A bundle is about to be put into a container."""
        self.deposits += 1
        if bundle.epoch != container.epoch:
            raise InvariantError(
                f"records of epoch {bundle.epoch} were put into {container}: they left their epoch"
            )
        if container.state not in (ContainerState.OPEN,):
            raise InvariantError(f"{container} was given records after its end watermark")
        lane = container.lane
        clock = self.clocks.get(id(lane))
        if clock is not None and bundle.batch.num_rows:
            if not set(clock.columns) <= set(bundle.batch.schema.names):
                return
            oldest = int(np.min(event_times(bundle.batch, clock)))
            promised = self.taken.get(id(lane), BEGINNING)
            if oldest < promised:
                raise InvariantError(
                    f"{lane.vertex.name} was promised {show_time(promised)} and then given a "
                    f"record of {show_time(oldest)}: the watermark lied"
                )
        self.open[id(container)] = self.open.get(id(container), 0) + 1

    def consumed(self, container: Container) -> None:
        """A bundle of a container has been processed."""
        left = self.open.get(id(container), 0) - 1
        if left < 0:
            raise InvariantError(f"{container} consumed more bundles than it was given")
        self.open[id(container)] = left
        if not left:
            self.open.pop(id(container))

    def retrieved(self, container: Container) -> None:
        """A container's end watermark is about to be processed."""
        self.watermarks += 1
        left = self.open.get(id(container), 0)
        if left:
            raise InvariantError(f"the watermark of {container} was taken before {left} bundles")
        lane = container.lane
        for older in lane.containers:
            if older is container:
                break
            raise InvariantError(f"the watermark of {container} was taken before that of {older}")
        assert container.watermark is not None
        before = self.taken.get(id(lane), BEGINNING)
        if container.watermark < before:
            raise InvariantError(
                f"{lane.vertex.name}: a watermark went back from {show_time(before)} to "
                f"{show_time(container.watermark)}"
            )
        self.taken[id(lane)] = container.watermark

    def watch(self, lane: Lane, clock: EventClock | None) -> None:
        """Check the event times of what a lane is given."""
        if clock is not None:
            self.clocks[id(lane)] = clock
