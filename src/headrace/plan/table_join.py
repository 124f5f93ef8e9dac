"""A stream beside a table (RStream's broadcast): each record looked up where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.plan.joins import Join, key_pairs
from headrace.plan.node import Narrow, Node
from headrace.windows import show_duration


@dataclass(frozen=True, eq=False)
class TableJoin(Narrow):
    """Records paired with those of a bounded table that have equal keys.

    A bundle becomes a bundle, so it is as any narrow step: nothing is exchanged, and nothing kept.
    """

    other: Node
    """The table."""
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    how: str
    renamed: tuple[tuple[str, str], ...]
    """The table's columns that come out, under which names."""
    refresh: int | None = None
    """Microseconds after which the table is read again."""
    on_change: bool = False
    """Whether it is read again when its files have changed."""
    loaded: Any = None
    """Where the table's records are once an engine has read it: see ``headrace.io.tables``."""

    @property
    def inner(self) -> tuple[Node, ...]:
        return (self.other,)

    @property
    def as_join(self) -> Join:
        """The same as a join of two inputs."""
        return Join(
            self.schema, self.step, self.input, self.other, self.left_on, self.right_on, self.how,
            self.renamed,
        )  # fmt: skip

    @property
    def name(self) -> str:
        return "join"

    @property
    def detail(self) -> str:
        again = ", read again when its files change" if self.on_change else ""
        if self.refresh is not None:
            again = f", read again every {show_duration(self.refresh)}"
        return f"{self.how} with a table on {key_pairs(self.left_on, self.right_on)}{again}"
