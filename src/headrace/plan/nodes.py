"""The logical plan: what the pipeline says, step by step, with the columns after each step.

A node is frozen and knows its inputs. Nodes are of two kinds: *narrow* ones turn one bundle into
one bundle, so that a chain of them is one stage; *wide* ones bring records together or apart, and
begin a new stage (RStream §IV). Nothing here knows an engine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from headrace.buffers import Buffer
from headrace.expressions import Dialect
from headrace.plan.scans import AnyStep, CountStep, OnceStep, UserStep
from headrace.plan.texts import Texts, texts_of
from headrace.windows import AnyWindow, EventClock, show_duration

if TYPE_CHECKING:
    from headrace.aggregates import Aggregate
    from headrace.io.source import Source

Named = tuple[tuple[str, exp.Expr], ...]
NATIVE = "__headrace_native__"
"""What marks a function that must be compiled."""


@dataclass(frozen=True, eq=False)
class Node:
    """A step. ``schema`` is what it gives; ``step`` its place in the pipeline, from 1."""

    schema: pa.Schema
    step: int

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @property
    def inner(self) -> tuple[Node, ...]:
        """The ends of plans within this step."""
        return ()

    @property
    def name(self) -> str:
        """The method that added this step."""
        return type(self).__name__.lower()

    @property
    def detail(self) -> str:
        """What it does, in a few words."""
        return ""

    @property
    def label(self) -> str:
        """How messages name it: ``step 3, filter``."""
        return f"step {self.step}, {self.name}"

    @property
    def needs_end(self) -> bool:
        """Whether it gives nothing before all of its input has come."""
        return False

    @property
    def without_end(self) -> str:
        """What to do instead where the input never ends."""
        return "use a window before it"

    @property
    def python(self) -> bool:
        """Whether it runs a person's function, and so holds the interpreter lock."""
        return False


def show(tree: exp.Expr) -> str:
    """An expression as a person wrote it."""
    return str(tree.sql(dialect=Dialect))


def is_same(name: str, tree: exp.Expr) -> bool:
    """Whether a column is passed on under its own name."""
    return isinstance(tree, exp.Column) and len(tree.parts) == 1 and tree.name == name


def named(name: str, tree: exp.Expr) -> str:
    """A column and what it is: ``fare``, or ``double = fare * 2``."""
    return name if is_same(name, tree) else f"{name} = {show(tree)}"


# Where records come from


@dataclass(frozen=True, eq=False)
class Read(Node):
    """Records of a source, split by split."""

    source: Source
    zone: str | None = None
    """The time zone of the pipeline; UTC unless told."""
    reopen: Any = None
    """How its files are found anew, if it is of files."""

    @property
    def name(self) -> str:
        return "read"

    @property
    def detail(self) -> str:
        return str(self.source)


@dataclass(frozen=True, eq=False)
class External(Node):
    """Records that an engine already has, such as a Spark DataFrame."""

    engine: str
    handle: Any
    zone: str | None = None

    @property
    def name(self) -> str:
        return f"from_{self.engine}"


# Narrow


@dataclass(frozen=True, eq=False)
class Narrow(Node):
    """A step that turns one bundle into one bundle."""

    input: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)


@dataclass(frozen=True, eq=False)
class Project(Narrow):
    """Columns computed from columns: select, with_columns, drop, rename, map of expressions."""

    columns: Named
    method: str = "select"

    @property
    def name(self) -> str:
        return self.method

    @property
    def detail(self) -> str:
        columns = [(n, t) for n, t in self.columns if self.method == "select" or not is_same(n, t)]
        return ", ".join(named(n, t) for n, t in columns or self.columns)


@dataclass(frozen=True, eq=False)
class Filter(Narrow):
    """Records for which a condition is true."""

    condition: exp.Expr

    @property
    def detail(self) -> str:
        return show(self.condition)


@dataclass(frozen=True, eq=False)
class Explode(Narrow):
    """A record for each element of a list: flat_map of an expression."""

    elements: exp.Expr
    column: str
    keep: tuple[str, ...]

    @property
    def name(self) -> str:
        return "flat_map"

    @property
    def detail(self) -> str:
        kept = f", keeping {', '.join(self.keep)}" if self.keep else ""
        return f"{self.column} in {show(self.elements)}{kept}"


