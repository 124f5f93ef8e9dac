"""Evaluators: the worker threads, and the pieces of work they do."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.box.arrival import Reader
from headrace.box.bundle import Bundle
from headrace.box.cascade import Vertex
from headrace.box.container import Container
from headrace.box.cores import are_crowded, request_long_slices
from headrace.box.desk import Seat
from headrace.box.host import Outbox
from headrace.box.ingress import Ingress
from headrace.operators.operator import Phases
from headrace.windows import FOREVER

if TYPE_CHECKING:
    from headrace.box.run import Run


class BundleWork:
    """Process a bundle."""

    __slots__ = ("bundle", "container", "cpu", "out", "run", "seconds", "switches", "worked")

    def __init__(self, run: Run, container: Container, bundle: Bundle) -> None:
        self.run, self.container, self.bundle = run, container, bundle

    def work(self, worker: int) -> None:
        bundle = self.bundle
        self.out = Outbox(bundle.epoch, bundle.order, worker, self.container.lane.number)
        vertex = self.container.lane.vertex
        counted = _switches() if self.run.profiled else 0
        start, worked = time.perf_counter(), time.thread_time()
        bundle.begun = bundle.begun or start
        if vertex.ordering is None:
            vertex.transform.process(bundle, self.out)
        else:
            vertex.ordering.run(self)
        self.seconds = time.perf_counter() - start
        self.cpu = time.thread_time() - worked
        self.switches = _switches() - counted if self.run.profiled else 0
        # A person's function may wait for something, which counts; a kernel waits for nothing but
        # the interpreter lock, and smaller bundles would only make it wait more often.
        self.worked = self.seconds if vertex.python else self.cpu

    def complete(self) -> None:
        """Deposit what came of it. The lock is held."""
        cascade, vertex = self.run.cascade, self.container.lane.vertex
        rows = self.bundle.batch.num_rows
        vertex.bundles += 1
        vertex.records += rows
        vertex.busy += self.seconds
        vertex.worked += self.cpu
        vertex.switches += self.switches
        if vertex.depth == 0:
            self.run.pace.done(rows, self.worked)
        vertex.running -= 1
        if not vertex.outputs:
            self.run.latencies.append(time.perf_counter() - self.bundle.begun)
        for work in [self] if vertex.ordering is None else vertex.ordering.released():
            for bundle in work.out.bundles:
                bundle.begun = work.bundle.begun
            cascade.emit(work.container, work.out.bundles)
            cascade.consumed(work.container, work.bundle)


def _switches() -> int:
    """How often this thread has given up its core; Linux counts it."""
    which = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if which is None else resource.getrusage(which).ru_nvcsw


class WatermarkWork:
    """Process a watermark: in one go, or as tasks that all evaluators share (§6).

    Nobody waits for the tasks: whoever finishes the last one goes on with what comes after them.
    """

    __slots__ = ("begun", "container", "left", "out", "phases", "run", "seconds", "tasks", "time")

    def __init__(self, run: Run, container: Container, when: int | None) -> None:
        self.run, self.container, self.time = run, container, when
        self.out = Outbox(container.epoch, (when or 0,), 0, container.lane.number)
        self.out.watermark = when
        self.begun = time.perf_counter()
        self.phases: Phases | None = None
        self.tasks: list[Callable[[], None]] | None = None
        self.left = 0

    @property
    def vertex(self) -> Vertex:
        return self.container.lane.vertex

    def work(self, worker: int) -> None:
        start = time.perf_counter()
        if self.phases is None and self.time is not None:
            self.out.worker = worker
            self.phases = self.container.lane.vertex.transform.on_watermark(self.time, self.out)
        self.tasks = None if self.phases is None else next(self.phases, None)
        settles = self.container.lane.vertex.settles
        if self.tasks is None and settles is not None:
            self.out.bundles = settles(self.out.bundles)
        self.seconds = time.perf_counter() - start

    def complete(self) -> None:
        """Share out its next tasks, or finish. The lock is held."""
        run, container = self.run, self.container
        container.lane.vertex.busy += self.seconds
        if container.lane.vertex.settles is None or self.tasks is None:
            bundles, self.out.bundles = self.out.bundles, []
            for bundle in bundles:
                bundle.begun = self.begun
            run.cascade.emit(container, bundles)
        if self.time == FOREVER:
            self.out.watermark = FOREVER  # whatever a transform made of it: the input has ended
        if self.tasks is None:
            run.cascade.finished(container, self.out.watermark)
            run.passed(container, self.out.watermark)
        elif self.tasks:
            self.left = len(self.tasks)
            run.urgent.extend(TaskWork(self, task) for task in self.tasks)
        else:
            run.urgent.append(self)


class ClockWork:
    """Have timers go off that go by the time of day."""

    __slots__ = ("container", "now", "out", "run")

    def __init__(self, run: Run, container: Container, now: int) -> None:
        self.run, self.container, self.now = run, container, now
        self.out = Outbox(container.epoch, (now,), 0, container.lane.number)

    def work(self, worker: int) -> None:
        self.container.lane.vertex.transform.ring(self.now, self.out)

    def complete(self) -> None:
        """Deposit what came of it, in the epoch there is. The lock is held."""
        self.container.lane.vertex.ringing = False
        self.run.cascade.emit(self.container, self.out.bundles)
        self.run.cascade.released(self.container)


class FlushWork:
    """Have the states of a vertex hold all that came, for a checkpoint; as tasks, too."""

    __slots__ = ("left", "phases", "run", "tasks", "vertex")

    def __init__(self, run: Run, vertex: Vertex) -> None:
        self.run, self.vertex = run, vertex
        self.phases: Phases = vertex.transform.shards.flush()
        self.tasks: list[Callable[[], None]] | None = None
        self.left = 0

    def work(self, worker: int) -> None:
        self.tasks = next(self.phases, None)

    def complete(self) -> None:
        """Share out its next tasks, or finish. The lock is held."""
        if self.tasks is None:
            assert self.run.cutting is not None
            self.run.cutting.flushed()
            return
        self.left = len(self.tasks)
        self.run.urgent.extend(TaskWork(self, task) for task in self.tasks)


class TaskWork:
    """One of the tasks a watermark or a flush was split into."""

    __slots__ = ("cpu", "of", "seconds", "task")

    def __init__(self, of: WatermarkWork | FlushWork, task: Callable[[], None]) -> None:
        self.of, self.task = of, task

    def work(self, worker: int) -> None:
        start, worked = time.perf_counter(), time.thread_time()
        self.task()
        self.seconds = time.perf_counter() - start
        self.cpu = time.thread_time() - worked

    def complete(self) -> None:
        self.of.vertex.busy += self.seconds
        self.of.vertex.worked += self.cpu
        self.of.left -= 1
        if self.of.left == 0:
            self.of.run.urgent.append(self.of)


class ReadWork:
    """Read the next of a split of bounded input."""

    __slots__ = ("ingress", "items", "most", "reader")

    def __init__(self, ingress: Ingress, reader: Reader, most: int) -> None:
        self.ingress, self.reader, self.most = ingress, reader, most
        self.items: list[Any] = []

    def work(self, worker: int) -> None:
        self.items = self.ingress.read_some(self.reader, self.most)

    def complete(self) -> None:
        self.reader.busy = False
        self.ingress.accept(self.reader, self.items)


Work = BundleWork | WatermarkWork | ClockWork | FlushWork | TaskWork | ReadWork


def evaluate(run: Run, seat: Seat, core: int | None) -> None:
    """A worker thread: take work, do it without the lock, hand in what came of it."""
    if core is not None:
        os.sched_setaffinity(threading.get_native_id(), {core})
    if are_crowded(run.workers):
        request_long_slices()
    desk = run.cascade.lock
    while (work := desk.hand_in(seat)) is not None:
        try:
            work.work(seat.worker)
        except BaseException as error:
            seat.error = error
