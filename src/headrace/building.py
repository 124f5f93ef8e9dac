"""What the API's methods share: how a step is named in messages, and how arguments are checked."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from headrace.aggregates import Aggregate
from headrace.errors import HeadraceError, PlanError, nearest
from headrace.expressions import Expr, col
from headrace.plan.prune import columns_of
from headrace.trees import AggregateCall
from headrace.types import type_name

if TYPE_CHECKING:
    from headrace.stream import Stream


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


@dataclass(frozen=True)
class Results:
    """What ``agg`` computes: aggregates, and results that are expressions of several of them."""

    aggregates: list[tuple[str, Aggregate]]
    """Each under its result's name, or under a hidden one where an expression reads it."""
    columns: list[tuple[str, exp.Expr]]
    """The results in order, as expressions over the aggregates' names."""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]

    def of(self, stream: Stream) -> Stream:
        """The results beside the other columns, from a stream that has the aggregates."""
        if self.names == [name for name, _ in self.aggregates]:
            return stream
        hidden = {name for name, _ in self.aggregates}
        kept = [(n, col(n).tree) for n in stream.columns if n not in hidden]
        for name in columns_of(tree for _, tree in self.columns):
            if name not in stream.columns:
                raise PlanError(
                    f"'{name}' is neither a key nor inside an aggregate; aggregate it, as in "
                    f"hr.max('{name}')"
                )
        return stream._project([*kept, *self.columns], "select", stream.node.step + 1)


def named_aggregates(aggregates: tuple[Any, ...], named: dict[str, Any]) -> Results:
    found: list[tuple[str, exp.Expr]] = []
    for what in aggregates:
        tree = _aggregate_tree(what, repr(what))
        if isinstance(tree, exp.Alias):
            found.append((tree.alias, tree.this))
        elif isinstance(what, Aggregate):
            parts = [what.user.name if what.user else what.kind]
            parts += [t.name for t in what.inputs if isinstance(t, exp.Column)]
            found.append(("_".join(parts), tree))
        else:
            raise PlanError(f"{what!r} needs a name, as in agg(spread=hr.max('x') - hr.min('x'))")
    for name, what in named.items():
        found.append((name, _aggregate_tree(what, f"{name}={what!r}").unalias()))
    if not found:
        raise PlanError("agg needs at least one aggregate, such as n=hr.count()")
    names = [n for n, _ in found]
    twice = [n for n in names if names.count(n) > 1]
    if twice:
        raise PlanError(f"two aggregates are called '{twice[0]}'")
    computed: list[tuple[str, Aggregate]] = []
    columns = []
    for name, tree in found:
        if isinstance(tree, AggregateCall):
            computed.append((name, tree.this))
            columns.append((name, col(name).tree))
            continue
        for call in list(tree.find_all(AggregateCall)):
            hidden = f"_{name}_{len(computed)}"
            computed.append((hidden, call.this))
            call.replace(col(hidden).tree)
        columns.append((name, tree))
    return Results(computed, columns)


def _aggregate_tree(what: Any, shown: str) -> exp.Expr:
    """A copy of the tree of an aggregate, or of an expression of aggregates."""
    tree = what.tree.copy() if isinstance(what, Expr) else None
    if tree is None or tree.find(AggregateCall) is None:
        raise PlanError(f"{shown} is not an aggregate; use hr.count(), hr.sum('x'), …")
    return tree


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
