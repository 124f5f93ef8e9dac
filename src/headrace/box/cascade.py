"""Cascading containers: which epoch's records are where, and what may be processed next.

Each transform has a list of containers for each of its inputs, oldest epoch first, and every
container is linked to the one its output goes to. Three things keep watermarks true however many
evaluators work at once (StreamBox §5): output goes to the container its input's container is
linked to; a watermark is taken only when its container and all before it are consumed; a
transform of several inputs keeps the epochs of each apart, and those below it are put in order
only as their watermarks become known.

All methods are called with ``lock`` held. The paper uses a reader-writer lock for each list; under
the interpreter lock one plain lock, held for a few microseconds, does as well.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.box.bundle import Bundle
from headrace.box.container import Container, ContainerState
from headrace.box.desk import Desk
from headrace.windows import BEGINNING, FOREVER

if TYPE_CHECKING:
    from headrace.box.buffering import Buffering
    from headrace.box.invariants import Checker
    from headrace.box.ordered import Restored, Settling


class Lane:
    """One input of a transform: its containers in order, and those whose place is not known yet."""

    __slots__ = ("containers", "last", "number", "unplaced", "vertex", "watermark")

    def __init__(self, vertex: Vertex, number: int) -> None:
        self.vertex, self.number = vertex, number
        self.containers: deque[Container] = deque()
        self.unplaced: dict[int, Container] = {}
        self.watermark = BEGINNING
        """The last watermark consumed."""
        self.last = BEGINNING
        """The last one before the end."""

    def __len__(self) -> int:
        return len(self.containers) + len(self.unplaced)


class Vertex:
    """A transform in the network, with its containers.

    ``joint`` says that a watermark is the least of the lanes' (what follows a join or is a union);
    otherwise each lane's watermarks go their own way. ``max_running`` bounds how many bundles of
    it run at once; ``in_order`` that they are taken epoch by epoch, and in their order within each.
    """

    def __init__(
        self,
        name: str,
        transform: Any,
        lanes: int = 1,
        *,
        joint: bool = False,
        max_running: int = 1 << 30,
        in_order: bool = False,
    ) -> None:
        self.name, self.transform, self.joint = name, transform, joint
        self.max_running = max_running
        self.in_order = in_order
        self.each_watermark = False
        """Whether it is to be told every watermark, though the next be known."""
        self.ordered = False
        """Whether its bundles are numbered as they come."""
        self.ordering: Restored | None = None
        """What keeps the order of what comes of them."""
        self.ringing = False
        """Whether timers that go by the clock are going off."""
        self.buffering: Buffering | None = None
        """Where what it gives waits to become larger bundles."""
        self.settles: Settling | None = None
        """Puts what comes of a watermark in order."""
        self.given = self.taken = 0
        """The bundles that have come, and those that were taken."""
        self.python = False
        """Whether it runs a person's functions."""
        self.schema: pa.Schema | None = None
        """The columns it gives."""
        self.lanes = [Lane(self, i) for i in range(lanes)]
        self.outputs: list[tuple[Vertex, int]] = []
        self.depth = 0
        self.running = 0
        self.closing = 0
        self.watermark = BEGINNING
        self.bundles = self.records = self.emitted = 0
        self.busy = self.worked = 0.0
        """Seconds its bundles and watermarks took, and of those the processor's."""
        self.switches = 0
        """How often a thread that ran it gave up its core to wait, where that is counted."""

    def __repr__(self) -> str:
        return f"Vertex({self.name})"

    def all_containers(self) -> Iterator[Container]:
        """Its containers, each lane's oldest first, those without a place last."""
        for lane in self.lanes:
            yield from lane.containers
        for lane in self.lanes:
            yield from lane.unplaced.values()

    def may_run(self) -> bool:
        return self.running < self.max_running

    def may_take(self, container: Container) -> bool:
        """Whether a bundle of a container may be taken now.

        Where order matters, only from the oldest epoch, and once all of its bundles are there.
        """
        if not container.bundles or not self.may_run():
            return False
        if self.ordered and self.ordering is None:  # one after the other
            return container.bundles[0].serial == self.taken
        if not self.in_order:
            return True
        oldest = container.lane.containers
        return bool(oldest) and oldest[0] is container and container.is_complete


