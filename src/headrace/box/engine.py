"""``hr.Box``: the embedded multicore engine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import pyarrow as pa

from headrace.batch_jobs import BatchJob
from headrace.box.checkpoint import Kept, kept_in
from headrace.box.clock import Clock
from headrace.box.cores import usable_cores
from headrace.box.effects import why_here
from headrace.box.job import BoxJob
from headrace.box.ordered import Ordering
from headrace.box.processes import AFTER, Pool
from headrace.box.run import Run
from headrace.box.scheduler import SCHEDULERS, scheduler_of
from headrace.box.sinks import Collected, Discarded, HeldHere, WrittenTo
from headrace.buffers import Buffer, checked
from headrace.cache import sweep_once
from headrace.checkpoints.control import checkpoint_folder
from headrace.errors import EngineError, PlanError
from headrace.io.held import Held, Holding, held_folder
from headrace.io.sink import Sink
from headrace.io.tables import InProcess
from headrace.iteration import iterates, settled
from headrace.jobs import AVAILABLE_NOW, Job, JobOutput
from headrace.kernels.row_steps import ELSEWHERE, NATIVE, ROW_METHODS, row_place
from headrace.kernels.scans import scan_place
from headrace.operators.join import table_side
from headrace.plan.explain import ITERATED, LOCK
from headrace.plan.iteration import Cycle, Iterate
from headrace.plan.joins import Join, Union
from headrace.plan.node import Narrow, Node
from headrace.plan.optimise import optimised
from headrace.plan.partitions import Buffered, MaxParallelism, Shuffle
from headrace.plan.pushdown import decided
from headrace.plan.rows import MapRows
from headrace.plan.scans import Scan
from headrace.plan.sources import External, Read
from headrace.plan.stages import Stage, stages_of
from headrace.plan.table_join import TableJoin
from headrace.plan.time import EventTime, Late, ends, refuse_endless
from headrace.sizes import byte_size, default_memory, is_whole, usable_memory
from headrace.tables import with_tables
from headrace.windows import duration


class Box:
    """All cores of this machine, in this process.

    ``workers`` is the number of evaluator threads (all cores this process may use), ``pin`` ties
    each to a core, ``memory`` bounds the bytes of records in flight, those that reading one Parquet
    row group takes, and, on bounded input, the state of operators (``"512MB"``, at least 64 MB of
    state; without it a quarter of the machine's memory, at most 2 GB, and half of it for state),
    ``scheduler`` is ``"next-externalization"``, ``"first-found"``, ``"in-order"``, or ``"ct"``,
    ``"lp"``, ``"et"`` or ``"qst"`` (docs/box.md), and ``bundle`` fixes the records of a bundle,
    which otherwise adapts. Instead, ``buffer`` says when what is read is sent on:
    ``hr.fixed(1024)``, ``hr.adaptive(1024, "50ms")`` or ``hr.immediate``. None of them changes a
    result. ``commit_every`` is how often a job that does not end makes the files it writes visible
    (``"1s"``); other sinks get results at once. With a checkpoint it is how often one is written,
    and all sinks get results then. ``ordered=True`` gives exactly what processing records one at a
    time in the order of their arrival would, in parallel. ``debug`` checks the engine's invariants
    as it runs.

    A function of a record that cannot be compiled moves to processes, one for each worker, after a
    second of the interpreter's time, if it changes nothing but its own; ``processes=4`` runs all
    such functions in 4 processes from the start, ``processes=0`` none.
    """

    name = "box"

    def __init__(
        self,
        *,
        workers: int | None = None,
        pin: bool = False,
        memory: int | str | None = None,
        scheduler: str = "next-externalization",
        bundle: int | None = None,
        buffer: Buffer | None = None,
        commit_every: Any = "1s",
        ordered: bool | Ordering = False,
        processes: int | None = None,
        debug: bool | None = None,
        clock: Clock | None = None,
    ) -> None:
        cores = usable_cores()
        if workers is not None and not is_whole(workers, 1, 1024):
            raise PlanError(f"Box: workers={workers!r} is not a number from 1 to 1024")
        if bundle is not None and not is_whole(bundle):
            raise PlanError(f"Box: bundle={bundle!r} is not a number of records")
        if buffer is not None:
            checked(buffer, "Box: buffer=")
            if bundle is not None:
                raise PlanError("Box: buffer= says how many records a bundle has; drop bundle=")
        if processes is not None and not is_whole(processes, 0, 1024):
            raise PlanError(f"Box: processes={processes!r} is not a number from 0 to 1024")
        if pin and not hasattr(os, "sched_setaffinity"):
            raise PlanError("Box: pin=True needs Linux; leave it out here")
        if not isinstance(scheduler, str):
            raise PlanError(f"Box: scheduler={scheduler!r} is not the name of one")
        if clock is not None and not isinstance(clock, Clock):
            raise PlanError(f"Box: clock={clock!r} is not a clock; leave it out outside tests")
        if not isinstance(ordered, (bool, Ordering)):
            raise PlanError(f"Box: ordered={ordered!r} is neither true, false nor an hr.Ordering")
        self.ordering = Ordering() if ordered is True else ordered or None
        scheduler_of(scheduler)
        self.interval = duration(commit_every, "Box: commit_every", 1) / 1e6
        self.workers = workers or len(cores)
        self.cores: Sequence[int] | None = cores if pin else None
        self.memory, self.state_memory = _memory(memory)
        self.scheduler, self.bundle, self.clock = scheduler, bundle, clock
        self.buffer = buffer
        self.processes = processes
        told = os.environ.get("HEADRACE_DEBUG", "") not in ("", "0")
        self.debug = told if debug is None else debug

    def __repr__(self) -> str:
        return f"Box(workers={self.workers})"

    def _run(
        self, outputs: Sequence[JobOutput], kept: Kept | None = None, only_now: bool = False
    ) -> Run:
        pool = self._pool()
        elsewhere = ELSEWHERE.set(pool)
        try:
            return self._made(outputs, kept, only_now, pool)
        finally:
            ELSEWHERE.reset(elsewhere)

    def _pool(self) -> Pool | None:
        """Processes for functions that cannot be compiled; started when there is work for them."""
        if self.processes == 0 or (self.processes is None and self.workers == 1):
            return None
        return Pool(self.processes or self.workers, forced=self.processes is not None)

    def _made(
        self, outputs: Sequence[JobOutput], kept: Kept | None, only_now: bool, pool: Pool | None
    ) -> Run:
        return Run(
            outputs,
            workers=self.workers,
            cores=self.cores,
            memory=self.memory,
            state_memory=self.state_memory,
            scheduler=self.scheduler,
            bundle=self.bundle,
            buffer=self.buffer,
            clock=self.clock,
            debug=self.debug,
            interval=self.interval,
            kept=kept,
            only_now=only_now,
            ordering=self.ordering,
            pool=pool,
        )

    def _finish(self, node: Node, sink: Any, alone: bool = False) -> Run:
        """Run a bounded plan to its end."""
        run = self._run([JobOutput(node, sink=(sink, alone))])
        run.waited_for += 1
        batch = _BATCH.get()
        if batch is not None:
            batch.current = run
            if batch.is_stopped:
                raise EngineError("the job was stopped")
        run.start()
        try:
            run.wait()
        except KeyboardInterrupt:
            run.stop(drain=False)
            run.wait()
            raise
        return run

    def collect(self, node: Node) -> pa.Table:
        """All records, in order."""
        ends(node, "collect")
        sink = Collected(node.schema)
        with settled(self, node) as (ready,):
            self._finish(ready, sink)
        return sink.table()

    def hold(self, node: Node) -> Held:
        """The records in memory, or in a file mapped into it where they are many."""
        sweep_once()
        folder = held_folder()
        holding = Holding(node.schema, folder, self.memory)
        try:
            self._finish(node, HeldHere(holding))
            return Held(node, holding.pieces(), folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def bundles(self, node: Node) -> Iterator[pa.RecordBatch]:
        """The records in order. The box holds them all before it gives the first."""
        ends(node, "for_each")
        yield from self.collect(node).to_batches()

    def write(self, node: Node, sink: Sink) -> int:
        """Write to a sink, commit once all records are there, and return their number."""
        ends(node, "write")
        with settled(self, node) as (ready,):
            run = self._finish(ready, WrittenTo(sink, node.schema, None), alone=True)
        return sum(vertex.records for vertex in run.sinks)

    def run(self, node: Node) -> None:
        """Run for the effect of its functions."""
        ends(node, "run")
        with settled(self, node) as (ready,):
            self._finish(ready, Discarded())

    def start(
        self, outputs: Sequence[JobOutput], checkpoint: Any = None, trigger: Any = None
    ) -> Job:
        """Start a job with one or more outputs, and return at once."""
        if trigger not in (None, AVAILABLE_NOW):
            raise PlanError(
                f"trigger={trigger!r}: the box has no batches; leave it out, or use "
                f"{AVAILABLE_NOW!r} to read what there is and stop"
            )
        for output in outputs:
            refuse_endless(output.node)
        if (checkpoint, trigger) != (None, None) and all(output.bounded for output in outputs):
            raise PlanError("checkpoint= and trigger= are for input that does not end")
        if any(iterates(output.node) for output in outputs):
            if all(output.bounded for output in outputs):
                return BoxBatch(self, outputs)
            raise PlanError(
                "start: an iteration ends and a stream beside it never does; write what the "
                "iteration gives first, and read that, or join the stream with it"
            )
        outputs, tables = with_tables(self, outputs, lambda _: InProcess())
        kept: Kept | None = None
        try:
            if checkpoint is not None:
                shards = 1 << (self.workers - 1).bit_length()
                folder = checkpoint_folder(checkpoint)
                kept, outputs = kept_in(folder, outputs, shards, self.interval)
            run = self._run(outputs, kept, only_now=trigger is not None)
            run.tables = tables
            run.start()
        except BaseException:
            if kept is not None:
                kept.keeper.end()
            tables.close()
            raise
        return BoxJob(run, outputs)

    def stages(self, node: Node) -> Stage:
        """The stages of a plan, without what nobody asks for."""
        return stages_of(optimised([node])[0])

    def where(self, stage: Stage, readers: Sequence[Stage] = ()) -> list[str]:
        """Where each step of a stage runs."""
        head = stage.head
        if isinstance(head, (Read, External)):
            place = "ingress" if self.buffer is None else f"ingress, {self.buffer!r}"
            what = decided(head)
            place += f"; only records with {what}" if what else ""
        elif isinstance(head, Late):
            place = "the ingress's late side"
        elif isinstance(head, (Iterate, Cycle)):
            place = ITERATED
        elif isinstance(head, Union):
            place = "no copy; joint watermark"
        elif isinstance(head, Shuffle):
            place = "nothing to do: evaluators share all bundles"
        elif isinstance(head, MaxParallelism):
            place = f"at most {head.count} bundles at once"
        elif isinstance(head, Join):
            side = ("left", "right")[table_side(head)]
            place = f"looked up by evaluators in a table of the {side} side, once that has ended"
        elif head.needs_end:
            place = "partials by evaluators; state by shard of the keys, when the input ends"
        else:
            place = "partials by evaluators; state by shard of the keys, at watermarks"
        how = scan_place(head) if isinstance(head, Scan) else LOCK if head.python else ""
        places = [f"{place}; {how}" if how else place]
        for step in stage.steps:
            if isinstance(step, EventTime):
                places.append("ingress" if step.is_never_late else "ingress, cuts epochs")
            elif isinstance(step, Buffered):
                places.append("holds records until they are sent on together")
            else:
                places.append(self._step_place(step))
        return places

    def _step_place(self, step: Narrow) -> str:
        if isinstance(step, TableJoin):
            return "looked up in a table that all evaluators share"
        if not isinstance(step, MapRows):
            return LOCK if step.python else "kernel"
        place, pool = row_place(step), self._pool()
        if place == NATIVE or pool is None or step.method not in ROW_METHODS:
            return place
        why = why_here(step.function, forced=pool.at_once)
        if why is not None:
            return f"{place}; stays in this process: {why}"
        when = "" if pool.at_once else f" after {AFTER:g} s"
        return f"{place}; in {pool.count} processes{when}"


class BoxBatch(BatchJob):
    """Outputs that iterate: each iteration is a run of its own."""

    current: Run | None = None

    def _begin(self) -> None:
        _BATCH.set(self)

    def _cancel(self) -> None:
        run = self.current
        if run is not None:
            run.stop(drain=False)


_BATCH: ContextVar[BoxBatch | None] = ContextVar("batch", default=None)
"""The job that this thread computes for, if it is one in the background."""


def _memory(option: int | str | None) -> tuple[int, int]:
    """The bytes of records that may be in flight, and of state on bounded input."""
    if option is None:
        return default_memory(), usable_memory() // 2
    size = byte_size(option, "Box: memory")
    return size, max(size, _LEAST_STATE)


_LEAST_STATE = 64 << 20
"""A smaller limit would refuse jobs that any machine can run."""


__all__ = ["SCHEDULERS", "Box"]
