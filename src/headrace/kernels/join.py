"""Joins of bounded input, by equal keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels.aggregate import by_shard
from headrace.kernels.expressions.kernel import as_column
from headrace.kernels.hash_join import HashTable, all_valid
from headrace.kernels.native import hash_join as native
from headrace.plan.nodes import Join


def matched(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> tuple[Any, Any]:
    """The pairs of rows with equal keys, by left row and then by right row. Null equals nothing."""
    if len(right[0]) <= _MUCH_LARGER * len(left[0]):
        return HashTable(right).probe(left)
    b, a = HashTable(left).probe(right)
    starts, order = np.empty(len(left[0]) + 1, np.uint32), np.empty(a.size, np.uint32)
    native.list_rows(a, starts, order)
    return a[order], b[order]


_MUCH_LARGER = 4
"""A side so many times as large is rather sorted than put into a table."""


def equi_join(node: Join, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    """All the records of a join, of one shard of keys."""
    ours = [left.column(name) for name in node.left_on]
    theirs = [right.column(name) for name in node.right_on]
    if node.how in ("semi", "anti"):
        there = HashTable(theirs).contains(ours)
        return left.filter(pa.array(there if node.how == "semi" else ~there))
    a, b = matched(ours, theirs)
    parts = [(as_column(a), as_column(b))]
    if node.how in ("left", "outer"):
        alone = _others(a, left.num_rows)
        parts.append((as_column(alone), pa.nulls(alone.size, pa.int64())))
    if node.how in ("right", "outer"):
        alone = _others(b, right.num_rows)
        parts.append((pa.nulls(alone.size, pa.int64()), as_column(alone)))
    lefts, rights = (pa.concat_arrays([p[i] for p in parts]) for i in (0, 1))
    keys = dict(zip(node.left_on, node.right_on, strict=True))
    columns = []
    for name in left.schema.names:
        column = left.column(name).take(lefts)
        if name in keys and node.how in ("right", "outer"):
            column = pc.coalesce(column, right.column(keys[name]).take(rights))
        columns.append(column)
    columns += [right.column(old).take(rights) for old, _ in node.renamed]
    return pa.RecordBatch.from_arrays(columns, schema=node.schema)


def _others(rows: Any, count: int) -> Any:
    """The rows that are not among some."""
    others = np.ones(count, np.bool_)
    others[rows] = False
    return np.flatnonzero(others)


def sharded(
    batch: pa.RecordBatch, keys: Sequence[str], shards: int, *, drop_null: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A bundle by the shard of its keys; rows with a null key left out if they match nothing."""
    if drop_null:
        batch = without_null(batch, keys)
    yield from by_shard(batch, [batch.column(n) for n in keys], shards)


def without_null(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """The rows of a bundle whose keys are all there."""
    columns = [batch.column(n) for n in keys]
    if not any(c.null_count for c in columns):
        return batch
    return batch.filter(pa.array(all_valid(columns)))
