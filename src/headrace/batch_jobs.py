"""Bounded pipelines in the background: the same job, over what an engine computes at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.errors import EngineError, HeadraceError
from headrace.io.sink import Sink
from headrace.iteration import WATCH, Watch, settled
from headrace.jobs import JobOutput, Progress, Shown
from headrace.plan.explain import logical
from headrace.signals import GRACE, Halt, asked_to_stop
from headrace.windows import FOREVER

log = logging.getLogger("headrace")


class BatchJob(Shown):
    """Outputs computed one after the other; see ``headrace.jobs.Job``."""

    def __init__(self, engine: Any, outputs: Sequence[JobOutput]) -> None:
        self._engine, self._outputs = engine, list(outputs)
        self._watch = Watch()
        self._tables: list[pa.Table | None] = [None] * len(self._outputs)
        self._ended = threading.Event()
        self._halt = Halt(self.stop, self.stop)
        self._waited_for = 0
        self._stopped = False
        self._error: BaseException | None = None
        self._records = 0
        self._started = time.perf_counter()
        self._over = 0.0
        for output in self._outputs:
            if isinstance(output.to, Sink):
                output.to.ready()
        self._thread = threading.Thread(target=self._run, name="headrace-job", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        """Told in the thread that computes, before it does."""

    def _cancel(self) -> None:
        """Have what is being computed end."""

    def _run(self) -> None:
        WATCH.set(self._watch)
        try:
            self._begin()
            # What several of them read of an iteration is computed once.
            with settled(self._engine, *(output.node for output in self._outputs)) as nodes:
                for i, (output, node) in enumerate(zip(self._outputs, nodes, strict=True)):
                    if not self._stopped:
                        self._compute(i, replace(output, node=node))
        except BaseException as error:
            if not self._stopped:
                self._error = error
                if not self._waited_for:  # whoever waits is told, once
                    log.error("the job failed: %s", error)
        self._over = time.perf_counter()
        self._ended.set()

    def _compute(self, number: int, output: JobOutput) -> None:
        if isinstance(output.to, Sink):
            self._records += self._engine.write(output.node, output.to)
        elif output.to is not None:
            for batch in self._engine.bundles(output.node):
                output.to(batch)
                self._records += batch.num_rows
        else:
            table = self._engine.collect(output.node)
            self._tables[number] = table
            self._records += table.num_rows

    @property
    def is_stopped(self) -> bool:
        """Whether it was asked to end."""
        return self._stopped

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def wait(self, timeout: float | None = None, *, grace: Any = GRACE) -> bool:
        """Wait for the end; false if it has not come in time. Raises what went wrong.

        Ctrl-C or SIGTERM while waiting cancels it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._waited_for += 1
        try:
            with asked_to_stop() as asked:
                while not self._ended.wait(0.05):
                    self._halt.look(asked, grace)
                    if deadline is not None and time.monotonic() >= deadline:
                        return False
        finally:
            self._waited_for -= 1
        if self._error is None:
            return True
        if isinstance(self._error, HeadraceError):
            raise self._error
        raise EngineError(f"the job failed: {self._error}") from self._error

    def stop(self, *, drain: bool | None = None, timeout: float | None = None) -> bool:
        """Cancel what runs: input that ends has nothing to drain."""
        if not self._ended.is_set():
            self._stopped = True
            self._watch.stopped.set()
            self._cancel()
        if threading.current_thread() is self._thread:  # from a function of its own
            return False
        return self.wait(timeout)

    def explain(self) -> str:
        """The plan of each output."""
        return "\n\n".join(logical(output.node) for output in self._outputs)

    def progress(self) -> Progress:
        """How long it has run, what it has given, and the last iteration if it has any."""
        seconds = (self._over or time.perf_counter()) - self._started
        notes = () if self._watch.last is None else (str(self._watch.last),)
        records = sum(int(counter.value) for counter in self._watch.read)
        out = self._records
        return Progress(
            seconds=seconds, records_in=records, records_out=out,
            rate_in=records / max(seconds, 1e-9), rate_out=out / max(seconds, 1e-9),
            sources=(), stages=(), watermark=FOREVER,
            delay_p50=None, delay_p99=None, bundles_in_flight=0, bytes_in_flight=0, late=0, bad=0,
            notes=notes, running=self.running,
            error=None if self._error is None else str(self._error),
        )  # fmt: skip

    def late(self, source: int = 0) -> pa.Table | None:
        """Nothing is late to a job that sees all records at once."""
        return None

    def result(self, output: int = 0) -> pa.Table:
        """What a job started without ``to=`` has given."""
        if not 0 <= output < len(self._outputs):
            raise EngineError(f"result({output}): the job has {len(self._outputs)} outputs")
        if self._outputs[output].to is not None:
            raise EngineError("the results went where to= said; there is nothing to show here")
        table = self._tables[output]
        return self._outputs[output].node.schema.empty_table() if table is None else table

    def __enter__(self) -> BatchJob:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.wait()
        else:
            self.stop()
