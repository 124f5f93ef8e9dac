"""Sources as Spark reads them: offsets on the driver, the first steps fused into the workers.

An offset of ours says how far each split is read, and what was known when the batch was planned:
which splits were silent, whether the input has ended, and below which event time a record is late.
Spark logs it before the batch runs, so a batch that runs again does the same again.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from headrace.errors import EngineError, HeadraceError, StepError
from headrace.io.offsets import OffsetSource, Positions
from headrace.io.source import SetAside, Split, Watermark
from headrace.kernels.chain import compile_chain
from headrace.kernels.watermark import is_by_source, late_records, punctuation_of, times_of
from headrace.plan.nodes import EventTime, Narrow
from headrace.spark.bundles import Batches, Place
from headrace.spark.control import Control
from headrace.spark.failures import carrying
from headrace.spark.flow import Branch, SourceFlow, source_columns
from headrace.spark.marks import SourceMarks
from headrace.spark.rows import PARTS, ROWS_SQL, Compiled, Row, Sender, in_batches
from headrace.spark.stage import Shipped, bare, by_value, once
from headrace.types import normal_batch
from headrace.windows import BEGINNING

_CATCH_UP = 2.0
"""How long, in seconds, to look for all that is there when a job takes just that."""


@dataclass(frozen=True)
class Reading:
    """One split of one batch, as the task that reads it knows it."""

    name: str
    split: Split | None
    floor: int
    """Below this a record is late."""
    number: int
    """Its split's place among the splits, and its own among the parts of the split."""
    control: dict[str, Any] | None
    """With the first split of a batch: which splits there are."""


@dataclass(frozen=True)
class SourceProgram:
    """A source's first steps, as the workers get them."""

    key: str
    number: int
    name: str
    schema: pa.Schema
    steps: tuple[Narrow, ...]
    event: EventTime | None
    branches: tuple[Branch, ...]
    late: tuple[Branch, ...]
    marks_for: tuple[int, ...]
    labels: tuple[int, ...]
    zone: str

    @staticmethod
    def of(source: SourceFlow, key: str, labels: tuple[int, ...], zone: str) -> SourceProgram:
        steps = tuple(bare(s) for s in source.steps)
        event = bare(source.event) if source.event is not None else None
        return SourceProgram(
            key, source.number, source.name, source.origin.schema, steps, event,
            tuple(source.branches), tuple(source.late), tuple(sorted(set(source.marks_for))),
            labels, zone,
        )  # fmt: skip

    def compiled(self) -> _CompiledSource:
        return _CompiledSource(self)

    def run(self, reading: Reading, items: Iterator[Any] | None = None) -> Iterator[Row]:
        """The rows that come of a split; ``items`` where Spark has its records already."""
        yield from once(self.key, self.compiled).run(reading, items)


class _CompiledSource:
    def __init__(self, program: SourceProgram) -> None:
        self.program = program
        zone = program.zone
        self.branches = [Compiled(b, zone) for b in program.branches]
        self.late = [Compiled(b, zone) for b in program.late]
        flow = SourceFlow(program.number, program.event)  # type: ignore[arg-type]
        flow.late = list(program.late)
        columns = source_columns(flow, [set(b.chain.columns) for b in self.branches])
        self.chain = compile_chain(program.steps, program.schema, columns, zone)
        self.wanted = pa.schema([program.schema.field(c) for c in self.chain.columns])
        event = program.event
        self.punctuation = None if event is None else punctuation_of(event, self.chain.schema)

    def run(self, reading: Reading, items: Iterator[Any] | None) -> Iterator[Row]:
        program, event = self.program, self.program.event
        place = Place(program.number, reading.number, Place.of(0).attempt)
        sender = Sender(program.labels, place.first)
        task = f"s{place}"
        pipes = [b.start(sender, task) for b in self.branches]
        late_pipes = [b.start(sender, task) for b in self.late]
        counted = {"records": 0, "late": 0, "bad": 0}
        mark = reading.floor
        sample: tuple[int, int] | None = None
        if items is None:
            items = self._items(reading)
        for item in items:
            if isinstance(item, Watermark):
                if event is not None and is_by_source(event):
                    mark = max(mark, item.micros)
                continue
            if isinstance(item, SetAside):
                counted["bad"] += item.records
                continue
            if item is None:
                continue
            if not isinstance(item, pa.RecordBatch):
                raise StepError(f"{program.name} gave {item!r}, which is not a record batch")
            for batch in self.chain.bundles(normal_batch(item, self.wanted)):
                if not batch.num_rows:
                    continue
                counted["records"] += batch.num_rows
                if event is not None:
                    times = times_of(event, batch)
                    if event.delay is not None:
                        mark = max(mark, int(times.max()) - event.delay)
                    if self.punctuation is not None:
                        mark = max([mark, *(said for _, said in self.punctuation(batch))])
                    if int(times.min()) < reading.floor:
                        mask = times < reading.floor
                        sample = sample or (int(times[mask][0]), reading.floor)
                        counted["late"] += int(mask.sum())
                        floors = np.full(int(mask.sum()), reading.floor)
                        told = late_records(
                            event, batch.filter(pa.array(mask)), times[mask], floors
                        )
                        for pipe in late_pipes:
                            yield from pipe.add(told)
                        batch = batch.filter(pa.array(~mask))
                for pipe in pipes:
                    yield from pipe.add(batch)
        for pipe in (*pipes, *late_pipes):
            yield from pipe.finish()
        said: dict[str, Any] = {"from": f"s{program.number}"}
        if reading.split is not None or reading.name:
            said |= {"split": reading.name, "mark": mark}
        if reading.control is not None:
            said |= reading.control
        for target in program.marks_for:
            yield from sender.to_all(target, said)
        yield sender.report({**said, "source": program.number, **counted, "sample": sample})

    def _items(self, reading: Reading) -> Iterator[Any]:
        if reading.split is None:
            return
        try:
            yield from reading.split.read(list(self.chain.columns))
        except HeadraceError:
            raise
        except Exception as error:
            raise EngineError(
                f"reading {self.program.name} failed: {type(error).__name__}: {error}"
            ) from error


