"""How records travel between Spark's workers: rows with a bundle as one binary value each.

A row says which shard of the keys and which operator it is for, where in the input it belongs, and
carries one Arrow record batch. Spark moves, sorts and keeps those few rows; it never sees the
records. Rows whose target is no operator are on their way to the driver: messages of sinks, records
that are kept there, and reports of what was done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from headrace.kernels.expressions.hashing import hash_columns
from headrace.operators import stores
from headrace.operators.operator import Part
from headrace.operators.stores import of_lane
from headrace.operators.stores import unpack as unpack
from headrace.spark.python.shipping import PARTS

ROWS = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("target", pa.int32()),
        pa.field("lane", pa.int32()),
        pa.field("slice", pa.int64()),
        pa.field("place", pa.int64()),
        pa.field("bundle", pa.binary()),
    ]
)
Row = tuple[int, int, int, int, int, bytes]
MESSAGES_SQL = "message binary"
MESSAGES = pa.schema([pa.field("message", pa.binary())])

OUTPUT, REPORT = -1, -2
"""Targets that are no operator; an output's number is the lane."""
WATERMARK = -1
"""The lane of rows that carry a watermark, or just that there is a task, and no records."""

Batches = Iterator[pa.RecordBatch]
_SOME_BYTES = 4 << 20
"""About how large a bundle gets before it is sent."""
_ROWS, _TASKS = 24, 28
"""The bits of a place that count a task's rows, and that number the task."""


def pack(batch: pa.RecordBatch) -> bytes:
    """A record batch as bytes that Spark takes."""
    return stores.pack(batch).to_pybytes()


def parts_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A large bundle in pieces that Spark's rows can hold."""
    pieces = max(1, -(-batch.nbytes // (4 * _SOME_BYTES)))
    size = max(1, -(-batch.num_rows // pieces))
    for start in range(0, max(1, batch.num_rows), size):
        yield batch.slice(start, size)


def gathered(batches: Batches) -> Batches:
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


# Places in the input


@dataclass(frozen=True)
class Place:
    """Where a task runs: of which source, level or branch of a union, which partition, which try.

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
        """The number before that of the first row sent from here; later places have larger ones."""
        return self.branch << (_ROWS + _TASKS) | (self.partition & (1 << _TASKS) - 1) << _ROWS

    def __str__(self) -> str:
        return f"{self.branch:03d}-{self.partition:06d}-{self.attempt}"


def task_of(place: int) -> int:
    """Which task sent a row."""
    return place >> _ROWS


def input_of(lane: int, place: int) -> int:
    """Which part of the input a row belongs to, in the input's order: the streams of a union one
    after the other, then sources, then their splits."""
    return of_lane(lane, place >> (_ROWS + PARTS))


def labels_of(shards: int) -> tuple[int, ...]:
    """A number for each shard, such that Spark's hash puts each in a partition of its own."""
    labels: dict[int, int] = {}
    numbers = np.arange(64 * shards, dtype=np.int32)
    hashes = hash_columns([pa.array(numbers)], numbers.size, "hash").view(np.int32)
    for number, hashed in zip(numbers.tolist(), (hashes % shards).tolist(), strict=True):
        labels.setdefault(hashed, number)
    return tuple(labels[i] for i in range(shards))


# Rows


@dataclass
class RowSender:
    """Numbers rows in the order of the input, and knows the shards."""

    labels: Sequence[int]
    place: int
    writers: int = 0

    @property
    def shards(self) -> int:
        return len(self.labels)

    def row(self, shard: int, target: int, lane: int, slice: int, data: bytes) -> Row:
        self.place += 1
        return self.labels[shard], target, lane, slice, self.place, data

    def part(self, shard: int, target: int, lane: int, part: Part) -> Iterator[Row]:
        """A part for a shard of an operator as rows, several where it is too large for one."""
        for batch in parts_of(part.batch):
            yield self.row(shard, target, lane, part.slice, pack(batch))

    def anywhere(self, target: int, lane: int, data: bytes) -> Row:
        """A row that may go to any shard."""
        return self.row(self.place % self.shards, target, lane, 0, data)

    def to_all(self, target: int, message: dict[str, Any]) -> Iterator[Row]:
        """A watermark, or who is there to send one, to every shard of an operator."""
        data = json.dumps(message).encode()
        for shard in range(self.shards):
            yield self.row(shard, target, WATERMARK, 0, data)

    def report(self, message: dict[str, Any]) -> Row:
        """Something for the driver to know."""
        return self.anywhere(REPORT, 0, json.dumps(message).encode())


def as_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as Arrow sees them."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def in_batches(rows: Iterable[Row]) -> Batches:
    """Rows as Arrow batches of some megabytes."""
    pending: list[Row] = []
    held = 0
    for row in rows:
        pending.append(row)
        held += len(row[5])
        if held >= 8 << 20 or len(pending) >= 4096:
            yield as_batch(pending)
            pending, held = [], 0
    if pending:
        yield as_batch(pending)


def received(batches: Batches) -> Iterator[Row]:
    """The rows of batches that Spark brings, their bundles not copied."""
    for batch in batches:
        shards, targets, lanes, slices, places = (batch.column(i).to_pylist() for i in range(5))
        bundles = batch.column(5)
        for i in range(batch.num_rows):
            data = bundles[i].as_buffer()
            yield shards[i], targets[i], lanes[i], slices[i], places[i], data
