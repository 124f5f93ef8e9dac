"""The watermark frontier: how far sources have promised, which of their splits are idle, and why a
watermark does not move. The same on both engines.

A split's watermark is the event time below which no further record of it will come. A source
promises the least over its splits; one that has been silent for long does not hold it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.windows import BEGINNING, FOREVER, Window, show_duration, show_time


@dataclass
class SourceFrontier:
    """How far a source has promised: the least over the splits that are there and not idle."""

    splits: dict[str, int] = field(default_factory=dict)
    """The watermark of each split."""
    live: list[str] | None = None
    """The splits that have not ended; None while it is not known which there are."""
    idle: list[str] = field(default_factory=list)
    ended: bool = False
    promised: int = BEGINNING
    silent: int = 0
    """How long all splits have been silent, where the watermark then follows the clock."""
    clock: int | None = None
    """The time of day, where that is the time of its records."""
    last: int = BEGINNING
    """The last watermark before the end, once the source has ended."""

    def reached(self, split: str, watermark: int) -> None:
        """A split's watermark has moved on."""
        self.splits[split] = max(self.splits.get(split, BEGINNING), watermark)

    def wake(self, split: str) -> None:
        """A split sends again: it must keep to what was promised without it."""
        self.idle.remove(split)
        self.reached(split, self.promised)

    def take(self, message: Mapping[str, Any]) -> None:
        """A split's watermark, or which splits there are."""
        if "split" in message:
            self.reached(message["split"], message["watermark"])
        if "live" in message:
            self.live, self.idle = list(message["live"]), list(message["idle"])
            self.ended, self.silent = message["ended"], message.get("silent", 0)
            self.clock = message.get("clock")

    def watermark(self) -> int:
        """What its splits allow to be promised now."""
        if self.ended:
            return FOREVER
        if self.clock is not None:
            return self.clock
        if not self.live:
            return self.promised
        marks = {split: self.splits.get(split, BEGINNING) for split in self.live}
        active = [marks[split] for split in self.live if split not in self.idle]
        if active:
            return min(active)
        # With none active, nothing holds it back: the furthest split's counts.
        furthest = max(marks.values())
        return furthest + self.silent if furthest > BEGINNING else furthest

    def final(self) -> int:
        """The last watermark before the end: that of the split that came furthest.

        It is what the source promises if the other splits end first, so it does not depend on
        which split ends when.
        """
        return max([self.promised, *self.splits.values()])

    def advance(self) -> int:
        """Promise what can be; it never goes back."""
        if self.ended and self.promised < FOREVER:
            self.last = self.final()
        self.promised = max(self.promised, self.watermark())
        return self.promised

    @property
    def is_idle(self) -> bool:
        """Whether every split is silent."""
        return bool(self.live) and not self.ended and set(self.live or ()) <= set(self.idle)

    def floor(self, split: str, was_idle: bool) -> int:
        """Below which a record of a split is late."""
        own = self.splits.get(split, BEGINNING)
        known = split in self.splits and not was_idle
        return own if known else max(own, self.promised)

    def saved(self) -> dict[str, Any]:
        """As JSON holds it."""
        return dict(vars(self))


def advance_together(frontiers: Sequence[SourceFrontier]) -> None:
    """How far the sources of a job have promised, all of them seen together.

    One that is silent throughout keeps up with those that are not, so that what joins them is not
    held back. Whoever is told the same finds the same.
    """
    for frontier in frontiers:
        frontier.advance()
    least = least_awake(frontiers)
    for frontier in frontiers:
        if frontier.is_idle and least is not None:
            frontier.promised = max(frontier.promised, least)


def least_awake(frontiers: Iterable[SourceFrontier]) -> int | None:
    """What the sources that are not silent have all promised: silent ones keep up with it.

    One that goes by the clock has a time of its own.
    """
    awake = [f.promised for f in frontiers if not f.is_idle and not f.ended and f.clock is None]
    return min(awake, default=None)


@dataclass
class LaneFrontiers:
    """The watermarks that reach one operator, on one of several shards."""

    shards: int
    sources: dict[str, SourceFrontier] = field(default_factory=dict)
    operators: dict[str, dict[str, int]] = field(default_factory=dict)
    lasts: dict[str, dict[str, int]] = field(default_factory=dict)
    """The last watermark before the end of operators that have ended, by shard."""

    def take(self, message: Mapping[str, Any]) -> None:
        """What a source or a shard of an operator says."""
        name = message.get("from")
        if name is None:
            return
        if name[0] == "s":
            self.sources.setdefault(name, SourceFrontier()).take(message)
        else:
            self.operators.setdefault(name, {})[str(message["shard"])] = message["watermark"]
            if "last" in message:
                self.lasts.setdefault(name, {})[str(message["shard"])] = message["last"]

    def advance(self, sources: Iterable[str]) -> None:
        """All watermarks of a batch have come: see how far each source of the job is.

        ``sources`` are those with event time; of the others it is only known when they end.
        """
        timed = sorted(sources)
        advance_together([self.sources.setdefault(s, SourceFrontier()) for s in timed])
        for name, frontier in self.sources.items():
            if name not in timed:
                frontier.advance()

    def watermark(self, feeders: Iterable[str]) -> int:
        """The least over what feeds a lane."""
        marks = []
        for name in feeders:
            if name[0] == "s":
                marks.append(self.sources.get(name, SourceFrontier()).promised)
            else:
                known = self.operators.get(name, {})
                marks.append(min(known.values()) if len(known) == self.shards else BEGINNING)
        return min(marks, default=BEGINNING)

    def last(self, feeders: Iterable[str]) -> int:
        """The last watermark before the end of what feeds a lane, all of which has ended."""
        marks = []
        for name in feeders:
            if name[0] == "s":
                marks.append(self.sources[name].last)
            else:
                marks.append(min(self.lasts.get(name, {}).values(), default=BEGINNING))
        return max(marks, default=BEGINNING)

    def saved(self) -> dict[str, Any]:
        """As JSON holds it."""
        sources = {name: frontier.saved() for name, frontier in self.sources.items()}
        return {"sources": sources, "operators": self.operators, "lasts": self.lasts}

    @staticmethod
    def of(shards: int, saved: Mapping[str, Any]) -> LaneFrontiers:
        sources = {name: SourceFrontier(**f) for name, f in saved.get("sources", {}).items()}
        return LaneFrontiers(shards, sources, saved.get("operators", {}), saved.get("lasts", {}))


