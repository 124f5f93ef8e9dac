"""Windows of few records each: all in one table, by key and window, rather than a table for each.

A pane of its own costs some hundred microseconds, however little is in it. Here windows close by
the bundle.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.expressions import col
from headrace.kernels.aggregate import Merge, Partial, PartialPlan, compile_aggregation
from headrace.kernels.expressions.kernel import numbers
from headrace.kernels.window import assign, windowed
from headrace.plan.nodes import GroupBy
from headrace.plan.time import START
from headrace.windows import FOREVER, Window

_WINDOW = "__window"
_MANY_PANES, _FEW_RECORDS = 64, 8
_MOST_WINDOWS = 16
"""A record is added once for each window it is in; beyond this many it is not worth it."""
PIECE = 1 << 16


def can_be_sparse(plan: PartialPlan, node: GroupBy) -> bool:
    """Whether records may be added to their windows in any order, and are in few."""
    window = node.window
    assert isinstance(window, Window)
    few = -(-window.size // window.every) <= _MOST_WINDOWS
    return few and plan.split is None and not node.is_ordered


def is_sparse(ids: Any, low: int, high: int) -> bool:
    """Whether a bundle has few records in each of many panes."""
    if high - low <= _MANY_PANES:
        return False
    return int(np.unique(ids).size) * _FEW_RECORDS > ids.size


class SparseWindows:
    """The open windows of one step, by key and start."""

    def __init__(self, plan: PartialPlan, node: GroupBy, zone: str) -> None:
        assert isinstance(node.window, Window)
        self.node, self.window = node, node.window
        self.kind = node.schema.field(START).type
        keys = (*node.keys, (_WINDOW, col(_WINDOW).tree))
        keyed = replace(node, keys=keys, window=None, clock=None)
        schema = plan.chain.schema.append(pa.field(_WINDOW, self.kind))
        self.aggregation = compile_aggregation(keyed, schema, zone)
        self.lock = threading.Lock()
        self.parts: dict[int, tuple[threading.Lock, Partial]] = {}
        self.kept: pa.RecordBatch | None = None
        self.due = FOREVER
        """When the first open window ends."""

    @property
    def is_empty(self) -> bool:
        return self.due == FOREVER

    @property
    def nbytes(self) -> int:
        parts = sum(partial.nbytes for _, partial in list(self.parts.values()))
        return parts + (0 if self.kept is None else self.kept.nbytes)

    def add(self, batch: pa.RecordBatch, times: Any, worker: int) -> None:
        """Take in records."""
        starts, rows = assign(times, self.window)
        if self.window.size != self.window.every:
            batch = batch.take(pa.array(rows))
        named = batch.append_column(pa.field(_WINDOW, self.kind), pa.array(starts).cast(self.kind))
        with self.lock:
            if worker not in self.parts:
                self.parts[worker] = (threading.Lock(), Partial(self.aggregation))
            lock, partial = self.parts[worker]
        with lock:
            partial.add(named)
        with self.lock:  # afterwards: a watermark that closes in between must not forget it
            self.due = min(self.due, int(starts.min()) + self.window.size)

    def close(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """The results of the windows that end at or before a watermark, oldest first."""
        with self.lock:
            if self.due > watermark or self.due == FOREVER:
                return
            merged = self._merged()
            place = len(self.node.keys)
            starts = numbers(merged.column(place), np.int64)
            done = starts + self.window.size <= watermark
            left = merged.filter(pa.array(~done))
            self.kept = left if left.num_rows else None
            self.due = int(starts[~done].min()) + self.window.size if left.num_rows else FOREVER
        ready = np.flatnonzero(done)
        ready = ready[np.argsort(starts[ready], kind="stable")]
        merge = Merge(self.aggregation)
        merge.add(merged.take(pa.array(ready)))
        found = merge.finish()
        begin = numbers(found.column(place), np.int64)
        columns = [i for i in range(found.num_columns) if i != place]
        whole = windowed(
            found.select(columns), place, begin, begin + self.window.size, self.node.schema
        )
        for start in range(0, whole.num_rows, PIECE):
            yield whole.slice(start, PIECE)

    def _merged(self) -> pa.RecordBatch:
        """All that is there, each key and window once; the tables of the evaluators are empty."""
        merge = Merge(self.aggregation)
        if self.kept is not None:
            merge.add(self.kept)
        for lock, partial in self.parts.values():
            with lock:
                merge.add(partial.bundle())
                partial.reset()
        return merge.bundle()
