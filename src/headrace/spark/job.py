"""A streaming query as a job: its life, what it delivers, and what it tells of itself."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.checkpoints.control import Control
from headrace.checkpoints.lease import Lease
from headrace.errors import EngineError, HeadraceError
from headrace.io.offsets import AWAY, ServerSource
from headrace.jobs import Progress, Rates, Shown, SourceProgress, StageProgress
from headrace.signals import GRACE, Halt, asked_to_stop
from headrace.spark.graph import Graph, SourceFlow
from headrace.spark.offsets import away_file
from headrace.spark.python.failures import carrying, driver_errors
from headrace.spark.sinks import Delivery
from headrace.spark.wire import OUTPUT
from headrace.tables import Tables
from headrace.watermarks import (
    Activity,
    SourceFrontier,
    advance_together,
    least_awake,
    waiting_for,
)
from headrace.windows import BEGINNING, show_time

log = logging.getLogger("headrace")
_POLL = 0.02
_STOPPING = 60.0
"""How long a batch that runs may take to finish before a job is stopped in the middle of it."""
_BATCHES = 1000
"""The batches with results that are remembered, for the output delay."""


@dataclass
class _Counted:
    """What a source or a step has done."""

    records: int = 0
    out: int = 0
    late: int = 0
    ahead: int = 0
    bad: int = 0
    bundles: int = 0
    watermarks: dict[int, int] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)
    """Of an operator's shards."""


