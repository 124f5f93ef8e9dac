"""Records at a steady rate, for demonstrations, load and tests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headrace.errors import PlanError
from headrace.io.offsets import OffsetSource, Positions, at_most_at_once, most_at_once
from headrace.io.source import BUNDLE_ROWS, Split
from headrace.sizes import is_whole
from headrace.types import TIMESTAMP

_SMALL_STEP = 100_000
SCHEMA = pa.schema([pa.field("at", TIMESTAMP), pa.field("value", pa.int64())])


@dataclass(frozen=True)
class RateSource(OffsetSource):
    """``per_second`` records a second, each with its number and the moment it was due.

    A position is how many records a split has given, and when the first was due; so a record is
    the same whenever it is read, and a job that was stopped catches up with what it missed.
    """

    per_second: int
    count: int
    upto: int | None = None
    limit: int | None = None
    schema = SCHEMA

    @staticmethod
    def open(
        per_second: int, *, splits: int = 1, upto: int | None = None, limit: int | None = None
    ) -> RateSource:
        for name, value in (("per_second", per_second), ("splits", splits), ("upto", upto)):
            if value is None and name == "upto":
                continue
            if not is_whole(value):
                raise PlanError(f"rate: {name}={value!r} is not a positive number")
        return RateSource(per_second, splits, upto, most_at_once(limit, "rate"))

    def __str__(self) -> str:
        upto = "" if self.upto is None else f", {self.upto:,} in all"
        splits = f" in {self.count} splits" if self.count > 1 else ""
        return f"{self.per_second:,} records a second{splits}{upto}"

    def initial(self) -> Positions:
        now = time.time_ns() // 1000
        return {str(i): [0, now] for i in range(self.count)}

    def in_small_steps(self) -> RateSource:
        return replace(self, limit=at_most_at_once(self.limit, _SMALL_STEP * self.count))

    def _share(self, split: int, total: int) -> int:
        """How many of the first ``total`` records are a split's: every ``count``-th is."""
        return (total - split + self.count - 1) // self.count

    def available(self, since: Positions) -> Positions:
        found = {}
        for name, (given, start) in since.items():
            due = max(0, (time.time_ns() // 1000 - start) * self.per_second // 10**6)
            if self.upto is not None:
                due = min(due, self.upto)
            found[name] = [max(given, self._share(int(name), due)), start]
        return found

    def step(self, since: Positions, end: Positions) -> Positions:
        if self.limit is None:
            return end
        most = max(1, self.limit // self.count)
        return {n: [min(upto, since[n][0] + most), start] for n, (upto, start) in end.items()}

    def between(
        self, start: Positions, end: Positions, parallelism: int
    ) -> Sequence[tuple[str, Split]]:
        return [
            (name, _Numbers(self, int(name), start.get(name, [0, 0])[0], upto, begun))
            for name, (upto, begun) in end.items()
            if upto > start.get(name, [0, 0])[0]
        ]

    def ended(self, at: Positions) -> bool:
        if self.upto is None:
            return False
        return all(n >= self._share(int(name), self.upto) for name, (n, _) in at.items())


@dataclass(frozen=True)
class _Numbers(Split):
    of: RateSource
    split: int
    first: int
    end: int
    begun: int

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for start in range(self.first, self.end, BUNDLE_ROWS):
            mine = np.arange(start, min(start + BUNDLE_ROWS, self.end))
            values = mine * self.of.count + self.split
            times = self.begun + values * 10**6 // self.of.per_second
            yield pa.RecordBatch.from_arrays(
                [pa.array(times).cast(TIMESTAMP), pa.array(values)], schema=SCHEMA
            )
