"""Heads: how a stage gets its bundles in a Spark Python worker."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import EngineError
from headrace.io.source import Split
from headrace.kernels.aggregate import Merge, compile_aggregation
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.expressions.kernel import numbers
from headrace.kernels.order import Top
from headrace.kernels.sliding import slid, sliding_state
from headrace.kernels.window import (
    Sessions,
    ending_with,
    pane_ids,
    rows_by_pane,
    session_spans,
)
from headrace.plan.nodes import GroupBy, TopK
from headrace.spark.bundles import Batches, received
from headrace.types import normal_batch
from headrace.windows import FOREVER, Window


@dataclass(frozen=True)
class SplitsHead:
    """Reads splits of a source: pickled, in files on this machine, or (None) coming as rows."""

    schema: pa.Schema
    splits: tuple[bytes | str, ...] | None

    def read(self, rows: Batches, columns: Sequence[str]) -> Batches:
        for batch in rows:
            for item in batch.column(0).to_pylist():
                split = _loaded(item if self.splits is None else self.splits[item])
                wanted = pa.schema([self.schema.field(c) for c in columns])
                for bundle in split.read(list(columns)):
                    if isinstance(bundle, pa.RecordBatch):  # and not a watermark
                        yield normal_batch(bundle, wanted)


def _loaded(split: bytes | str) -> Split:
    data = Path(split).read_bytes() if isinstance(split, str) else split
    loaded: Split = pickle.loads(data)
    return loaded


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
        for _, bundle in received(rows, self.schema):
            yield bundle.select(list(columns))


@dataclass(frozen=True)
class KeyedHead:
    """Takes records by the shard of their key: all of a key in one bundle, in order."""

    schema: pa.Schema

    def read(self, rows: Batches, columns: Sequence[str]) -> Batches:
        bundles_in = received(rows, self.schema)
        for _, bundles in itertools.groupby(bundles_in, key=lambda pair: pair[0]):
            parts = [bundle.select(list(columns)) for _, bundle in bundles]
            try:
                yield pa.concat_batches(parts)
            except pa.ArrowInvalid as error:
                raise EngineError(
                    f"key_by holds at most 2 GB of text in a column of one shard ({error}); use "
                    "keys that are spread more evenly, or drop columns before it"
                ) from error


@dataclass(frozen=True)
class LimitHead:
    """Takes the first records of bundles in order."""

    schema: pa.Schema
    count: int

    def read(self, rows: Batches, columns: Sequence[str]) -> Batches:
        left = self.count
        for _, bundle in received(rows, self.schema):
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
        bundles_in = received(rows, aggregation.partial_schema)
        for _, bundles in itertools.groupby(bundles_in, key=lambda pair: pair[0]):
            merge = Merge(aggregation)
            for _, bundle in bundles:
                merge.add(bundle)
            yield merge.finish().select(list(columns))


@dataclass(frozen=True)
class SlidingHead:
    """Puts sliding windows together from partials by key and pane, a shard of keys at a time."""

    node: GroupBy
    panes: GroupBy
    input: pa.Schema
    zone: str

    @property
    def schema(self) -> pa.Schema:
        return self.node.schema

    def read(self, rows: Batches, columns: Sequence[str]) -> Batches:
        window = self.node.window
        assert isinstance(window, Window)
        by_pane = compile_aggregation(self.panes, self.input, self.zone)
        whole = compile_aggregation(replace(self.node, window=None), self.input, self.zone)
        keys = len(self.node.keys)
        bundles_in = received(rows, by_pane.partial_schema)
        for _, bundles in itertools.groupby(bundles_in, key=lambda pair: pair[0]):
            merge = Merge(by_pane)
            for _, bundle in bundles:
                merge.add(bundle)
            merged = merge.bundle()
            ids, low, high = pane_ids(numbers(merged.column(keys), np.int64), window)
            bare = merged.select([i for i in range(merged.num_columns) if i != keys])
            bare = bare.rename_columns(whole.partial_schema.names)
            parts: dict[int, Callable[[], Any]] = {low: partial(_same, bare)}
            if ids.size:
                panes = rows_by_pane(ids, low, high)
                parts = {n: partial(bare.take, pa.array(rows)) for n, rows in panes}
            state = sliding_state(whole, ordered=False)
            for number, found in slid(state, window, parts, low, FOREVER):
                done = ending_with(found, keys, number, window, self.node.schema)
                yield done.select(list(columns))


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@dataclass(frozen=True)
class SessionHead:
    """Finds the sessions of keys, a shard at a time."""

    node: GroupBy
    input: pa.Schema
    zone: str

    @property
    def schema(self) -> pa.Schema:
        return self.node.schema

    def read(self, rows: Batches, columns: Sequence[str]) -> Batches:
        aggregation = compile_aggregation(self.node, self.input, self.zone)
        bundles_in = received(rows, self.input)
        for _, bundles in itertools.groupby(bundles_in, key=lambda pair: pair[0]):
            sessions = Sessions(aggregation, self.node.schema)
            for place, (_, bundle) in enumerate(bundles):
                for _, spans in session_spans(aggregation, bundle, 1):
                    sessions.add(place, spans)
            found = sessions.close(FOREVER)
            if found is not None:
                yield found.select(list(columns))


@dataclass(frozen=True)
class TopHead:
    """Merges the top records of parts, a shard of keys at a time."""

    node: TopK
    zone: str

    @property
    def schema(self) -> pa.Schema:
        return self.node.schema

    def read(self, rows: Batches, columns: Sequence[str]) -> Batches:
        bundles_in = received(rows, self.schema)
        for _, bundles in itertools.groupby(bundles_in, key=lambda pair: pair[0]):
            top = top_of(self.node, self.zone)
            for _, bundle in bundles:
                top.add(bundle)
            yield top.bundle().select(list(columns))


Head = (
    SplitsHead | RowsHead | ConcatHead | KeyedHead | LimitHead | MergeHead | SlidingHead
    | SessionHead | TopHead
)  # fmt: skip


def top_of(node: TopK, zone: str) -> Top:
    order = []
    for tree, down in node.order:
        kernel = compile_expression(tree, node.schema, zone)
        order.append((lambda batch, k=kernel: evaluate(k, batch), down))
    return Top(node.schema, node.k, order, node.keys)