class SparkJob(Shown):
    """A pipeline running on Spark; see ``headrace.jobs.Job``."""

    def __init__(
        self,
        graph: Graph,
        control: Control,
        lease: Lease,
        deliveries: list[Delivery],
        temporary: str | None,
        base: int = 0,
    ) -> None:
        self._graph, self._control, self._lease = graph, control, lease
        self._deliveries, self._temporary = deliveries, temporary
        self._base = base
        """The epoch of Spark's first batch: not 0 where the job began elsewhere."""
        saved = control.read()
        self._said: dict[str, Any] = {"stop": None, "sources": saved.get("sources", {})}
        self._said |= {name: saved[name] for name in ("batch", "delivering") if name in saved}
        self._finished = bool(saved.get("finished"))
        self._said["finished"] = self._finished
        control.save("control.json", self._said)
        sources = self._said["sources"]
        self._frontiers = [SourceFrontier(**sources.get(str(s.number), {})) for s in graph.sources]
        self._activities = [
            Activity(None if s.event is None else s.event.idle) for s in graph.sources
        ]
        self._sources = [_Counted() for _ in graph.sources]
        self._operators = [_Counted() for _ in graph.operators]
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._notes: list[str] = []
        self._gave: deque[int] = deque(maxlen=_BATCHES)
        self._busy = 0.0
        self._started = time.perf_counter()
        self._over = 0.0
        self._rates = Rates(self._started)
        self._query: Any = None
        self._has_frames = any(s.offsets is None for s in graph.sources)
        self._waited_for = 0
        self._delivering: int | None = None
        """The thread that runs users' functions on the driver, while it does."""
        self._dropped = False
        """Whether the batch that runs is not to be finished: then its failure is none."""
        self._halt = Halt(self.stop, self._stop_at_once)
        self.tables = Tables()
        """Those that its streams are joined with."""

    # Life

    def begin(self, query: Any) -> None:
        """The query runs; watch it."""
        self._query = query
        thread = threading.Thread(target=self._watch, name="headrace-job", daemon=True)
        thread.start()

    def abandon(self) -> None:
        """The query did not start."""
        for delivery in self._deliveries:
            delivery.abort()
        self._remove()

    def _watch(self) -> None:
        error: BaseException | None = None
        try:
            with driver_errors(*(output.node for output in self._graph.outputs)):
                while not self._query.awaitTermination(0.1):
                    self._lease.renew()
                    if self._finished:
                        self._rest()
                        self._query.stop()
        except BaseException as found:
            error = found
            with contextlib.suppress(Exception):  # Java itself may be gone
                if self._query.isActive:
                    self._query.stop()
        if error is not None and not self._dropped:
            self._error = error
            if not self._waited_for:  # whoever waits is told, once
                log.error("the job failed: %s", error)
        self._over = time.perf_counter()
        for delivery in self._deliveries:
            try:
                if error is None:
                    delivery.finish()
                delivery.abort()
            except Exception as problem:
                log.error("an output could not be cleaned up: %s", problem)
        try:
            self._remove()
        except Exception as problem:
            log.error("the checkpoint could not be given back: %s", problem)
        finally:
            self._ended.set()

    def _rest(self) -> None:
        """Wait until no batch runs."""
        deadline = time.monotonic() + _STOPPING
        while time.monotonic() < deadline and self._query.isActive:
            if not self._query.status["isTriggerActive"]:
                return
            time.sleep(_POLL)

    def _remove(self) -> None:
        self._lease.release()
        self.tables.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def wait(self, timeout: float | None = None, *, grace: Any = GRACE) -> bool:
        """Wait for the end; false if it has not come in time. Raises what went wrong.

        Ctrl-C or SIGTERM while waiting stops the job as ``stop`` does, for ``grace`` at the most;
        a second one stops it at once.
        """
        self._waited_for += 1
        try:
            with asked_to_stop() as asked:
                return self._wait(timeout, lambda: self._halt.look(asked, grace))
        finally:
            self._waited_for -= 1

    def _wait(self, timeout: float | None, look: Callable[[], None] = lambda: None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ended.wait(0.05):
            look()
            if deadline is not None and time.monotonic() >= deadline:
                look()
                return False
        if self._error is not None:
            if isinstance(self._error, HeadraceError):
                raise self._error
            raise EngineError(f"the job failed: {self._error}") from self._error
        return True

    def stop(self, *, drain: bool | None = None, timeout: float | None = None) -> bool:
        """Finish the batch that runs, and stop.

        A job with a checkpoint keeps its open windows there, for the next start. One without
        closes every window with what it has, as the box does; with ``drain=False`` it does not,
        and stops at once.
        """
        if drain and self._temporary is None:
            raise EngineError(
                "a job with a checkpoint keeps its open windows for the next start, so it cannot "
                "be drained; call stop()"
            )
        if threading.get_ident() == self._delivering:
            # Called by a function of the job itself: it ends after that function returns.
            halt = functools.partial(self.stop, drain=drain)
            threading.Thread(target=halt, name="headrace-stop", daemon=True).start()
            return False
        drain = self._temporary is not None if drain is None else drain
        if self._ended.is_set():
            return self._wait(timeout)
        if drain and not self._has_frames:
            self._say(stop="drain")
            return self._wait(timeout)
        if drain:
            log.warning("open windows are dropped: a DataFrame of Spark's cannot be told to end")
        self._say(stop="hold")
        if drain is False and self._temporary is not None:
            self._dropped = True
        elif not self._has_frames:
            self._rest()
        if self._query.isActive:
            self._query.stop()
        return self._wait(timeout)

    def _stop_at_once(self) -> None:
        """Do not even finish the batch that runs; a checkpoint has all that counts."""
        self._dropped = True
        self._query.stop()

    def _say(self, **what: Any) -> None:
        with self._lock:
            self._said |= what
            self._control.save("control.json", self._said)

    # What a micro-batch gives, on the driver

    def deliver(self, frame: Any, batch: int) -> None:
        """Take the rows that reached the end of a micro-batch. Spark calls it, once or again."""
        with carrying():
            begun = time.perf_counter()
            self._delivering = threading.get_ident()
            rows = sorted(frame.collect(), key=lambda row: row.place)
            outputs: list[list[bytes]] = [[] for _ in self._deliveries]
            for row in rows:
                if row.target == OUTPUT:
                    outputs[row.lane].append(bytes(row.bundle))
                else:
                    self._take(json.loads(row.bundle))
            self._announce(batch)
            for delivery, data in zip(self._deliveries, outputs, strict=True):
                delivery.take(self._base + batch, data)
            self._advance(batch)
            self._busy += time.perf_counter() - begun
            if any(outputs):
                self._gave.append(batch)
            self._delivering = None

    def _announce(self, batch: int) -> None:
        """Say that sinks are about to commit a batch: after a kill, they may have it or not."""
        if self._temporary is None and any(d.sink is not None for d in self._deliveries):
            self._say(delivering=batch)

    def _take(self, said: dict[str, Any]) -> None:
        """A report of a source, an operator or a writer."""
        if "output" in said:
            self._deliveries[said["output"]].records += said["records"]
            return
        if "source" in said:
            number = said["source"]
            counted, source = self._sources[number], self._graph.sources[number]
            if said["sample_ahead"] and not counted.ahead:
                moment, reason = said["sample_ahead"]
                self._note(
                    f"{source.name}: a record of {show_time(moment)} is {reason}; it does not "
                    "move the watermark; such records go to .late, and are counted"
                )
            if said["sample"] and counted.late == counted.ahead:
                moment, mark = said["sample"]
                self._note(
                    f"{source.name}: a record of {show_time(moment)} came after the watermark "
                    f"{show_time(mark)}; late records go to .late, and are counted"
                )
            counted.records += said["records"]
            counted.late += said["late"]
            counted.ahead += said["ahead"]
            counted.bad += said["bad"]
            counted.bundles += 1
            frontier = self._frontiers[number]
            quiet, before = set(frontier.idle), dict(frontier.splits)
            frontier.take(said)
            activity, now = self._activities[number], time.perf_counter()
            for name in frontier.live or ():
                activity.found(name, now)
            name = said.get("split", "")
            if said["records"] or frontier.splits.get(name, BEGINNING) > before.get(
                name, BEGINNING
            ):
                activity.sent(name, now)
            for name in sorted(set(frontier.idle) - quiet):
                self._note(
                    f"split {name} of {source.name} is silent: it no longer holds back the "
                    "watermark"
                )
            return
        counted = self._operators[said["operator"]]
        counted.bundles += said["bundles"]
        counted.out += said["out"]
        counted.records += said["records"]
        counted.watermarks[said["shard"]] = said["watermark"]
        counted.keys[said["shard"]] = said["keys"]

    def _note(self, text: str) -> None:
        self._notes = [*self._notes[-99:], text]
        log.warning(text)

    def _advance(self, batch: int) -> None:
        """Say how far the sources are, before Spark counts the batch as done."""
        timed = zip(self._frontiers, self._graph.sources, strict=True)
        advance_together([f for f, source in timed if source.event is not None])
        finished = all(f.ended for f in self._frontiers)
        sources = {str(i): f.saved() for i, f in enumerate(self._frontiers)}
        if self._has_frames:
            self._control.save(f"watermarks-{batch}.json", {"sources": sources})
            self._control.forget_frontiers(batch - 3)
        self._say(sources=sources, finished=finished, batch=batch)
        self._finished = finished

    # What it tells

    def explain(self) -> str:
        """The plan that Spark runs."""
        text: str = self._query._jsq.explainInternal(False)
        return text

    def _away(self, source: SourceFlow) -> str:
        """That a source's server cannot be reached, as the process that asks it says."""
        if not isinstance(source.offsets, ServerSource):
            return ""
        said = self._control.load(away_file(source.number)) or {}
        return AWAY if said.get("away") else ""

    def progress(self) -> Progress:
        """How far it is, and how fast: see ``Progress``."""
        spark = self._query.lastProgress
        end = self._over or time.perf_counter()
        records = sum(c.records for c in self._sources)
        out = sum(d.records for d in self._deliveries)
        rate_in, rate_out = self._rates.at(end, records, out)
        seconds = end - self._started
        over = self._ended.is_set()
        states = [] if spark is None else spark["stateOperators"]
        delays = self._spans()
        p50, p99 = (
            (float(np.percentile(delays, q)) for q in (50, 99)) if delays.size else (None, None)
        )
        stages = []
        for counted, operator in zip(self._operators, self._graph.operators, strict=True):
            # Spark lists them from the end of the query.
            state = states[-operator.level] if operator.level <= len(states) else None
            shards = counted.watermarks.values()
            stages.append(
                StageProgress(
                    name=operator.node.label,
                    records_in=counted.records,
                    records_out=counted.out,
                    bundles=counted.bundles,
                    busy=self._busy,
                    watermark=min(shards, default=BEGINNING),
                    state_bytes=0 if state is None else int(state["memoryUsedBytes"]),
                    keys=sum(counted.keys.values()),
                )
            )
        return Progress(
            seconds=seconds,
            records_in=records,
            records_out=out,
            rate_in=records / max(seconds, 1e-9) if over else rate_in,
            rate_out=out / max(seconds, 1e-9) if over else rate_out,
            sources=tuple(
                SourceProgress(
                    name=source.name,
                    records=counted.records,
                    late=counted.late,
                    watermark=frontier.promised if source.event is not None else None,
                    idle=tuple(i for i, s in enumerate(frontier.live or ()) if s in frontier.idle),
                    ended=frontier.ended,
                    ahead=counted.ahead,
                    waits=self._away(source) or self._waits(source.number),
                )
                for source, counted, frontier in zip(
                    self._graph.sources, self._sources, self._frontiers, strict=True
                )
            ),
            stages=tuple(stages),
            watermark=min((f.promised for f in self._frontiers), default=BEGINNING),
            delay_p50=p50,
            delay_p99=p99,
            bundles_in_flight=0,
            bytes_in_flight=0,
            late=sum(c.late for c in self._sources),
            bad=sum(c.bad for c in self._sources),
            notes=(*self._notes, *self.tables.notes),
            running=not over,
            error=None if self._error is None else str(self._error),
        )

    def _waits(self, number: int) -> str:
        """What a source's watermark waits for."""
        event, frontier = self._graph.sources[number].event, self._frontiers[number]
        if event is None or event.by_clock:
            return ""
        timed = zip(self._frontiers, self._graph.sources, strict=True)
        others = [f for f, source in timed if source.event is not None and f is not frontier]
        return waiting_for(
            frontier, self._activities[number], time.perf_counter(),
            follows=event.follows_clock, is_alone=least_awake(others) is None,
        )  # fmt: skip

    def _spans(self) -> Any:
        """How long the micro-batches took that gave results, from their beginning, in seconds."""
        gave = set(self._gave)
        told = self._query.recentProgress
        return np.array([p["batchDuration"] / 1000 for p in told if p["batchId"] in gave])

    def late(self, source: int = 0) -> pa.Table | None:
        """Late records are kept by ``stream.late``; a job on Spark counts them."""
        raise EngineError(
            "a job on Spark counts late records and does not keep them; start stream.late beside "
            "it: hr.start([stream, stream.late])"
        )

    def result(self, output: int = 0) -> pa.Table:
        """What a job started without ``to=`` has given so far."""
        if not 0 <= output < len(self._deliveries):
            raise EngineError(f"result({output}): the job has {len(self._deliveries)} outputs")
        delivery = self._deliveries[output]
        if delivery.sink is not None or delivery.function is not None:
            raise EngineError("the results went where to= said; there is nothing to show here")
        return pa.Table.from_batches(list(delivery.kept), delivery.schema)

    def __enter__(self) -> SparkJob:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.stop(drain=None if kind is None else False)
