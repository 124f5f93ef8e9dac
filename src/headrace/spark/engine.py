"""``hr.Spark``: the engine that runs plans on Spark through PySpark."""

from __future__ import annotations

import atexit
import contextlib
import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.batch_jobs import BatchJob
from headrace.cache import temporary_folder
from headrace.checkpoints.control import checkpoint_folder, opened
from headrace.errors import EngineError, PlanError
from headrace.io.held import Held as HeldFiles
from headrace.io.held import HoldSink
from headrace.io.sink import Sink
from headrace.io.tables import Published
from headrace.iteration import Kept, iterates, settled
from headrace.jobs import Job, JobOutput
from headrace.plan.explain import ITERATED, LOCK
from headrace.plan.iteration import Cycle, Held, Iterate
from headrace.plan.joins import Join, JoinWithin, LookUp, Union
from headrace.plan.node import Narrow, Node
from headrace.plan.optimise import optimised
from headrace.plan.order import Sort
from headrace.plan.partitions import Buffered
from headrace.plan.pushdown import decided
from headrace.plan.rows import MapRows
from headrace.plan.scans import Scan
from headrace.plan.sources import External, Read
from headrace.plan.stages import Stage, shared_heads, stages_of
from headrace.plan.table_join import TableJoin
from headrace.plan.time import Late, ends, is_bounded, nodes_of, refuse_endless, said_zone, zone_of
from headrace.tables import Tables, with_tables

_CARRIED = 1 << 18
"""Bytes that a task gives to the driver itself; more than that it leaves in a file."""


