"""``hr.Spark``: the engine that runs plans on Spark through PySpark."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import EngineError, PlanError
from headrace.io.sink import Sink
from headrace.jobs import Job, Output
from headrace.plan.explain import LOCK
from headrace.plan.nodes import (
    External,
    Join,
    JoinWithin,
    Late,
    Node,
    Read,
    Scan,
    Sort,
    Union,
)
from headrace.plan.stages import Stage, stages_of
from headrace.plan.time import ends, is_bounded, refuse_endless, zone_of


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

        with self._lowering(node) as lowering:
            rows = lowering.collected(stages_of(node)).collect()
        rows.sort(key=lambda row: row.place)
        batches = [unpack(row.bundle, node.schema) for row in rows]
        return pa.Table.from_batches(batches, node.schema)

    def bundles(self, node: Node) -> Iterator[pa.RecordBatch]:
        """The records in order, a partition at a time."""
        ends(node, "for_each")
        from headrace.spark.wire import unpack

        with self._lowering(node) as lowering:
            frame = lowering.collected(stages_of(node))
            for row in frame.toLocalIterator(prefetchPartitions=True):
                yield unpack(row.bundle, node.schema)

    def write(self, node: Node, sink: Sink) -> None:
        """The records into a sink; nothing is visible before every task has succeeded."""
        ends(node, "write")
        try:
            with self._lowering(node) as lowering:
                sink.begin(node.schema)
                rows = lowering.written(stages_of(node), sink).collect()
            sink.commit([pickle.loads(row.message) for row in rows])
        except BaseException:
            sink.abort()
            raise

    def run(self, node: Node) -> None:
        """Run for the effect of its functions."""
        ends(node, "run")
        with self._lowering(node) as lowering:
            lowering.ran(stages_of(node)).collect()

    def frame(self, node: Node) -> Any:
        """The records as a Spark DataFrame, to go on with PySpark."""
        from headrace.spark.bounded import Lowering
        from headrace.spark.python.failures import driver_errors

        with driver_errors():
            return Lowering(self.session, zone_of(node)).rows(stages_of(node))

    def start(self, outputs: Sequence[Output], checkpoint: Any = None, trigger: Any = None) -> Job:
        """Start a streaming query in the background, and return at once."""
        from headrace.spark.streaming import start_stream, trigger_of

        trigger_of(trigger)
        for output in outputs:
            refuse_endless(output.node)
        if all(output.bounded for output in outputs):
            if checkpoint is not None or trigger is not None:
                raise PlanError("checkpoint= and trigger= are for input that does not end")
            from headrace.spark.batch_job import BatchJob

            return BatchJob(self, outputs)
        return start_stream(self.session, outputs, checkpoint, trigger, self._clock)

    @contextlib.contextmanager
    def _lowering(self, node: Node) -> Iterator[Any]:
        """What lowers plans here; what it spooled is removed when the job is done."""
        from headrace.spark.bounded import Lowering
        from headrace.spark.python.failures import driver_errors

        with driver_errors():
            lowering = Lowering(self.session, zone_of(node))
            try:
                yield lowering
            finally:
                lowering.clean()

    def where(self, stage: Stage) -> list[str]:
        """Where each step of a stage runs."""
        from headrace.operators import is_operator
        from headrace.spark.bounded import keeps_rows
        from headrace.spark.columns import plain_prefix

        if not is_bounded(stage.head):
            return _where_streaming(stage)
        rows = keeps_rows(stage)
        head = stage.head
        if isinstance(head, Late):
            places = ["nothing is late to a job that sees all records at once"]
        elif isinstance(head, Read):
            places = ["read in the Python worker"]
        elif isinstance(head, External):
            places = ["Spark DataFrame"]
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
            places.append("Spark columns" if i < plain else LOCK if step.python else "kernel")
        return places


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
    return [place, *(LOCK if step.python else "kernel" for step in stage.steps)]
