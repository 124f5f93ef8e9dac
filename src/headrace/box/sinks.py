"""Where a graph ends: results collected, handed to a function, or written."""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.box.bundle import Bundle
from headrace.box.host import Outbox
from headrace.errors import HeadraceError, StepError
from headrace.io.held import Holding
from headrace.io.sink import Sink
from headrace.kernels.rows import FAILURES, failure, rows_of
from headrace.windows import FOREVER


class Collected:
    """Keeps all records, to be put together in input order."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.bundles: list[Bundle] = []

    def process(self, bundle: Bundle, out: Outbox) -> None:
        self.bundles.append(bundle)

    def on_watermark(self, time: int, out: Outbox) -> None:
        """Nothing is held back."""

    def table(self) -> pa.Table:
        """What has come so far."""
        bundles = sorted(self.bundles, key=lambda b: (b.serial, b.order))
        return pa.Table.from_batches([_exact(b.batch, self.schema) for b in bundles], self.schema)

    def tick(self) -> None:
        """Nothing waits."""

    def abort(self) -> None:
        """What has come stays to be looked at."""


def _exact(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return batch if batch.schema.equals(schema) else batch.select(schema.names).cast(schema)


class HeldHere:
    """Keeps all records in input order, what is too much for memory in a file."""

    def __init__(self, holding: Holding) -> None:
        self.holding, self.lock = holding, threading.Lock()

    def process(self, bundle: Bundle, out: Outbox) -> None:
        batch = _exact(bundle.batch, self.holding.schema)
        with self.lock:
            self.holding.add((bundle.serial, bundle.order), batch)

    def on_watermark(self, time: int, out: Outbox) -> None:
        """Nothing is held back."""

    def tick(self) -> None:
        """Nothing waits."""

    def abort(self) -> None:
        """Whoever holds them gives them back."""


class Called:
    """Hands each bundle to a function, one at a time."""

    def __init__(self, function: Callable[[pa.RecordBatch], Any], label: str) -> None:
        self.function, self.label = function, label

    def process(self, bundle: Bundle, out: Outbox) -> None:
        try:
            self.function(bundle.batch)
        except HeadraceError:
            raise
        except FAILURES as error:
            first = next(rows_of(bundle.batch.slice(0, 1)), None)
            what = f"a bundle of {bundle.batch.num_rows} records, the first"
            raise failure(self.label, error, first, what) from error

    def on_watermark(self, time: int, out: Outbox) -> None:
        """Nothing is held back."""

    def tick(self) -> None:
        """Nothing waits."""

    def abort(self) -> None:
        """What was handed over is."""


class Discarded:
    """Runs a pipeline for the effect of its functions."""

    def process(self, bundle: Bundle, out: Outbox) -> None:
        """Nothing is kept."""

    def on_watermark(self, time: int, out: Outbox) -> None:
        """Nothing is held back."""

    def tick(self) -> None:
        """Nothing waits."""

    def abort(self) -> None:
        """Nothing was kept."""


class WrittenTo:
    """Writes to a sink, and commits when the input ends; an unbounded job also before.

    A commit makes visible what has been written so far, whole bundles; it follows a watermark
    where there are any. ``every`` is the least time between two commits, in seconds, None to
    commit at the end only. A sink that is slow to commit is left twice that time to take records.
    """

    def __init__(
        self,
        sink: Sink,
        schema: pa.Schema,
        every: float | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sink, self.schema, self.every, self.now = sink, schema, every, now
        self.writer: Any = None
        self.parts = 0
        self.commits = 0
        self.last, self.took = now(), 0.0
        self.lock = threading.Lock()
        """Bundles of a later epoch may come while an earlier one's watermark is processed."""

    def process(self, bundle: Bundle, out: Outbox) -> None:
        with self.lock:
            if self.writer is None:
                self._begin()
            self.writer.write(bundle.batch)

    def _begin(self) -> None:
        self.sink.begin(self.schema)
        self.writer = self.sink.open(self.schema, f"{self.parts:06d}")
        self.parts += 1

    def _is_due(self, every: float) -> bool:
        return self.now() - self.last >= max(every, 2 * self.took)

    def tick(self) -> None:
        """Called now and then: what has waited long for a watermark is committed without one."""
        if self.writer is None or self.every is None or not self._is_due(2 * self.every):
            return
        with self.lock:
            self._commit()

    def on_watermark(self, time: int, out: Outbox) -> None:
        with self.lock:
            if time == FOREVER:
                if self.writer is None and not self.commits:
                    self._begin()
                self._commit()
            elif self.every is not None and self._is_due(self.every):
                self._commit()

    def _commit(self) -> None:
        if self.writer is None:
            return
        begun = self.now()
        message = self.writer.close()
        self.writer = None
        self.sink.commit([message])
        self.commits += 1
        self.last = self.now()
        self.took = self.last - begun

    def abort(self) -> None:
        self.sink.abort()


class WrittenByEpoch:
    """Writes to a sink for a job with a checkpoint: what it has is made visible with the next."""

    def __init__(self, sink: Sink, schema: pa.Schema, job: str) -> None:
        self.sink, self.schema, self.job = sink, schema, job
        self.run, self.parts = uuid.uuid4().hex[:8], 0
        self.writer: Any = None
        self.lock = threading.Lock()

    def process(self, bundle: Bundle, out: Outbox) -> None:
        with self.lock:
            if self.writer is None:
                self.writer = self.sink.open(self.schema, f"{self.run}-{self.parts:06d}")
                self.parts += 1
            self.writer.write(bundle.batch)

    def on_watermark(self, time: int, out: Outbox) -> None:
        """Nothing is held back."""

    def tick(self) -> None:
        """Nothing waits but for the next checkpoint."""

    def cut(self) -> Any:
        """The writer of what has come since the last time; None if nothing has."""
        with self.lock:
            writer, self.writer = self.writer, None
        return writer

    def commit(self, epoch: int, messages: list[Any]) -> None:
        """Make an epoch visible, once however often it is called."""
        self.sink.commit_epoch(self.job, epoch, messages)

    def finish(self) -> None:
        """The job has ended well."""
        self.sink.finish()

    def abort(self) -> None:
        self.sink.abort()


def sink_of(to: Any, schema: pa.Schema, interval: float | None) -> tuple[Any, bool]:
    """What takes the records, and whether it takes one bundle at a time.

    ``interval`` is the time between two commits of files, None for input that ends.
    """
    if to is None:
        return Collected(schema), False
    if isinstance(to, Sink):
        # A stream's output may be started again while a job still changes its sink.
        sink = to if interval is None else copy.copy(to)
        written = WrittenTo(sink, schema, interval)
        if interval is not None and not sink.by_interval:
            written.every = 0.0
        sink.ready()
        return written, True
    if callable(to):
        return Called(to, "the function of start(to=…)"), True
    raise StepError(f"to={to!r} is neither a sink nor a function of a bundle")
