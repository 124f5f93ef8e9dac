"""What runs in a Spark Python worker: how a stage gets its bundles, and what it makes of them.

A ``Program`` is the part of a pipeline between two exchanges: a head that brings bundles, the
stage's narrow steps, and an ending that says what leaves the worker. Between workers, records
travel as *bundles*: rows of a shard number, a place in the input order, and an Arrow record batch
as one binary value. Spark moves and sorts those few rows; it never sees the records.
"""

from __future__ import annotations

import itertools
import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from headrace.errors import EngineError
from headrace.io.sink import Sink
from headrace.io.source import Split
from headrace.kernels.aggregate import (
    Merge,
    by_shard,
    compile_aggregation,
    compile_partial,
)
from headrace.kernels.chain import Chain, compile_chain
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.order import Top
from headrace.plan.nodes import GroupBy, Narrow, TopK
from headrace.spark.failures import carrying
from headrace.types import normal_batch

BUNDLES = pa.schema(
    [pa.field("shard", pa.int32()), pa.field("place", pa.int64()), pa.field("bundle", pa.binary())]
)
"""How bundles look to Spark."""
BUNDLES_SQL = "shard int, place bigint, bundle binary"
MESSAGES_SQL = "message binary"
MESSAGES = pa.schema([pa.field("message", pa.binary())])

_SOME_BYTES = 4 << 20
"""About how large a bundle gets before it is sent."""
_MAX_GROUPS = 4 << 20
_MAX_STATE = 192 << 20
"""Past this a partial aggregate is sent and begun anew, which bounds a worker's memory."""

Batches = Iterator[pa.RecordBatch]


def by_value(thing: Any) -> bytes:
    """Anything as bytes, lambdas and functions of a script included."""
    data: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
    return data


def pack(batch: pa.RecordBatch) -> bytes:
    """A record batch as bytes; its schema is known to both ends."""
    return batch.serialize().to_pybytes()


