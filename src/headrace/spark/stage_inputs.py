"""How a stage of a bounded job gets its bundles in a Spark Python worker."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.io.source import Split, Watermark
from headrace.operators import operator_of
from headrace.operators.operator import Input
from headrace.plan.node import Node
from headrace.spark.counters import add_to
from headrace.spark.host import results_of
from headrace.spark.last_watermark import LastWatermark
from headrace.spark.wire import Batches, received, unpack
from headrace.types import normal_batch


@dataclass(frozen=True)
class SplitsInput:
    """Reads splits of a source: pickled, in files on this machine, or (None) coming as rows."""

    schema: pa.Schema
    splits: tuple[bytes | str, ...] | None
    counter: int | None = None
    """The accumulator that counts the records read, if any."""

    def read(self, rows: Batches, columns: Sequence[str], last: LastWatermark) -> Batches:
        for batch in rows:
            for item in batch.column(0).to_pylist():
                split = _loaded(item if self.splits is None else self.splits[item])
                wanted = pa.schema([self.schema.field(c) for c in columns])
                for bundle in split.read(list(columns)):
                    if isinstance(bundle, pa.RecordBatch):  # and not a watermark
                        add_to(self.counter, bundle.num_rows)
                        yield normal_batch(bundle, wanted)
                    elif isinstance(bundle, Watermark) and last.split is not None:
                        last.split.announce(bundle.micros)


def _loaded(split: bytes | str) -> Split:
    data = Path(split).read_bytes() if isinstance(split, str) else split
    loaded: Split = pickle.loads(data)
    return loaded


@dataclass(frozen=True)
class FrameInput:
    """Takes the rows of a DataFrame."""

    schema: pa.Schema

    def read(self, rows: Batches, columns: Sequence[str], last: LastWatermark) -> Batches:
        wanted = pa.schema([self.schema.field(c) for c in columns])
        for batch in rows:
            named = pa.RecordBatch.from_arrays(batch.columns, names=self.schema.names)
            yield normal_batch(named, wanted)


@dataclass(frozen=True)
class BundlesInput:
    """Takes bundles of records as they come, shard by shard and in order."""

    schema: pa.Schema

    def read(self, rows: Batches, columns: Sequence[str], last: LastWatermark) -> Batches:
        for *_, data in received(rows):
            yield unpack(data, self.schema).select(list(columns))


@dataclass(frozen=True)
class StateInput:
    """The results of an operator, a shard of the keys at a time."""

    node: Node
    inputs: tuple[pa.Schema, ...]
    zone: str
    tells_watermark: bool = False
    """Whether the shards received the last watermark before the end, because there are timers."""

    @property
    def schema(self) -> pa.Schema:
        return self.node.schema

    def read(self, rows: Batches, columns: Sequence[str], last: LastWatermark) -> Batches:
        operator = operator_of(self.node, [Input((), schema) for schema in self.inputs], self.zone)
        for batch in results_of(operator, rows, last if self.tells_watermark else None):
            if not batch.schema.equals(self.schema):
                batch = batch.cast(self.schema)
            yield batch.select(list(columns))


StageInput = SplitsInput | FrameInput | BundlesInput | StateInput
