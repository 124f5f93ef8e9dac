"""Sources that know how far they have been read, and can read any part again.

Such a source has *splits* by name and a *position* in each, anything that JSON can hold. An engine
asks where the splits end now, and reads what lies between two positions; it keeps the positions,
so that a job that was killed reads the same records again. This is a whole source:

    class Counter(OffsetSource):
        schema = pa.schema([("n", pa.int64())])

        def initial(self):
            return {"all": 0}

        def latest(self, since):
            return {"all": since["all"] + 1000}

        def between(self, start, end, parallelism):
            return [("all", Numbers(start["all"], end["all"]))]

``Numbers`` is a split as in ``headrace.io.source``: its ``read`` yields record batches and ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.errors import PlanError
from headrace.io.source import Source, Split
from headrace.sizes import is_whole

log = logging.getLogger("headrace")
Positions = dict[str, Any]
ANSWER = 10.0
"""How many seconds a server may take to answer when a job starts."""
AWAY = "the server cannot be reached; the job goes on when it can"
"""How progress shows a source whose server is away."""
_POLL = 0.01
"""How long an engine without batches of its own waits before it asks again, in seconds."""


class OffsetSource(Source):
    """What a source of positions is; on the box, each of its splits is followed by a thread."""

    bounded = False

    def initial(self) -> Positions:
        """Where each split begins."""
        raise NotImplementedError

    def latest(self, since: Positions) -> Positions:
        """Where each split ends now, or as far from ``since`` as may be read at once."""
        return self.step(since, self.available(since))

    def available(self, since: Positions) -> Positions:
        """Where each split ends now, however far that is."""
        return self.latest(since)

    def step(self, since: Positions, end: Positions) -> Positions:
        """As far from ``since`` towards ``end`` as may be read at once."""
        return end

    def between(
        self, start: Positions, end: Positions, parallelism: int
    ) -> Sequence[tuple[str, Split]]:
        """The records between positions: splits that end, each with the name it is a part of."""
        raise NotImplementedError

    def ended(self, at: Positions) -> bool:
        """Whether nothing will ever come after some positions."""
        return False

    @property
    def is_away(self) -> bool:
        """Whether it could not be reached when last asked; that is not silence."""
        return False

    def keep_in(self, folder: str) -> None:
        """Told before anything else where to keep what it must not forget, if it must."""

    def forget(self, upto: Positions) -> None:
        """Told that nothing before some positions will be asked for again."""

    def close(self) -> None:
        """Told that the job is over: give back what it holds, a connection for one."""

    def identity(self) -> str:
        """What a checkpoint remembers it by: positions are of no use with another input."""
        return str(self)

    def more_after_end(self, folder: str) -> str:
        """What has come since the input ended, in words; ``folder`` is that of ``keep_in``."""
        return ""

    def splits(self, parallelism: int) -> list[Split]:
        """Each split on its own, for an engine that reads on and on."""
        return [Followed(self.only(name), name, at) for name, at in self.initial().items()]

    def only(self, split: str) -> OffsetSource:
        """The same with one split, where that is cheaper to ask."""
        return self

    def with_memory(self, nbytes: int) -> OffsetSource:
        return self

    def in_small_steps(self) -> OffsetSource:
        """The same for an engine that can go on only from where a step ends."""
        return self


class ServerSource(OffsetSource):
    """A source that a server has, which may be away for a while.

    Its connection and what else begins with ``_`` are made where they are used, and do not travel.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def unreachable(self) -> type[Exception]:
        """What is raised when the server cannot be reached."""
        raise NotImplementedError

    @property
    def is_away(self) -> bool:
        return bool(self.__dict__.get("_away"))

    def asked(self, since: Positions, ask: Callable[[], Positions]) -> Positions:
        """What the server says; where it was, and a word of warning, if it is away."""
        try:
            found = ask()
        except self.unreachable() as error:
            if not self.is_away:
                log.warning("%s cannot be reached, waiting for it: %s", self, error)
            object.__setattr__(self, "_away", True)
            return since
        object.__setattr__(self, "_away", False)
        return found


@dataclass(frozen=True)
class Followed(Split):
    """One split of a source, read on and on."""

    source: OffsetSource
    name: str
    start: Any
    only_now: bool = False
    """Whether to stop where it ends when reading begins."""

    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        source, name, at = self.source, self.name, {self.name: self.start}
        while True:
            before, end = at, {name: source.available(at).get(name, at[name])}
            while at != end:
                to = {name: source.step(at, end)[name]}
                if to == at:
                    break
                for _, split in source.between(at, to, 1):
                    yield from split.read(columns)
                yield Reached(to[name])
                at = to
            if self.only_now:
                yield UpToDate()
                return
            if at == before:
                if source.ended(at):
                    return
                time.sleep(_POLL)
                yield None


@dataclass(frozen=True)
class Reached:
    """What a split that is followed yields: all records up to a position have come."""

    position: Any


@dataclass(frozen=True)
class UpToDate:
    """What a split yields last that was to be read only up to where it ended."""


@dataclass(frozen=True)
class Once(OffsetSource):
    """A source that ends, as one that has all of its records at once."""

    source: Source

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    def with_memory(self, nbytes: int) -> Once:
        return replace(self, source=self.source.with_memory(nbytes))

    def __str__(self) -> str:
        return str(self.source)

    def initial(self) -> Positions:
        return {"all": 0}

    def latest(self, since: Positions) -> Positions:
        return {"all": 1}

    def between(
        self, start: Positions, end: Positions, parallelism: int
    ) -> Sequence[tuple[str, Split]]:
        if start == end:
            return []
        return [("all", split) for split in self.source.splits(parallelism)]

    def ended(self, at: Positions) -> bool:
        return bool(at["all"])


def replayable(source: Source) -> OffsetSource:
    """A source as one with positions, or a sentence that says why it is none."""
    if isinstance(source, OffsetSource):
        return source
    if source.bounded:
        return Once(source)
    raise PlanError(
        f"{source} has no positions to come back to, so it cannot be read again after a failure; "
        "make it a headrace.io.offsets.OffsetSource, or pass on='box' without a checkpoint"
    )


def at_most_at_once(limit: int | None, most: int) -> int:
    """A limit on what is read at once, and not more than so much."""
    return most if limit is None else min(limit, most)


def most_at_once(limit: Any, what: str) -> int | None:
    """A checked limit on what is read at once; None for no limit."""
    if limit is not None and not is_whole(limit):
        raise PlanError(f"{what}: limit={limit!r} is not a positive number")
    return limit
