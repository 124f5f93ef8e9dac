"""A stage as one function that Spark runs in its Python workers.

A ``Program`` is the part of a pipeline between two exchanges: a head that brings bundles, the
stage's narrow steps, and an ending that says what leaves the worker.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import cloudpickle
import pyarrow as pa

from headrace.errors import EngineError
from headrace.kernels.aggregate import compile_partial
from headrace.kernels.chain import Chain, compile_chain
from headrace.plan.nodes import Narrow
from headrace.spark.bundles import Batches, Place
from headrace.spark.endings import Ending, PartialEnding
from headrace.spark.failures import carrying
from headrace.spark.heads import Head


def by_value(thing: Any) -> bytes:
    """Anything as bytes, lambdas and functions of a script included."""
    data: bytes = cloudpickle.dumps(thing)
    return data


def bare(node: Any) -> Any:
    """A step without what comes before it, so that a worker is sent just the step."""
    return replace(node, input=None)


@dataclass(frozen=True)
class Shipped:
    """Something on its way to the workers, with where to find what it imports.

    A person's functions may come from modules beside the script. Where a worker sees the same
    folders, as on one machine, it imports from them what the script did.
    """

    data: bytes
    path: tuple[str, ...]

    @classmethod
    def of(cls, what: Any) -> Self:
        folders = tuple(p for p in (os.path.abspath(p) for p in sys.path) if os.path.isdir(p))
        return cls(by_value(what), folders)

    def load(self) -> Any:
        """What was sent, in a worker."""
        one_core()
        sys.path.extend(p for p in self.path if p not in sys.path and os.path.isdir(p))
        try:
            return pickle.loads(self.data)
        except ImportError as error:
            raise EngineError(
                f"a Spark worker cannot import what a function needs ({error}); install it on "
                "every worker, or ship it with session.sparkContext.addPyFile(…)"
            ) from error


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
    return _COMPILED[key]


def one_core() -> None:
    """A worker is one of many on the machine: Arrow must not take all cores for it."""
    if pa.cpu_count() != 1:
        pa.set_cpu_count(1)
        pa.set_io_thread_count(2)
