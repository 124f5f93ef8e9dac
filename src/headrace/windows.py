"""What a window is: half-open spans of time, aligned to the Unix epoch plus an offset, or so many
records.

>>> tumbling("1 minute")
tumbling(1min)
>>> sliding("30s", every="1s", offset="500ms")
sliding(30s, every=1s, offset=500ms)
>>> count_window(10, every=5)
count_window(10, every=5)
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Any

from headrace.errors import PlanError, nearest
from headrace.hints import keywords
from headrace.sizes import is_whole

FOREVER = 2**63 - 1
"""The watermark at infinity: nothing will ever come."""
BEGINNING = -(2**63)
"""The watermark before any: anything may come."""

LATEST = 2**62
"""The largest event time, and less nought the least: windows around it can still be counted."""

_UNITS = {"us": 1, "ms": 1000, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6}
_LONGEST = 10_000 * 366 * 86400 * 10**6
_MOST_WINDOWS = 100_000
_MOST_RECORDS = 100_000_000
ORDERS = ("event", "arrival")
"""In which records of a key may be taken."""
_WORDS = {
    "microsecond": "us", "µs": "us", "usec": "us", "millisecond": "ms", "msec": "ms", "milli": "ms",
    "sec": "s", "second": "s", "m": "min", "minute": "min", "hr": "h", "hour": "h", "day": "d",
}  # fmt: skip


def duration(what: Any, name: str, least: int = 0) -> int:
    """A span of time in microseconds: ``"30s"``, ``"1 minute 30 seconds"``, a timedelta."""
    micros = _micros(what, name)
    if micros > _LONGEST:
        raise PlanError(f"{name}={what!r} is longer than any time we can count")
    if micros < least:
        fault = "must be positive" if least else "must not be negative"
        raise PlanError(f"{name}={what!r}: a span of time here {fault}")
    return micros


def _micros(what: Any, name: str) -> int:
    if isinstance(what, datetime.timedelta):
        return round(what / datetime.timedelta(microseconds=1))
    if not isinstance(what, str) or not what.strip():
        whole = isinstance(what, int) and not isinstance(what, bool) and name.endswith(": size")
        count = f"; for windows of {what} records, hr.count_window({what})" if whole else ""
        raise PlanError(f"{name}={what!r} is not a span of time; write '10s' or a timedelta{count}")
    if not re.fullmatch(r"\s*([+-]?[\d.]+\s*[^\W\d]+[\s,]*)+", what):
        raise PlanError(f"{name}={what!r} is not a span of time; write it as '10s' or '5 minutes'")
    total = 0.0
    for number, word in re.findall(r"([+-]?[\d.]+)\s*([^\W\d]+)", what):
        unit = word.lower()
        if word == "M" or unit.rstrip("s") in ("mo", "mon", "month", "y", "yr", "year"):
            raise PlanError(
                f"{name}={what!r}: '{word}' may be a month, which has no fixed length; write "
                "minutes as 'min', longer times in days"
            )
        unit = unit if unit in _UNITS else _WORDS.get(unit) or _WORDS.get(unit.rstrip("s"), unit)
        if unit not in _UNITS:
            raise PlanError(f"{name}={what!r}: '{word}' is not a unit{nearest(word, _UNITS)}")
        try:
            total += float(number) * _UNITS[unit]
        except ValueError:
            raise PlanError(f"{name}={what!r}: {number!r} is not a number") from None
    if not total.is_integer():
        raise PlanError(f"{name}={what!r} is not a whole number of microseconds")
    return int(total)


def show_duration(micros: int) -> str:
    """A span of time as a person writes it."""
    for unit in ("d", "h", "min", "s", "ms"):
        if micros and micros % _UNITS[unit] == 0:
            return f"{micros // _UNITS[unit]}{unit}"
    return f"{micros}us" if micros else "0s"


def micros_of(time: int | datetime.datetime) -> int:
    """A moment in microseconds since 1970; one without a zone is UTC."""
    if isinstance(time, int):
        return time
    if time.tzinfo is not None:
        time = time.astimezone(datetime.UTC).replace(tzinfo=None)
    return (time - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)


def show_time(micros: int) -> str:
    """A moment of event time for people."""
    if micros >= FOREVER:
        return "the end"
    if micros <= BEGINNING:
        return "before the first record"
    try:
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros}us"
    return moment.isoformat(sep=" ", timespec="milliseconds")


_BY_CLOCK = ", time='processing'"
TIMES = ("event", "processing")


@dataclass(frozen=True, repr=False)
class Window:
    """Windows of a fixed size, one beginning every ``every`` microseconds."""

    size: int
    every: int
    offset: int = 0
    processing: bool = False
    """Whether it is of the time at which records are read, and not of event time."""

    @property
    def short(self) -> int:
        """Where windows end within a step; nought if the step divides their size.

        State is kept by pane, a slice of time between two edges of windows. Then there are two in
        each step, one up to here and one from here on; else a pane is a step.
        """
        return self.size % self.every

    @property
    def step(self) -> int:
        """How many panes one window begins after another."""
        return 2 if self.short else 1

    @property
    def panes(self) -> int:
        """How many panes a window has."""
        steps = self.size // self.every
        return 2 * steps + 1 if self.short else steps

    def pane_at(self, time: int) -> int:
        """The pane that a moment is in."""
        turn, rest = divmod(time - self.offset, self.every)
        return 2 * turn + (rest >= self.short) if self.short else turn

    def pane_end(self, pane: int) -> int:
        """The moment at which a pane ends."""
        if not self.short:
            return (pane + 1) * self.every + self.offset
        turn, second = divmod(pane, 2)
        return turn * self.every + (self.every if second else self.short) + self.offset

    def __repr__(self) -> str:
        offset = f", offset={show_duration(self.offset)}" if self.offset else ""
        offset += _BY_CLOCK if self.processing else ""
        if self.size == self.every:
            return f"tumbling({show_duration(self.size)}{offset})"
        every = show_duration(self.every)
        return f"sliding({show_duration(self.size)}, every={every}{offset})"


@dataclass(frozen=True, repr=False)
class Session:
    """Records of a key with less than ``gap`` between each and the next."""

    gap: int
    processing: bool = False

    def __repr__(self) -> str:
        return f"session({show_duration(self.gap)}{_BY_CLOCK if self.processing else ''})"


@dataclass(frozen=True, repr=False)
class CountWindow:
    """Windows of ``size`` records of a key, one beginning with every ``every``-th record."""

    size: int
    every: int
    partial: bool = False
    """Whether windows that are not full when the input ends are given then."""
    order: str | None = None
    """``"event"`` or ``"arrival"``; by event time where there is one unless told."""

    def __repr__(self) -> str:
        every = "" if self.every == self.size else f", every={self.every}"
        return f"count_window({self.size}{every}{', partial=True' if self.partial else ''})"


AnyWindow = Window | Session
"""Windows of time."""


@keywords
def tumbling(size: Any, *, offset: Any = "0s", time: str = "event") -> Window:
    """Windows of one size, end to end: ``tumbling("1 minute")``.

    ``offset`` moves where they begin: ``tumbling("1d", offset="6h")`` is days from six o'clock.
    With ``time="processing"`` they are of the time at which records are read.
    """
    span = duration(size, "tumbling: size", 1)
    shift = _micros(offset, "tumbling: offset") % span
    return Window(span, span, shift, _is_processing(time, "tumbling"))


@keywords
def sliding(size: Any, every: Any, *, offset: Any = "0s", time: str = "event") -> Window:
    """Windows of one size that begin every so often: ``sliding("30s", every="1s")``.

    With ``time="processing"`` they are of the time at which records are read.
    """
    span, step = duration(size, "sliding: size", 1), duration(every, "sliding: every", 1)
    if step > span:
        raise PlanError(
            f"sliding: every={every!r} is longer than the window, so records would fall between; "
            "make it at most the size"
        )
    if span // step > _MOST_WINDOWS:
        raise PlanError(
            f"sliding: a record would be in {span // step:,} windows; make every= longer, so that "
            f"it is at most {_MOST_WINDOWS:,}"
        )
    shift = _micros(offset, "sliding: offset") % step
    return Window(span, step, shift, _is_processing(time, "sliding"))


@keywords
def session(gap: Any, *, time: str = "event") -> Session:
    """Windows that end when a key has been silent for ``gap``: ``session("30 minutes")``.

    With ``time="processing"`` they are of the time at which records are read.
    """
    return Session(duration(gap, "session: gap", 1), _is_processing(time, "session"))


def _is_processing(time: Any, name: str) -> bool:
    if time not in TIMES:
        raise PlanError(f"{name}: time={time!r} is no time{nearest(str(time), TIMES)}")
    return bool(time == "processing")


@keywords
def count_window(
    size: Any, every: Any = None, *, partial: bool = False, order: str | None = None
) -> CountWindow:
    """Windows of so many records of each key: ``count_window(10, every=5)``.

    One begins with every ``every``-th record, end to end unless told. A window is given when it
    is full; with ``partial=True`` those that are not are given when the input ends. Records are
    counted in the order of event time where there is one (``order="event"``), or with
    ``order="arrival"`` as they come.
    """
    step = size if every is None else every
    for what, name in ((size, "size"), (step, "every")):
        if not is_whole(what):
            time = "; windows of time are hr.tumbling('10s')" if isinstance(what, str) else ""
            raise PlanError(
                f"count_window: {name}={what!r} is not a number of records, from 1{time}"
            )
    if step > size:
        raise PlanError(
            f"count_window: every={every!r} is more than the window has, so records would fall "
            "between; make it at most the size"
        )
    if size > _MOST_RECORDS:
        raise PlanError(
            f"count_window: size={size!r} is more than the {_MOST_RECORDS:,} records that are kept "
            "of a key; use a window of time, or scan"
        )
    if not isinstance(partial, bool):
        raise PlanError(f"count_window: partial={partial!r}: it is True or False")
    if order not in (None, *ORDERS):
        raise PlanError(f"count_window: order={order!r}: it is 'event' or 'arrival'")
    return CountWindow(size, step, partial, order)


@dataclass(frozen=True)
class EventClock:
    """Where a stream's records have their event time: the latest of some columns, and a shift.

    A window's result happens at the last microsecond of the window, a pair at its later record.
    """

    columns: tuple[str, ...]
    shift: int = 0

    def renamed(self, names: dict[str, str]) -> EventClock | None:
        """The same clock where columns go by other names; None if one of them is gone."""
        if not all(c in names for c in self.columns):
            return None
        return EventClock(tuple(names[c] for c in self.columns), self.shift)
