"""The records of a bundle by the shard of their keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.kernels.aggregate import by_shard
from headrace.kernels.hash_join import all_valid


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
