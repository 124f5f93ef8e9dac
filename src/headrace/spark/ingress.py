"""The first steps of a source, run by the worker that reads it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from headrace.checkpoints.control import Control
from headrace.errors import EngineError, HeadraceError, StepError
from headrace.io.source import SetAside, Watermark
from headrace.kernels.chain import compile_chain
from headrace.kernels.lateness import (
    ahead_of,
    first_late,
    on_time,
    punctuation_of,
    stamped,
    times_of,
)
from headrace.plan.node import Narrow
from headrace.plan.time import EventTime
from headrace.spark.graph import Branch, SourceFlow, source_columns
from headrace.spark.offsets import Reading
from headrace.spark.pipes import Compiled
from headrace.spark.python.compiled import once
from headrace.spark.python.failures import carrying
from headrace.spark.python.shipping import Shipped, bare
from headrace.spark.wire import Batches, Place, Row, RowSender, in_batches
from headrace.types import normal_batch
from headrace.watermarks import SourceFrontier
from headrace.windows import FOREVER


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
    watermarks_for: tuple[int, ...]
    labels: tuple[int, ...]
    zone: str

    @staticmethod
    def of(source: SourceFlow, key: str, labels: tuple[int, ...], zone: str) -> SourceProgram:
        steps = tuple(bare(s) for s in source.steps)
        event = bare(source.event) if source.event is not None else None
        return SourceProgram(
            key, source.number, source.name, source.origin.schema, steps, event,
            tuple(source.branches), tuple(source.late), tuple(sorted(set(source.watermarks_for))),
            labels, zone,
        )  # fmt: skip

    def compiled(self) -> _CompiledSource:
        return _CompiledSource(self)

    def run(self, reading: Reading, items: Iterator[Any] | None = None) -> Iterator[Row]:
        """The rows that come of a split; ``items`` where Spark has its records already."""
        yield from once(self.key, self.compiled).run(reading, items)

    def batches(self, reading: Reading, items: Iterator[Any] | None = None) -> Batches:
        """The same as Arrow batches."""
        yield from in_batches(self.run(reading, items))


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
        self.punctuation = None if event is None else punctuation_of(event, self.chain.schema, zone)

    def run(self, reading: Reading, items: Iterator[Any] | None) -> Iterator[Row]:
        program, event = self.program, self.program.event
        place = Place(program.number, reading.number, Place.of(0).attempt)
        sender = RowSender(program.labels, place.first)
        task = f"s{place}"
        pipes = [b.start(sender, task) for b in self.branches]
        late_pipes = [b.start(sender, task) for b in self.late]
        counted = {"records": 0, "late": 0, "ahead": 0, "bad": 0}
        watermark = reading.floor
        sample: tuple[int, int] | None = None
        sample_ahead: tuple[int, str] | None = None
        furthest = FOREVER
        if event is not None and event.ahead is not None:
            furthest = int(reading.now * 1e6) + event.ahead
        if items is None:
            items = self._items(reading)
        for item in items:
            if isinstance(item, Watermark):
                if event is not None and event.is_by_source:
                    watermark = max(watermark, item.micros)
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
                if event is not None and event.by_clock:
                    batch = stamped(event, batch, reading.moment)
                    watermark = reading.moment
                elif event is not None:
                    batch, aside = ahead_of(event, batch, reading.now)
                    if aside is not None:
                        counted["late"] += aside.num_rows
                        counted["ahead"] += aside.num_rows
                        first = int(times_of(event, aside)[0])
                        sample_ahead = sample_ahead or (first, aside.columns[-1][0].as_py())
                        for pipe in late_pipes:
                            yield from pipe.add(aside)
                    if not batch.num_rows:
                        continue
                    times = times_of(event, batch)
                    if event.delay is not None:
                        watermark = max(watermark, int(times.max()) - event.delay)
                    if self.punctuation is not None:
                        announced = [t for _, t in self.punctuation(batch) if t <= furthest]
                        watermark = max([watermark, *announced])
                    late = None
                    if not event.is_never_late:
                        batch, late = on_time(event, batch, reading.floor)
                    if late is not None:
                        counted["late"] += late.num_rows
                        sample = sample or first_late(event, late)
                        for pipe in late_pipes:
                            yield from pipe.add(late)
                for pipe in pipes:
                    yield from pipe.add(batch)
        for pipe in (*pipes, *late_pipes):
            yield from pipe.finish()
        if event is not None and event.is_never_late and not reading.ends:
            watermark = reading.floor
        message: dict[str, Any] = {"from": f"s{program.number}"}
        if reading.split is not None or reading.name:
            message |= {"split": reading.name, "watermark": watermark}
        if reading.control is not None:
            message |= reading.control
        for target in program.watermarks_for:
            yield from sender.to_all(target, message)
        samples = {"sample": sample, "sample_ahead": sample_ahead}
        yield sender.report({**message, "source": program.number, **counted, **samples})

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
            saved = Control(self.folder).frontiers_before(batch).get(str(self.number))
            frontier = SourceFrontier(**saved) if saved else SourceFrontier()
            control = {"live": ["all"], "idle": [], "ended": False}
            floor = frontier.floor("all", False)
            reading = Reading("all", None, floor, time.time(), partition, control)
            names = program.schema.names
            items = (pa.RecordBatch.from_arrays(b.columns, names=names) for b in rows)
            yield from program.batches(reading, items)