class Spark:
    """Spark, through PySpark.

    ``hr.Spark()`` uses the running session or starts one on all cores of this machine.
    ``hr.Spark(master="spark://host:7077")`` starts one on a cluster, ``hr.Spark(session=…)`` uses
    a session as it is and leaves it running; ``config`` adds Spark settings to a new session.

    On one Linux machine Spark's Python processes are forks of one that has everything imported, so
    that they start at once; ``fork_server=False`` has Spark start Python itself. ``clock`` is what
    ``processing_time`` goes by, for tests that turn it.
    """

    name = "spark"

    def __init__(
        self,
        *,
        session: Any = None,
        master: str | None = None,
        config: Mapping[str, Any] | None = None,
        fork_server: bool | None = None,
        clock: Any = None,
    ) -> None:
        if session is not None and (master, config, fork_server) != (None, None, None):
            raise PlanError(
                "Spark: a session has its master and its config already; drop the others"
            )
        if fork_server is not None and not isinstance(fork_server, bool):
            raise PlanError(f"Spark: fork_server={fork_server!r} is not True or False")
        if clock is not None and not callable(getattr(clock, "time_of_day", None)):
            raise PlanError(f"Spark: clock={clock!r} is not a clock; leave it out outside tests")
        self._session = session
        self._given = session is not None
        self._master = master
        self._config = dict(config or {})
        self._fork_server = fork_server
        self._clock = clock

    def __repr__(self) -> str:
        return f"Spark(master={self._master!r})" if self._master else "Spark()"

    @property
    def session(self) -> Any:
        """The SparkSession, started if there is none."""
        from headrace.spark.session import is_stopped, start

        if self._session is not None and is_stopped(self._session):
            if self._given:
                raise EngineError("the Spark session was stopped; give a running one")
            self._session = None
        if self._session is None:
            self._session = start(self._master, self._config, self._fork_server)
        return self._session

    def collect(self, node: Node) -> pa.Table:
        """All records, in order."""
        ends(node, "collect")
        from headrace.spark.wire import unpack

        with self._lowering(node) as (lowering, stage):
            rows = lowering.collected(stage).collect()
        rows.sort(key=lambda row: row.place)
        batches = [unpack(row.bundle, node.schema) for row in rows]
        return pa.Table.from_batches(batches, node.schema)

    def bundles(self, node: Node) -> Iterator[pa.RecordBatch]:
        """The records in order, a partition at a time."""
        ends(node, "for_each")
        from headrace.spark.wire import unpack

        with self._lowering(node) as (lowering, stage):
            frame = lowering.collected(stage)
            for row in frame.toLocalIterator(prefetchPartitions=True):
                yield unpack(row.bundle, node.schema)

    def write(self, node: Node, sink: Sink) -> int:
        """Write to a sink, and return the number of records.

        Nothing is visible before every task has succeeded.
        """
        ends(node, "write")
        try:
            with self._lowering(node) as (lowering, stage):
                sink.begin(node.schema)
                rows = lowering.written(stage, sink).collect()
            written = [pickle.loads(row.message) for row in rows]
            sink.commit([message for _, message in written])
            return sum(records for records, _ in written)
        except BaseException:
            sink.abort()
            raise

    def run(self, node: Node) -> None:
        """Run for the effect of its functions."""
        ends(node, "run")
        with self._lowering(node) as (lowering, stage):
            lowering.ran(stage).collect()

    def hold(self, node: Node) -> Kept:
        """The records in files that workers of this machine map, or else in Spark's own memory."""
        if str(self.session.sparkContext.master).startswith("local"):
            sink = HoldSink(_CARRIED)
            self.write(node, sink)
            return HeldFiles(node, sink.pieces, sink.folder)
        with self._lowering(node) as (lowering, stage):
            # Spark's memory, without how it came about: that would grow with every iteration.
            frame = lowering.collected(stage).localCheckpoint()
        return HeldFrame(frame, node)

    def frame(self, node: Node) -> Any:
        """The records as a Spark DataFrame, to go on with PySpark."""
        from headrace.spark.bounded import Lowering
        from headrace.spark.python.failures import driver_errors

        with driver_errors():
            ready = node
            if iterates(node):
                kept = contextlib.ExitStack()  # for as long as this process may go on with it
                (ready,) = kept.enter_context(settled(self, node))
                atexit.register(kept.close)
            return Lowering(self.session, zone_of(ready)).rows(_stages(ready))

    def start(
        self, outputs: Sequence[JobOutput], checkpoint: Any = None, trigger: Any = None
    ) -> Job:
        """Start a streaming query in the background, and return at once."""
        from headrace.spark.streaming import start_stream, trigger_of

        trigger_of(trigger)
        for output in outputs:
            refuse_endless(output.node)
        if all(output.bounded for output in outputs):
            if checkpoint is not None or trigger is not None:
                raise PlanError("checkpoint= and trigger= are for input that does not end")
            return SparkBatch(self, outputs)
        outputs, tables = self._with_tables(outputs, checkpoint)
        try:
            return start_stream(self.session, outputs, checkpoint, trigger, tables, self._clock)
        except BaseException:
            tables.close()
            raise

    def _with_tables(
        self, outputs: Sequence[JobOutput], checkpoint: Any
    ) -> tuple[list[JobOutput], Tables]:
        """The outputs, with the tables of their joins where the workers see them."""
        if not any(isinstance(each, TableJoin) for o in outputs for each in nodes_of(o.node)):
            return list(outputs), Tables()
        if str(self.session.sparkContext.master).startswith("local"):
            folder = str(temporary_folder("tables"))
        elif checkpoint is None:
            raise PlanError(
                "a stream that is joined with a table needs checkpoint= on a cluster, a folder "
                "that all workers see"
            )
        else:
            own = opened(checkpoint_folder(checkpoint))  # the tables' files hold pickles too
            own.make()
            folder = f"{own.folder}/tables-{uuid.uuid4().hex}"
        return with_tables(self, outputs, lambda i: Published(f"{folder}/{i}"), folder)

    @contextlib.contextmanager
    def _lowering(self, node: Node) -> Iterator[tuple[Any, Stage]]:
        """What lowers plans here, and the plan's last stage; what was spooled is removed after."""
        from headrace.spark.bounded import Lowering
        from headrace.spark.python.failures import driver_errors

        with driver_errors(node), settled(self, node) as (ready,):
            lowering = Lowering(self.session, zone_of(ready))
            try:
                yield lowering, _stages(ready)
            finally:
                lowering.clean()

    def stages(self, node: Node) -> Stage:
        """The stages of a plan: of a bounded one without what nobody asks for, and with joins
        where records are read if one side is small."""
        if not is_bounded(node):
            return stages_of(node)
        from headrace.spark.bounded import keeps_rows
        from headrace.spark.lookups import Lookups, most_bytes

        stage = _stages(node)
        master = self._master or "local[*]"
        if self._session is not None:
            master = str(self._session.sparkContext.master)
        shared = shared_heads(stage)
        return Lookups(most_bytes(master), shared, keeps_rows, lambda s, *_: s).rewritten(stage)

    def where(self, stage: Stage, readers: Sequence[Stage] = ()) -> list[str]:
        """Where each step of a stage runs."""
        from headrace.operators import is_operator
        from headrace.spark.bounded import keeps_rows
        from headrace.spark.columns import plain_prefix
        from headrace.spark.parquet import reads_itself

        if not is_bounded(stage.head):
            return _where_streaming(stage)
        rows = keeps_rows(stage)
        head = stage.head
        if isinstance(head, Late):
            places = ["nothing is late to a job that sees all records at once"]
        elif isinstance(head, Read) and any(map(_takes_rows, readers)) and reads_itself(stage):
            places, rows = [f"read by Spark{_decided(head)}"], True
        elif isinstance(head, Read):
            places = [f"read in the Python worker{_decided(head)}"]
        elif isinstance(head, External):
            places = ["Spark DataFrame"]
        elif isinstance(head, (Iterate, Cycle)):
            places = [ITERATED]
        elif rows or isinstance(head, (Join, JoinWithin, Sort)):
            places = ["Spark SQL"]
        elif isinstance(head, Union):
            places = ["no exchange"]
        elif is_operator(head):
            places = ["partials in the Python worker; state by shard after Spark's exchange"]
            places[0] += _scan_place(head)
        else:
            places = ["Spark's exchange of bundles"]
        plain = plain_prefix(stage.steps) if rows else 0
        for i, step in enumerate(stage.steps):
            ours = i >= plain or isinstance(step, (Buffered, LookUp))
            places.append(_step_place(step) if ours else "Spark columns")
        return places


