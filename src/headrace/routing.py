"""``split`` and ``route``: one stream as several, by conditions."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.building import Building
from headrace.errors import PlanError, nearest
from headrace.expressions import Expr, col, to_expr
from headrace.plan.rows import Condition, Route
from headrace.steps import Steps

if TYPE_CHECKING:
    from headrace.stream import Stream

_REST = "rest"
_COLUMN = "__route"


class Routes:
    """The streams of ``route`` by name: ``routes.big`` or ``routes["big"]``, and ``routes.rest``.

    They can be unpacked, too, in the order of the conditions and the rest last.
    """

    __slots__ = ("_streams",)

    def __init__(self, streams: dict[str, Stream]) -> None:
        self._streams = streams

    def __getitem__(self, name: str) -> Stream:
        if name not in self._streams:
            raise KeyError(f"there is no route {name!r}{nearest(str(name), self._streams)}")
        return self._streams[name]

    def __getattr__(self, name: str) -> Stream:
        if name.startswith("_") or name not in self._streams:
            hint = "" if name.startswith("_") else nearest(name, self._streams)
            raise AttributeError(f"there is no route '{name}'{hint}")
        return self._streams[name]

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    def __len__(self) -> int:
        return len(self._streams)

    def __dir__(self) -> list[str]:
        return list(self._streams)

    def __repr__(self) -> str:
        return f"Routes({', '.join(self._streams)})"


class Routing(Steps):
    """What sends the records of a stream several ways."""

    def split(self, condition: Any) -> tuple[Stream, Stream]:
        """The records for which a condition is true, and all others.

            big, rest = orders.split("amount > 100")

        The condition is an expression, or a function of a row. One that is null is not true. A job
        that uses both streams asks it once for each record.
        """
        with self._building("split") as at:
            matching, rest = _routed(self, {"matching": condition}, "split", at)
            return matching, rest

    def route(self, **conditions: Any) -> Routes:
        """Each record in the first of several streams whose condition holds for it.

            routes = orders.route(big="amount > 100", small=lambda row: row.amount > 10)
            routes.big, routes["small"], routes.rest

        Conditions are expressions or functions of a row, and are asked in their order: a record
        that one of them takes is not shown to those after it. ``rest`` has those that none took.
        """
        with self._building("route") as at:
            if not conditions:
                raise PlanError("route needs conditions, such as big='amount > 100'")
            if _REST in conditions:
                raise PlanError("'rest' are the records that no other route takes; name it another")
            for name in conditions:
                if name.startswith("_") or not name.isidentifier() or keyword.iskeyword(name):
                    raise PlanError(f"a route cannot be called {name!r}; it is to be a plain name")
            streams = _routed(self, conditions, "route", at)
            return Routes(dict(zip((*conditions, _REST), streams, strict=True)))


def _routed(
    stream: Steps, conditions: dict[str, Any], method: str, at: Building
) -> Iterator[Stream]:
    """A stream for each condition, and the rest; all read one step that tells them apart."""
    column = _COLUMN
    while column in stream.columns:
        column += "_"
    asked = []
    for name, what in conditions.items():
        is_function = callable(what) and not isinstance(what, Expr)
        asked.append(Condition(at.label, name, what if is_function else to_expr(what).tree))
    step = Route(stream.schema, at.step, stream.node, tuple(asked), column, method)
    told = stream._narrow(step)
    names = [(name, col(name).tree) for name in stream.columns]
    for number in range(len(conditions) + 1):
        mine = told.filter(col(column) == number)
        yield mine._project(names, "select", mine.node.step + 1)
