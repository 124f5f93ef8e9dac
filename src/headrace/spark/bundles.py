"""How records travel between workers: Arrow record batches as single binary values.

A row of Spark's is a shard number, a place in the input order, and a bundle. Spark moves and sorts
those few rows; it never sees the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

BUNDLES = pa.schema(
    [pa.field("shard", pa.int32()), pa.field("place", pa.int64()), pa.field("bundle", pa.binary())]
)
"""How bundles look to Spark."""
BUNDLES_SQL = "shard int, place bigint, bundle binary"
MESSAGES_SQL = "message binary"
MESSAGES = pa.schema([pa.field("message", pa.binary())])

_SOME_BYTES = 4 << 20
"""About how large a bundle gets before it is sent."""
Batches = Iterator[pa.RecordBatch]


def pack(batch: pa.RecordBatch) -> bytes:
    """A record batch as bytes; its schema is known to both ends."""
    return batch.serialize().to_pybytes()


def unpack(data: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The batch of ``pack``."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def received(rows: Batches, schema: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in rows:
        shards, bundles = batch.column(0), batch.column(2)
        for i in range(batch.num_rows):
            yield shards[i].as_py(), unpack(bundles[i].as_buffer(), schema)


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
            for part in parts_of(batch):
                columns = [[shard], [self.place], [pack(part)]]
                self.place += 1
                yield pa.RecordBatch.from_arrays(
                    [pa.array(c, f.type) for c, f in zip(columns, BUNDLES, strict=True)],
                    schema=BUNDLES,
                )


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
