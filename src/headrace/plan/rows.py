"""Steps on each record by itself, by expressions or by functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.plan.node import Named, Narrow, function_name, is_same, named, show
from headrace.plan.texts import Texts, texts_of
from headrace.windows import show_duration

NATIVE = "__headrace_native__"
"""What marks a function that must be compiled."""


@dataclass(frozen=True, eq=False)
class Project(Narrow):
    """Columns computed from columns: select, with_columns, drop, rename, map of expressions."""

    columns: Named
    method: str = "select"

    @property
    def name(self) -> str:
        return self.method

    @property
    def detail(self) -> str:
        columns = [(n, t) for n, t in self.columns if self.method == "select" or not is_same(n, t)]
        return ", ".join(named(n, t) for n, t in columns or self.columns)


@dataclass(frozen=True, eq=False)
class Filter(Narrow):
    """Records for which a condition is true."""

    condition: exp.Expr

    @property
    def detail(self) -> str:
        return show(self.condition)


@dataclass(frozen=True, eq=False)
class Explode(Narrow):
    """A record for each element of a list: flat_map of an expression."""

    elements: exp.Expr
    column: str
    keep: tuple[str, ...]

    @property
    def name(self) -> str:
        return "flat_map"

    @property
    def detail(self) -> str:
        kept = f", keeping {', '.join(self.keep)}" if self.keep else ""
        return f"{self.column} in {show(self.elements)}{kept}"


@dataclass(frozen=True, eq=False)
class MapRows(Narrow):
    """A person's function of one record: map, flat_map, filter, inspect, for_each."""

    function: Callable[..., Any]
    method: str

    @functools.cached_property
    def texts(self) -> Texts:
        """The text of the function and of those it calls, for those who compile it."""
        return texts_of(self._functions)

    @property
    def native(self) -> bool:
        """Whether the function is to be compiled, and nothing else."""
        return any(getattr(each, NATIVE, False) for each in self._functions)

    @property
    def _functions(self) -> tuple[Callable[..., Any], ...]:
        return getattr(self.function, "row_functions", (self.function,))

    def __getstate__(self) -> dict[str, Any]:
        """With the texts: where it is sent, they may not be found."""
        return {**self.__dict__, "texts": self.texts}

    @property
    def name(self) -> str:
        return self.method

    @property
    def detail(self) -> str:
        return function_name(self.function)

    @property
    def python(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class MapMemo(MapRows):
    """Columns computed by a Python function of a key, with a cache of its results."""

    key: Named
    """The columns that the function gets."""
    returns: pa.Schema
    """What the function returns."""
    names: tuple[str, ...]
    """The columns that this adds or replaces, one for each of ``returns``."""
    max_size: int
    ttl: int | None
    """How long a result is used, in microseconds."""

    @property
    def function_name(self) -> str:
        return function_name(self.function)

    @property
    def detail(self) -> str:
        by = ", ".join(named(n, t) for n, t in self.key)
        span = "" if self.ttl is None else f" for {show_duration(self.ttl)}"
        return f"{self.function_name} by {by}, keeps {self.max_size:,} results{span}"


@dataclass(frozen=True, eq=False)
class MapBatches(Narrow):
    """A person's function of a whole bundle."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return "map_batches"

    @property
    def detail(self) -> str:
        return function_name(self.function)

    @property
    def python(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Condition:
    """One of the ways that records go: its name, and an expression or a function of a row."""

    label: str
    name: str
    function: exp.Expr | Callable[..., Any]

    @property
    def detail(self) -> str:
        what = self.function
        return f"{self.name}: {function_name(what) if callable(what) else show(what)}"


@dataclass(frozen=True, eq=False)
class Route(Narrow):
    """Each record with the number of the first condition that holds for it beside it."""

    conditions: tuple[Condition, ...]
    column: str
    method: str

    @property
    def name(self) -> str:
        return self.method

    @property
    def detail(self) -> str:
        return ", ".join(condition.detail for condition in self.conditions)

    @property
    def python(self) -> bool:
        return any(callable(condition.function) for condition in self.conditions)
