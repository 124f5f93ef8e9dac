"""Aggregation in two halves: partials where records are read, merged where keys meet.

A ``GeneralTable`` takes bundles of records and gives, for each shard of keys, a bundle of partial
states. A ``Merge`` takes such bundles for one shard and gives the results. Both engines use both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ExpressionError, StepError
from headrace.kernels.accumulators import Accumulator, accumulator
from headrace.kernels.chain import (
    Chain,
    SplitText,
    as_split,
    as_stored,
    blame,
    compile_chain,
    is_not_empty,
    storable,
)
from headrace.kernels.columns import as_column
from headrace.kernels.expressions import Kernel, compile_expression, evaluate
from headrace.kernels.expressions.casts import cast
from headrace.kernels.expressions.codes import decoded
from headrace.kernels.expressions.hashing import hash_columns, hashable
from headrace.kernels.group import Grouper, normal_key
from headrace.kernels.native import panes
from headrace.kernels.words import WordTable
from headrace.plan.groups import GroupBy
from headrace.plan.node import Narrow
from headrace.plan.prune import columns_of
from headrace.plan.rows import Explode
from headrace.windows import Session


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A compiled ``GroupBy`` over bundles of some schema."""

    keys: tuple[Kernel, ...]
    inputs: tuple[tuple[Kernel, ...], ...]
    node: GroupBy
    partial_schema: pa.Schema
    result_schema: pa.Schema

    def evaluate(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], list[list[pa.Array]]]:
        """The keys, coded where the bundle has them so, and the aggregates' inputs."""
        keys = [evaluate(k, batch) for k in self.keys]
        return keys, [[evaluate(k, batch) for k in kernels] for kernels in self.inputs]

    def accumulators(self) -> list[Accumulator]:
        """Fresh states, one accumulator for each aggregate."""
        return [
            accumulator(aggregate, [k.type for k in kernels])
            for (_, aggregate), kernels in zip(self.node.aggregates, self.inputs, strict=True)
        ]


def compile_aggregation(node: GroupBy, schema: pa.Schema, zone: str = "UTC") -> Aggregation:
    """Compile keys and aggregates over bundles of ``schema``."""
    keys = tuple(_key(tree, schema, zone) for _, tree in node.keys)
    Grouper([k.type for k in keys])  # refuses types that cannot be keys
    inputs = tuple(
        tuple(compile_expression(tree, schema, zone) for tree in aggregate_trees(aggregate))
        for _, aggregate in node.aggregates
    )
    key_fields = [pa.field(n, k.type) for (n, _), k in zip(node.keys, keys, strict=True)]
    partial, result = list(key_fields), list(key_fields)
    for (name, aggregate), kernels in zip(node.aggregates, inputs, strict=True):
        states = accumulator(aggregate, [k.type for k in kernels])
        partial.append(pa.field(name, states.partial))
        result.append(pa.field(name, states.result))
    return Aggregation(keys, inputs, node, pa.schema(partial), pa.schema(result))


def _key(tree: Any, schema: pa.Schema, zone: str) -> Kernel:
    coded = as_stored(tree, schema)
    if coded is not None:
        return replace(coded, type=pa.string())
    kernel = compile_expression(tree, schema, zone)
    return cast(kernel, storable(kernel.type))


def aggregate_trees(aggregate: Any) -> list[Any]:
    """The expressions an aggregate reads: its inputs, then what it orders by."""
    return [*aggregate.inputs, *([] if aggregate.by is None else [aggregate.by])]


def columns_needed(node: GroupBy) -> set[str]:
    """The columns a ``GroupBy`` reads of its input."""
    trees = [tree for _, tree in node.keys]
    for _, aggregate in node.aggregates:
        trees.extend(aggregate_trees(aggregate))
    times = set() if node.clock is None else set(node.clock.columns)
    return columns_of(trees) | times


