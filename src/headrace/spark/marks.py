"""Watermarks of a streaming job on Spark, as its shards and its driver know them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.windows import BEGINNING, FOREVER


@dataclass
class SourceMarks:
    """How far a source has promised: the least over the splits that are there and not idle."""

    splits: dict[str, int] = field(default_factory=dict)
    live: list[str] | None = None
    idle: list[str] = field(default_factory=list)
    ended: bool = False
    promised: int = BEGINNING
    silent: int = 0
    """How long all splits have been silent, where the watermark goes on by the clock."""

    def take(self, said: dict[str, Any]) -> None:
        """A split's watermark, or which splits there are."""
        if "split" in said:
            name = said["split"]
            self.splits[name] = max(self.splits.get(name, BEGINNING), said["mark"])
        if "live" in said:
            self.live, self.idle, self.ended = said["live"], said["idle"], said["ended"]
            self.silent = said.get("silent", 0)

    def settle(self) -> int:
        """What the source promises now; it never goes back."""
        if self.ended:
            self.promised = FOREVER
        elif self.live:
            active = [self.splits.get(s, BEGINNING) for s in self.live if s not in self.idle]
            # With none active, nothing holds it back: the furthest split's counts.
            mark = min(active) if active else max(self.splits.get(s, BEGINNING) for s in self.live)
            if not active and mark > BEGINNING:
                mark += self.silent
            self.promised = max(self.promised, mark)
        return self.promised

    @property
    def is_idle(self) -> bool:
        """Whether every split is silent."""
        return bool(self.live) and not self.ended and set(self.live or ()) <= set(self.idle)

    def floor(self, split: str, was_idle: bool) -> int:
        """Below which a record of a split is late, at the beginning of a batch."""
        own = self.splits.get(split, BEGINNING)
        known = split in self.splits and not was_idle
        return own if known else max(own, self.promised)

    def said(self) -> dict[str, Any]:
        """As JSON holds it."""
        return dict(vars(self))


def settle(sources: Sequence[SourceMarks]) -> None:
    """How far the sources of a job have promised, all of them seen together.

    One that is silent throughout keeps up with those that are not, so that what joins them is not
    held back. Every shard and the driver find the same, for all are told the same.
    """
    for source in sources:
        source.settle()
    awake = [s.promised for s in sources if not s.is_idle and not s.ended]
    for source in sources:
        if source.is_idle and awake:
            source.promised = max(source.promised, min(awake))


@dataclass
class LaneMarks:
    """The watermarks that reach one operator, on one shard."""

    shards: int
    sources: dict[str, SourceMarks] = field(default_factory=dict)
    operators: dict[str, dict[str, int]] = field(default_factory=dict)

    def take(self, said: dict[str, Any]) -> None:
        """What a source or an operator says."""
        name = said["from"]
        if name[0] == "s":
            self.sources.setdefault(name, SourceMarks()).take(said)
        else:
            self.operators.setdefault(name, {})[str(said["shard"])] = said["mark"]

    def settle(self, everyone: Iterable[str]) -> None:
        """All watermarks of a batch have come: see how far each source of the job is."""
        settle([self.sources.setdefault(name, SourceMarks()) for name in sorted(everyone)])

    def mark(self, feeders: Iterable[str]) -> int:
        """The least over what feeds a lane."""
        marks = []
        for name in feeders:
            if name[0] == "s":
                marks.append(self.sources.get(name, SourceMarks()).promised)
            else:
                known = self.operators.get(name, {})
                marks.append(min(known.values()) if len(known) == self.shards else BEGINNING)
        return min(marks, default=BEGINNING)

    def said(self) -> dict[str, Any]:
        """As JSON holds it."""
        sources = {name: marks.said() for name, marks in self.sources.items()}
        return {"sources": sources, "operators": self.operators}

    @staticmethod
    def of(shards: int, said: dict[str, Any]) -> LaneMarks:
        sources = {name: SourceMarks(**marks) for name, marks in said.get("sources", {}).items()}
        return LaneMarks(shards, sources, said.get("operators", {}))
