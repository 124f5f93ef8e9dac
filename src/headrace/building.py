"""What the API's methods share: how a step is named in messages, and how arguments are checked."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.aggregates import Aggregate
from headrace.errors import HeadraceError, PlanError, nearest
from headrace.types import type_name


class Building:
    """While a step is being added: any fault found is told with the step's name."""

    def __init__(self, step: int, method: str) -> None:
        self.step, self.method = step, method
        self.label = f"step {step}, {method}"

    def __enter__(self) -> Building:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, HeadraceError) and not str(error).startswith("step "):
            raise type(error)(f"{self.label}: {error}") from error.__cause__


def named_aggregates(
    aggregates: tuple[Aggregate, ...], named: dict[str, Aggregate]
) -> list[tuple[str, Aggregate]]:
    found: list[tuple[str, Aggregate]] = []
    for aggregate in aggregates:
        if not isinstance(aggregate, Aggregate):
            raise PlanError(f"{aggregate!r} is not an aggregate; use hr.count(), hr.sum('x'), …")
        parts = [aggregate.user.name if aggregate.user else aggregate.kind]
        parts += [t.name for t in aggregate.inputs if isinstance(t, exp.Column)]
        found.append(("_".join(parts), aggregate))
    for name, aggregate in named.items():
        if not isinstance(aggregate, Aggregate):
            raise PlanError(
                f"{name}={aggregate!r} is not an aggregate; use hr.count(), hr.sum('x'), …"
            )
        found.append((name, aggregate))
    if not found:
        raise PlanError("agg needs at least one aggregate, such as n=hr.count()")
    names = [n for n, _ in found]
    twice = [n for n in names if names.count(n) > 1]
    if twice:
        raise PlanError(f"two aggregates are called '{twice[0]}'")
    return found


def column_names(what: Any, where: str) -> list[str]:
    names = (
        [what] if isinstance(what, str) else list(what) if isinstance(what, Iterable) else [what]
    )
    for name in names:
        if not isinstance(name, str):
            raise PlanError(f"{where}: {name!r} is not the name of a column")
    return names


def calling_line() -> tuple[str, int]:
    """The file and line outside this package that called it."""
    package = os.path.dirname(__file__) + os.sep
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def difference(a: pa.Schema, b: pa.Schema) -> str:
    """In what two schemas differ."""
    for field in a:
        if field.name not in b.names:
            return f"the other stream has no column '{field.name}'{nearest(field.name, b.names)}"
        if not b.field(field.name).type.equals(field.type):
            return (
                f"'{field.name}' is {type_name(field.type)} here and "
                f"{type_name(b.field(field.name).type)} in the other stream; cast one of them"
            )
    extra = [n for n in b.names if n not in a.names]
    if extra:
        return f"the other stream has one more column, '{extra[0]}'; drop it"
    return f"the columns come in another order; select({', '.join(map(repr, a.names))}) first"


def installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise PlanError(f"{name} is not installed; pip install 'headrace[{name}]'") from None