@dataclass(frozen=True)
class SourcePlan:
    """All that the driver's side of a source needs."""

    source: OffsetSource
    number: int
    idle: int | None
    parallelism: int
    folder: str


class OffsetReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A source of ours as Spark's: it plans batches on the driver and reads them in the workers."""

    def __init__(self, plan: bytes, program: Shipped) -> None:
        self.plan, self.program = plan, program
        self.live: _Planning | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "live": None, "plan": b""}  # what travels to the workers

    @property
    def planning(self) -> _Planning:
        if self.live is None:
            self.live = _Planning(pickle.loads(self.plan))
        return self.live

    def initialOffset(self) -> dict[str, Any]:
        with carrying():
            return self.planning.initial()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        with carrying():
            return self.planning.latest(start)

    def prepareForTriggerAvailableNow(self) -> None:
        self.planning.only_now = True

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        with carrying():
            return [InputPartition(pickle.dumps(r)) for r in self.planning.readings(start, end)]

    def commit(self, end: Any) -> None:
        with carrying():
            self.planning.plan.source.forget(end["at"])

    def read(self, partition: InputPartition) -> Batches:
        with carrying():
            program: SourceProgram = self.program.load()
            yield from in_batches(program.run(pickle.loads(partition.value)))


class _Planning:
    """The driver's side of a source, in the process that Spark keeps for it."""

    def __init__(self, plan: SourcePlan) -> None:
        self.plan = plan
        self.control = Control(plan.folder)
        self.seen: dict[str, float] = {}
        self.only_now = False
        self.steps: list[Positions] | None = None
        plan.source.keep_in(f"{plan.folder}/source-{plan.number}")

    def initial(self) -> dict[str, Any]:
        return {"at": self.plan.source.initial(), "idle": [], "ended": False, "marks": {}}

    def latest(self, start: dict[str, Any] | None) -> dict[str, Any]:
        if start is None:
            start = self.initial()
        control = self.control.read()
        stop = control.get("stop")
        if start["ended"] or stop == "hold":
            return start
        source, before = self.plan.source, start["at"]
        at = before if stop == "drain" else self._next(before)
        now = time.monotonic()
        for name in at:
            if at[name] != before.get(name) or name not in self.seen:
                self.seen[name] = now
        idle = list(start["idle"])
        if self.plan.idle is not None:
            quiet = [n for n in at if now - self.seen[n] > self.plan.idle / 1e6]
            idle = [n for n in at if at[n] == before.get(n) and (n in quiet or n in start["idle"])]
        ended = stop == "drain" or source.ended(at)
        if at == before and idle == start["idle"] and not ended:
            return start
        marks = control.get("sources", {}).get(str(self.plan.number), {})
        return {"at": at, "idle": idle, "ended": ended, "marks": marks}

    def _next(self, before: Positions) -> Positions:
        source = self.plan.source
        if not self.only_now:
            return source.latest(before)
        if self.steps is None:
            self.steps = [before]
            deadline = time.monotonic() + _CATCH_UP
            while time.monotonic() < deadline:
                after = source.latest(self.steps[-1])
                if after == self.steps[-1]:
                    break
                self.steps.append(after)
                if getattr(source, "limit", None) is None:
                    break
        known = [i for i, step in enumerate(self.steps) if step == before]
        return self.steps[min(known[-1] + 1, len(self.steps) - 1)] if known else before

    def readings(self, start: dict[str, Any], end: dict[str, Any]) -> list[Reading]:
        marks = SourceMarks(**end["marks"]) if end["marks"] else SourceMarks()
        control = {"live": list(end["at"]), "idle": end["idle"], "ended": end["ended"]}
        found = self.plan.source.between(start["at"], end["at"], self.plan.parallelism)
        names, parts = list(end["at"]), Counter[str]()
        readings = []
        for i, (name, split) in enumerate(found):
            floor = marks.floor(name, name in start["idle"])
            number = names.index(name) << PARTS | parts[name]
            parts[name] += 1
            readings.append(Reading(name, split, floor, number, control if not i else None))
        return readings or [Reading("", None, BEGINNING, 0, control)]


def source_class(name: str, plan: SourcePlan, program: SourceProgram) -> type[DataSource]:
    """A data source of Spark's that reads one source of one job."""
    planned, shipped = by_value(plan), Shipped.of(program)

    class Headrace(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return ROWS_SQL

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return OffsetReader(planned, shipped)

    return Headrace


@dataclass(frozen=True)
class FrameReader:
    """The first steps over a streaming DataFrame that somebody else reads."""

    program: Shipped
    folder: str
    number: int

    def __call__(self, rows: Batches) -> Batches:
        with carrying():
            program: SourceProgram = self.program.load()
            context = TaskContext.get()
            batch = int(context.getLocalProperty("streaming.sql.batchId") or 0) if context else 0
            partition = context.partitionId() if context else 0
            said = Control(self.folder).marks_before(batch).get(str(self.number))
            marks = SourceMarks(**said) if said else SourceMarks()
            control = {"live": ["all"], "idle": [], "ended": False}
            reading = Reading("all", None, marks.floor("all", False), partition, control)
            names = program.schema.names
            items = (pa.RecordBatch.from_arrays(b.columns, names=names) for b in rows)
            yield from in_batches(program.run(reading, items))
