"""A scan of the records of each key, one after the other, and the kinds of steps it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.plan.fingerprint import fingerprint
from headrace.plan.node import Wide
from headrace.windows import CountWindow, EventClock

if TYPE_CHECKING:
    from headrace.aggregates import Aggregate


@dataclass(frozen=True, eq=False)
class UserStep:
    """A person's function of a state and a record (or a batch of them), and the first state."""

    function: Callable[..., Any]
    initial: Any
    gives: pa.Schema
    """The columns of what the function gives."""
    fields: tuple[str, ...]
    """The columns of a record as the function sees it."""
    batches: bool = False
    on_timer: Callable[..., Any] | None = None
    timed: bool = False
    """Whether the function takes a timer."""
    source: str | None = None
    """The function's source, for those who compile it where it cannot be read."""

    @property
    def detail(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    @property
    def written(self) -> str:
        """What tells the functions apart from others."""
        return fingerprint(self.function, self.on_timer)


@dataclass(frozen=True, eq=False)
class RunningStep:
    """Aggregates of each key so far, beside every record."""

    aggregates: tuple[tuple[str, Aggregate], ...]

    @property
    def detail(self) -> str:
        return ", ".join(f"{name} = {aggregate!r}" for name, aggregate in self.aggregates)


@dataclass(frozen=True, eq=False)
class ShiftStep:
    """Columns of the record so many before it (or, ``ahead``, after it), beside every record."""

    by: int
    columns: tuple[tuple[str, str], ...]
    """The new name and the column."""
    ahead: bool = False
    within: int | None = None
    """How long a record waits for those after it."""

    @property
    def detail(self) -> str:
        return f"{self.by}, " + ", ".join(f"{new} = {old}" for new, old in self.columns)


@dataclass(frozen=True, eq=False)
class RankStep:
    """The rank of each record by event time, beside it: those of one time share it."""

    column: str

    @property
    def detail(self) -> str:
        return self.column


@dataclass(frozen=True, eq=False)
class OnceStep:
    """The first record of each key, and again after some event time."""

    within: int | None

    @property
    def detail(self) -> str:
        return ""


@dataclass(frozen=True, eq=False)
class CountStep:
    """Aggregates of windows of so many records of each key."""

    window: CountWindow
    aggregates: tuple[tuple[str, Aggregate], ...]
    columns: tuple[str, ...]
    """The columns of a record that are read."""

    @property
    def detail(self) -> str:
        what = ", ".join(f"{name} = {aggregate!r}" for name, aggregate in self.aggregates)
        return f"{what} in {self.window!r}".strip()

    @property
    def python(self) -> bool:
        """Whether an aggregate is a person's own."""
        return any(aggregate.user is not None for _, aggregate in self.aggregates)

    @property
    def written(self) -> str:
        """What tells such aggregates apart from others."""
        users = [(name, a.user) for name, a in self.aggregates if a.user is not None]
        return ", ".join(f"{n} of {user.name} {fingerprint(*user.written)}" for n, user in users)


AnyStep = UserStep | RunningStep | ShiftStep | RankStep | OnceStep | CountStep


@dataclass(frozen=True, eq=False)
class Scan(Wide):
    """A state taken through the records of each key in order; without keys, through all."""

    keys: tuple[str, ...]
    what: AnyStep
    clock: EventClock | None = None
    """Where records have their event time, if they have one."""
    by_time: bool = False
    """Whether records are taken by event time, once the watermark has passed it; else as they
    come."""
    ttl: int | None = None
    """After so much event time without a record the state of a key is forgotten."""
    kept: tuple[str, ...] = ()
    """The columns of a record that are put before what comes of it."""
    method: str = "scan"

    @property
    def name(self) -> str:
        return self.method

    @property
    def detail(self) -> str:
        order = "" if self.by_time or isinstance(self.what, OnceStep) else "in order of arrival"
        what = " ".join(part for part in (self.what.detail, order) if part)
        keys = f"by {', '.join(self.keys)}" if self.keys else ""
        return " ".join(part for part in (what, keys) if part)

    @property
    def python(self) -> bool:
        return isinstance(self.what, UserStep) or (
            isinstance(self.what, CountStep) and self.what.python
        )
