"""A source that does what a script says, event by event."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import PlanError
from headrace.io.memory import infer_schema, table_of
from headrace.io.offsets import OffsetSource, Positions
from headrace.io.source import Split, Watermark
from headrace.sources import from_source
from headrace.stream import Stream
from headrace.testing.clock import TestClock
from headrace.types import normal_schema, to_schema


def seconds(count: float) -> datetime.datetime:
    """A moment so many seconds after the beginning of 1970, in UTC."""
    start = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return start + datetime.timedelta(microseconds=round(count * 1e6))


@dataclass(frozen=True)
class Records:
    """Records, as dicts or as an Arrow table or batch."""

    what: Any


@dataclass(frozen=True)
class Advance:
    """The clock is turned."""

    seconds: float


@dataclass(frozen=True)
class Fail:
    """Reading fails."""

    error: Exception


@dataclass(frozen=True)
class Idle:
    """The split sends nothing, and says so."""


Event = Records | Watermark | Advance | Fail | Idle


def records(*what: Any) -> Records:
    """Records that arrive: dicts, or one Arrow table or batch."""
    if len(what) == 1 and isinstance(what[0], (pa.Table, pa.RecordBatch)):
        return Records(what[0])
    return Records(list(what))


def watermark(time: int | datetime.datetime) -> Watermark:
    """The split promises that nothing older comes: a datetime, or microseconds since 1970."""
    return Watermark(time)


def advance(seconds: float) -> Advance:
    """Turn the clock of the script; on the box only."""
    return Advance(seconds)


def fail(error: Exception | str = "the script says so") -> Fail:
    """Reading the split fails here."""
    return Fail(error if isinstance(error, Exception) else OSError(error))


def idle() -> Idle:
    """Nothing comes just now; others get their turn."""
    return Idle()


@dataclass(frozen=True, eq=False)
class ScriptedSource(OffsetSource):
    """A source of one split for each script; a position is the number of events acted out."""

    scripts: tuple[tuple[Event, ...], ...]
    schema: pa.Schema
    clock: TestClock | None = None
    bounded: bool = True
    ends: bool = False
    at_once: int = 1
    watermarks: bool = True

    def splits(self, parallelism: int) -> list[Split]:
        silent = not self.bounded and not self.ends
        return [ScriptedSplit(s, self.schema, self.clock, silent) for s in self.scripts]

    def initial(self) -> Positions:
        return {str(i): 0 for i in range(len(self.scripts))}

    def __getstate__(self) -> dict[str, Any]:
        for events in self.scripts:
            _refuse_to_travel(events)
        return self.__dict__

    def latest(self, since: Positions) -> Positions:
        return {n: min(at + self.at_once, len(self.scripts[int(n)])) for n, at in since.items()}

    def between(
        self, start: Positions, end: Positions, parallelism: int
    ) -> list[tuple[str, Split]]:
        return [
            (name, ScriptedSplit(self.scripts[int(name)][start[name] : end[name]], self.schema))
            for name in end
            if end[name] > start[name]
        ]

    def ended(self, at: Positions) -> bool:
        done = all(upto == len(self.scripts[int(name)]) for name, upto in at.items())
        return done and (self.bounded or self.ends)

    def __str__(self) -> str:
        return f"a script of {len(self.scripts)} splits"


@dataclass(frozen=True, eq=False)
class ScriptedSplit(Split):
    """One script, acted out."""

    events: tuple[Event, ...]
    schema: pa.Schema
    clock: TestClock | None = None
    silent: bool = False
    """Whether it goes on after its last event."""

    def __getstate__(self) -> dict[str, Any]:
        _refuse_to_travel(self.events)
        return self.__dict__

    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        for event in self.events:
            if isinstance(event, Records):
                yield from self._batches(event.what)
            elif isinstance(event, Advance):
                if self.clock is None:
                    raise PlanError("the script turns a clock; pass clock=TestClock()")
                yield None  # what was sent before the clock was turned arrives before
                self.clock.advance(event.seconds)
            elif isinstance(event, Fail):
                raise event.error
            elif isinstance(event, Idle):
                yield None
            else:
                yield event
        while self.silent:
            yield None

    def _batches(self, what: Any) -> Iterator[pa.RecordBatch]:
        if isinstance(what, pa.RecordBatch):
            yield what
        else:
            table = what if isinstance(what, pa.Table) else table_of(what, self.schema, "script")
            yield from table.to_batches()


def _refuse_to_travel(events: Sequence[Event]) -> None:
    """Refuse to send a script that turns a clock to other processes, which cannot turn it."""
    if any(isinstance(event, Advance) for event in events):
        raise PlanError(
            "the script turns a clock with advance(), which only the box can do: Spark reads "
            "scripts in other processes; pass on='box', or leave advance() out"
        )


def script(
    *scripts: Sequence[Event],
    schema: Any = None,
    clock: TestClock | None = None,
    bounded: bool = True,
    ends: bool = False,
    at_once: int = 1,
) -> Stream:
    """A stream that acts out scripts, one for each split.

    With ``bounded=False`` it is a stream to run with ``start``: the splits go on in silence after
    their last event until the job stops, or with ``ends=True`` the job ends there. On Spark each
    micro-batch takes ``at_once`` events of every split. A script with ``advance`` runs on the box
    only; Spark refuses it.
    """
    if schema is None:
        first: Any = next(
            (e.what for s in scripts for e in s if isinstance(e, Records) and e.what), []
        )
        known = (
            normal_schema(first.schema)
            if isinstance(first, (pa.Table, pa.RecordBatch))
            else infer_schema(first, "script")
        )
    else:
        known = to_schema(schema)
    acted = tuple(map(tuple, scripts))
    return from_source(ScriptedSource(acted, known, clock, bounded, ends, at_once))
