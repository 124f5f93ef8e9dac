"""Run operators on sample records, so that their kernels are compiled before real ones come.

Numba compiles a kernel, or loads it from the cache, at the first call, which can take seconds. A
rehearsal has its own state and drops all results. It calls no Python function of the pipeline, and
reads no table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headrace.kernels.aggregate import rows_by_shard
from headrace.kernels.chain import Chain
from headrace.kernels.samples import sample_batch
from headrace.kernels.scans import not_compiled
from headrace.operators.operator import Operator
from headrace.operators.shards import Shards
from headrace.operators.stores import TrackedStore
from headrace.plan.scans import Scan
from headrace.windows import FOREVER, Window

log = logging.getLogger("headrace")
SIZES = (8, 2048)
"""Records per bundle: kernels for few records and for many can differ."""
_MAX_PANES = 10_000
"""A rehearsal of windows with more panes than this would take too long."""


def rehearse_chain(chain: Chain) -> None:
    """Run the steps before the first Python function or table."""

    def run(rows: int) -> None:
        batch = sample_batch(chain.reads, rows)
        for _, step in chain.runs[: chain.pure]:
            batch = step(batch)

    _attempt(run)


def rehearse_operator(operator: Operator, shards: int, workers: int, *, is_kept: bool) -> None:
    """Take sample records in, and go on to the end of the input.

    Args:
        operator: The operator, as the host uses it.
        shards: How many shards the host has.
        workers: How many threads the host has.
        is_kept: Whether the host writes checkpoints.
    """
    node = operator.node
    window = getattr(node, "window", None)
    if isinstance(window, Window) and window.panes > _MAX_PANES:
        return
    apart = window.every if isinstance(window, Window) else 10**6

    def run(rows: int) -> None:
        saved: Any = [(TrackedStore({}), {}) for _ in range(shards)] if is_kept else None
        host = Shards(operator, shards, workers, saved)
        # Few records, each in a pane of its own; then many in one pane.
        spread = apart if rows == min(SIZES) else 0
        samples = [sample_batch(chain.schema, rows, spread) for chain in operator.chains]
        if isinstance(node, Scan):
            rows_by_shard([samples[0].column(name) for name in node.keys], rows, max(2, shards))
        if not node.python:
            _run_to_the_end(host, samples)
        elif isinstance(node, Scan):
            _stop_before_the_function(host, samples[0], is_compiled=not_compiled(node) is None)

    _attempt(run)


def _run_to_the_end(host: Shards, samples: Sequence[pa.RecordBatch]) -> None:
    operator = host.operator
    for time in range(2):
        for lane, batch in enumerate(samples):
            if operator.by_arrival:
                host.states[0].arrived(batch)
            else:
                for _ in host.add(lane, batch, (lane, time, 0), 0):
                    pass
        if host.is_kept:
            _work(host.flush())
    for lane in range(len(samples)):
        host.watermarks[lane] = FOREVER
        _work(operator.advance(host, lane, FOREVER, lambda shard, result: None))


def _stop_before_the_function(host: Shards, batch: pa.RecordBatch, *, is_compiled: bool) -> None:
    """Do what a scan does before it calls a function of the pipeline."""
    for _ in host.partials[0].add(batch, (0, 0, 0), 0):
        pass
    state: Any = host.states[0]
    state.keys.slots([batch.column(name) for name in host.operator.node.keys], batch.num_rows)
    if is_compiled:  # without records, the loop around the function is compiled and does nothing
        state.arrived(batch.slice(0, 0))


def _work(phases: Any) -> None:
    for tasks in phases:
        for task in tasks:
            task()


def _attempt(run: Callable[[int], None]) -> None:
    """Rehearse with few and many records; what fails on samples may work on real records."""
    for rows in SIZES:
        try:
            run(rows)
        except Exception as error:
            log.debug("the rehearsal with %d records ended early: %s", rows, error)
