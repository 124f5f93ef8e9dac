"""One run of a pipeline: what it is made of, its threads, and its life."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.box.arrival import Reader
from headrace.box.checkpoint import Kept
from headrace.box.clock import Clock, RealClock
from headrace.box.container import Container
from headrace.box.cutting import Cutting
from headrace.box.desk import Seat
from headrace.box.dispatch import Dispatch
from headrace.box.evaluator import (
    ClockWork,
    FlushWork,
    TaskWork,
    WatermarkWork,
    evaluate,
)
from headrace.box.graph import Graph, refuse_unordered
from headrace.box.ingress import Ingress
from headrace.box.manifest import Snapshot
from headrace.box.ordered import Ordering
from headrace.box.pace import Pace
from headrace.box.processes import Pool
from headrace.box.progress import Reports
from headrace.box.pump import pump
from headrace.box.rehearsal import rehearse
from headrace.box.scheduler import scheduler_of
from headrace.box.sinks import WrittenByEpoch, sink_of
from headrace.box.state_limit import StateLimit
from headrace.box.ticks import Ticks
from headrace.buffers import Buffer
from headrace.errors import EngineError, HeadraceError
from headrace.io.offsets import replayable
from headrace.jobs import JobOutput
from headrace.kernels import recycled
from headrace.kernels.compiling import announce_compiling
from headrace.plan.optimise import optimised
from headrace.plan.time import zone_of
from headrace.tables import Tables
from headrace.windows import BEGINNING, FOREVER

log = logging.getLogger("headrace")
_DELAYS = 10_000


class Run:
    """One run of a graph, and the shared state of its evaluators."""

    def __init__(
        self,
        outputs: Sequence[JobOutput],
        *,
        workers: int,
        cores: Sequence[int] | None = None,
        memory: int,
        state_memory: int,
        scheduler: str,
        bundle: int | None,
        clock: Clock | None = None,
        debug: bool = False,
        flush: float = 0.05,
        interval: float = 1.0,
        kept: Kept | None = None,
        only_now: bool = False,
        ordering: Ordering | None = None,
        buffer: Buffer | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.pool = pool
        self.clock: Clock = clock or RealClock()
        self.workers, self.cores, self.memory = workers, cores, memory
        self.scheduler = scheduler_of(scheduler)
        nodes = [output.node for output in outputs]
        graph = Graph(workers, zone_of(*nodes), ordering)
        if ordering is not None:
            for output in outputs:
                refuse_unordered(output.node)
        self.sinks = []
        nodes = optimised(nodes) if kept is None else nodes
        graph.count(nodes)
        if kept is not None:
            graph.saved = kept.states
        for i, (output, node) in enumerate(zip(outputs, nodes, strict=True)):
            bounded = output.bounded
            every = None if bounded else interval
            sink, alone = output.sink or sink_of(output.to, output.node.schema, every)
            name = f"output {i + 1}" if len(outputs) > 1 else "output"
            self.sinks.append(graph.add_output(node, sink, name, alone=alone))
        self.cascade = graph.cascade(debug)
        self.cascade.now = self.clock.now
        self.pace = Pace(bundle, workers, self.cascade)
        self.ingresses = graph.ingresses(self.cascade, self.pace, self.clock, flush)
        for ingress in self.ingresses:
            ingress.buffer = buffer
            ingress.splits.hold_at_most(memory)
        self.urgent: deque[WatermarkWork | TaskWork | FlushWork | ClockWork] = deque()
        # With a checkpoint few bundles are in flight, for it waits until there are none.
        self.dispatch = Dispatch(self, 1 << 30 if kept is None else max(16, 4 * workers))
        self.cascade.lock.serve = self.dispatch.serve
        self.ticks = Ticks(self, buffer)
        self.reports = Reports(self)
        self.state_limit = StateLimit(self, state_memory)
        self.profiled = False
        """Whether to count what a profile shows."""
        self.over = False
        self.tables = Tables()
        """Those that its streams are joined with."""
        self.error: BaseException | None = None
        self.keeper = None if kept is None else kept.keeper
        self.cutting: Cutting | None = None
        if kept is not None:
            hosted = [graph.hosted.get(id(node)) for node in kept.operators]
            self.cutting = Cutting(self, kept.keeper, hosted)
            for ingress, offsets, saved, folder in zip(self.ingresses, *kept.sources, strict=True):
                ingress.splits.by_positions(offsets, saved, folder, only_now)
            kept.keeper.offsets = [ingress.splits.offsets for ingress in self.ingresses]
        elif only_now:
            for ingress in self.ingresses:
                source = replayable(ingress.splits.source)
                ingress.splits.by_positions(source, {}, None, only_now)
        self.only_now = only_now
        self.waited_for = 0
        """How many wait for the end."""
        self.ended = threading.Event()
        self.left = len(self.sinks)
        self.delays: deque[tuple[float, float]] = deque(maxlen=_DELAYS)
        self.latencies: deque[float] = deque(maxlen=_DELAYS)
        """How long records took from the first transform to the output, a bundle each."""
        self.delivered = BEGINNING
        self.threads: list[threading.Thread] = []
        self.started = self.finished_at = 0.0

    # Life

    def start(self) -> None:
        """Start the threads."""
        announce_compiling()
        if not all(ingress.bounded for ingress in self.ingresses):
            rehearse(self.cascade.vertices, self.ingresses, self.workers)
        self.started = time.perf_counter()
        if self.keeper is not None:
            self.keeper.begin(self._kept, self._not_kept)
        self.reports.begin(self.started)
        try:
            with self.cascade.lock:
                for ingress in self.ingresses:
                    ingress.start(self.workers)
        except BaseException:
            self.abort()
            raise
        self.clock.subscribe(self.ticks.tick)
        for worker in range(self.workers):
            core = None if self.cores is None else self.cores[worker % len(self.cores)]
            self._thread(f"headrace-evaluator-{worker}", evaluate, self, Seat(worker), core)
        unbounded = False
        for ingress in self.ingresses:
            if not ingress.bounded:
                unbounded = True
                for reader in ingress.readers:
                    name = f"headrace-ingress-{reader.number}"
                    self._thread(name, self._pump, ingress, reader)
        if unbounded:
            self._thread("headrace-ticks", self.ticks.keep_ticking)
        elif self.state_limit.hosts:
            self._thread("headrace-state-limit", self.state_limit.watch)
        if self.ticks.timeouts:
            self._thread("headrace-timeouts", self.ticks.keep_sending)

    def _thread(self, name: str, function: Any, *args: Any) -> None:
        thread = threading.Thread(target=function, args=args, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _pump(self, ingress: Ingress, reader: Reader) -> None:
        try:
            room, step = self.dispatch.wait_for_room, self.dispatch.wait_for_step
            pump(ingress, reader, room, lambda: step(reader), self._accepted)
        except BaseException as error:
            with self.cascade.lock:
                self.fail(error)

    def _accepted(self) -> None:
        with self.cascade.lock:
            self.stop_if_all_has_come()

    def stop_if_all_has_come(self) -> None:
        """Where only what is there now is read: stop when it has come. The lock is held."""
        if self.only_now and all(ingress.is_up_to_date for ingress in self.ingresses):
            self.only_now = False
            self._stop_reading()

    def passed(self, container: Container, watermark: int | None) -> None:
        """A watermark has been consumed; at an output, results up to it are delivered."""
        vertex = container.lane.vertex
        if vertex.outputs or watermark is None:
            return
        now = self.clock.now()
        self.delivered = max(self.delivered, watermark)
        self.scheduler.externalized(watermark)
        if vertex.records > vertex.emitted:
            vertex.emitted = vertex.records  # an output emits nothing: what it has told of
            self.delays.append((now, now - container.arrived))
        if watermark == FOREVER:
            self.left -= 1
            if self.left == 0 and self.cutting is not None:
                self.cutting.end()
            elif self.left == 0:
                self._finish()

    def fail(self, error: BaseException) -> None:
        """The job cannot go on. The lock is held."""
        if not self.over:
            self.error = error
            if not self.waited_for:  # whoever waits is told, once
                log.error("the job failed: %s", error)
            self._finish()

    def _finish(self) -> None:
        self.over = True
        self.finished_at = time.perf_counter()
        self.tables.close()
        self.cascade.room.notify_all()
        if self.pool is not None:
            self.pool.close()
        self.ended.set()

    # Checkpoints

    def _kept(self, snapshot: Snapshot) -> None:
        """A checkpoint is there. Called by the thread that writes them."""
        try:
            if snapshot.final:
                for vertex in self.sinks:
                    if isinstance(vertex.transform, WrittenByEpoch):
                        vertex.transform.finish()
                        vertex.transform.abort()
                assert self.keeper is not None
                self.keeper.settle()
        except BaseException as error:
            self._not_kept(error)
        with self.cascade.lock:
            if snapshot.final and not self.over:
                self._finish()

    def _not_kept(self, error: BaseException) -> None:
        with self.cascade.lock:
            self.fail(error)

    def stop(self, drain: bool) -> None:
        """Read no more; with ``drain``, process what was read and close every window."""
        with self.cascade.lock:
            if self.over:
                return
            if not drain:
                self.error = Stopped("the job was stopped without draining it")
                self._finish()
                return
            self._stop_reading()

    def _stop_reading(self) -> None:
        """Read no more, and end: with a checkpoint, else by closing windows. The lock is held."""
        try:
            for ingress in self.ingresses:
                if self.keeper is not None:
                    ingress.holding = True
                else:
                    ingress.stop()
        except BaseException as error:
            self.fail(error)
        if self.cutting is not None:
            self.cutting.end()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, give back the threads, and raise what went wrong."""
        if not self.ended.wait(timeout):
            return False
        # An evaluator may be held by a person's function, and a thread that waits for an unbounded
        # source ends when the source next gives something: neither is waited for long.
        self._join("headrace-evaluator", 5.0 if self.error is None else 1.0)
        self._join("headrace-ingress", 0.2)
        for ingress in self.ingresses:
            ingress.close()
        if self.keeper is not None:
            self.keeper.end()
        recycled.forget()
        if self.error is not None:
            self.abort()
            if isinstance(self.error, Stopped):
                return True
            if isinstance(self.error, HeadraceError) or not isinstance(self.error, Exception):
                raise self.error
            raise EngineError(
                f"the job failed: {type(self.error).__name__}: {self.error}"
            ) from self.error
        return True

    def _join(self, name: str, seconds: float) -> None:
        deadline = time.perf_counter() + seconds
        for thread in self.threads:
            if thread.name.startswith(name):
                thread.join(max(0.0, deadline - time.perf_counter()))

    def abort(self) -> None:
        """Have the sinks undo what does not count."""
        if self.keeper is not None and self.keeper.in_doubt:
            return  # the next start makes visible what is there
        for vertex in self.sinks:
            try:
                vertex.transform.abort()
            except Exception as error:
                log.error("%s could not be undone: %s", vertex.name, error)

    # What it tells

    def late(self, source: int) -> pa.Table | None:
        """The late records kept of a source, the newest 10 000."""
        with self.cascade.lock:
            if not 0 <= source < len(self.ingresses):
                raise EngineError(f"late({source}): the job has {len(self.ingresses)} sources")
            batches = list(self.ingresses[source].late.kept)
        return pa.Table.from_batches(batches) if batches else None


class Stopped(Exception):
    """The job was told to stop at once."""
