"""What is sent to Spark's workers, and how rows of a streaming job look.

Light to import: processes that Spark starts beside a query load this and little else.
"""

from __future__ import annotations

import inspect
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Self

from headrace.errors import EngineError, HeadraceError, PlanError

ROWS_SQL = "shard int, target int, lane int, slice bigint, place bigint, bundle binary"
PARTS = 8
"""The bits of a task's number that say which part of a split it reads."""


def by_value(thing: Any) -> bytes:
    """Anything as bytes, lambdas and functions of a script included."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(thing)
    except HeadraceError:
        raise
    except Exception as error:
        raise PlanError(_why_not(thing, error)) from error
    return data


def _why_not(thing: Any, error: Exception) -> str:
    """Which step cannot be sent to a worker, and for which of its variables."""
    from headrace.plan.node import function_name

    reason = f"{type(error).__name__}: {error}"
    for step in _steps(thing):
        for function in getattr(step.function, "row_functions", (step.function,)):
            if _travels(function):
                continue
            held: dict[str, Any] = {}
            if inspect.isfunction(function):
                held |= inspect.getclosurevars(function).nonlocals
            code = getattr(function, "__code__", None)
            known = getattr(function, "__globals__", {})
            held |= {n: known[n] for n in (code.co_names if code else ()) if n in known}
            name = next((n for n, value in held.items() if not _travels(value)), None)
            what = "it" if name is None else f"its variable '{name}' ({type(held[name]).__name__})"
            return (
                f"{step.label}: the function {function_name(function)} cannot be sent to Spark's "
                f"workers, for {what} cannot be pickled ({reason}); make that inside the function, "
                "or run on the box"
            )
    return f"the pipeline cannot be sent to Spark's workers: {reason}"


def _steps(thing: Any) -> Iterator[Any]:
    """The steps with a person's function that something holds."""
    if hasattr(thing, "function") and hasattr(thing, "label"):
        yield thing
    elif is_dataclass(thing) and not isinstance(thing, type):
        for each in fields(thing):
            yield from _steps(getattr(thing, each.name))
    elif isinstance(thing, (tuple, list)):
        for item in thing:
            yield from _steps(item)


def _travels(thing: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(thing)
    except Exception:
        return False
    return True


def bare(node: Any) -> Any:
    """A step without what comes before it, so that a worker is sent just the step."""
    names = [name for name in ("input", "left", "right", "other") if hasattr(node, name)]
    columns: dict[str, Any] = {n: Columns(getattr(node, n).schema) for n in names}
    if hasattr(node, "join"):
        columns["join"] = bare(node.join)
    return replace(node, **columns)


@dataclass(frozen=True)
class Columns:
    """All that a step needs to know of what comes before it."""

    schema: Any


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
