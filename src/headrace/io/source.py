"""What a source is, small enough to write your own in twenty lines.

A source knows its columns and cuts itself into splits; a split is picklable, travels to a worker,
and reads its part there as Arrow record batches. This is a whole source:

    class Squares(Source):
        schema = pa.schema([("n", pa.int64()), ("square", pa.int64())])

        def __init__(self, upto):
            self.upto = upto

        def splits(self, parallelism):
            edges = [self.upto * i // parallelism for i in range(parallelism + 1)]
            return [SquaresSplit(a, b) for a, b in zip(edges, edges[1:])]

    @dataclass
    class SquaresSplit(Split):
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
``Watermark(time)`` between batches. ``nbytes`` is about how much there is to read, and ``errors``
gives the records that could not be read, where they are kept.

A class that has ``schema`` and ``splits`` without being a ``Source`` will do too, with any of the
others it likes, and so will a split that has ``read``.
"""

from __future__ import annotations

import datetime
import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from headrace.errors import PlanError
from headrace.windows import micros_of

if TYPE_CHECKING:
    from sqlglot import exp

BUNDLE_ROWS = 64 * 1024
"""The most records a source puts into one bundle."""
SLICE_ROWS = 4 * BUNDLE_ROWS
"""The same of records that are in memory as columns, of which engines take as many as they want."""


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
        return micros_of(self.time)


@dataclass(frozen=True)
class SetAside:
    """What a split may yield: so many records could not be read, and were left out."""

    records: int


class Split(ABC):
    """A part of a source that one task reads. It is picklable, and travels to a worker."""

    sequence: Any = None
    """What it is a part of, such as a file: event time goes on from one part to the next."""

    @abstractmethod
    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        """The records in order, with at least the columns asked for, a bundle at a time."""

    def with_codes(self, names: Collection[str]) -> Split:
        """The split, which gives some text columns coded if it can."""
        return self


class Source(ABC):
    """Where records come from. What is typed Any may be a property in a class of your own."""

    schema: pa.Schema
    """Its columns and their types."""
    bounded: Any = True
    """Whether it ends."""
    watermarks: Any = False
    """Whether its splits yield watermarks."""
    nbytes: Any = 0
    """About how many bytes it reads; 0 if it does not say."""
    coded: Any = frozenset()
    """Text columns that its splits can give coded, as Arrow's dictionaries."""
    conditions: Any = ()
    """What all records meet that its splits give."""

    @abstractmethod
    def splits(self, parallelism: int) -> Sequence[Split]:
        """The parts to read, in input order; about a multiple of ``parallelism`` if it can."""

    def filtered(self, condition: exp.Expr, zone: str) -> Source | None:
        """The source with one more of its ``conditions``, or None if it cannot decide that.

        Only what cannot fail, and only where that is faster than a step after it.
        """
        return None

    def with_memory(self, nbytes: int) -> Source:
        """The source, whose splits hold at most about ``nbytes`` at a time if they can."""
        return self

    def errors(self) -> Source | None:
        """A source of its bad records (columns ``ERRORS``), or None if it does not keep them."""
        return None


@runtime_checkable
class SourceLike(Protocol):
    """The least that ``as_source`` takes for a source."""

    @property
    def schema(self) -> pa.Schema: ...

    def splits(self, parallelism: int) -> Sequence[Any]: ...


def as_source(thing: Any) -> Source | None:
    """A source as it is, an object that only looks like one as a source, None for anything else.

    Called where a source enters; what comes after relies on the attributes of ``Source``.
    """
    if not isinstance(thing, SourceLike):
        return None
    return thing if isinstance(thing, Source) else _Adapted(thing)


@dataclass(frozen=True, eq=False)
class _Adapted(Source):
    """An object with a schema and splits; what it lacks is a source's own."""

    thing: Any

    @property
    def schema(self) -> pa.Schema:
        return self.thing.schema

    @property
    def bounded(self) -> bool:
        return bool(getattr(self.thing, "bounded", Source.bounded))

    @property
    def watermarks(self) -> bool:
        return bool(getattr(self.thing, "watermarks", Source.watermarks))

    @property
    def nbytes(self) -> int:
        return int(getattr(self.thing, "nbytes", Source.nbytes))

    def splits(self, parallelism: int) -> Sequence[Split]:
        splits: Sequence[Split] = self.thing.splits(parallelism)
        return splits

    def errors(self) -> Source | None:
        return as_source(self.thing.errors()) if hasattr(self.thing, "errors") else None

    def __str__(self) -> str:
        return str(self.thing)


ERRORS = pa.schema(
    [
        pa.field("file", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("record", pa.string()),
    ]
)
"""The columns of ``.errors``: records that could not be read."""


def as_split(thing: Any) -> Split:
    """A split as it is, or an object that only looks like one as a split."""
    return thing if isinstance(thing, Split) else _AdaptedSplit(thing)


@dataclass(frozen=True, eq=False)
class _AdaptedSplit(Split):
    """An object with ``read``."""

    thing: Any

    @property
    def sequence(self) -> Any:
        return getattr(self.thing, "sequence", Split.sequence)

    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        records: Iterator[Any] = self.thing.read(columns)
        return records


@dataclass(frozen=True)
class Merged(Split):
    """Several splits read one after the other by one task."""

    parts: tuple[Split, ...]

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            yield from part.read(columns)


def sequences(splits: Sequence[Split]) -> list[Split]:
    """Splits that are consecutive parts of one file or table put together again.

    Event time goes on from one to the next, so a watermark must not wait for all of them.
    """

    def part_of(item: tuple[int, Split]) -> tuple[bool, Any]:
        number, split = item
        return (False, number) if split.sequence is None else (True, split.sequence)

    joined: list[Split] = []
    for _, parts in itertools.groupby(enumerate(map(as_split, splits)), key=part_of):
        group = [split for _, split in parts]
        joined.append(group[0] if len(group) == 1 else Merged(tuple(group)))
    return joined


def at_most(splits: Sequence[Split], count: int) -> list[Split]:
    """The same records in at most ``count`` splits, in order."""
    if len(splits) <= count:
        return list(splits)
    edges = [len(splits) * i // count for i in range(count + 1)]
    return [Merged(tuple(splits[a:b])) for a, b in pairwise(edges)]
