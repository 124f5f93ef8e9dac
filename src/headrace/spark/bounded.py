"""A bounded plan as a Spark job: stages lowered to DataFrames of rows or of bundles."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

from headrace.cache import own_name
from headrace.errors import PlanError
from headrace.expressions import col
from headrace.io.held import HeldSource
from headrace.io.memory import TableSource, TableSplit
from headrace.io.source import Split, as_split, at_most
from headrace.iteration import WATCH
from headrace.kernels.expressions import compile_expression
from headrace.kernels.expressions.codes import coded_schema
from headrace.operators import is_operator, operator_of
from headrace.operators.operator import Input
from headrace.plan.estimate import estimated_bytes
from headrace.plan.groups import GroupBy
from headrace.plan.iteration import Held
from headrace.plan.joins import Join, JoinWithin, Union
from headrace.plan.node import Narrow
from headrace.plan.order import Limit, Sort
from headrace.plan.partitions import MaxParallelism, Shuffle
from headrace.plan.prune import prune
from headrace.plan.rows import Project
from headrace.plan.scans import Scan, UserStep
from headrace.plan.sources import External, Read
from headrace.plan.stages import Stage, in_order, shared_heads
from headrace.plan.time import Late
from headrace.spark import parquet
from headrace.spark.columns import (
    apply_steps,
    as_schema,
    column,
    is_plain,
    plain_prefix,
    quoted,
    spark_schema,
    sql_can,
    sql_group,
)
from headrace.spark.counters import new_counter
from headrace.spark.lookups import Lookups, WorkerTable, is_local, most_bytes, packed
from headrace.spark.python.shipping import ROWS_SQL, bare, by_value
from headrace.spark.session import ansi_semantics
from headrace.spark.stage import Program, StageTask
from headrace.spark.stage_inputs import (
    BundlesInput,
    FrameInput,
    SplitsInput,
    StageInput,
    StateInput,
)
from headrace.spark.stage_outputs import (
    BundlesOutput,
    FrameOutput,
    NoOutput,
    PartialOutput,
    StageOutput,
    WriteOutput,
)
from headrace.spark.wire import MESSAGES_SQL, WATERMARK, unpack

_SHARD_BYTES = 32 << 20
"""Input a shard of keys stands for: more input makes more shards, not larger ones."""
_SHARDS_OF_UNKNOWN = 64
_INLINE_BYTES = 1 << 20
_BROADCAST_BYTES = 8 << 20


def keeps_rows(stage: Stage) -> bool:
    """Whether the head of a stage is rows that Spark itself has or makes."""
    if isinstance(stage.head, (External, Join, JoinWithin, Sort)):
        return True
    if isinstance(stage.head, (Limit, MaxParallelism, Shuffle)):
        return keeps_rows(stage.inputs[0]) and is_plain(stage.inputs[0].steps)
    if isinstance(stage.head, GroupBy):
        if stage.head.window is not None:
            return False
        before = stage.inputs[0]
        return keeps_rows(before) and is_plain(before.steps) and sql_can(stage.head)
    if isinstance(stage.head, Union):
        return all(keeps_rows(s) and is_plain(s.steps) for s in stage.inputs)
    return False


@dataclass(frozen=True)
class Lowering:
    """Turns stages into DataFrames of one session."""

    session: Any
    zone: str = "UTC"
    spooled: list[str] = field(default_factory=list)
    """Files that hold splits with data in them, for workers on this machine."""
    shared: set[int] = field(default_factory=set)
    """The heads that several stages read."""
    kept: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """What was computed of those, for all that read it."""
    timers: set[int] = field(default_factory=set)
    """The heads that fire timers."""

    @property
    def on_this_machine(self) -> bool:
        """Whether the workers see this machine's files."""
        return is_local(str(self.session.sparkContext.master))

    @property
    def parallelism(self) -> int:
        return int(self.session.sparkContext.defaultParallelism)

    def collected(self, stage: Stage) -> Any:
        """The records as bundles in order."""
        return self._computed(stage, BundlesOutput(), ROWS_SQL)

    def written(self, stage: Stage, sink: Any) -> Any:
        """For each task, the number of records written and the message of its writer."""
        return self._computed(stage, WriteOutput(sink, stage.schema), MESSAGES_SQL)

    def ran(self, stage: Stage) -> Any:
        """A message for each task that ran."""
        return self._computed(stage, NoOutput(), MESSAGES_SQL)

    def _computed(self, stage: Stage, output: StageOutput, schema: Any) -> Any:
        self.shared.update(shared_heads(stage))
        self._find_timers(stage)
        most = most_bytes(str(self.session.sparkContext.master))
        with ansi_semantics(self.session, self.zone):
            lookups = Lookups(most, self.shared, keeps_rows, self._table)
            return self._finished(lookups.rewritten(stage), (), output, schema)

    def _table(self, stage: Stage, job: str, key: str) -> WorkerTable:
        """The records of a stage, computed now, as a table for the workers."""
        rows = self._finished(stage, (), BundlesOutput(), ROWS_SQL).collect()
        rows.sort(key=lambda row: row.place)
        data = packed([unpack(row.bundle, stage.schema) for row in rows], stage.schema)
        if self.on_this_machine:
            return WorkerTable(job, key, stage.schema, self._spool(data))
        return WorkerTable(job, key, stage.schema, data.to_pybytes())

    def rows(self, stage: Stage) -> Any:
        """The records as Spark rows."""
        self._find_timers(stage)
        with ansi_semantics(self.session, self.zone):
            return self._rows(stage)

    def _find_timers(self, stage: Stage) -> None:
        for head in (each.head for each in in_order(stage)):
            if isinstance(head, Scan) and isinstance(head.what, UserStep) and head.what.timed:
                self.timers.add(id(head))

    def clean(self) -> None:
        """Remove what was spooled or kept for the workers."""
        for frame, _ in self.kept.values():
            frame.unpersist()
        self.kept.clear()
        for path in self.spooled:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        self.spooled.clear()

    def _rows(self, stage: Stage) -> Any:
        if keeps_rows(stage) and is_plain(stage.steps):
            return apply_steps(self._frame(stage), stage.steps)
        if parquet.reads_itself(stage):
            return parquet.rows(self.session, stage)
        schema = spark_schema(stage.schema)
        return self._finished(stage, (), FrameOutput(stage.schema), schema)

    # A stage, then some more steps, then an output

    def _finished(
        self,
        stage: Stage,
        more: tuple[Narrow, ...],
        output: StageOutput,
        schema: Any,
        branches: Iterator[int] | None = None,
    ) -> Any:
        """A stage, some more steps, and an output; a union's branches are numbered in order."""
        steps = (*stage.steps, *more)
        branches = itertools.count() if branches is None else branches
        if isinstance(stage.head, Union) and not keeps_rows(stage):
            parts = [self._finished(s, steps, output, schema, branches) for s in stage.inputs]
            return reduce(lambda a, b: a.union(b), parts)
        branch = next(branches)
        if keeps_rows(stage):
            plain = plain_prefix(steps)
            frame = apply_steps(self._frame(stage), steps[:plain])
            before = steps[plain - 1].schema if plain else stage.head.schema
            columns = self._columns(steps[plain:], before, output)
            kept = pa.schema([before.field(n) for n in columns])
            # By place: PySpark takes a column's name for an expression when it calls a function.
            frame = frame.select([quoted(n).alias(f"_{i}") for i, n in enumerate(columns)])
            return self._mapped(frame, FrameInput(kept), steps[plain:], output, schema, branch)
        if isinstance(stage.head, Read):
            columns = self._columns(steps, stage.head.schema, output)
            frame, head = self._splits(stage.head, None, columns)
        else:
            frame, head = self._bundles(stage)
        return self._mapped(frame, head, steps, output, schema, branch)

    def _columns(
        self, steps: Sequence[Narrow], schema: pa.Schema, output: StageOutput
    ) -> list[str]:
        """The columns that steps and an output need of what comes in."""
        if not isinstance(output, PartialOutput):
            return prune(steps, schema.names, None)[1]
        operator = output.compiled([Input(tuple(steps), schema)], self.zone)
        return list(operator.chains[output.side].columns)

    def _mapped(
        self,
        frame: Any,
        head: StageInput,
        steps: Sequence[Narrow],
        output: StageOutput,
        schema: Any,
        branch: int,
    ) -> Any:
        key = uuid.uuid4().hex
        program = Program(key, head, tuple(map(bare, steps)), output, self.zone, branch)
        return frame.mapInArrow(StageTask.of(program).__call__, schema)

    # Heads

    def _once(self, stage: Stage, make: Callable[[Stage], tuple[Any, Any]]) -> tuple[Any, Any]:
        """A head's frame, made once and kept where several stages read it."""
        head = id(stage.head)
        if head not in self.shared:
            return make(stage)
        if head not in self.kept:
            frame, how = make(stage)
            self.kept[head] = frame.persist(), how
        return self.kept[head]

    def _bundles(self, stage: Stage) -> tuple[Any, StageInput]:
        """What a stage's head brings to the workers."""
        return self._once(stage, self._brought)

    def _brought(self, stage: Stage) -> tuple[Any, StageInput]:
        head = stage.head
        before = stage.inputs[0] if stage.inputs else stage
        if isinstance(head, Late):
            nothing = Read(head.schema, head.step, TableSource(head.schema.empty_table()))
            return self._splits(nothing, None, head.schema.names)
        if isinstance(head, Held):
            return head.handle, BundlesInput(head.schema)
        if is_operator(head):
            return self._operator(stage)
        if isinstance(head, MaxParallelism):
            if isinstance(before.head, Read) and not before.steps:
                return self._splits(before.head, head.count, head.schema.names)
            sent = self._finished(before, (), BundlesOutput(), ROWS_SQL)
            return sent.coalesce(head.count), BundlesInput(head.schema)
        assert isinstance(head, Shuffle)
        count = self.parallelism
        sent = self._finished(before, (), BundlesOutput(count), ROWS_SQL)
        return self._exchanged(sent, count), BundlesInput(head.schema)

    def _operator(self, stage: Stage) -> tuple[Any, StageInput]:
        """Partials where records are, exchanged by shard of the keys, and the states of those."""
        node, schemas = bare(stage.head), tuple(before.schema for before in stage.inputs)
        operator = operator_of(node, [Input((), schema) for schema in schemas], self.zone)
        shards = self._shards(stage) if operator.is_keyed else 1
        branches, parts = itertools.count(), []
        for side, before in enumerate(stage.inputs):
            output = PartialOutput(node, shards, side, len(schemas), bool(self.timers))
            parts.append(self._finished(before, (), output, ROWS_SQL, branches))
        sent = reduce(lambda a, b: a.union(b), parts)
        if not operator.is_keyed and not any(map(_has_tasks, stage.inputs)):
            sent = sent.union(self._of_nothing())
        head = StateInput(node, schemas, self.zone, bool(self.timers))
        return self._exchanged(sent, shards), head

    def _of_nothing(self) -> Any:
        """A row without records: Spark runs nothing where there is nothing to bring."""
        columns = [
            F.lit(0).cast("int").alias("shard"),
            F.lit(0).cast("int").alias("target"),
            F.lit(WATERMARK).cast("int").alias("lane"),
            F.lit(0).cast("bigint").alias("slice"),
            F.lit(-1).cast("bigint").alias("place"),
            F.lit(bytearray(b"{}")).alias("bundle"),
        ]
        return self.session.range(1).select(*columns)

    def _exchanged(self, frame: Any, shards: int) -> Any:
        """Bundles brought together by shard, each shard's in input order."""
        partitions = min(shards, max(self.parallelism, 1))
        moved = frame.repartitionById(partitions, F.col("shard"))
        return moved.sortWithinPartitions("shard", "place")

    def _splits(
        self, node: Read, most: int | None, columns: Sequence[str]
    ) -> tuple[Any, StageInput]:
        """A task for each split of a source. Splits that carry data carry just ``columns``."""
        splits: list[Split] = list(node.source.splits(self.parallelism))
        if not splits:  # a job without a task would not even say that there is nothing
            splits = [TableSplit(node.schema.empty_table())]
        splits = [s.only(columns) if isinstance(s, TableSplit) else s for s in splits]
        coded = frozenset(node.source.coded)
        if coded:
            splits = [as_split(s).with_codes(coded) for s in splits]
        schema = coded_schema(node.schema, coded)
        if most is not None:
            splits = at_most(splits, most)
        watch = None if isinstance(node.source, HeldSource) else WATCH.get()
        counter = None if watch is None else new_counter(self.session, watch.read)
        pickled = tuple(by_value(s) for s in splits)
        count = len(pickled)
        if sum(map(len, pickled)) <= _INLINE_BYTES:
            head = SplitsInput(schema, pickled, counter)
        elif self.on_this_machine:
            head = SplitsInput(schema, tuple(self._spool(data) for data in pickled), counter)
        else:
            # To workers elsewhere they travel as rows, each to the one task that reads it.
            rows = {
                "split": pa.array(pickled, pa.binary()),
                "id": pa.array(range(count), pa.int32()),
            }
            frame = self.session.createDataFrame(pa.table(rows))
            moved = frame.repartitionById(count, F.col("id")).select("split")
            return moved, SplitsInput(schema, None, counter)
        return self.session.range(0, count, 1, count), head

    def _spool(self, data: bytes | pa.Buffer) -> str:
        """A file with much data, for a worker of this machine to read."""
        handle, path = tempfile.mkstemp(prefix=own_name("split"))
        self.spooled.append(path)
        with open(handle, "wb") as file:
            file.write(data)
        return path

    def _shards(self, stage: Stage) -> int:
        """As many shards as cores, and more where there is much input, so that none is large."""
        sizes = [int(s.head.source.nbytes) for s in in_order(stage) if isinstance(s.head, Read)]
        least = self.parallelism if sizes and all(sizes) else _SHARDS_OF_UNKNOWN
        return min(4096, max(1, least, -(-sum(sizes) // _SHARD_BYTES)))

    # Rows that Spark has or makes

    def _frame(self, stage: Stage) -> Any:
        return self._once(stage, lambda each: (self._made(each), None))[0]

    def _made(self, stage: Stage) -> Any:
        head = stage.head
        if isinstance(head, External):
            if head.engine != "spark":
                raise PlanError(f"a stream from {head.engine} cannot run on Spark")
            return as_schema(head.handle, head.schema)
        if isinstance(head, Join):
            return self._join(head, *stage.inputs)
        if isinstance(head, JoinWithin):
            return self._join_within(head, *stage.inputs)
        if isinstance(head, Sort):
            return self._sorted(head, stage.inputs[0])
        before = self._rows(stage.inputs[0])
        if isinstance(head, Limit):
            return before.limit(head.count)
        if isinstance(head, MaxParallelism):
            return before.coalesce(head.count)
        if isinstance(head, Shuffle):
            return before.repartition(self.parallelism)
        if isinstance(head, GroupBy):
            return sql_group(before, head)
        assert isinstance(head, Union)
        return reduce(lambda a, b: a.union(b), [before, *map(self._rows, stage.inputs[1:])])

    def _sorted(self, node: Sort, stage: Stage) -> Any:
        """The rows in order; what Spark would compute otherwise is computed before, by us."""
        names = [f"__order_{i}" for i, _ in enumerate(node.order)]
        kernels = [compile_expression(t, stage.schema, self.zone) for t, _ in node.order]
        keys = list(zip(names, kernels, (t for t, _ in node.order), strict=True))
        ours = [(name, kernel.type, t) for name, kernel, t in keys if kernel.differs_in_spark]
        if not ours:
            before, columns = self._rows(stage), [column(t) for t, _ in node.order]
        else:
            kept = tuple((n, col(n).tree) for n in stage.schema.names)
            schema = pa.schema([*stage.schema, *(pa.field(n, kind) for n, kind, _ in ours)])
            more = tuple((n, t) for n, _, t in ours)
            step = Project(schema, node.step, stage.head, (*kept, *more), "select")
            output = FrameOutput(schema)
            before = self._finished(stage, (step,), output, spark_schema(schema))
            known = {n for n, _, _ in ours}
            columns = [quoted(n) if n in known else column(t) for n, _, t in keys]
        downs = (down for _, down in node.order)
        order = [c.desc() if down else c.asc() for c, down in zip(columns, downs, strict=True)]
        return before.orderBy(order).select([quoted(n) for n in stage.schema.names])

    def _side(self, stage: Stage) -> Any:
        """The rows of a side of a join. Spark takes what comes of Python for next to nothing, and
        would send all of it to every task: so it is told what to do with it."""
        rows = self._rows(stage)
        if _is_all_sparks(stage):
            return rows
        size = estimated_bytes(stage.steps[-1] if stage.steps else stage.head)
        small = size is not None and size <= _BROADCAST_BYTES
        return F.broadcast(rows) if small else rows.hint("merge")

    def _join(self, node: Join, left: Stage, right: Stage) -> Any:
        a, b = self._side(left), self._side(right)
        names = {n: f"__headrace_right_{i}" for i, n in enumerate(right.schema.names)}
        b = b.select([quoted(n).alias(alias) for n, alias in names.items()])
        pairs = list(zip(node.left_on, node.right_on, strict=True))
        matched = reduce(lambda x, y: x & y, [quoted(x) == quoted(names[y]) for x, y in pairs])
        how = {"outer": "full", "semi": "left_semi", "anti": "left_anti"}.get(node.how, node.how)
        joined = a.join(b, matched, how)
        if node.how in ("semi", "anti"):
            return joined.select([quoted(name) for name in node.schema.names])
        keys = dict(pairs)
        out = []
        for name in node.left_names:
            key = quoted(names[keys[name]]) if name in keys else None
            if key is not None and node.how == "right":
                out.append(key.alias(name))
            elif key is not None and node.how == "outer":
                out.append(F.coalesce(quoted(name), key).alias(name))
            else:
                out.append(quoted(name))
        out += [quoted(names[old]).alias(new) for old, new in node.renamed]
        return joined.select(out)

    def _join_within(self, node: JoinWithin, left: Stage, right: Stage) -> Any:
        a, b = self._side(left), self._side(right)
        names = {n: f"__headrace_right_{i}" for i, n in enumerate(right.schema.names)}
        b = b.select([quoted(n).alias(alias) for n, alias in names.items()])
        pairs = zip(node.left_on, node.right_on, strict=True)
        matched = reduce(lambda x, y: x & y, [quoted(x) == quoted(names[y]) for x, y in pairs])
        ours = _moment([quoted(c) for c in node.left_clock.columns], node.left_clock.shift)
        theirs = [quoted(names[c]) for c in node.right_clock.columns]
        apart = _moment(theirs, node.right_clock.shift) - ours
        joined = a.join(b, matched & (apart >= -node.before) & (apart <= node.after), "inner")
        out = [quoted(name) for name in left.schema.names]
        return joined.select(out + [quoted(names[old]).alias(new) for old, new in node.renamed])


def _is_all_sparks(stage: Stage) -> bool:
    """Whether nothing of a stage comes of Python, so that Spark knows how much it is."""
    if parquet.reads_itself(stage):
        return True
    made = keeps_rows(stage) and is_plain(stage.steps)
    return made and all(map(_is_all_sparks, stage.inputs))


def _has_tasks(stage: Stage) -> bool:
    """Whether something runs for a stage even if it has no records: splits are read by tasks."""
    if isinstance(stage.head, Union):
        return any(map(_has_tasks, stage.inputs))
    return isinstance(stage.head, Read)


def _moment(columns: Sequence[Any], shift: int) -> Any:
    """The latest of some times in microseconds, and a shift."""
    micros = [F.unix_micros(c.cast("timestamp")) for c in columns]
    return (F.greatest(*micros) if len(micros) > 1 else micros[0]) + shift
