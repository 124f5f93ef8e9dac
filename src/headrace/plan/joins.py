"""Several inputs as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.plan.node import Narrow, Node
from headrace.windows import EventClock, show_duration


@dataclass(frozen=True, eq=False)
class Union(Node):
    """The records of several streams with the same columns."""

    parts: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.parts


@dataclass(frozen=True, eq=False)
class TwoInputs(Node):
    """A step that reads two others."""

    left: Node
    right: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class Join(TwoInputs):
    """Pairs of records whose keys are equal."""

    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    how: str
    renamed: tuple[tuple[str, str], ...]
    """The right side's columns that come out, under which names."""

    @property
    def left_names(self) -> list[str]:
        """The left side's columns that come out."""
        renamed = {new for _, new in self.renamed}
        return [name for name in self.schema.names if name not in renamed]

    def reads(self, side: int) -> set[str]:
        """The columns that it needs of a side: 0 is the left one."""
        if side == 0:
            return {*self.left_on, *self.left_names}
        return {*self.right_on, *(old for old, _ in self.renamed)}

    @property
    def detail(self) -> str:
        return f"{self.how} on {key_pairs(self.left_on, self.right_on)}"

    @property
    def needs_end(self) -> bool:
        return True

    @property
    def without_end(self) -> str:
        return "use join_within, which pairs records that are near in time"


@dataclass(frozen=True, eq=False)
class LookUp(Narrow):
    """A join whose one side is a table that every worker has, so that records stay where they are.

    No person writes it: an engine makes it of a ``Join``.
    """

    join: Join
    side: int
    """The side that is the table: 0 is the left one."""
    table: Any
    """Gives the table in a worker: ``table.lookup(join, side)``."""

    @property
    def name(self) -> str:
        return "join"

    @property
    def detail(self) -> str:
        return self.join.detail


@dataclass(frozen=True, eq=False)
class JoinWithin(TwoInputs):
    """Pairs of records with equal keys whose event times are near: the temporal join.

    A right record matches if it is at most ``before`` earlier and ``after`` later.
    """

    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    left_clock: EventClock
    right_clock: EventClock
    before: int
    after: int
    renamed: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return "join_within"

    @property
    def detail(self) -> str:
        span = f"{show_duration(self.before)} before to {show_duration(self.after)} after"
        return f"on {key_pairs(self.left_on, self.right_on)}, from {span}"


@dataclass(frozen=True, eq=False)
class Zip(TwoInputs):
    """Pairs of records by their place: by event time, or (without clocks) in input order."""

    clocks: tuple[EventClock | None, EventClock | None]
    renamed: tuple[tuple[str, str], ...]
    """The right side's columns, under which names they come out."""

    @property
    def by_time(self) -> bool:
        return None not in self.clocks

    @property
    def detail(self) -> str:
        return "by event time" if self.by_time else "in input order"

    @property
    def needs_end(self) -> bool:
        return not self.by_time

    @property
    def without_end(self) -> str:
        return "call event_time on both streams, which are then paired by it"


def key_pairs(left: tuple[str, ...], right: tuple[str, ...]) -> str:
    """The keys of two sides: ``id``, or ``id = ride_id``."""
    return ", ".join(a if a == b else f"{a} = {b}" for a, b in zip(left, right, strict=True))
