"""What a source is, small enough to write your own in twenty lines.

A source knows its columns and cuts itself into splits; a split is picklable, travels to a worker,
and reads its part there as Arrow record batches. This is a whole source:

    class Squares:
        schema = pa.schema([("n", pa.int64()), ("square", pa.int64())])

        def __init__(self, upto):
            self.upto = upto

        def splits(self, parallelism):
            edges = [self.upto * i // parallelism for i in range(parallelism + 1)]
            return [SquaresSplit(a, b) for a, b in zip(edges, edges[1:])]

    @dataclass
    class SquaresSplit:
        start: int
        end: int

        def read(self, columns):
            n = np.arange(self.start, self.end)
            yield pa.record_batch({"n": n, "square": n * n})

``hr.from_source(Squares(1000))`` reads it. Name the class in the entry-point group
``headrace.sources`` of your package, and ``hr.read("squares", upto=1000)`` finds it.

An unbounded source says ``bounded = False``; its splits' ``read`` goes on until the job stops, may
wait for records as long as it likes, and may yield None to say that there is nothing just now. A
source that knows its own watermarks says ``watermarks = True``, and its splits yield
``Watermark(time)`` between batches.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from headrace.errors import PlanError

BUNDLE_ROWS = 64 * 1024
"""The most records a source puts into one bundle."""


@dataclass(frozen=True)
class Watermark:
    """What a split may yield: no record of it after this one is older than ``time``.

    ``time`` is in microseconds since 1970, or a datetime.
    """

    time: int | datetime.datetime

    def __post_init__(self) -> None:
        if isinstance(self.time, bool) or not isinstance(self.time, (int, datetime.datetime)):
            raise PlanError(f"Watermark({self.time!r}): a time is a datetime or microseconds")

    @property
    def micros(self) -> int:
        if isinstance(self.time, int):
            return self.time
        moment = self.time
        if moment.tzinfo is not None:
            moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
        return (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)


@dataclass(frozen=True)
class SetAside:
    """What a split may yield: so many records could not be read, and were left out."""

    records: int


@runtime_checkable
class Split(Protocol):
    """A part of a source that one task reads."""

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The records in order, with at least the columns asked for, a bundle at a time."""


@runtime_checkable
class Source(Protocol):
    """Bounded input. ``schema`` names its columns."""

    @property
    def schema(self) -> pa.Schema: ...

    def splits(self, parallelism: int) -> Sequence[Split]:
        """The parts to read, in input order; about a multiple of ``parallelism`` if it can."""


ERRORS = pa.schema(
    [
        pa.field("file", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("record", pa.string()),
    ]
)
"""The columns of ``.errors``: records that could not be read."""


@runtime_checkable
class ErrorKeeping(Protocol):
    """A source that can tell which of its records it could not read."""

    def errors(self) -> Source | None:
        """A source of the bad records (columns ``ERRORS``), or None if it does not keep them."""


def size_of(source: Any) -> int:
    """About how many bytes a source reads; 0 if it does not say."""
    return int(getattr(source, "nbytes", 0))


@dataclass(frozen=True)
class Merged:
    """Several splits read one after the other by one task."""

    parts: tuple[Split, ...]

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            yield from part.read(columns)


def sequences(splits: Sequence[Split]) -> list[Split]:
    """Splits that are consecutive parts of one file or table put together again.

    Event time goes on from one to the next, so a watermark must not wait for all of them. A split
    says which sequence it is a part of by an attribute ``sequence``.
    """
    joined: list[Split] = []
    for _, parts in itertools.groupby(
        enumerate(splits), key=lambda item: getattr(item[1], "sequence", item[0])
    ):
        group = [split for _, split in parts]
        joined.append(group[0] if len(group) == 1 else Merged(tuple(group)))
    return joined


def at_most(splits: Sequence[Split], count: int) -> list[Split]:
    """The same records in at most ``count`` splits, in order."""
    if len(splits) <= count:
        return list(splits)
    edges = [len(splits) * i // count for i in range(count + 1)]
    return [Merged(tuple(splits[a:b])) for a, b in pairwise(edges)]