def unpack(data: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The batch of ``pack``."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


# Heads: how a stage gets its bundles


@dataclass(frozen=True)
class SplitsHead:
    """Reads splits of a source. Small ones are known to the program; large ones come as rows."""

    schema: pa.Schema
    splits: tuple[bytes, ...] | None

    def read(self, rows: Batches, columns: Sequence[str]) -> Batches:
        for batch in rows:
            for item in batch.column(0).to_pylist():
                split: Split = pickle.loads(item if self.splits is None else self.splits[item])
                wanted = pa.schema([self.schema.field(c) for c in columns])
                for bundle in split.read(list(columns)):
                    yield normal_batch(bundle, wanted)


@dataclass(frozen=True)
class RowsHead:
    """Takes rows that Spark has."""

    schema: pa.Schema

    def read(self, rows: Batches, columns: Sequence[str]) -> Batches:
        wanted = pa.schema([self.schema.field(c) for c in columns])
        for batch in rows:
            named = pa.RecordBatch.from_arrays(batch.columns, names=self.schema.names)
            yield normal_batch(named, wanted)


@dataclass(frozen=True)
class ConcatHead:
    """Takes bundles of records as they come, shard by shard and in order."""

    schema: pa.Schema

    def read(self, rows: Batches, columns: Sequence[str]) -> Batches:
        for _, bundle in _received(rows, self.schema):
            yield bundle.select(list(columns))


@dataclass(frozen=True)
class LimitHead:
    """Takes the first records of bundles in order."""

    schema: pa.Schema
    count: int

    def read(self, rows: Batches, columns: Sequence[str]) -> Batches:
        left = self.count
        for _, bundle in _received(rows, self.schema):
            if left <= 0:
                continue  # Spark wants its rows read to the end
            taken = bundle.slice(0, left)
            left -= taken.num_rows
            yield taken.select(list(columns))


@dataclass(frozen=True)
class MergeHead:
    """Merges partial aggregates, a shard at a time."""

    node: GroupBy
    input: pa.Schema
    zone: str

    @property
    def schema(self) -> pa.Schema:
        return self.node.schema

    def read(self, rows: Batches, columns: Sequence[str]) -> Batches:
        aggregation = compile_aggregation(self.node, self.input, self.zone)
        received = _received(rows, aggregation.partial_schema)
        for _, bundles in itertools.groupby(received, key=lambda pair: pair[0]):
            merge = Merge(aggregation)
            for _, bundle in bundles:
                merge.add(bundle)
            yield merge.finish().select(list(columns))


@dataclass(frozen=True)
class TopHead:
    """Merges the top records of parts, a shard of keys at a time."""

    node: TopK
    zone: str

    @property
    def schema(self) -> pa.Schema:
        return self.node.schema

    def read(self, rows: Batches, columns: Sequence[str]) -> Batches:
        received = _received(rows, self.schema)
        for _, bundles in itertools.groupby(received, key=lambda pair: pair[0]):
            top = _top(self.node, self.zone)
            for _, bundle in bundles:
                top.add(bundle)
            yield top.bundle().select(list(columns))


Head = SplitsHead | RowsHead | ConcatHead | LimitHead | MergeHead | TopHead


def _received(rows: Batches, schema: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in rows:
        shards, bundles = batch.column(0), batch.column(2)
        for i in range(batch.num_rows):
            yield shards[i].as_py(), unpack(bundles[i].as_buffer(), schema)


def _top(node: TopK, zone: str) -> Top:
    order = []
    for tree, down in node.order:
        kernel = compile_expression(tree, node.schema, zone)
        order.append((lambda batch, k=kernel: evaluate(k, batch), down))
    return Top(node.schema, node.k, order, node.keys)


# Endings: what leaves the worker


@dataclass(frozen=True)
class Place:
    """Where a program runs: which branch of a union, which partition, which attempt.

    Spark may run partitions of several branches in one task, so the branch is part of the place.
    """

    branch: int
    partition: int
    attempt: int

    @staticmethod
    def of(branch: int) -> Place:
        context = TaskContext.get()
        if context is None:
            return Place(branch, 0, 0)
        return Place(branch, context.partitionId(), context.taskAttemptId())

    @property
    def first(self) -> int:
        """The number of the first bundle sent from here; later places have larger ones."""
        return self.branch << 48 | self.partition << 28

    def __str__(self) -> str:
        return f"{self.branch:03d}-{self.partition:06d}-{self.attempt}"


class Sender:
    """Rows of bundles, numbered in the order of the input."""

    def __init__(self, place: Place) -> None:
        self.place = place.first

    def rows(self, bundles: Iterable[tuple[int, pa.RecordBatch]]) -> Batches:
        for shard, batch in bundles:
            for part in _parts(batch):
                columns = [[shard], [self.place], [pack(part)]]
                self.place += 1
                yield pa.RecordBatch.from_arrays(
                    [pa.array(c, f.type) for c, f in zip(columns, BUNDLES, strict=True)],
                    schema=BUNDLES,
                )


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A large bundle in pieces that Spark's rows can hold."""
    pieces = max(1, -(-batch.nbytes // (4 * _SOME_BYTES)))
    size = max(1, -(-batch.num_rows // pieces))
    for start in range(0, max(1, batch.num_rows), size):
        yield batch.slice(start, size)


def _gathered(batches: Batches) -> Batches:
    """Small bundles put together, so that few rows reach the JVM."""
    pending: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        pending.append(batch)
        held += batch.nbytes
        if held >= _SOME_BYTES:
            yield pa.concat_batches(pending)
            pending, held = [], 0
    if pending:
        yield pa.concat_batches(pending)


@dataclass(frozen=True)
class RowsEnding:
    """The records themselves, as Spark rows."""

    schema: pa.Schema

    def finish(self, batches: Batches, place: Place) -> Batches:
        for batch in batches:
            if batch.num_rows:
                yield batch


@dataclass(frozen=True)
class CollectEnding:
    """The records as bundles, to be put together in order."""

    def finish(self, batches: Batches, place: Place) -> Batches:
        return Sender(place).rows((0, batch) for batch in _gathered(batches))


@dataclass(frozen=True)
class LimitEnding:
    """The first records as bundles."""

    count: int

    def finish(self, batches: Batches, place: Place) -> Batches:
        return Sender(place).rows((0, batch) for batch in _gathered(self._first(batches)))

    def _first(self, batches: Batches) -> Batches:
        left = self.count
        for batch in batches:
            if left <= 0:
                return
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)


@dataclass(frozen=True)
class ScatterEnding:
    """The records spread evenly over shards."""

    shards: int

    def finish(self, batches: Batches, place: Place) -> Batches:
        return Sender(place).rows(self._dealt(batches, place))

    def _dealt(self, batches: Batches, place: Place) -> Iterator[tuple[int, pa.RecordBatch]]:
        turn = place.branch + place.partition
        for batch in _gathered(batches):
            size = -(-batch.num_rows // self.shards)
            for start in range(0, batch.num_rows, size):
                yield turn % self.shards, batch.slice(start, size)
                turn += 1


@dataclass(frozen=True)
class KeyEnding:
    """The records by the shard of their key."""

    keys: tuple[str, ...]
    shards: int

    def finish(self, batches: Batches, place: Place) -> Batches:
        return Sender(place).rows(
            part
            for batch in _gathered(batches)
            for part in by_shard(batch, [batch.column(k) for k in self.keys], self.shards)
        )


@dataclass(frozen=True)
class TopEnding:
    """The top records of this part, by the shard of their key."""

    node: TopK
    shards: int
    zone: str

    def finish(self, batches: Batches, place: Place) -> Batches:
        top = _top(self.node, self.zone)
        for batch in batches:
            top.add(batch)
        kept = top.bundle()
        keys = [kept.column(k) for k in self.node.keys]
        yield from Sender(place).rows(by_shard(kept, keys, self.shards))


@dataclass(frozen=True)
class PartialEnding:
    """Partial aggregates, by the shard of their key."""

    node: GroupBy
    shards: int
    zone: str


@dataclass(frozen=True)
class WriteEnding:
    """The records into a sink; what the writer says is what leaves."""

    sink: Sink
    schema: pa.Schema

    def finish(self, batches: Batches, place: Place) -> Batches:
        writer = self.sink.open(self.schema, str(place))
        for batch in batches:
            writer.write(batch)
        yield _message(pickle.dumps(writer.close()))


@dataclass(frozen=True)
class RunEnding:
    """Nothing: the steps were run for their effect."""

    def finish(self, batches: Batches, place: Place) -> Batches:
        for _ in batches:
            pass
        yield _message(b"")


def _message(data: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], schema=MESSAGES)


Ending = (
    RowsEnding | CollectEnding | LimitEnding | ScatterEnding | KeyEnding | TopEnding
    | PartialEnding | WriteEnding | RunEnding
)  # fmt: skip


# Programs


@dataclass(frozen=True)
class Task:
    """A program on its way to the workers, with where to find what it imports.

    A person's functions may come from modules beside the script. Where a worker sees the same
    folders, as on one machine, it imports from them what the script did.
    """

    program: bytes
    path: tuple[str, ...]

    @staticmethod
    def of(program: Program) -> Task:
        folders = tuple(p for p in (os.path.abspath(p) for p in sys.path) if os.path.isdir(p))
        return Task(by_value(program), folders)

    def __call__(self, rows: Batches) -> Batches:
        one_core()
        sys.path.extend(p for p in self.path if p not in sys.path and os.path.isdir(p))
        with carrying():
            yield from self._load().run(rows)

    def _load(self) -> Program:
        try:
            program = pickle.loads(self.program)
        except ImportError as error:
            raise EngineError(
                f"a Spark worker cannot import what a function needs ({error}); install it on "
                "every worker, or ship it with session.sparkContext.addPyFile(…)"
            ) from error
        assert isinstance(program, Program)
        return program


@dataclass(frozen=True)
class Program:
    """A stage as one function of what Spark hands to a Python worker."""

    key: str
    head: Head
    steps: tuple[Narrow, ...]
    ending: Ending
    zone: str
    branch: int = 0

    def run(self, rows: Batches) -> Batches:
        """What leaves the worker, of what Spark hands to it."""
        if isinstance(self.ending, PartialEnding):
            yield from self._partial(self.ending, rows)
            return
        chain: Chain = _once(
            self.key, lambda: compile_chain(self.steps, self.head.schema, None, self.zone)
        )
        bundles = (chain(batch) for batch in self.head.read(rows, chain.columns))
        yield from self.ending.finish(bundles, Place.of(self.branch))

    def _partial(self, ending: PartialEnding, rows: Batches) -> Batches:
        plan = _once(
            self.key,
            lambda: compile_partial(self.steps, self.head.schema, ending.node, self.zone),
        )
        partial = plan.start()
        sender = Sender(Place.of(self.branch))
        keys = len(ending.node.keys)

        def send() -> Batches:
            bundle = partial.bundle()
            yield from sender.rows(by_shard(bundle, bundle.columns[:keys], ending.shards))

        for batch in self.head.read(rows, plan.chain.columns):
            partial.add(plan.chain(batch))
            if partial.groups > _MAX_GROUPS or partial.nbytes > _MAX_STATE:
                yield from send()
                partial.reset()
        yield from send()


_COMPILED: dict[str, Any] = {}


def _once(key: str, make: Any) -> Any:
    """What a pipeline compiles to, once in a worker's life."""
    if key not in _COMPILED:
        while len(_COMPILED) >= 64:
            _COMPILED.pop(next(iter(_COMPILED)))
        _COMPILED[key] = make()
    return _COMPILED[key]


def one_core() -> None:
    """A worker is one of many on the machine: Arrow must not take all cores for it."""
    if pa.cpu_count() != 1:
        pa.set_cpu_count(1)
        pa.set_io_thread_count(2)
