"""Time in a plan: where each step's records have it, in which zone, and whether it ever ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.errors import NotYet, PlanError
from headrace.plan.custom import Custom
from headrace.plan.groups import GroupBy
from headrace.plan.iteration import Again, Cycle, Held, Iterate
from headrace.plan.joins import Join, JoinWithin, Union, Zip
from headrace.plan.node import Narrow, Node, function_name, show
from headrace.plan.rows import Explode, Filter, MapBatches, MapRows, Project
from headrace.plan.scans import Scan
from headrace.plan.sources import External, Read
from headrace.windows import EventClock, show_duration

START, END = "window_start", "window_end"
"""The columns a window's result has beside its keys and aggregates."""
NUMBER = "window"
"""The same of a count window: which of its key it is, from nought."""


@dataclass(frozen=True, eq=False)
class EventTime(Narrow):
    """Names the event-time column and says where watermarks come from.

    On unbounded input a watermark is the largest time seen less ``delay``, or what ``punctuation``
    returns. With neither, the source sends its own watermarks. On bounded input ``delay`` and
    ``punctuation`` have no effect: no record is late, and windows close when the input ends.
    """

    column: str
    delay: int | None
    idle: int | None
    punctuation: exp.Expr | Callable[..., Any] | None = None
    ahead: int | None = None
    """How far ahead of the clock a record may be; one beyond that is set aside as late."""
    follows_clock: bool = False
    """Whether the watermark goes on by the clock while every split is silent."""
    by_clock: bool = False
    """Whether the column is added: the time at which a record is read; the watermark is the time
    of day."""
    bounded: bool = False
    """Whether the input ends."""

    @property
    def is_by_source(self) -> bool:
        """Whether the source sends its own watermarks."""
        return self.delay is None and self.punctuation is None

    @property
    def is_never_late(self) -> bool:
        """Whether no watermark comes before the end, so that no record can be late."""
        return self.bounded and not self.by_clock and not self.is_by_source

    @property
    def name(self) -> str:
        return "processing_time" if self.by_clock else "event_time"

    @property
    def detail(self) -> str:
        if self.by_clock:
            return self.column
        if self.is_never_late:
            return f"{self.column}, bounded input: no record is late"
        idle = "" if self.idle is None else f", idle after {show_duration(self.idle)}"
        idle += ", then by the clock" if self.follows_clock else ""
        idle += "" if self.ahead is None else f", at most {show_duration(self.ahead)} ahead"
        if self.punctuation is not None:
            what = self.punctuation
            how = show(what) if isinstance(what, exp.Expr) else function_name(what)
            return f"{self.column}, watermarks from {how}{idle}"
        if self.delay is None:
            return f"{self.column}, watermarks from the source{idle}"
        return f"{self.column}, delay {show_duration(self.delay)}{idle}"


@dataclass(frozen=True, eq=False)
class Late(Node):
    """The records an ``EventTime`` step found below the watermark it had promised."""

    of: EventTime

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.of,)

    @property
    def detail(self) -> str:
        return f"records of step {self.of.step}"


def clock_of(node: Node) -> EventClock | None:
    """Where the records that leave a step have their event time; None if they have none."""
    found = _clock(node)
    return found if isinstance(found, EventClock) else None


def clock_needed(node: Node, what: str) -> EventClock:
    """The clock of a step, or a sentence that says why there is none."""
    found = _clock(node)
    if isinstance(found, EventClock):
        return found
    if found is None:
        raise PlanError(
            f"{what} needs event time; call event_time('column', delay='10s') before, or "
            "processing_time('at') to go by the clock"
        )
    clock, lost = found
    names = " and ".join(f"'{c}'" for c in clock.columns)
    raise PlanError(
        f"{what} needs event time, but {lost.label} dropped or changed its column {names}; keep it"
    )


