"""Streaming workloads measured: full speed, the rate a target delay allows, and where time goes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.apps import App
from headrace.bench.limits import LIMITS
from headrace.bench.peers import duckdb_job, polars_job
from headrace.bench.replay import Replay
from headrace.bench.runner import Job
from headrace.bench.samples import REACHED
from headrace.box.engine import Box
from headrace.box.run import Run
from headrace.box.sinks import Discarded
from headrace.errors import PlanError, nearest
from headrace.jobs import JobOutput
from headrace.windows import AnyWindow

ENGINES = ("box", "spark", "spark-best", "spark-batch")
"""Spark streams one file a batch, or (best) all files in one; or takes all as bounded input."""
BASELINES = ("pyspark", "pyspark-best", *ENGINES, "duckdb", "polars", "limit")


@dataclass(frozen=True)
class Setup:
    """A workload with its input in memory, and how it is to be replayed."""

    app: App
    tables: dict[str, pa.Table]
    per_second: int
    epoch_records: int
    window: AnyWindow | None
    box: Box
    delay: int = 0
    """How late records in files may come, in seconds."""

    @staticmethod
    def of(
        app: App,
        *,
        records: int,
        seed: int,
        per_second: int | None,
        epoch_records: int | None,
        early: int,
        window: AnyWindow | None,
        box: Box,
    ) -> Setup:
        assert app.stream is not None
        density = per_second or app.stream.epoch_records
        tables = app.stream.tables(records, seed, density, early)
        tables = {name: table.combine_chunks() for name, table in tables.items()}
        epoch = epoch_records or app.stream.epoch_records
        delay = app.stream.delay if early else 0
        return Setup(app, tables, density, epoch, window or app.stream.window, box, delay)

    @property
    def records(self) -> int:
        return sum(t.num_rows for t in self.tables.values())

    def pipeline(self, records: int | None = None, rate: float | None = None) -> hr.Stream:
        """The workload over replayed input: so many records in all, at a rate if given."""
        assert self.app.stream is not None
        count, inputs = len(self.tables), {}
        for name, table in self.tables.items():
            source = Replay(
                table,
                max(1, self.per_second // count),
                max(1, self.epoch_records // count),
                table.num_rows if records is None else records // count,
                None if rate is None else rate / count,
                seconds=self.app.stream.seconds,
            )
            inputs[name] = hr.from_source(source).event_time("at")
        return self.app.stream.pipeline(inputs, self.window)

    def bounded(self) -> hr.Stream:
        """The workload over plain tables, for engines that see all records at once."""
        assert self.app.stream is not None
        delay = f"{self.app.stream.delay}s"
        inputs = {n: hr.from_arrow(t).event_time("at", delay=delay) for n, t in self.tables.items()}
        return self.app.stream.pipeline(inputs, self.window)


def jobs_for(
    setup: Setup, on: list[str], against: list[str], spark: Any
) -> tuple[dict[str, Job], list[Callable[[], None]]]:
    """What to run, by name, engines first; and what cleans up."""
    jobs: dict[str, Job] = {}
    cleaners: list[Callable[[], None]] = []
    files: list[Any] = []
    for name in on:
        if name not in ENGINES:
            raise PlanError(f"there is no engine '{name}'{nearest(name, ENGINES)}")
    for name in [*on, *against]:
        app, tables, window = setup.app.name, setup.tables, setup.window
        run: Callable[[], pa.Table]
        if name == "box":
            run = lambda: setup.pipeline().collect(on=setup.box)  # noqa: E731
        elif name == "spark-batch":
            run = lambda: setup.bounded().collect(on=spark)  # noqa: E731
        elif name == "duckdb":
            run = duckdb_job(app, tables, window)
        elif name == "polars":
            run = polars_job(app, tables, window)
        elif name in ("spark", "spark-best", "pyspark", "pyspark-best"):
            if not files:
                from headrace.bench.streaming import Files

                files.append(Files.of(setup.app, tables, window, setup.delay))
                cleaners.append(files[0].remove)
            at_once = None if name.endswith("-best") else 1
            ours = name.startswith("spark")
            run = (
                files[0].headrace(spark, at_once)
                if ours
                else files[0].pyspark(spark.session, at_once)
            )
        elif name == "limit":
            if app not in LIMITS:
                raise PlanError(f"there is no limit for {app}{nearest(app, LIMITS)}")
            run = _limit(app, tables)
        else:
            raise PlanError(f"there is no baseline '{name}'{nearest(name, BASELINES)}")
        jobs[name] = _named(setup.app.name, run)
    return jobs, cleaners


def _limit(app: str, tables: dict[str, pa.Table]) -> Callable[[], pa.Table]:
    return lambda: LIMITS[app](tables)


def _named(name: str, run: Callable[[], pa.Table]) -> Job:
    return lambda: {name: run()}


# The rate that a target delay allows


@dataclass(frozen=True)
class Trial:
    """One run at a set rate: output delays in seconds after warm-up, and the rate reached."""

    rate: float
    reached: float
    delays: list[float]

    @property
    def p50(self) -> float:
        return statistics.median(self.delays) if self.delays else float("inf")

    @property
    def p99(self) -> float:
        ordered = sorted(self.delays)
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else float("inf")

    @property
    def rising(self) -> bool:
        """Whether the delay grew as the run went on: then the rate is not sustained."""
        third = len(self.delays) // 3
        if third < 2:
            return False
        early = statistics.median(self.delays[:third])
        late = statistics.median(self.delays[-third:])
        return late > 2 * early + 0.005

    def holds(self, target: float) -> bool:
        """Whether it kept up with the rate, and the delay under the target."""
        return self.p99 <= target and not self.rising and self.reached >= REACHED * self.rate


def trial(setup: Setup, rate: float, seconds: float, warm: float = 1.0) -> Trial:
    """Offer records at a rate for a while."""
    records = int(rate * (seconds + warm))
    records -= records % max(1, setup.epoch_records // 4)
    records = max(records, 2 * setup.epoch_records)
    run = _run(setup, setup.pipeline(records, rate))
    start = run.clock.now()
    run.start()
    run.wait()
    took = (run.finished_at - run.started) or 1e-9
    delays = [d for at, d in run.delays if at - start >= warm]
    return Trial(rate, records / took, delays)


def _run(setup: Setup, stream: hr.Stream) -> Run:
    return setup.box._run([JobOutput(stream.node, sink=(Discarded(), False))])


def best_rate(
    setup: Setup,
    target: float,
    most: float,
    seconds: float,
    progress: Callable[[str], None],
) -> Trial | None:
    """The highest rate whose delay stays under the target, by bisection below ``most``."""
    low, high, best = 0.0, most * 1.05, None
    for step in range(7):
        rate = high if step == 0 else (low + high) / 2
        progress(f"target {1000 * target:.0f} ms: trying {rate:,.0f} records/s")
        tried = trial(setup, rate, seconds)
        if tried.holds(target):
            low, best = rate, tried
            if step == 0:
                break
        else:
            high = rate
    return best


# Where time goes


def profile(setup: Setup) -> dict[str, Any]:
    """What a bundle of each stage takes: in kernels, under the interpreter lock, waiting for it.

    What it takes under the lock is measured with bundles of one record on one evaluator, where
    native code takes next to nothing. The lock is held by one thread at a time, so it is busy all
    the time when that, times the bundles of a second, is a second: ``cores`` says how many cores
    would make so many bundles.
    """
    run = _run(setup, setup.pipeline())
    run.profiled = True
    run.start()
    run.wait()
    few = min(2000, min(t.num_rows for t in setup.tables.values()))
    small = replace(
        setup,
        tables={name: table.slice(0, few) for name, table in setup.tables.items()},
        box=Box(workers=1, bundle=1),
    )
    for _ in range(2):  # the first compiles
        single = _run(small, small.pipeline())
        single.start()
        start = time.process_time()
        single.wait()
        took = time.process_time() - start
    held = {v.name: v.worked / max(1, v.bundles) for v in single.cascade.vertices if v.bundles}
    dispatches = sum(v.bundles for v in single.cascade.vertices)
    worked = sum(v.worked for v in single.cascade.vertices)
    dispatch = max(0.0, took - worked) / max(1, dispatches)
    rows, lock, work = [], 0.0, 0.0
    for vertex in run.cascade.vertices:
        count = max(1, vertex.bundles)
        under = min(held.get(vertex.name, 0.0), vertex.worked / count)
        lock += vertex.bundles * (under + dispatch)
        work += vertex.worked + vertex.bundles * dispatch
        rows.append(
            {
                "stage": vertex.name,
                "records": vertex.records,
                "bundles": vertex.bundles,
                "busy_s": round(vertex.busy, 4),
                "kernel_us": round(1e6 * (vertex.worked / count - under), 1),
                "lock_us": round(1e6 * under, 1),
                "waiting_us": round(1e6 * max(0.0, vertex.busy - vertex.worked) / count, 1),
                "switches": round(vertex.switches / count, 2),
            }
        )
    return {
        "stages": rows,
        "dispatch_us": round(1e6 * dispatch, 1),
        "cores": int(work / max(lock, 1e-9)),
    }
