"""Aggregates by key and by window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.plan.node import Named, Wide, named
from headrace.windows import AnyWindow, EventClock

if TYPE_CHECKING:
    from headrace.aggregates import Aggregate


@dataclass(frozen=True, eq=False)
class GroupBy(Wide):
    """Aggregates of each key; without keys, of all records; without aggregates, the keys."""

    keys: Named
    aggregates: tuple[tuple[str, Aggregate], ...]
    method: str = "agg"
    window: AnyWindow | None = None
    clock: EventClock | None = None
    """With a window: where the records have their event time."""

    @property
    def is_ordered(self) -> bool:
        """Whether the order in which records came matters to a result."""
        return any(aggregate.is_ordered for _, aggregate in self.aggregates)

    @property
    def needs_end(self) -> bool:
        return self.window is None

    @property
    def python(self) -> bool:
        return any(aggregate.user is not None for _, aggregate in self.aggregates)

    @property
    def name(self) -> str:
        return self.method

    @property
    def detail(self) -> str:
        what = ", ".join(f"{name} = {aggregate!r}" for name, aggregate in self.aggregates)
        keys = ", ".join(named(name, tree) for name, tree in self.keys)
        text = " by ".join(part for part in (what, keys) if part)
        return text if self.window is None else f"{text} in {self.window!r}".strip()
