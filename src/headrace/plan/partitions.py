"""Where records are computed: brought together, spread, gathered into bundles."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.buffers import Buffer
from headrace.plan.node import Bounded, Narrow, Wide


@dataclass(frozen=True, eq=False)
class KeyBy(Bounded):
    """All records of a key brought together, in their input order."""

    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        return "key_by"

    @property
    def detail(self) -> str:
        return ", ".join(self.keys)


@dataclass(frozen=True, eq=False)
class Shuffle(Wide):
    """Records spread evenly over the partitions."""


@dataclass(frozen=True, eq=False)
class MaxParallelism(Wide):
    """At most so many partitions from here on."""

    count: int

    @property
    def name(self) -> str:
        return "max_parallelism"

    @property
    def detail(self) -> str:
        return str(self.count)


@dataclass(frozen=True, eq=False)
class Buffered(Narrow):
    """Records gathered into bundles of another size. It changes no result."""

    policy: Buffer

    @property
    def name(self) -> str:
        return "buffer"

    @property
    def detail(self) -> str:
        return repr(self.policy)
