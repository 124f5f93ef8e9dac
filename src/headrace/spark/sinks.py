"""Where the outputs of a streaming job go: sinks, functions, or kept on the driver."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.io.sink import Sink
from headrace.kernels.rows import FAILURES, failure, rows_of
from headrace.spark.wire import unpack


@dataclass
class Delivery:
    """Where an output goes."""

    schema: pa.Schema
    job: str
    sink: Sink | None = None
    function: Callable[..., Any] | None = None
    kept: list[pa.RecordBatch] = field(default_factory=list)
    records: int = 0

    def take(self, epoch: int, data: Sequence[bytes]) -> None:
        """What one micro-batch gave."""
        if self.sink is not None:
            messages = [pickle.loads(d) for d in data]
            self.sink.commit_epoch(self.job, epoch, messages)
            return
        batches = [unpack(d, self.schema) for d in data]
        self.records += sum(b.num_rows for b in batches)
        if self.function is None:
            self.kept.extend(batches)
            return
        for batch in batches:
            self._call(batch)

    def _call(self, batch: pa.RecordBatch) -> None:
        assert self.function is not None
        try:
            self.function(batch)
        except HeadraceError:
            raise
        except FAILURES as error:
            first = next(rows_of(batch.slice(0, 1)), None)
            what = f"a bundle of {batch.num_rows} records, the first"
            raise failure("the function of start(to=…)", error, first, what) from error

    def finish(self) -> None:
        """The job has ended well."""
        if self.sink is not None:
            self.sink.finish()

    def abort(self) -> None:
        if self.sink is not None:
            self.sink.abort()
