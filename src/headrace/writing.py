"""Where streams end: what writes them to files, brokers, tables and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.building import column_names
from headrace.engines import resolve
from headrace.errors import PlanError
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
from headrace.jobs import Job
from headrace.plan.explain import explain
from headrace.secrets import Secret
from headrace.steps import Steps

if TYPE_CHECKING:
    from headrace.stream import Stream


class Writing(Steps):
    """What writes a stream to a sink."""

    def write_to(self, sink: SinkLike, on: Any = None) -> Outlet | None:
        """Write to any sink; see ``headrace.io.sink`` for how to write one.

        A stream that ends is written now. One that does not end gives what ``start`` takes:
        ``stream.write_parquet("out").start(on="box")``.
        """
        with self._building("write"):
            to = as_sink(sink)
            if to is None:
                raise PlanError(f"{sink!r} is not a sink; see headrace.io.sink")
            to.check(self.schema)
        if not self.bounded:
            return Outlet(self._stream, to, on)
        with self._building("write"):
            to.ready()
        resolve(on).write(self.node, to)
        return None

    def write(self, format: str, *args: Any, on: Any = None, **options: Any) -> Outlet | None:
        """Write in a format found by name, ours or one an installed package brings."""
        with self._building(f"write {format}"):
            sink = find("headrace.sinks", format)(*args, **options)
        return self.write_to(sink, on)

    def write_parquet(
        self, path: Any, mode: str = "error", on: Any = None, **options: Any
    ) -> Outlet | None:
        """Write a folder of Parquet files; ``mode`` is error, overwrite or append."""
        return self._write_files("write_parquet", ParquetSink, path, mode, on, options)

    def write_csv(
        self, path: Any, mode: str = "error", on: Any = None, **options: Any
    ) -> Outlet | None:
        """Write a folder of CSV files with headers."""
        return self._write_files("write_csv", CsvSink, path, mode, on, options)

    def write_json(self, path: Any, mode: str = "error", on: Any = None) -> Outlet | None:
        """Write a folder of JSON-lines files; NaN and infinity, which JSON lacks, become null."""
        return self._write_files("write_json", JsonSink, path, mode, on, {})

    def write_text(self, path: Any, mode: str = "error", on: Any = None) -> Outlet | None:
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
    ) -> Outlet | None:
        """Send each record to a Kafka topic, as a JSON object or as the one column ``value``."""
        return self.write_to(KafkaSink(topic, servers, key, value, dict(config or {})), on)

    def write_redis(
        self,
        name: str,
        *,
        url: str | Secret = "redis://localhost:6379",
        key: str | None = None,
        on: Any = None,
    ) -> Outlet | None:
        """Add each record to a Redis stream; with ``key``, keep it as the hash ``name:value``."""
        return self.write_to(RedisSink(name, url, key), on)

    def write_postgres(
        self, table: str, url: str | Secret, *, key: str | Sequence[str] = (), on: Any = None
    ) -> Outlet | None:
        """Append to a Postgres table; with ``key``, replace the rows that have the same key."""
        with self._building("write_postgres"):
            keys = column_names(key, "key=")
        return self.write_to(PostgresSink(table, url, keys), on)

    def write_console(self, rows: int = 20, on: Any = None) -> Outlet | None:
        """Print the first records of each batch."""
        return self.write_to(Console(rows), on)

    def for_each_batch(
        self, function: Callable[[pa.Table, int], Any], on: Any = None
    ) -> Outlet | None:
        """Call ``function(table, epoch)`` here with the records of each batch.

        After a failure the last epoch may come once more, with the same number and records.
        """
        with self._building("for_each_batch") as at:
            self._function(function)
            sink = EachBatch(function, at.label)
        return self.write_to(sink, on)

    def _write_files(
        self, method: str, kind: Any, path: Any, mode: str, on: Any, options: dict[str, Any]
    ) -> Outlet | None:
        with self._building(method):
            sink = kind(path, mode, options)
        return self.write_to(sink, on)


@dataclass(frozen=True)
class Outlet:
    """A stream that does not end, and the sink it goes to; nothing runs until it is started."""

    stream: Stream
    sink: Sink
    on: Any = None

    def explain(self, on: Any = None) -> str:
        """The plan, its stages, where each step runs, and what the sink promises there."""
        engine = resolve(on if on is not None else self.on)
        guarantee = self.sink.guarantee
        if engine.name == "box":
            guarantee += " with a checkpoint; without one a job that is killed begins anew"
        told = f"{name_of(self.sink)}: {guarantee}"
        return explain(self.stream.node, engine, told)

    def start(self, on: Any = None, *, checkpoint: Any = None, trigger: Any = None) -> Job:
        """Run in the background; see ``Stream.start``."""
        on = on if on is not None else self.on
        return self.stream.start(on, to=self.sink, checkpoint=checkpoint, trigger=trigger)
