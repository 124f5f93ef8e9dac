"""What is sent to Spark's workers, and how rows of a streaming job look.

Light to import: processes that Spark starts beside a query load this and little else.
"""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass, replace
from typing import Any, Self

from headrace.errors import EngineError

ROWS_SQL = "shard int, target int, lane int, pane bigint, place bigint, bundle binary"
PARTS = 8
"""The bits of a task's number that say which part of a split it reads."""


def by_value(thing: Any) -> bytes:
    """Anything as bytes, lambdas and functions of a script included."""
    import cloudpickle

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


def one_core() -> None:
    """A worker is one of many on the machine: Arrow must not take all cores for it."""
    import pyarrow as pa

    if pa.cpu_count() != 1:
        pa.set_cpu_count(1)
        pa.set_io_thread_count(2)