class Cascade:
    """The network of containers."""

    def __init__(self, vertices: list[Vertex], checker: Checker | None = None) -> None:
        self.vertices = vertices
        self.lock = Desk()
        self.room = threading.Condition(self.lock)  # type: ignore[arg-type]
        """For those who read: there may be room."""
        self.bytes = 0
        self.in_flight = 0
        self.unclaimed = 0
        """Bundles that nobody has taken yet."""
        self.changes = 0
        """How often something came that may be work."""
        self.checker = checker
        self.now: Callable[[], float] = time.perf_counter
        """What tells how long records have waited."""
        self.buffering = [v for v in vertices if v.buffering is not None]

    # Containers and their links

    def open(self, vertex: Vertex, lane: int, epoch: int, since: int) -> Container:
        """A new youngest container, for an epoch that begins at the ingress."""
        container = Container(vertex.lanes[lane], epoch, since, ordered=True)
        vertex.lanes[lane].containers.append(container)
        return container

    def below(self, container: Container, output: int) -> Container:
        """The container that output of this one goes to, made on demand.

        In an ordered list those of the older epochs are made first, so that it stays in order.
        """
        found = container.down[output]
        if found is not None:
            return found
        if self._places_below(container):
            for older in container.lane.containers:
                if older is container:
                    break
                if older.down[output] is None:
                    self._link(older, output, ordered=True)
            return self._link(container, output, ordered=True)
        return self._link(container, output, ordered=False)

    def _places_below(self, container: Container) -> bool:
        """Whether a container's place decides that of the one below it.

        Below a joint vertex of several lanes it does not: the lanes are put in order only as their
        watermarks are taken.
        """
        vertex = container.lane.vertex
        return container.ordered and not (vertex.joint and len(vertex.lanes) > 1)

    def _link(self, container: Container, output: int, ordered: bool) -> Container:
        vertex, lane = self._target(container, output)
        made = Container(vertex.lanes[lane], container.epoch, container.since, ordered)
        if ordered:
            made.lane.containers.append(made)
        else:
            made.lane.unplaced[id(made)] = made
        container.down[output] = made
        return made

    @staticmethod
    def _target(container: Container, output: int) -> tuple[Vertex, int]:
        vertex, lane = container.lane.vertex.outputs[output]
        # What follows a transform of several inputs keeps their epochs apart.
        own = container.lane.vertex
        if len(own.lanes) > 1 and not own.joint:
            return vertex, lane + container.lane.number
        return vertex, lane

    def _place(self, container: Container) -> None:
        """A container gets its place after all that have one, and so do those below it."""
        if container.ordered:
            return
        lane = container.lane
        del lane.unplaced[id(container)]
        container.ordered = True
        lane.containers.append(container)
        if self._places_below(container):
            for output, below in enumerate(container.down):
                if below is not None:
                    for older in lane.containers:
                        if older is container:
                            break
                        if older.down[output] is None:
                            self._link(older, output, ordered=True)
                    self._place(below)

    # Bundles

    def deposit(self, container: Container, bundle: Bundle) -> None:
        """Give a bundle to a container."""
        if self.checker is not None:
            self.checker.deposited(container, bundle)
        vertex = container.lane.vertex
        if vertex.ordered:
            bundle = bundle.numbered(vertex.given)
            vertex.given += 1
        container.bundles.append(bundle)
        container.unconsumed += 1
        container.deposited += 1
        self.in_flight += 1
        self.unclaimed += 1
        self.changes += 1
        self.bytes += bundle.nbytes

    def claim(self, container: Container) -> Bundle:
        """Take a bundle to process it."""
        vertex = container.lane.vertex
        vertex.running += 1
        vertex.taken += 1
        self.unclaimed -= 1
        if vertex.in_order and not container.sorted:
            container.bundles = deque(sorted(container.bundles, key=lambda b: b.order))
            container.sorted = True
        return container.bundles.popleft()

    def emit(self, container: Container, bundles: Iterable[Bundle]) -> int:
        """Give bundles derived from an epoch to the containers below; how many there were."""
        count = 0
        vertex = container.lane.vertex
        for bundle in bundles:
            vertex.emitted += bundle.batch.num_rows
            if vertex.buffering is None:
                count += self._send(container, bundle)
            else:
                self.bytes += bundle.nbytes
                for gathered in vertex.buffering.add(container, bundle, self.now()):
                    self.bytes -= gathered.nbytes
                    count += self._send(container, gathered)
        return count

    def _send(self, container: Container, bundle: Bundle) -> int:
        for output in range(len(container.down)):
            self.deposit(self.below(container, output), bundle)
        return len(container.down)

    def send_overdue(self) -> None:
        """Send on what has waited for long enough to become a larger bundle."""
        now = self.now()
        for vertex in self.buffering:
            assert vertex.buffering is not None
            for container, bundle in vertex.buffering.overdue(now):
                self.bytes -= bundle.nbytes
                self._send(container, bundle)

    def send_all(self) -> None:
        """Send on all that waits to become larger bundles."""
        for vertex in self.buffering:
            assert vertex.buffering is not None
            for container in list(vertex.buffering.waiting):
                self._send_rest(container)

    def _send_rest(self, container: Container) -> None:
        """An epoch ends here: nothing of it waits any longer."""
        buffering = container.lane.vertex.buffering
        if buffering is not None:
            for bundle in buffering.all_of(container):
                self.bytes -= bundle.nbytes
                self._send(container, bundle)

    def consumed(self, container: Container, bundle: Bundle) -> None:
        """A bundle is done, and what it gave has been deposited."""
        container.unconsumed -= 1
        self.in_flight -= 1
        self.bytes -= bundle.nbytes
        if self.checker is not None:
            self.checker.consumed(container)
        if container.unconsumed == 0 and container.state is ContainerState.WM_CANCELLED:
            self._retire(container.lane)

    def hold(self, container: Container) -> None:
        """Something else than a bundle will come of an epoch: its watermark waits."""
        container.unconsumed += 1
        self.in_flight += 1

    def released(self, container: Container) -> None:
        """What ``hold`` was for is done."""
        container.unconsumed -= 1
        self.in_flight -= 1
        if container.unconsumed == 0 and container.state is ContainerState.WM_CANCELLED:
            self._retire(container.lane)

    # Watermarks

    def assign(self, container: Container, watermark: int, arrived: float) -> None:
        """The epoch ends with this watermark: no more bundles will come."""
        container.watermark, container.arrived = watermark, arrived
        container.state = ContainerState.WM_ASSIGNED
        self.changes += 1

    def cancel(self, container: Container) -> None:
        """The epoch has no end of its own here: it goes on into the next container."""
        container.state = ContainerState.WM_CANCELLED
        self._retire(container.lane)

    def _retire(self, lane: Lane) -> None:
        """Remove the oldest containers that are done, and pass on that they are."""
        while lane.containers:
            front = lane.containers[0]
            if front.state is ContainerState.WM_CANCELLED and front.unconsumed == 0:
                self._send_rest(front)
                lane.containers.popleft()
                for below in front.down:
                    if below is not None:
                        self._place(below)
                        self.cancel(below)
            elif front.state is ContainerState.WM_CONSUMED:
                lane.containers.popleft()
            else:
                return

    def due(self, vertex: Vertex) -> Container | None:
        """The container whose watermark may be taken now, if there is one.

        Its bundles and all containers before it are consumed. Of a joint vertex's lanes the one
        with the least watermark goes first, once it is known which that is; a lane that has ended
        goes before all, for it must not hold back the others until they end too.
        """
        best: Container | None = None
        for lane in vertex.lanes:
            if not lane.containers:
                continue
            front = lane.containers[0]
            if front.state is not ContainerState.WM_ASSIGNED or front.unconsumed:
                continue
            if not vertex.joint:
                return front
            assert front.watermark is not None
            if front.watermark == FOREVER:
                best = front
                break
            if self._least(vertex, lane, front.watermark) and (
                best is None or front.watermark < (best.watermark or 0)
            ):
                best = front
        return None if vertex.joint and vertex.closing else best

    @staticmethod
    def _least(vertex: Vertex, lane: Lane, watermark: int) -> bool:
        """Whether no other lane can still have an older watermark to come first."""
        for other in vertex.lanes:
            if other is lane or other.watermark >= watermark:
                continue
            known = [c.watermark for c in other.containers if c.watermark is not None]
            if not known or known[0] < watermark:
                return False
        return True

    def latest_due(self, container: Container) -> Container:
        """The last of the containers from one that is due on whose watermarks are due as well.

        Those before it are cancelled: where a transform is behind, the windows of several epochs
        are closed together, and so in parallel. The last watermark before the end is not: timers
        fire up to it.
        """
        lane = container.lane
        if lane.vertex.joint or lane.vertex.each_watermark:
            return container
        while len(lane.containers) > 1:
            later = lane.containers[1]
            if later.state is not ContainerState.WM_ASSIGNED or later.unconsumed:
                break
            if later.watermark == FOREVER:
                break
            self.cancel(lane.containers[0])
            container = later
        return container

    def retrieve(self, container: Container) -> int | None:
        """Take the watermark: the event time to tell the transform; None if it brings no news."""
        lane, vertex = container.lane, container.lane.vertex
        assert container.watermark is not None
        if self.checker is not None:
            self.checker.retrieved(container)
        container.state = ContainerState.WM_RETRIEVED
        vertex.closing += 1
        lane.watermark = container.watermark
        if not vertex.joint:
            vertex.watermark = container.watermark
            return container.watermark
        if container.watermark < FOREVER:
            lane.last = container.watermark
        joint = min(each.watermark for each in vertex.lanes)
        last = max(each.last for each in vertex.lanes)
        if joint == FOREVER and last > vertex.watermark:
            # Of lanes that end in any order: the last watermark of all of them, then the end.
            end = self.open(vertex, lane.number, container.epoch, container.since)
            self.assign(end, FOREVER, container.arrived)
            container.watermark = lane.watermark = joint = last
        if joint <= vertex.watermark:
            return None
        vertex.watermark = joint
        return joint

    def finished(self, container: Container, watermark: int | None) -> None:
        """The watermark is consumed; ``watermark`` is what goes downstream, None if nothing."""
        vertex = container.lane.vertex
        vertex.closing -= 1
        self._send_rest(container)
        container.state = ContainerState.WM_CONSUMED
        for output in range(len(container.down)):
            if watermark is None:
                below = container.down[output]
                if below is not None:
                    self._place(below)
                    self.cancel(below)
            else:
                below = self.below(container, output)
                self._place(below)
                self.assign(below, watermark, container.arrived)
        self._retire(container.lane)
