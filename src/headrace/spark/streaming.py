"""Unbounded pipelines as Structured Streaming queries."""

from __future__ import annotations

import copy
import shutil
import uuid
from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyarrow.fs import FileType

from headrace.cache import temporary_folder
from headrace.checkpoints.control import Control, checkpoint_folder, opened
from headrace.checkpoints.lease import Lease
from headrace.checkpoints.shape import last_epochs
from headrace.errors import EngineError, PlanError
from headrace.io.sink import Sink
from headrace.jobs import AVAILABLE_NOW, JobOutput
from headrace.plan.groups import GroupBy
from headrace.plan.joins import JoinWithin
from headrace.plan.sources import External
from headrace.plan.time import zone_of
from headrace.spark.checkpoint import known_stream
from headrace.spark.columns import as_schema, quoted
from headrace.spark.graph import Graph, SourceFlow, graph_of
from headrace.spark.host import Hosted, LevelProgram
from headrace.spark.ingress import FrameReader, SourceProgram
from headrace.spark.initial import FOLDER as INITIAL
from headrace.spark.initial import forget_initial, messages_of
from headrace.spark.job import SparkJob
from headrace.spark.offsets import SourcePlan, source_class
from headrace.spark.processor import Level
from headrace.spark.python.failures import driver_errors
from headrace.spark.python.shipping import ROWS_SQL, Shipped
from headrace.spark.session import ansi_semantics, with_settings
from headrace.spark.sinks import Delivery
from headrace.spark.state import last_batch
from headrace.spark.wire import labels_of
from headrace.tables import Tables
from headrace.watermarks import ClockSteps
from headrace.windows import Session, Window, duration

_UNLESS_SET = {
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
}
"""Bound the files of a checkpoint and the memory of RocksDB. A job goes on from its last batch, so
the 100 batches that Spark keeps by default are only files."""
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
    session: Any,
    outputs: Sequence[JobOutput],
    checkpoint: Any,
    trigger: Any,
    tables: Tables,
    clock: Any = None,
) -> SparkJob:
    """Start a streaming query of some outputs."""
    graph = graph_of(outputs)
    how = trigger_of(trigger)
    folder = _folder(checkpoint)
    own = opened(folder)
    lease = Lease(own)
    try:
        found = known_stream(own, graph, folder, session)
        known = found.job
        # Nothing is changed anywhere before all has been looked at.
        done = own.read().get("batch")
        base: int = known.get("base", 0)
        epoch = base - 1 if done is None else base + done
        lasts = last_epochs(found, len(outputs), epoch)
        # The run before the move may have been killed before its outputs had the last epoch, with
        # or without records: that epoch is committed here, and counts only up to the one before.
        is_moved = done is None and "base" in known
        messages = messages_of(own) if is_moved else []
        deliveries = [
            _delivery(o, known["job"], i, last, last - 1 if is_moved else last)
            for i, (o, last) in enumerate(zip(outputs, lasts, strict=True))
        ]
        own.make()
        lease.take()
        now = own.load("job.json")
        if now != found.before or own.read().get("batch") != done:
            raise EngineError(f"another job used {folder!r} just now; start this one again")
        own.save("job.json", known)
        initial = _initial(own, folder)
        pending = [*messages, *[None] * (len(outputs) - len(messages))]
        for delivery, message, last in zip(deliveries, pending, lasts, strict=True):
            if is_moved and last >= 0 and delivery.sink is not None:
                said = [] if message is None else [message.value()]
                delivery.sink.commit_epoch(delivery.job, epoch, said)
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
    running = SparkJob(graph, own, lease, deliveries, None if checkpoint else folder, base)
    running.tables = tables
    settings = _unless_set(session) | _SETTINGS | {"spark.sql.shuffle.partitions": str(shards)}
    if "://" not in folder or folder.startswith("file://"):
        settings |= _LOCAL_SETTINGS
    try:
        with driver_errors(), ansi_semantics(session, zone), with_settings(session, settings):
            closes = checkpoint is None
            frame = _frame(session, graph, labels, zone, own.folder, closes, initial, clock)
            writer = frame.writeStream.foreachBatch(running.deliver).outputMode("append")
            writer = writer.option("checkpointLocation", folder).trigger(**how)
            running.begin(writer.start())
    except BaseException:
        running.abandon()
        raise
    return running


def _unless_set(session: Any) -> dict[str, str]:
    """Our defaults for settings that the session does not have."""
    known = session.conf.getAll
    return {name: value for name, value in _UNLESS_SET.items() if name not in known}


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


# Sinks


def _delivery(output: JobOutput, job: str, number: int, last: int, committed: int) -> Delivery:
    """Where an output goes. A sink knows the job by a name of the output's own, for two outputs
    may go to one place.

    Args:
        output: The output.
        job: The name of the job.
        number: Which of the job's outputs it is.
        last: The last epoch that the output was given; -1 if there is none.
        committed: The last epoch that its sink has committed for certain; -1 if there is none.
    """
    to = output.to
    name = uuid.uuid5(uuid.UUID(job), str(number)).hex
    if isinstance(to, Sink):
        sink = copy.copy(to)
        if last >= 0:
            sink.goes_on()
        sink.ready(name)
        if committed >= 0:
            sink.resume(committed)
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


def _initial(own: Control, folder: str) -> str | None:
    """Where the state is that the job begins with, until Spark has committed a batch with it."""
    if own.system.get_file_info(f"{own.root}/{INITIAL}").type == FileType.NotFound:
        return None
    if last_batch(folder, "commits") is None:
        return own.folder
    forget_initial(own)
    return None


def _frame(
    session: Any,
    graph: Graph,
    labels: tuple[int, ...],
    zone: str,
    folder: str,
    closes: bool,
    initial: str | None,
    clock: Any,
) -> Any:
    steps = _clock_steps(graph)
    frames = [
        _source(session, s, labels, zone, folder, closes, steps, clock) for s in graph.sources
    ]
    frame = reduce(lambda a, b: a.union(b), frames)
    for number, operators in enumerate(graph.levels):
        key = uuid.uuid4().hex
        made = tuple(Hosted.of(o) for o in operators)
        program = LevelProgram(key, number, made, labels, zone, graph.timed, initial)
        grouped = frame.groupBy("shard")
        frame = grouped.transformWithState(Level(Shipped.of(program)), ROWS_SQL, "append", "none")
    return frame


def _clock_steps(graph: Graph) -> ClockSteps:
    """When windows may close though nothing comes."""
    nodes = [operator.node for operator in graph.operators]
    found = [node.window for node in nodes if isinstance(node, GroupBy)]
    windows = tuple(window for window in found if isinstance(window, Window))
    gaps = tuple(window.gap for window in found if isinstance(window, Session))
    pairs = [node.before + node.after for node in nodes if isinstance(node, JoinWithin)]
    return ClockSteps(windows, gaps, sum((*(w.size for w in windows), *gaps, *pairs)))


def _source(
    session: Any,
    source: SourceFlow,
    labels: tuple[int, ...],
    zone: str,
    folder: str,
    closes: bool,
    steps: ClockSteps,
    clock: Any,
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
    by_clock = steps if source.event is not None and source.event.by_clock else None
    plan = SourcePlan(
        offsets, source.number, idle, parallelism, folder, follows, closes, by_clock, clock
    )
    name = f"headrace-{key}"
    session.dataSource.register(source_class(name, plan, program))
    return session.readStream.format(name).load()
