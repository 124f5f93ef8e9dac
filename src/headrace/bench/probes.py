"""Parametric operators, and keys as skewed as one asks (Ordered §7)."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from headrace.box.ordered import ByPartition, Ordering
from headrace.box.run import Run
from headrace.box.worklists import Operate, Worklist
from headrace.kernels.aggregate import shards_of
from headrace.operators.shards import Shards

PARTITIONS = 64
"""The fine partitions of the key space. The paper has 100; ours are a power of two."""
KEYS = 16
"""The keys of a fine partition."""


def costly(loops: int) -> Callable[[Any, Any], Any]:
    """A step of ``scan`` that takes so many loops a record, and whose order matters."""

    def work(state: Any, row: Any) -> Any:
        for _ in range(loops):  # what a compiler cannot compute in one go
            state ^= (state << 13) & 0x7FFFFFFFFFFFFFFF
            state ^= state >> 7
            state ^= (state << 17) & 0x7FFFFFFFFFFFFFFF
        state = (state + row.v) & 0x7FFFFFFFFFFFFFFF
        return state, state

    return work


@functools.cache
def loops_of(micros: float) -> int:
    """The loops of ``costly`` that take so many microseconds on this machine."""
    compiled = njit(nogil=True)(_many)
    compiled(1)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        compiled(1_000_000)
        best = min(best, time.perf_counter() - start)
    return max(1, round(micros * 1e-6 / (best / 1_000_000)))


def _many(loops: int) -> int:
    state = 88172645463325252
    for _ in range(loops):
        state ^= (state << 13) & 0x7FFFFFFFFFFFFFFF
        state ^= state >> 7
        state ^= (state << 17) & 0x7FFFFFFFFFFFFFFF
    return state


def skewed(records: int, sigma: float | None, workers: int, seed: int) -> pa.Table:
    """Records with keys normal(0, σ) in a space from -1 to 1, or even ones without a σ.

    The space is a circle, and 0 is in the middle of one of as many ranges as there are workers: on
    the edge of two, as in the paper, any σ would have two workers share the records evenly.
    """
    rng = np.random.default_rng([seed, 17])
    space = _key_space(workers)
    if sigma is None:
        place = rng.random(records)
    else:
        place = (0.5 / workers + rng.normal(0, sigma, records) / 2) % 1.0
    keys = space[(place * space.size).astype(np.int64) % space.size]
    return pa.table({"k": keys, "v": rng.integers(0, 1000, records)})


def _key_space(workers: int) -> Any:
    """Keys such that hashing them to partitions puts ranges of them together.

    That is so for ``PARTITIONS`` partitions, and for as many as there are workers.
    """
    numbers = np.arange(4 * PARTITIONS * KEYS)
    owner = shards_of([pa.array(numbers)], numbers.size, PARTITIONS)
    within = PARTITIONS // workers
    ranges = [place % within * workers + place // within for place in range(PARTITIONS)]
    return np.concatenate([numbers[owner == each][:KEYS] for each in ranges])


class Timed:
    """A worklist that adds up how long each worker operated, in seconds of the processor."""

    def __init__(self, worklist: Worklist) -> None:
        self.worklist = worklist
        self.worked: defaultdict[int, float] = defaultdict(float)
        self.add = worklist.add
        self.parallelism = worklist.parallelism

    def __len__(self) -> int:
        return len(self.worklist)

    def consume(self, operate: Operate, limit: int | None = None) -> int:
        worker = threading.get_ident()

        def timed(partition: int, item: Any) -> None:
            start = time.thread_time()
            operate(partition, item)
            self.worked[worker] += time.thread_time() - start

        return self.worklist.consume(timed, limit)


def with_partitions(run: Run, ordering: Ordering, count: int) -> Run:
    """A run that has not begun, its scans by arrival with so many partitions and timed."""
    for vertex in run.cascade.vertices:
        if isinstance(vertex.ordering, ByPartition):
            hosted = vertex.transform
            hosted.shards = Shards(hosted.operator, count, run.workers)
            vertex.ordering = ByPartition(hosted, ordering)
            vertex.ordering.worklist = Timed(vertex.ordering.worklist)
    return run


def evenness(run: Run) -> float | None:
    """How many workers the work was shared among: all of it over that of the busiest one.

    So many cores could be busy, however many there are and whatever else they do.
    """
    for vertex in run.cascade.vertices:
        if isinstance(vertex.ordering, ByPartition):
            worklist = vertex.ordering.worklist
            if isinstance(worklist, Timed) and worklist.worked:
                shares = worklist.worked.values()
                return sum(shares) / max(*shares, 1e-9)
    return None


def fifty(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fifty records of each one."""
    keys, values = (np.asarray(batch.column(name)) for name in ("k", "v"))
    more = np.repeat(values, 50) + np.tile(np.arange(50), values.size)
    return pa.record_batch({"k": np.repeat(keys, 50), "v": more})