class GeneralTable:
    """The partial states of the records seen so far."""

    def __init__(self, aggregation: Aggregation) -> None:
        self.aggregation = aggregation
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.grouper = Grouper([k.type for k in self.aggregation.keys])
        self.states = self.aggregation.accumulators()

    @property
    def groups(self) -> int:
        return self.grouper.size

    @property
    def nbytes(self) -> int:
        """About how much memory the keys and the states hold."""
        return self.grouper.nbytes + sum(s.nbytes for s in self.states)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in a bundle of records."""
        if batch.num_rows == 0:
            return
        label = self.aggregation.node.label
        try:
            keys, inputs = self.aggregation.evaluate(batch)
        except (ExpressionError, pa.ArrowException) as error:
            raise blame(label, self.aggregation.evaluate, batch, error) from error
        if keys:
            groups, _ = self.grouper.groups(keys)
        else:
            groups = self.grouper.all_rows(batch.num_rows)
        for states, columns in zip(self.states, inputs, strict=True):
            try:
                states.update(groups, self.grouper.size, columns)
            except ExpressionError as error:
                raise StepError(f"{label}: {error}") from error

    def bundle(self) -> pa.RecordBatch:
        """Every group's partial state."""
        size = self.grouper.size if self.aggregation.keys else 1
        return _partials(self.aggregation, self.grouper, self.states, size)


