"""A stage as one function that Spark runs in its Python workers.

A ``Program`` is the part of a pipeline between two exchanges: a head that brings bundles, the
stage's narrow steps, and an ending that says what leaves the worker.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.kernels.aggregate import compile_partial
from headrace.kernels.chain import Chain, compile_chain
from headrace.plan.nodes import Narrow
from headrace.spark.bundles import Batches, Place
from headrace.spark.endings import Ending, PartialEnding
from headrace.spark.heads import Head
from headrace.spark.python.failures import carrying
from headrace.spark.python.shipping import Shipped


class Task(Shipped):
    """A program as the function that Spark calls."""

    def __call__(self, rows: Batches) -> Batches:
        with carrying():
            yield from self.load().run(rows)


@dataclass(frozen=True)
class Program:
    """A stage as one function of what Spark hands to a Python worker."""

    key: str
    head: Head
    steps: tuple[Narrow, ...]
    ending: Ending
    zone: str
    branch: int = 0

    def run(self, rows: Batches) -> Batches:
        """What leaves the worker, of what Spark hands to it."""
        place, schema = Place.of(self.branch), self.head.schema
        ending = self.ending
        if isinstance(ending, PartialEnding):
            node = ending.node
            plan = once(self.key, lambda: compile_partial(self.steps, schema, node, self.zone))
            bundles = _through(plan.chain, self.head.read(rows, plan.chain.columns))
            yield from ending.finish(bundles, place, plan)
        else:
            chain = once(self.key, lambda: compile_chain(self.steps, schema, None, self.zone))
            bundles = _through(chain, self.head.read(rows, chain.columns))
            yield from ending.finish(bundles, place)


def _through(chain: Chain, batches: Batches) -> Batches:
    for batch in batches:
        yield from chain.bundles(batch)


_COMPILED: dict[str, Any] = {}


def once(key: str, make: Callable[[], Any]) -> Any:
    """What a pipeline compiles to, once in a worker's life."""
    if key not in _COMPILED:
        while len(_COMPILED) >= 64:
            _COMPILED.pop(next(iter(_COMPILED)))
        _COMPILED[key] = make()
        gc.collect()
        gc.freeze()  # not to be looked through after every task; see python/daemon.py
    return _COMPILED[key]