@dataclass(frozen=True, eq=False)
class MapRows(Narrow):
    """A person's function of one record: map, flat_map, filter, inspect, for_each."""

    function: Callable[..., Any]
    method: str

    @functools.cached_property
    def texts(self) -> Texts:
        """The text of the function and of those it calls, for those who compile it."""
        return texts_of(self._functions)

    @property
    def native(self) -> bool:
        """Whether the function is to be compiled, and nothing else."""
        return any(getattr(each, NATIVE, False) for each in self._functions)

    @property
    def _functions(self) -> tuple[Callable[..., Any], ...]:
        return getattr(self.function, "row_functions", (self.function,))

    def __getstate__(self) -> dict[str, Any]:
        """With the texts: where it is sent, they may not be found."""
        return {**self.__dict__, "texts": self.texts}

    @property
    def name(self) -> str:
        return self.method

    @property
    def detail(self) -> str:
        return function_name(self.function)

    @property
    def python(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class MapMemo(MapRows):
    """A person's function of one record, whose results are remembered by what they depend on."""

    key: tuple[exp.Expr, ...] | Callable[..., Any] = ()
    size: int = 1

    @property
    def function_name(self) -> str:
        return function_name(self.function)

    @property
    def detail(self) -> str:
        key = self.key
        by = function_name(key) if callable(key) else ", ".join(map(show, key))
        return f"{self.function_name} by {by}, {self.size:,} results remembered"


@dataclass(frozen=True, eq=False)
class Condition:
    """One of the ways that records go: its name, and an expression or a function of a row."""

    label: str
    name: str
    function: exp.Expr | Callable[..., Any]

    @property
    def detail(self) -> str:
        what = self.function
        return f"{self.name}: {function_name(what) if callable(what) else show(what)}"


@dataclass(frozen=True, eq=False)
class Route(Narrow):
    """Each record with the number of the first condition that holds for it beside it."""

    conditions: tuple[Condition, ...]
    column: str
    method: str

    @property
    def name(self) -> str:
        return self.method

    @property
    def detail(self) -> str:
        return ", ".join(condition.detail for condition in self.conditions)

    @property
    def python(self) -> bool:
        return any(callable(condition.function) for condition in self.conditions)


@dataclass(frozen=True, eq=False)
class MapBatches(Narrow):
    """A person's function of a whole bundle."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return "map_batches"

    @property
    def detail(self) -> str:
        return function_name(self.function)

    @property
    def python(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class EventTime(Narrow):
    """Says which column is the event time, and how watermarks come of it.

    A watermark is the largest time seen less ``delay``, or what ``punctuation`` says, or (with
    neither) what the source itself sends. To a bounded job on Spark it changes nothing.
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

    @property
    def name(self) -> str:
        return "processing_time" if self.by_clock else "event_time"

    @property
    def detail(self) -> str:
        if self.by_clock:
            return self.column
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
class Buffered(Narrow):
    """Records gathered into bundles of another size. It changes no result."""

    policy: Buffer

    @property
    def name(self) -> str:
        return "buffer"

    @property
    def detail(self) -> str:
        return repr(self.policy)


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


@dataclass(frozen=True, eq=False)
class Custom(Node):
    """A person's own ``Transform``, with state by key; without keys there is one state."""

    input: Node
    make: Callable[[], Any]
    keys: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @property
    def name(self) -> str:
        return "transform"

    @property
    def detail(self) -> str:
        keys = f" by {', '.join(self.keys)}" if self.keys else ""
        return f"{function_name(self.make)}{keys}"

    @property
    def python(self) -> bool:
        return True


# Wide


@dataclass(frozen=True, eq=False)
class Wide(Node):
    """A step that repartitions one input."""

    input: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)


@dataclass(frozen=True, eq=False)
class GroupBy(Wide):
    """Aggregates of each key; without keys, of all records; without aggregates, the keys."""

    keys: Named
    aggregates: tuple[tuple[str, Aggregate], ...]
    method: str = "agg"
    window: AnyWindow | None = None
    clock: EventClock | None = None
    """With a window: where the records have their event time."""

    @property
    def is_ordered(self) -> bool:
        """Whether the order in which records came matters to a result."""
        return any(aggregate.is_ordered for _, aggregate in self.aggregates)

    @property
    def needs_end(self) -> bool:
        return self.window is None

    @property
    def python(self) -> bool:
        return any(aggregate.user is not None for _, aggregate in self.aggregates)

    @property
    def name(self) -> str:
        return self.method

    @property
    def detail(self) -> str:
        what = ", ".join(f"{name} = {aggregate!r}" for name, aggregate in self.aggregates)
        keys = ", ".join(named(name, tree) for name, tree in self.keys)
        text = " by ".join(part for part in (what, keys) if part)
        return text if self.window is None else f"{text} in {self.window!r}".strip()


@dataclass(frozen=True, eq=False)
class Scan(Wide):
    """A state taken through the records of each key in order; without keys, through all."""

    keys: tuple[str, ...]
    what: AnyStep
    clock: EventClock | None = None
    """Where records have their event time, if they have one."""
    by_time: bool = False
    """Whether records are taken by event time, once the watermark has passed it; else as they
    come."""
    ttl: int | None = None
    """After so much event time without a record the state of a key is forgotten."""
    kept: tuple[str, ...] = ()
    """The columns of a record that are put before what comes of it."""
    method: str = "scan"

    @property
    def name(self) -> str:
        return self.method

    @property
    def detail(self) -> str:
        order = "" if self.by_time or isinstance(self.what, OnceStep) else "in order of arrival"
        what = " ".join(part for part in (self.what.detail, order) if part)
        keys = f"by {', '.join(self.keys)}" if self.keys else ""
        return " ".join(part for part in (what, keys) if part)

    @property
    def python(self) -> bool:
        return isinstance(self.what, UserStep) or (
            isinstance(self.what, CountStep) and self.what.python
        )