def single_partials(aggregation: Aggregation, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A partial for each record by itself."""
    try:
        keys, inputs = aggregation.evaluate(batch)
    except (ExpressionError, pa.ArrowException) as error:
        raise blame(aggregation.node.label, aggregation.evaluate, batch, error) from error
    rows, states = np.arange(batch.num_rows), aggregation.accumulators()
    for state, columns in zip(states, inputs, strict=True):
        state.update(rows, batch.num_rows, columns)
    columns = [
        *(normal_key(decoded(k)) for k in keys),
        *(s.partials(batch.num_rows) for s in states),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=aggregation.partial_schema)


def _partials(
    aggregation: Aggregation, grouper: Grouper, states: Sequence[Accumulator], size: int
) -> pa.RecordBatch:
    try:
        columns = [*grouper.keys(), *(state.partials(size) for state in states)]
    except ExpressionError as error:
        raise StepError(f"{aggregation.node.label}: {error}") from error
    schema = aggregation.partial_schema
    return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else _rows(size)


def _rows(size: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.array([{}] * size, pa.struct([])))


class Merge:
    """The states of one shard of keys, from partials made anywhere."""

    def __init__(self, aggregation: Aggregation) -> None:
        self.aggregation = aggregation
        self.grouper = Grouper([k.type for k in aggregation.keys])
        self.states = aggregation.accumulators()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in a bundle of partials."""
        keys = batch.columns[: len(self.aggregation.keys)]
        if keys:
            groups, _ = self.grouper.groups(keys)
        else:
            groups = self.grouper.all_rows(batch.num_rows)
        for states, column in zip(
            self.states, batch.columns[len(self.aggregation.keys) :], strict=True
        ):
            try:
                states.merge(groups, self.grouper.size, column)
            except ExpressionError as error:
                raise StepError(f"{self.aggregation.node.label}: {error}") from error

    def bundle(self) -> pa.RecordBatch:
        """The merged partials, a row a key."""
        return _partials(self.aggregation, self.grouper, self.states, self.grouper.size)

    def finish(self) -> pa.RecordBatch:
        """The results, a row a key."""
        size = self.grouper.size if self.aggregation.keys else 1
        try:
            columns = [*self.grouper.keys(), *(s.finish(size) for s in self.states)]
        except ExpressionError as error:
            raise StepError(f"{self.aggregation.node.label}: {error}") from error
        fields = self.aggregation.result_schema
        columns = [
            c if c.type.equals(f.type) else c.cast(f.type)
            for c, f in zip(columns, fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=fields)


@dataclass(frozen=True, slots=True)
class PartialPlan:
    """A chain that ends in a partial aggregate, with what makes a fresh one."""

    chain: Chain
    aggregation: Aggregation
    split: SplitText | None
    keep_empty: bool

    def start(self) -> GeneralTable | WordTable:
        """An empty partial aggregate for one task."""
        if self.split is None:
            return GeneralTable(self.aggregation)
        return WordTable(self.split, self.keep_empty, self.aggregation.partial_schema)


def compile_partial(
    steps: Sequence[Narrow], schema: pa.Schema, node: GroupBy, zone: str = "UTC"
) -> PartialPlan:
    """Compile a stage that ends in a partial aggregate, word counting fused where it can be."""
    fused = _fused(steps, schema, node, zone)
    if fused is not None:
        return fused
    coded = node.window is None
    chain = compile_chain(steps, schema, columns_needed(node), zone, coded=coded)
    return PartialPlan(chain, compile_aggregation(node, chain.schema, zone), None, True)


def _fused(
    steps: Sequence[Narrow], schema: pa.Schema, node: GroupBy, zone: str
) -> PartialPlan | None:
    """Counting words while cutting them, if that is what the end of the stage does."""
    if isinstance(node.window, Session):
        return None
    before = list(steps)
    keep_empty = True
    if len(before) > 1 and isinstance(before[-2], Explode):
        if not is_not_empty(before[-1], before[-2].column):
            return None
        before.pop()
        keep_empty = False
    if not before or not isinstance(before[-1], Explode):
        return None
    explode = before.pop()
    assert isinstance(explode, Explode)
    times = set() if node.clock is None else set(node.clock.columns)
    if len(node.keys) != 1 or [a.kind for _, a in node.aggregates] != ["count"]:
        return None
    key = node.keys[0][1]
    if columns_of([key]) != {explode.column} or key.key != "column":
        return None
    if any(columns_of(a.inputs) - {explode.column} for _, a in node.aggregates):
        return None
    counted = node.aggregates[0][1].inputs
    if counted and counted[0].key != "column":
        return None
    chain = compile_chain(before, schema, columns_of([explode.elements]) | times, zone)
    split = as_split(explode.elements, chain.schema, zone)
    if split is None:
        return None
    words = pa.schema([pa.field(explode.column, pa.string())])
    return PartialPlan(chain, compile_aggregation(node, words, zone), split, keep_empty)


def shards_of(columns: Sequence[pa.Array], rows: int, shards: int) -> np.ndarray[Any, Any]:
    """The shard of each row's key: the same for equal keys, whatever computed it."""
    if shards == 1 or not columns:
        return np.zeros(rows, np.int64)
    return (key_hashes(columns, rows) % np.uint64(shards)).astype(np.int64)


def key_hashes(columns: Sequence[pa.Array], rows: int) -> np.ndarray[Any, Any]:
    """The hash of each row's key, whose remainder is its shard."""
    plain = [c if hashable(c.type) else pc.cast(c, pa.string()) for c in columns]
    return hash_columns(plain, rows)


def by_shard(
    batch: pa.RecordBatch, keys: Sequence[pa.Array], shards: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of a bundle by the shard of their keys, in order within each."""
    if batch.num_rows == 0:
        return
    if shards == 1:
        yield 0, batch
        return
    order, edges = rows_by_shard(keys, batch.num_rows, shards)
    gathered = batch.take(as_column(order))
    for shard, (start, end) in enumerate(itertools.pairwise(edges)):
        if end > start:
            yield shard, gathered.slice(start, end - start)


def rows_by_shard(keys: Sequence[pa.Array], rows: int, shards: int) -> tuple[Any, list[int]]:
    """The rows in the order of their shards, each shard's in order; and where each begins."""
    order, starts = np.empty(rows, np.int64), np.empty(shards + 1, np.int64)
    panes.split_rows(shards_of(keys, rows, shards).astype(np.int64, copy=False), 0, starts, order)
    return order, starts.tolist()
