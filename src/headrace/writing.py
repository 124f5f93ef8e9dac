"""Where streams end: what writes them to files, brokers, tables and functions."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.building import calling_line, column_names
from headrace.engines import resolve
from headrace.errors import PlanError
from headrace.hints import keywords
from headrace.io.csv import CsvSink
from headrace.io.gathering import Console, EachBatch
from headrace.io.json import JsonSink
from headrace.io.kafka import KafkaSink
from headrace.io.parquet import ParquetSink
from headrace.io.postgres import PostgresSink
from headrace.io.redis import RedisSink
from headrace.io.registry import find
from headrace.io.sink import Sink, SinkLike, as_sink, name_of
from headrace.io.text import TextSink
from headrace.jobs import Job, Progress
from headrace.plan.explain import explain
from headrace.secrets import Secret
from headrace.steps import Steps

if TYPE_CHECKING:
    from headrace.stream import Stream


class Writing(Steps):
    """What writes a stream to a sink."""

    def write_to(self, sink: SinkLike, on: Any = None) -> Output:
        """Write to any sink; see ``headrace.io.sink`` for how to write one.

        Nothing is written yet: ``run()`` of the result writes to the end, ``start()`` writes in the
        background, and ``hr.run`` and ``hr.start`` take several outputs at once.
        """
        with self._building("write") as at:
            to = as_sink(sink)
            if to is None:
                raise PlanError(f"{sink!r} is not a sink; see headrace.io.sink")
            to.check(self.schema)
        return Output(self._stream, to, on, at.label)

    def write(self, format: str, *args: Any, on: Any = None, **options: Any) -> Output:
        """Write in a format found by name, ours or one an installed package brings."""
        with self._building(f"write {format}"):
            sink = find("headrace.sinks", format)(*args, **options)
        return self.write_to(sink, on)

    def write_parquet(
        self, path: Any, mode: str = "error", on: Any = None, **options: Any
    ) -> Output:
        """Write a folder of Parquet files; ``mode`` is error, overwrite or append."""
        return self._write_files("write_parquet", ParquetSink, path, mode, on, options)

    def write_csv(self, path: Any, mode: str = "error", on: Any = None, **options: Any) -> Output:
        """Write a folder of CSV files with headers."""
        return self._write_files("write_csv", CsvSink, path, mode, on, options)

    def write_json(self, path: Any, mode: str = "error", on: Any = None) -> Output:
        """Write a folder of JSON-lines files; NaN and infinity, which JSON lacks, become null."""
        return self._write_files("write_json", JsonSink, path, mode, on, {})

    def write_text(self, path: Any, mode: str = "error", on: Any = None) -> Output:
        """Write the one string column as a folder of text files."""
        return self._write_files("write_text", TextSink, path, mode, on, {})

    def write_kafka(
        self,
        topic: str,
        *,
        servers: str = "localhost:9092",
        key: str | None = None,
        value: str | None = None,
        config: Mapping[str, Any] | None = None,
        on: Any = None,
    ) -> Output:
        """Send each record to a Kafka topic, as a JSON object or as the one column ``value``."""
        return self.write_to(KafkaSink(topic, servers, key, value, dict(config or {})), on)

    def write_redis(
        self,
        name: str,
        *,
        url: str | Secret = "redis://localhost:6379",
        key: str | None = None,
        on: Any = None,
    ) -> Output:
        """Add each record to a Redis stream; with ``key``, keep it as the hash ``name:value``."""
        return self.write_to(RedisSink(name, url, key), on)

    def write_postgres(
        self, table: str, url: str | Secret, *, key: str | Sequence[str] = (), on: Any = None
    ) -> Output:
        """Append to a Postgres table; with ``key``, replace the rows that have the same key."""
        with self._building("write_postgres"):
            keys = column_names(key, "key=")
        return self.write_to(PostgresSink(table, url, keys), on)

    def write_console(self, rows: int = 20, on: Any = None) -> Output:
        """Print the first records of each batch."""
        return self.write_to(Console(rows), on)

    def for_each_batch(self, function: Callable[[pa.Table, int], Any], on: Any = None) -> Output:
        """Call ``function(table, epoch)`` here with the records of each batch.

        After a failure the last epoch may come once more, with the same number and records.
        """
        with self._building("for_each_batch") as at:
            self._function(function)
            sink = EachBatch(function, at.label)
        return self.write_to(sink, on)

    def _write_files(
        self, method: str, kind: Any, path: Any, mode: str, on: Any, options: dict[str, Any]
    ) -> Output:
        with self._building(method):
            sink = kind(path, mode, options)
        return self.write_to(sink, on)


class Output:
    """A stream and the sink it is written to.

    Nothing runs until ``run`` or ``start`` is called, or the output is passed to ``hr.run`` or
    ``hr.start``. An output that is discarded before that warns.
    """

    def __init__(self, stream: Stream, sink: Sink, on: Any = None, label: str = "write") -> None:
        self.stream, self.sink, self.on = stream, sink, on
        self._unstarted = weakref.finalize(
            self, _warn_unstarted, f"{label}: the output to {name_of(sink)}", *calling_line()
        )

    def __repr__(self) -> str:
        return f"Output(to {name_of(self.sink)}; nothing runs before run() or start())"

    def explain(self, on: Any = None) -> str:
        """The plan, its stages, where each step runs, and what the sink promises there."""
        self.mark_used()
        engine = resolve(on if on is not None else self.on)
        guarantee = self.sink.guarantee
        if engine.name == "box" and not self.stream.bounded:
            guarantee += " with a checkpoint; without one a job that is killed begins anew"
        told = f"{name_of(self.sink)}: {guarantee}"
        return explain(self.stream.node, engine, told)

    @keywords
    def run(self, on: Any = None, *, checkpoint: Any = None, trigger: Any = None) -> Progress:
        """Write to the end, and return how many records were read and written.

        A stream that does not end is written until it is stopped by Ctrl-C or SIGTERM, or with
        ``trigger="available-now"`` until all input that is there now has been read.
        """
        return finished(self.start(on, checkpoint=checkpoint, trigger=trigger))

    @keywords
    def start(self, on: Any = None, *, checkpoint: Any = None, trigger: Any = None) -> Job:
        """Write in the background; see ``Stream.start``."""
        self.mark_used()
        on = on if on is not None else self.on
        return self.stream.start(on, to=self.sink, checkpoint=checkpoint, trigger=trigger)

    def mark_used(self) -> None:
        """Do not warn that it was never started."""
        self._unstarted.detach()


def finished(job: Job) -> Progress:
    """Wait for the end of a job; its last progress report."""
    job.wait()
    return job.progress()


def _warn_unstarted(what: str, file: str, line: int) -> None:
    warnings.warn_explicit(
        f"{what} was never started, so nothing was written; call .run() or .start()",
        UserWarning, file, line,
    )  # fmt: skip
