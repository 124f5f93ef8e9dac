"""Joins of bounded input, by equal keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels.aggregate import by_shard
from headrace.kernels.expressions.kernel import validity
from headrace.kernels.group import Grouper
from headrace.plan.nodes import Join


def matched(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> tuple[Any, Any]:
    """The pairs of rows with equal keys, by left row and then by right row. Null equals nothing."""
    grouper = Grouper([k.type for k in left])
    codes = [grouper.groups(side)[0] for side in (left, right)]
    there = [_all_valid(side, len(c)) for side, c in zip((left, right), codes, strict=True)]
    rows = [np.flatnonzero(valid) for valid in there]
    a, b = (c[r] for c, r in zip(codes, rows, strict=True))
    order = np.argsort(b, kind="stable")
    ranked = b[order]
    first, end = np.searchsorted(ranked, a, "left"), np.searchsorted(ranked, a, "right")
    sizes = end - first
    lefts = np.repeat(rows[0], sizes)
    ends = np.cumsum(sizes)
    places = np.arange(int(ends[-1]) if ends.size else 0) - np.repeat(ends - sizes - first, sizes)
    return lefts, rows[1][order[places]]


def _all_valid(keys: Sequence[pa.Array], rows: int) -> Any:
    there = np.ones(rows, np.bool_)
    for key in keys:
        valid = validity(key)
        if valid.size:
            there &= valid
    return there


def equi_join(node: Join, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    """All the records of a join, of one shard of keys."""
    a, b = matched([left.column(n) for n in node.left_on], [right.column(n) for n in node.right_on])
    if node.how in ("semi", "anti"):
        there = np.zeros(left.num_rows, np.bool_)
        there[a] = True
        return left.filter(pa.array(there if node.how == "semi" else ~there))
    lefts, rights = pa.array(a, pa.int64()), pa.array(b, pa.int64())
    parts = [(lefts, rights)]
    if node.how in ("left", "outer"):
        alone = np.setdiff1d(np.arange(left.num_rows), a)
        parts.append((pa.array(alone, pa.int64()), pa.nulls(alone.size, pa.int64())))
    if node.how in ("right", "outer"):
        alone = np.setdiff1d(np.arange(right.num_rows), b)
        parts.append((pa.nulls(alone.size, pa.int64()), pa.array(alone, pa.int64())))
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
    return batch.filter(pa.array(_all_valid(columns, batch.num_rows)))
