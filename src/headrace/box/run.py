"""A running pipeline: its threads, its life, and what it tells of itself."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.box.arrival import Reader
from headrace.box.cascade import Vertex
from headrace.box.checkpoint import Kept
from headrace.box.clock import Clock, RealClock
from headrace.box.container import Container
from headrace.box.cutting import Cutting
from headrace.box.desk import Seat
from headrace.box.evaluator import (
    BundleWork,
    ClockWork,
    FlushWork,
    ReadWork,
    TaskWork,
    WatermarkWork,
    Work,
    evaluate,
)
from headrace.box.graph import Graph, refuse_unordered
from headrace.box.host import Hosted
from headrace.box.ingress import Ingress
from headrace.box.manifest import Snapshot
from headrace.box.ordered import Ordering
from headrace.box.pace import Pace
from headrace.box.processes import Pool
from headrace.box.scheduler import scheduler_of
from headrace.box.sinks import Collected, WrittenByEpoch, sink_of
from headrace.buffers import Buffer
from headrace.errors import EngineError, HeadraceError
from headrace.io.offsets import replayable
from headrace.jobs import Output, Progress, Shown, SourceProgress, StageProgress
from headrace.plan.optimise import optimised
from headrace.plan.time import zone_of
from headrace.signals import GRACE, Halt, asked_to_stop
from headrace.tables import Tables
from headrace.watermarks import least_awake
from headrace.windows import BEGINNING, FOREVER

log = logging.getLogger("headrace")
_DELAYS = 10_000
_MOST_EPOCHS = 64
"""Epochs of one input of a transform that may wait; beyond that nothing more is read."""
_FEW_EPOCHS = 4
"""The same while there is enough else to do."""


def _behind(ingress: Ingress) -> tuple[int, int, int]:
    return ingress.turn, ingress.promised, ingress.records


class Run:
    """One run of a graph, and the shared state of its evaluators."""

    def __init__(
        self,
        outputs: Sequence[Output],
        *,
        workers: int,
        cores: Sequence[int] | None = None,
        memory: int,
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
        between = [v.buffering.policy for v in self.cascade.buffering if v.buffering is not None]
        policies = between if buffer is None else [buffer, *between]
        self.timeouts = [policy.timeout / 1e6 for policy in policies if policy.timeout]
        """How long records may wait to be sent on, wherever they do."""
        self.lanes = [lane for vertex in self.cascade.vertices for lane in vertex.lanes]
        self.urgent: deque[WatermarkWork | TaskWork | FlushWork | ClockWork] = deque()
        self.clocked = [
            vertex
            for vertex in self.cascade.vertices
            if isinstance(vertex.transform, Hosted) and vertex.transform.operator.by_clock
        ]
        self.idle: list[Seat] = []
        """The evaluators that wait for work."""
        self.active = self.blocked = 0
        self.cascade.lock.serve = self._serve
        self.profiled = False
        """Whether to count what a profile shows."""
        self.over = False
        self.tables = Tables()
        """Those that its streams are joined with."""
        self.error: BaseException | None = None
        self.keeper = None if kept is None else kept.keeper
        self.cutting: Cutting | None = None
        self.most_bundles = 1 << 30
        """That may be in flight: with a checkpoint few, for it waits until there are none."""
        if kept is not None:
            self.most_bundles = max(16, 4 * workers)
            hosted = [graph.hosted.get(id(node)) for node in kept.operators]
            self.cutting = Cutting(self, kept.keeper, hosted)
            for ingress, offsets, saved, folder in zip(self.ingresses, *kept.sources, strict=True):
                ingress.by_positions(offsets, saved, folder, only_now)
            kept.keeper.offsets = [ingress.offsets for ingress in self.ingresses]
        elif only_now:
            for ingress in self.ingresses:
                ingress.by_positions(replayable(ingress.source), {}, None, only_now)
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
        self._last: tuple[float, int, int] = (0.0, 0, 0)
        self._rates: tuple[float, ...] = ()

    # Life

    def start(self) -> None:
        """Start the threads."""
        self.started = time.perf_counter()
        if self.keeper is not None:
            self.keeper.begin(self._kept, self._not_kept)
        self._last = (self.started, 0, 0)
        try:
            with self.cascade.lock:
                for ingress in self.ingresses:
                    ingress.start(self.workers)
        except BaseException:
            self._aborted()
            raise
        self.clock.subscribe(self._tick)
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
            self._thread("headrace-ticks", self._ticks)
        if self.timeouts:
            self._thread("headrace-timeouts", self._send_overdue)

    def _thread(self, name: str, function: Any, *args: Any) -> None:
        thread = threading.Thread(target=function, args=args, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _pump(self, ingress: Ingress, reader: Reader) -> None:
        try:
            ingress.pump(reader, self._room, lambda: self._enter(reader), self._accepted)
        except BaseException as error:
            with self.cascade.lock:
                self.fail(error)

    def _room(self) -> bool:
        """Wait until there is room for more records; false when the job is over."""
        with self.cascade.lock:
            while not self.over and not self._may_read():
                self.blocked += 1
                self.cascade.room.wait(0.05)
                self.blocked -= 1
            return not self.over

    def _may_read(self) -> bool:
        """Whether more may be read: there is room, or nothing else can be done."""
        if self.has_room():
            return True
        return self.active == 0 and not self.urgent and self.scheduler.pick(self.cascade) is None

    def has_room(self) -> bool:
        """Whether bytes in flight, and epochs whose watermarks wait, are below their bounds."""
        if self.cascade.bytes >= self.memory or self.cascade.in_flight >= self.most_bundles:
            return False
        return all(len(lane) < _MOST_EPOCHS for lane in self.lanes)

    def _accepted(self) -> None:
        with self.cascade.lock:
            self._look_whether_all_has_come()

    def _look_whether_all_has_come(self) -> None:
        """Where only what is there now is read: stop when it has come. The lock is held."""
        if self.only_now and all(ingress.is_up_to_date for ingress in self.ingresses):
            self.only_now = False
            self._stop_reading()

    def _serve(self) -> None:
        """Take what evaluators handed in, and give work to those that wait. The lock is held."""
        try:
            while self.cascade.lock.handed_in:
                self._take_back(self.cascade.lock.handed_in.popleft())
            while self.idle and not self.over:
                before = self.cascade.changes
                work = self.next_work()
                if work is not None:
                    self.active += 1
                    self._give(self.idle.pop(), work)
                elif self.cascade.changes == before:
                    break
        except BaseException as error:
            self.fail(error)
        if self.over:
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
            self.fail(error)
        elif not self.over:
            work.complete()
            if self.blocked and self.has_room():
                self.cascade.room.notify_all()

    @staticmethod
    def _give(seat: Seat, work: Work | None) -> None:
        seat.given = work
        seat.ready.release()

    def _ticks(self) -> None:
        while not self.ended.wait(0.01):
            self._tick()
            try:
                for vertex in self.sinks:
                    vertex.transform.tick()
            except BaseException as error:
                with self.cascade.lock:
                    self.fail(error)
        if self.error is not None:
            self._aborted()  # nobody may ever wait for it

    def _send_overdue(self) -> None:
        """Look often enough that records wait a tenth longer than they may at most."""
        every = max(0.001, min(0.01, min(self.timeouts) / 10))
        while not self.ended.wait(every):
            with self.cascade.lock:
                try:
                    self._send_waiting()
                except BaseException as error:
                    self.fail(error)

    def _send_waiting(self) -> None:
        for ingress in self.ingresses:
            ingress.send_overdue()
        self.cascade.send_overdue()

    def _tick(self) -> None:
        with self.cascade.lock:
            try:
                self._send_waiting()
                for ingress in self.ingresses if self.blocked else ():
                    ingress.waits_for_room()
                for ingress in self.ingresses:
                    ingress.tick()
                timed = [i for i in self.ingresses if i.event is not None and not i.by_clock]
                least = least_awake(i.frontier for i in timed)
                if least is not None:
                    for ingress in timed:
                        ingress.follow(least)
                self._look_whether_all_has_come()
                self._ring()
                if self.cutting is not None:
                    self.cutting.look()
            except BaseException as error:
                self.fail(error)

    def _ring(self) -> None:
        """Have timers go off that go by the clock. The lock is held."""
        now = time.time_ns() // 1000
        if self.cutting is not None and self.cutting.is_on:
            return
        for vertex in self.clocked:
            if vertex.ringing or not vertex.transform.is_due(now):
                continue
            container = self._current(vertex)
            if container is not None:
                vertex.ringing = True
                self.cascade.hold(container)
                self.urgent.append(ClockWork(self, container, now))

    def _current(self, vertex: Vertex) -> Container | None:
        """The container of the epoch that is being read, made if need be."""
        for ingress in self.ingresses:
            for (target, _), container in zip(ingress.outputs, ingress.containers, strict=False):
                if target is vertex:
                    return container
        for above in self.cascade.vertices:
            for output, (target, _) in enumerate(above.outputs):
                if target is vertex:
                    source = self._current(above)
                    return None if source is None else self.cascade.below(source, output)
        return None

    def next_work(self) -> Work | None:
        """What an evaluator does next: watermark tasks, then what the scheduler picks, then
        reading. The lock is held."""
        if self.urgent:
            return self.urgent.popleft()
        cutting = self.cutting
        if cutting is not None and cutting.is_flushing:
            return None
        picked = self.scheduler.pick(self.cascade)
        if picked is not None:
            container, watermark = picked
            if watermark:
                container = self.cascade.latest_due(container)
                return WatermarkWork(self, container, self.cascade.retrieve(container))
            return BundleWork(self, container, self.cascade.claim(container))
        if cutting is not None and cutting.is_on:
            work = cutting.flush()
            if work is not None or cutting.is_flushing:
                return work
        return self._reading() if self._may_read_on() or self.active == 0 else None

    def _may_read_on(self) -> bool:
        """Whether an evaluator may read more of what is bounded, which does not press.

        Not where windows wait to be closed while there is enough to do: what is read would only
        fill the tables of more windows.
        """
        if not self.has_room():
            return False
        if self.cascade.in_flight < 2 * self.workers:
            return True
        return all(len(lane) < _FEW_EPOCHS for lane in self.lanes)

    def _reading(self) -> ReadWork | None:
        """The next step of a bounded source: of a join's table before what is looked up in it,
        else of the one furthest behind, so that a join holds little."""
        cutting = self.cutting
        for ingress in sorted(self.ingresses, key=_behind):
            reader = ingress.next_reader(self.workers)
            if cutting is not None and cutting.is_on and ingress.between_steps:
                continue
            if reader is not None:
                reader.busy = True
                ingress.arriving(reader)
                return ReadWork(ingress, reader, max(1, min(4, len(self.idle))))
        return None

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

    def _enter(self, reader: Reader) -> bool:
        """Wait until a step of a source may begin; false when the job is over. The lock is held."""
        while self.cutting is not None and self.cutting.holds(reader) and not self.over:
            self.blocked += 1
            self.cascade.room.wait(0.05)
            self.blocked -= 1
        return not self.over

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
        if self.error is not None:
            self._aborted()
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

    def _aborted(self) -> None:
        if self.keeper is not None and self.keeper.in_doubt:
            return  # the next start makes visible what is there
        for vertex in self.sinks:
            try:
                vertex.transform.abort()
            except Exception as error:
                log.error("%s could not be undone: %s", vertex.name, error)

    # What it tells

    def progress(self) -> Progress:
        """How far it is, and how fast."""
        with self.cascade.lock:
            end = self.finished_at or time.perf_counter()
            records = sum(i.records for i in self.ingresses)
            out = sum(v.records for v in self.sinks)
            then, before, out_before = self._last
            span = end - then
            if span >= 0.2 or not self._rates:
                self._last = (end, records, out)
                span = max(span, 1e-9)
                self._rates = ((records - before) / span, (out - out_before) / span)
            delays = np.array([d for _, d in self.delays])
            p50, p99 = (
                (float(np.percentile(delays, q)) for q in (50, 99)) if delays.size else (None, None)
            )
            seconds = end - self.started
            return Progress(
                seconds=seconds,
                records_in=records,
                records_out=out,
                rate_in=self._rates[0] if not self.over else records / max(seconds, 1e-9),
                rate_out=self._rates[1] if not self.over else out / max(seconds, 1e-9),
                sources=tuple(
                    SourceProgress(
                        name=i.name,
                        records=i.records,
                        late=i.late,
                        ahead=i.ahead,
                        waits=i.waits,
                        watermark=i.promised if i.event is not None else None,
                        idle=i.idle,
                        ended=i.ended,
                    )
                    for i in self.ingresses
                ),
                stages=tuple(
                    StageProgress(
                        name=v.name,
                        records_in=v.records,
                        records_out=0 if not v.outputs else v.emitted,
                        bundles=v.bundles,
                        busy=v.busy,
                        watermark=v.watermark,
                        state_bytes=int(v.transform.nbytes) if v.outputs else 0,
                        keys=v.transform.keys_held if isinstance(v.transform, Hosted) else 0,
                    )
                    for v in self.cascade.vertices
                ),
                watermark=self.delivered,
                delay_p50=p50,
                delay_p99=p99,
                bundles_in_flight=self.cascade.in_flight,
                bytes_in_flight=self.cascade.bytes,
                late=sum(i.late for i in self.ingresses),
                bad=sum(i.bad for i in self.ingresses),
                notes=(*(note for i in self.ingresses for note in i.notes), *self.tables.notes),
                running=not self.over,
                error=None if self.error is None else str(self.error),
            )

    def late(self, source: int) -> pa.Table | None:
        """The late records kept of a source, the newest 10 000."""
        with self.cascade.lock:
            if not 0 <= source < len(self.ingresses):
                raise EngineError(f"late({source}): the job has {len(self.ingresses)} sources")
            batches = list(self.ingresses[source].kept_late)
        return pa.Table.from_batches(batches) if batches else None


def _left(deadline: float | None) -> float:
    """How long to wait before looking around again."""
    return 0.05 if deadline is None else max(0.0, min(0.05, deadline - time.monotonic()))


class Stopped(Exception):
    """The job was told to stop at once."""


class BoxJob(Shown):
    """A pipeline running on the box; see ``headrace.jobs.Job``."""

    def __init__(self, run: Run, outputs: Sequence[Output]) -> None:
        self._run, self._outputs = run, outputs
        self._halt = Halt(lambda: run.stop(drain=True), lambda: run.stop(drain=False))

    @property
    def running(self) -> bool:
        return not self._run.over

    def wait(self, timeout: float | None = None, *, grace: Any = GRACE) -> bool:
        """Wait for the end; false if it has not come in time. Raises what went wrong.

        Ctrl-C or SIGTERM while waiting stops the job as ``stop`` does, for ``grace`` at the most;
        a second one stops it at once.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._run.waited_for += 1
        try:
            with asked_to_stop() as asked:
                while not self._run.ended.wait(_left(deadline)):
                    self._halt.look(asked, grace)
                    if deadline is not None and time.monotonic() >= deadline:
                        self._halt.look(asked, grace)
                        return False
        finally:
            self._run.waited_for -= 1
        return self._run.wait()

    def stop(self, *, drain: bool | None = None, timeout: float | None = None) -> bool:
        """Stop reading, finish what was read, and close every window with what it has.

        A job with a checkpoint keeps its open windows there, for the next start. With
        ``drain=False`` it stops at once: what was not delivered is dropped, or is read again from
        the checkpoint.
        """
        if drain and self._run.keeper is not None:
            raise EngineError(
                "a job with a checkpoint keeps its open windows for the next start, so it cannot "
                "be drained; call stop()"
            )
        self._run.stop(drain is not False)
        if threading.current_thread() in self._run.threads:
            return False  # called by a function of the job itself: it ends after that returns
        return self._run.wait(timeout)

    def progress(self) -> Progress:
        """How far it is, and how fast: see ``Progress``."""
        return self._run.progress()

    def late(self, source: int = 0) -> pa.Table | None:
        """The newest late records of a source, at most 10 000, in the columns that were read.

        None if there were none. All of them, with every column, are in ``stream.late``.
        """
        return self._run.late(source)

    def result(self, output: int = 0) -> pa.Table:
        """What a job started without ``to=`` has given so far."""
        if not 0 <= output < len(self._run.sinks):
            raise EngineError(f"result({output}): the job has {len(self._run.sinks)} outputs")
        sink = self._run.sinks[output].transform
        if not isinstance(sink, Collected):
            raise EngineError("the results went where to= said; there is nothing to show here")
        return sink.table()

    def __enter__(self) -> BoxJob:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and all(i.bounded for i in self._run.ingresses):
            self.wait()
        else:
            self.stop(drain=None if kind is None else False)
