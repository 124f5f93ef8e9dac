"""Unbounded pipelines as Structured Streaming queries."""

from __future__ import annotations

import contextlib
import copy
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from headrace.cache import temporary_folder
from headrace.checkpoints.control import Control, checkpoint_folder
from headrace.checkpoints.lease import Lease
from headrace.errors import EngineError, PlanError
from headrace.io.sink import Sink
from headrace.jobs import AVAILABLE_NOW, Output
from headrace.plan.nodes import External
from headrace.plan.time import zone_of
from headrace.spark.checkpoint import known_stream
from headrace.spark.columns import as_schema, quoted
from headrace.spark.graph import Graph, SourceFlow, graph_of
from headrace.spark.host import Hosted, LevelProgram
from headrace.spark.ingress import FrameReader, SourceProgram
from headrace.spark.job import SparkJob
from headrace.spark.offsets import SourcePlan, source_class
from headrace.spark.processor import Level
from headrace.spark.python.failures import driver_errors
from headrace.spark.python.shipping import ROWS_SQL, Shipped
from headrace.spark.session import ansi_semantics
from headrace.spark.sinks import Delivery
from headrace.spark.wire import labels_of
from headrace.windows import duration

_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
_LOCAL_SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}
"""On a local disk: half the time of a small batch, and it renames files just as atomically."""


def start_stream(
    session: Any, outputs: Sequence[Output], checkpoint: Any, trigger: Any
) -> SparkJob:
    """Start a streaming query of some outputs."""
    graph = graph_of(outputs)
    how = trigger_of(trigger)
    folder = _folder(checkpoint)
    own = Control(f"{folder}/headrace")
    lease = Lease(own)
    try:
        known = known_stream(own, graph, folder, session)
        # Nothing is changed anywhere before all has been looked at.
        done = own.read().get("batch")
        deliveries = [_delivery(o, known["job"], i, done) for i, o in enumerate(outputs)]
        own.make()
        lease.take()
        if (own.load("job.json") or known) != known or own.read().get("batch") != done:
            raise EngineError(f"another job used {folder!r} just now; start this one again")
        own.save("job.json", known)
        for i, delivery in enumerate(deliveries):
            if delivery.sink is not None:
                delivery.sink.begin(delivery.schema)
                _use_sink(graph, i, delivery.sink)
    except BaseException:
        lease.release()
        if checkpoint is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shards = known["shards"]
    labels = labels_of(shards)
    zone = zone_of(*(output.node for output in outputs))
    running = SparkJob(graph, own, lease, deliveries, None if checkpoint else folder)
    settings = dict(_SETTINGS) | {"spark.sql.shuffle.partitions": str(shards)}
    if "://" not in folder or folder.startswith("file://"):
        settings |= _LOCAL_SETTINGS
    try:
        with driver_errors(), ansi_semantics(session, zone), _set(session, settings):
            frame = _frame(session, graph, labels, zone, own.folder, closes=checkpoint is None)
            writer = frame.writeStream.foreachBatch(running.deliver).outputMode("append")
            writer = writer.option("checkpointLocation", folder).trigger(**how)
            running.begin(writer.start())
    except BaseException:
        running.abandon()
        raise
    return running


def trigger_of(trigger: Any) -> dict[str, Any]:
    """What ``trigger=`` says, as Spark takes it."""
    if trigger is None:
        return {"processingTime": "0 seconds"}
    if trigger == AVAILABLE_NOW:
        return {"availableNow": True}
    if isinstance(trigger, str) and "now" in trigger:
        raise PlanError(f"trigger={trigger!r}: use 'available-now', or a span of time as '500ms'")
    return {"processingTime": f"{-(-duration(trigger, 'trigger') // 1000)} milliseconds"}


def _folder(checkpoint: Any) -> str:
    if checkpoint is None:
        return str(temporary_folder("job"))
    return checkpoint_folder(checkpoint)


@contextlib.contextmanager
def _set(session: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings while a query starts; it keeps them, and the session gets its own back."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


# Sinks


def _delivery(output: Output, job: str, number: int, done: int | None) -> Delivery:
    """Where an output goes. A sink knows the job by a name of the output's own, for two outputs
    may go to one place. ``done`` is the last epoch that counts, if the job goes on."""
    to = output.to
    name = uuid.uuid5(uuid.UUID(job), str(number)).hex
    if isinstance(to, Sink):
        sink = copy.copy(to)
        sink.ready(name)
        if done is not None:
            sink.resume(done)
        return Delivery(output.node.schema, name, sink=sink)
    return Delivery(output.node.schema, name, function=to)


def _use_sink(graph: Graph, number: int, sink: Sink) -> None:
    """Have every branch that ends in an output write to the sink that was made ready."""
    for source in graph.sources:
        source.branches = [b.with_sink(number, sink) for b in source.branches]
        source.late = [b.with_sink(number, sink) for b in source.late]
    for operator in graph.operators:
        operator.branches = [b.with_sink(number, sink) for b in operator.branches]


# The query


def _frame(
    session: Any, graph: Graph, labels: tuple[int, ...], zone: str, folder: str, closes: bool
) -> Any:
    frames = [_source(session, s, labels, zone, folder, closes) for s in graph.sources]
    frame = reduce(lambda a, b: a.union(b), frames)
    for number, operators in enumerate(graph.levels):
        key = uuid.uuid4().hex
        made = tuple(Hosted.of(o) for o in operators)
        program = LevelProgram(key, number, made, labels, zone, graph.timed)
        grouped = frame.groupBy("shard")
        frame = grouped.transformWithState(Level(Shipped.of(program)), ROWS_SQL, "append", "none")
    return frame


def _source(
    session: Any,
    source: SourceFlow,
    labels: tuple[int, ...],
    zone: str,
    folder: str,
    closes: bool,
) -> Any:
    key = uuid.uuid4().hex
    program = SourceProgram.of(source, key, labels, zone)
    origin = source.origin
    if isinstance(origin, External):
        if origin.engine != "spark":
            raise PlanError(f"a stream from {origin.engine} cannot run on Spark")
        frame = as_schema(origin.handle, origin.schema)
        # By place: PySpark takes a column's name for an expression when it calls a function.
        frame = frame.select([quoted(n).alias(f"_{i}") for i, n in enumerate(origin.schema.names)])
        reader = FrameReader(Shipped.of(program), folder, source.number)
        return frame.mapInArrow(reader.__call__, ROWS_SQL)
    offsets = source.offsets
    assert offsets is not None
    idle = source.event.idle if source.event is not None else None
    parallelism = int(session.sparkContext.defaultParallelism)
    follows = source.event is not None and source.event.follows_clock
    plan = SourcePlan(offsets, source.number, idle, parallelism, folder, follows, closes)
    name = f"headrace-{key}"
    session.dataSource.register(source_class(name, plan, program))
    return session.readStream.format(name).load()
