"""A pipeline running on the box, as a person holds it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.box.run import Run
from headrace.box.sinks import Collected
from headrace.errors import EngineError
from headrace.jobs import JobOutput, Progress, Shown
from headrace.signals import GRACE, Halt, asked_to_stop


class BoxJob(Shown):
    """A pipeline running on the box; see ``headrace.jobs.Job``."""

    def __init__(self, run: Run, outputs: Sequence[JobOutput]) -> None:
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
        return self._run.reports.progress()

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


def _left(deadline: float | None) -> float:
    """How long to wait before looking around again."""
    return 0.05 if deadline is None else max(0.0, min(0.05, deadline - time.monotonic()))
