"""Sinks that one process writes: workers hand over their records, and a commit writes them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.errors import HeadraceError, StepError
from headrace.io.sink import Sink
from headrace.kernels.rows import FAILURES, reason_of
from headrace.secrets import Secret, without


class GatheringSink(Sink):
    """Takes the records of an epoch together, and writes them at once."""

    secrets: tuple[Secret, ...] = ()
    """What must not be seen in a message."""

    def identity(self, schema: pa.Schema) -> str:
        """What a checkpoint remembers it by."""
        return str(self)

    def open(self, schema: pa.Schema, task: str) -> GatheringWriter:
        return GatheringWriter()

    def commit(self, messages: list[Any]) -> None:
        self._write("", -1, messages)

    def commit_epoch(self, job: str, epoch: int, messages: list[Any]) -> None:
        """Write an epoch; one that sinks of this kind have seen before may come again."""
        self._write(job, epoch, messages)

    def _write(self, job: str, epoch: int, messages: list[Any]) -> None:
        batches = [b for m in messages if m is not None for b in _unpacked(m)]
        if not batches:
            return
        table = pa.Table.from_batches(batches)
        try:
            self.store(table, job, epoch)
        except HeadraceError:
            raise
        except FAILURES as error:
            reason = without(reason_of(error), self.secrets)
            cause = None if self.secrets else error  # a client's own words may tell too much
            raise StepError(f"{self} failed: {reason}") from cause

    def store(self, table: pa.Table, job: str, epoch: int) -> None:
        """Write records; ``epoch`` is -1 where there are no epochs."""
        raise NotImplementedError


class GatheringWriter:
    """Keeps a task's records, to be handed over when it ends."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def close(self) -> Any:
        if not self.batches:
            return None
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, self.batches[0].schema) as stream:
            for batch in self.batches:
                stream.write_batch(batch)
        return out.getvalue().to_pybytes()


def _unpacked(message: bytes) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(message) as stream:
        return list(stream)


class EachBatch(GatheringSink):
    """Hands the records of each epoch to a function, as a table, with the epoch's number."""

    def __init__(self, function: Callable[[pa.Table, int], Any], label: str) -> None:
        self.function, self.label = function, label
        self.count = 0

    def __str__(self) -> str:
        return self.label

    def identity(self, schema: pa.Schema) -> str:
        return "a function of each batch"

    def store(self, table: pa.Table, job: str, epoch: int) -> None:
        self.function(table, self.count if epoch < 0 else epoch)
        self.count += 1

    def __copy__(self) -> EachBatch:
        return EachBatch(self.function, self.label)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "function": None}  # it stays here; workers only hand over


class Console(GatheringSink):
    """Prints the records of each epoch."""

    def __init__(self, rows: int = 20) -> None:
        self.rows = rows

    def __str__(self) -> str:
        return "the console"

    def store(self, table: pa.Table, job: str, epoch: int) -> None:
        from headrace.display import print_table

        print_table(table.slice(0, self.rows), more=table.num_rows > self.rows)