@dataclass(frozen=True, eq=False)
class TopK(Wide):
    """The first ``k`` records in an order, of each key or of all."""

    k: int
    order: tuple[tuple[exp.Expr, bool], ...]
    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        return "top_k"

    @property
    def detail(self) -> str:
        keys = f" of each {', '.join(self.keys)}" if self.keys else ""
        return f"{self.k} by {_order(self.order)}{keys}"

    @property
    def needs_end(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Sort(Wide):
    """All records in an order."""

    order: tuple[tuple[exp.Expr, bool], ...]
    first: int | None = None
    """How many of them are wanted; None for all."""

    @property
    def detail(self) -> str:
        return _order(self.order)

    @property
    def needs_end(self) -> bool:
        return True

    @property
    def without_end(self) -> str:
        return "it takes input that ends"


@dataclass(frozen=True, eq=False)
class Limit(Wide):
    """The first ``count`` records."""

    count: int

    @property
    def detail(self) -> str:
        return str(self.count)

    @property
    def needs_end(self) -> bool:
        return True

    @property
    def without_end(self) -> str:
        return "it takes input that ends"


@dataclass(frozen=True, eq=False)
class KeyBy(Wide):
    """All records of a key brought together, in their input order."""

    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        return "key_by"

    @property
    def detail(self) -> str:
        return ", ".join(self.keys)

    @property
    def needs_end(self) -> bool:
        return True

    @property
    def without_end(self) -> str:
        return "it takes input that ends"


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
class Union(Node):
    """The records of several streams with the same columns."""

    parts: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.parts


@dataclass(frozen=True, eq=False)
class Join(Node):
    """Pairs of records whose keys are equal."""

    left: Node
    right: Node
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    how: str
    renamed: tuple[tuple[str, str], ...]
    """The right side's columns that come out, under which names."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    @property
    def left_names(self) -> list[str]:
        """The left side's columns that come out."""
        renamed = {new for _, new in self.renamed}
        return [name for name in self.schema.names if name not in renamed]

    def reads(self, side: int) -> set[str]:
        """The columns that it needs of a side: 0 is the left one."""
        if side == 0:
            return {*self.left_on, *self.left_names}
        return {*self.right_on, *(old for old, _ in self.renamed)}

    @property
    def detail(self) -> str:
        pairs = [
            a if a == b else f"{a} = {b}" for a, b in zip(self.left_on, self.right_on, strict=True)
        ]
        return f"{self.how} on {', '.join(pairs)}"

    @property
    def needs_end(self) -> bool:
        return True

    @property
    def without_end(self) -> str:
        return "use join_within, which pairs records that are near in time"


@dataclass(frozen=True, eq=False)
class LookUp(Narrow):
    """A join whose one side is a table that every worker has, so that records stay where they are.

    No person writes it: an engine makes it of a ``Join``.
    """

    join: Join
    side: int
    """The side that is the table: 0 is the left one."""
    table: Any
    """Gives the table in a worker: ``table.lookup(join, side)``."""

    @property
    def name(self) -> str:
        return "join"

    @property
    def detail(self) -> str:
        return self.join.detail


@dataclass(frozen=True, eq=False)
class JoinWithin(Node):
    """Pairs of records with equal keys whose event times are near: the temporal join.

    A right record matches if it is at most ``before`` earlier and ``after`` later.
    """

    left: Node
    right: Node
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    left_clock: EventClock
    right_clock: EventClock
    before: int
    after: int
    renamed: tuple[tuple[str, str], ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    @property
    def name(self) -> str:
        return "join_within"

    @property
    def detail(self) -> str:
        span = f"{show_duration(self.before)} before to {show_duration(self.after)} after"
        pairs = zip(self.left_on, self.right_on, strict=True)
        on = ", ".join(a if a == b else f"{a} = {b}" for a, b in pairs)
        return f"on {on}, from {span}"


@dataclass(frozen=True, eq=False)
class Zip(Node):
    """Pairs of records by their place: by event time, or (without clocks) in input order."""

    left: Node
    right: Node
    clocks: tuple[EventClock | None, EventClock | None]
    renamed: tuple[tuple[str, str], ...]
    """The right side's columns, under which names they come out."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    @property
    def by_time(self) -> bool:
        return None not in self.clocks

    @property
    def detail(self) -> str:
        return "by event time" if self.by_time else "in input order"

    @property
    def needs_end(self) -> bool:
        return not self.by_time

    @property
    def without_end(self) -> str:
        return "call event_time on both streams, which are then paired by it"


def _order(order: tuple[tuple[exp.Expr, bool], ...]) -> str:
    return ", ".join(show(tree) + (" descending" if down else "") for tree, down in order)


def function_name(function: Callable[..., Any]) -> str:
    """A function's name, and the line it was written on if it has none of its own."""
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    if name == "<lambda>" and code is not None:
        return f"a lambda at {code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"
    return str(name)