def _clock(node: Node) -> EventClock | tuple[EventClock, Node] | None:
    if isinstance(node, EventTime):
        return EventClock((node.column,))
    if isinstance(node, GroupBy):
        return EventClock((END,), -1) if node.window is not None else None
    if isinstance(node, JoinWithin):
        # A key comes out once, under the left name, and is the same on both sides.
        names = dict(node.renamed) | dict(zip(node.right_on, node.left_on, strict=True))
        return _of_pairs(node.left_clock, node.right_clock, names)
    if isinstance(node, Zip):
        return _of_pairs(*node.clocks, dict(node.renamed))
    if isinstance(node, Union):
        clocks = [_clock(part) for part in node.parts]
        return clocks[0] if all(c == clocks[0] for c in clocks) else None
    if isinstance(node, Iterate):
        return _clock(node.input)
    if isinstance(node, Cycle):
        return None
    beside = isinstance(node, Join) and node.how in ("inner", "left", "semi", "anti")
    if isinstance(node, (Read, External, Late)) or (len(node.inputs) != 1 and not beside):
        return None
    before = _clock(node.inputs[0])
    if not isinstance(before, EventClock):
        return before
    if isinstance(node, Project):
        names = {
            t.name: n for n, t in node.columns if isinstance(t, exp.Column) and len(t.parts) == 1
        }
        same = {c: c for c in before.columns if names.get(c) != c and (c, c) in _same(node)}
        return before.renamed({**names, **same}) or (before, node)
    if isinstance(node, Explode):
        return before if set(before.columns) <= set(node.keep) else (before, node)
    if isinstance(node, (MapRows, MapBatches, Custom, Scan)):
        kept = all(
            c in node.schema.names and pa.types.is_timestamp(node.schema.field(c).type)
            for c in before.columns
        )
        return before if kept else (before, node)
    if isinstance(node, Filter):
        return before
    return before if set(before.columns) <= set(node.schema.names) else (before, node)


def _of_pairs(
    left: EventClock | None, right: EventClock | None, names: dict[str, str]
) -> EventClock | None:
    """The clock of pairs: a pair happens when its later record does."""
    if left is None or right is None or left.shift != right.shift:
        return None
    columns = dict.fromkeys((*left.columns, *(names[c] for c in right.columns)))
    return EventClock(tuple(columns), left.shift)


def _same(node: Project) -> set[tuple[str, str]]:
    return {(n, t.name) for n, t in node.columns if isinstance(t, exp.Column) and len(t.parts) == 1}


def nodes_of(node: Node) -> Iterator[Node]:
    """Every step of a plan once, inputs first."""
    seen: set[int] = set()

    def walk(each: Node) -> Iterator[Node]:
        if id(each) in seen:
            return
        seen.add(id(each))
        for source in each.inputs:
            yield from walk(source)
        yield each

    return walk(node)


def is_bounded(node: Node) -> bool:
    """Whether a plan's input ends."""
    for each in nodes_of(node):
        if isinstance(each, Read) and not each.source.bounded:
            return False
        if isinstance(each, External) and getattr(each.handle, "isStreaming", False):
            return False
    return True


def zone_of(*nodes: Node) -> str:
    """The time zone in which a pipeline reads the clock: one for all of it, UTC unless told."""
    kinds = (Read, External, Held)
    sources = (n for node in nodes for n in nodes_of(node) if isinstance(n, kinds))
    zones = sorted({n.zone for n in sources if n.zone is not None})
    if len(zones) > 1:
        raise PlanError(
            f"its sources are in the time zones {' and '.join(zones)}; a pipeline has one, so call "
            "time_zone with the same one for all of them"
        )
    return zones[0] if zones else "UTC"


def said_zone(node: Node) -> str | None:
    """The time zone that a plan's sources say, if they say one."""
    zones = {n.zone for n in nodes_of(node) if isinstance(n, (Read, External, Held))}
    return next((zone for zone in zones if zone is not None), None)


def refuse_endless(node: Node) -> None:
    """Refuse steps that need all of their input, where it does not end."""
    for each in nodes_of(node):
        if each.needs_end and not is_bounded(each):
            way = each.without_end
            if isinstance(each, Join) and is_bounded(each.left):
                way = "a stream is joined with a table the other way round: stream.join(table)"
            raise PlanError(
                f"{each.label}: it needs the whole input, and this input never ends; {way}"
            )


def ends(node: Node, what: str, instead: str = "start()") -> None:
    """Refuse to wait for the end of input that has none, or is not there yet."""
    if any(isinstance(each, Again) for each in nodes_of(node)):
        raise NotYet(
            f"{what} asks for records of an iteration that has not begun; go on with the stream, "
            "or do it in the body of a cycle"
        )
    refuse_endless(node)
    if not is_bounded(node):
        raise PlanError(f"{what} waits for the end, and the input never ends; use {instead}")
