"""Records in an order, and the first of them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from headrace.plan.node import Bounded, Wide, show


@dataclass(frozen=True, eq=False)
class Sort(Bounded):
    """All records in an order."""

    order: tuple[tuple[exp.Expr, bool], ...]
    first: int | None = None
    """How many of them are wanted; None for all."""

    @property
    def detail(self) -> str:
        return _order(self.order)


@dataclass(frozen=True, eq=False)
class Limit(Bounded):
    """The first ``count`` records."""

    count: int

    @property
    def without_end(self) -> str:
        return (
            "which records are the first is known when all have been read; use "
            "write_console().start() to look at some, or window(…).top_k(…) for some of each window"
        )

    @property
    def detail(self) -> str:
        return str(self.count)


@dataclass(frozen=True, eq=False)
class TopK(Wide):
    """The first ``k`` records in an order, of each key or of all."""

    k: int
    order: tuple[tuple[exp.Expr, bool], ...]
    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        return "top_k"

    @property
    def detail(self) -> str:
        keys = f" of each {', '.join(self.keys)}" if self.keys else ""
        return f"{self.k} by {_order(self.order)}{keys}"

    @property
    def needs_end(self) -> bool:
        return True


def _order(order: tuple[tuple[exp.Expr, bool], ...]) -> str:
    return ", ".join(show(tree) + (" descending" if down else "") for tree, down in order)