class SparkBatch(BatchJob):
    """Each output as a Spark job; Spark's own pages tell more of it."""

    def __init__(self, engine: Spark, outputs: Sequence[JobOutput]) -> None:
        self._context = engine.session.sparkContext
        self._group = f"headrace-{uuid.uuid4().hex}"
        super().__init__(engine, outputs)

    def _begin(self) -> None:
        self._context.setJobGroup(self._group, "headrace", interruptOnCancel=True)

    def _cancel(self) -> None:
        self._context.cancelJobGroup(self._group)


class HeldFrame:
    """Bundles that Spark keeps."""

    def __init__(self, frame: Any, node: Node) -> None:
        self.node: Node = Held(node.schema, node.step, "spark", frame, said_zone(node))
        schema = node.schema
        rows = frame.mapInArrow(lambda rows: _counted(rows, schema), "n bigint").collect()
        self.rows = sum(row.n for row in rows)

    def release(self) -> None:
        """Spark forgets them with the last that refers to them."""


def _counted(rows: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """How many records there are in each of some bundles."""
    from headrace.spark.wire import received, unpack

    for *_, data in received(rows):
        count = unpack(data, schema).num_rows
        yield pa.record_batch({"n": pa.array([count], pa.int64())})


def _step_place(step: Narrow) -> str:
    if isinstance(step, Buffered):
        return "nothing to do: Spark takes records by the batch"
    if isinstance(step, LookUp):
        return f"looked up in the Python worker: the {('left', 'right')[step.side]} side is small"
    if isinstance(step, TableJoin):
        return "looked up in a table that each Python worker has"
    if isinstance(step, MapRows):
        from headrace.kernels.row_steps import row_place

        return row_place(step)
    return LOCK if step.python else "kernel"


def _decided(head: Node) -> str:
    what = decided(head)
    return f"; only records with {what}" if what else ""


def _takes_rows(stage: Stage) -> bool:
    return isinstance(stage.head, (Join, JoinWithin, Sort))


def _stages(node: Node) -> Stage:
    """The stages of a bounded plan, without what nobody asks for."""
    return stages_of(optimised([node])[0])


def _scan_place(head: Node) -> str:
    from headrace.kernels.scans import scan_place

    how = scan_place(head) if isinstance(head, Scan) else ""
    return f"; {how}" if how else ""


def _where_streaming(stage: Stage) -> list[str]:
    """Where the steps of a stage run in a streaming query."""
    from headrace.operators import is_operator

    head = stage.head
    if isinstance(head, Read):
        place = "read in the Python worker; offsets in Spark's log"
    elif isinstance(head, External):
        place = "Spark DataFrame, then the Python worker"
    elif isinstance(head, Late):
        place = "set aside where the source is read"
    elif isinstance(head, Union):
        place = "no exchange"
    elif is_operator(head):
        place = "partials where it is read; state by shard of the keys in transformWithState"
        place += _scan_place(head)
    else:
        place = "Spark's exchange of bundles"
    return [place, *map(_step_place, stage.steps)]