class Activity:
    """When each split last sent something, on some clock in seconds."""

    def __init__(self, idle: int | None) -> None:
        self.idle = idle
        """After how long a split is idle, in microseconds; None for never."""
        self.last: dict[str, float] = {}
        self.heard: set[str] = set()
        """The splits that have sent something."""

    def found(self, split: str, now: float) -> None:
        """A split is there, and has not sent anything yet."""
        self.last.setdefault(split, now)

    def sent(self, split: str, now: float) -> None:
        """A split has sent something."""
        self.last[split] = now
        self.heard.add(split)

    def pause(self, now: float) -> None:
        """Nothing could be read, which is not silence."""
        self.last = dict.fromkeys(self.last, now)

    def is_quiet(self, split: str, now: float) -> bool:
        """Whether a split has been silent for too long."""
        return self.idle is not None and now - self.last[split] > self.idle / 1e6

    def silence(self, splits: Iterable[str], now: float) -> int:
        """How long some splits have all been silent, in microseconds."""
        return int((now - max(self.last[split] for split in splits)) * 1e6)


@dataclass(frozen=True)
class ClockSteps:
    """When to look at the clock where a look costs something, though no record comes.

    At the edges of windows as long as one may be open. Else less and less often, for what else may
    wait for the time.
    """

    windows: tuple[Window, ...] = ()
    gaps: tuple[int, ...] = ()
    """The gaps of sessions."""
    horizon: int = 0
    """For how long after a record a window may be open."""

    def is_due(self, before: int, now: int, heard: int) -> bool:
        """Whether to look now, having looked before; the last record came when it was ``heard``."""
        if now - before >= max(_SECOND, (now - heard) // 16):
            return True
        if before >= heard + self.horizon:
            return False
        if any(now - before >= max(_SECOND // 10, gap // 16) for gap in self.gaps):
            return True
        return any(window.pane_at(now) > window.pane_at(before) for window in self.windows)


_SECOND = 10**6


def waiting_for(
    frontier: SourceFrontier, activity: Activity, now: float, *, follows: bool, is_alone: bool
) -> str:
    """Say which splits of a source keep windows open, since when, and what would close them.

    Args:
        frontier: The watermarks of the source's splits.
        activity: When each split last sent something.
        now: The time on the clock of ``activity``.
        follows: Whether the watermark follows the clock while every split is silent.
        is_alone: Whether no other source of the job would move the watermark on.

    Returns:
        One sentence, or nothing if no split holds the watermark back.
    """
    if frontier.ended or frontier.live == []:
        return ""
    windows = "windows stay open"
    if frontier.promised > BEGINNING:
        windows = f"windows that end after {show_time(frontier.promised)} stay open"
    by_clock = "event_time(…, when_idle='advance') closes them by the clock"
    if frontier.is_idle:
        if follows or not is_alone:  # it follows the clock, or the other sources
            return ""
        quiet = "" if activity.idle is None else f" for {show_duration(activity.idle)}"
        return f"every split has been silent{quiet}, so {windows} until a record comes; {by_clock}"
    marks = {split: frontier.splits.get(split, BEGINNING) for split in frontier.live or ()}
    active = {split: mark for split, mark in marks.items() if split not in frontier.idle}
    slowest = [split for split, mark in active.items() if mark == min(active.values())]
    silence = {split: now - activity.last.get(split, now) for split in slowest}
    holding = [s for s in slowest if s not in activity.heard or silence[s] >= _SILENT]
    if marks and not holding:
        return ""
    since = "since the job started"
    if any(split in activity.heard for split in holding):
        since = f"for {min(silence[split] for split in holding):.0f}s"
    if activity.idle is None:
        release = "; event_time(…, idle='30s') stops waiting for silent splits"
    elif follows or not is_alone or any(mark > min(active.values()) for mark in marks.values()):
        release = f" from there, or there was none for {show_duration(activity.idle)} (idle=)"
    else:
        release = f"; {by_clock}" if frontier.promised > BEGINNING else ""
    return f"{_named(holding)} sent nothing {since}, so {windows} until a record comes{release}"


_SILENT = 1.0
"""Seconds without a record after which a split that is behind the others is reported."""


def _named(splits: Sequence[str]) -> str:
    if len(splits) > 3:
        return f"splits {', '.join(splits[:2])} and {len(splits) - 2} more have"
    if len(splits) > 1:
        return f"splits {', '.join(splits[:-1])} and {splits[-1]} have"
    return f"split {splits[0]} has" if splits else "it has"
