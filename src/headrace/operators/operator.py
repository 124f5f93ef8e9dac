"""What an operator is: whatever remembers something from one bundle to the next.

An operator has three parts, and knows no engine, thread or disk, nor any clock but the time of day:

- a *partial* runs where records are read. It takes bundles in and gives *parts*: records, or
  partial results of them, for one shard of the keys and one slice of time.
- a *state*, one for each shard, takes those parts, and gives results as the watermark allows.
  What it must remember it keeps as named bundles in a *store* that it is handed.
- a *description* says what a checkpoint of it depends on.

The engines *host* operators: they move parts to the shards, tell the watermarks, keep the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa

from headrace.kernels.chain import Chain
from headrace.kernels.sharding import sharded
from headrace.operators.stores import Name, Note, Order, Store
from headrace.plan.node import Narrow
from headrace.windows import FOREVER, Window

if TYPE_CHECKING:
    from headrace.operators.shards import Shards

Result = tuple[int, pa.RecordBatch]
"""Some results, and a number (of a slice of time) by which they follow each other."""
Placed = tuple[Order, pa.RecordBatch]
"""Some results, and their place in the input."""
Emit = Callable[[int, Result | Placed], None]
"""Takes what a shard gives."""
Task = Callable[[], None]
Phases = Iterator[list[Task]]
"""Lists of tasks; those of a list may run in parallel, one list after the other."""

MANY = -(2**63)
"""The slice of a part whose records are of many slices, each of which says its own."""


@dataclass(slots=True)
class Part:
    """What a partial gives to one shard."""

    slice: int
    batch: pa.RecordBatch
    order: Order = ()
    lane: int = 0


class Partial(Protocol):
    """The part of an operator that runs where records are read; one for each of its inputs.

    Several workers may call ``add`` at once, even while what is complete is being taken.
    """

    @property
    def nbytes(self) -> int:
        """The memory it holds."""

    @property
    def groups(self) -> int:
        """About how many keys it holds."""

    @property
    def is_full(self) -> bool:
        """Whether more bundles would make no difference."""

    def add(self, batch: pa.RecordBatch, order: Order, worker: int) -> Iterable[tuple[int, Part]]:
        """Take in a bundle; the parts that go to their shards at once."""

    def seal(self, watermark: int | None) -> list[Task]:
        """Set aside what is complete at a watermark, or (None) everything.

        Its tasks are to run before ``sealed`` is asked.
        """

    def sealed(self, shard: int) -> Iterator[Part]:
        """The parts of one shard of what was sealed last; asked for once for each shard."""

    def release(self) -> None:
        """All shards have been asked."""


class State:
    """The part of an operator that holds one shard of the keys; called by one thread at a time."""

    @property
    def nbytes(self) -> int:
        """The memory it holds beside its store."""
        return 0

    @property
    def keys_held(self) -> int:
        """The keys it remembers for as long as they are not told otherwise."""
        return 0

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        """Take in parts, then go on to the watermarks of the inputs; the results there are."""
        raise NotImplementedError

    def arrived(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch | None, Any]:
        """Of an operator by arrival: take records; what comes of them, and of which row each."""
        raise NotImplementedError

    def next_timer(self) -> int:
        """When the first timer that goes by the clock goes off."""
        return FOREVER

    def rung(self, now: int) -> Iterator[Result]:
        """What comes of the timers up to a time."""
        return iter(())

    def save(self) -> None:
        """Have the store hold all that must last; called before it is read by others."""

    def promised(self, watermark: int) -> int:
        """What those downstream may be promised once the inputs have reached a watermark."""
        return watermark


class SharedState:
    """All shards of an operator in one process, where to hold them as one takes fewer steps.

    Threads call it at once. What must last is put into the states' stores when it is flushed.
    """

    @property
    def nbytes(self) -> int:
        """The memory it holds beside the stores."""
        return 0

    def add(self, lane: int, batch: pa.RecordBatch, order: Order, worker: int) -> Iterator[Result]:
        """Take in a bundle of one input; the results that come at once."""
        raise NotImplementedError

    def flush(self) -> None:
        """Have the states' stores hold all that is to last."""


Bundles = dict[Name, pa.RecordBatch]
"""What a state keeps, by name."""


@dataclass(frozen=True)
class Description:
    """What a checkpoint of an operator depends on."""

    text: str
    version: int
    keeps: tuple[pa.Field, ...] = ()
    functions: str = ""
    """The functions whose results are kept, with what tells them apart from others."""
    grouping: str = ""
    """What is grouped, where a checkpoint can take more aggregates of it."""
    aggregates: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Kind:
    """One kind of bundles that a state keeps."""

    name: str
    schema: pa.Schema
    keys: tuple[str, ...] | None
    """The columns whose values say the shard; None if it cannot be told from them."""
    slices: Window | None = None
    """What a slice of time is, where there are several."""
    pickled: bool = False
    """Whether a column has pickled Python objects: states of users' functions."""


@dataclass(frozen=True)
class Input:
    """One input of an operator: the narrow steps before it, and the columns they begin with."""

    steps: tuple[Narrow, ...]
    schema: pa.Schema


@dataclass(frozen=True)
class Hosting:
    """How a partial is run: for so many shards, by so many workers."""

    shards: int
    workers: int = 1
    in_order: bool = True
    """Whether bundles come in the order of the input."""
    stable: bool = True
    """Whether a key's shard must be the same in every process, and after a restart."""
    crowded: bool = False
    """Whether there are more workers than cores (oversubscribed): any may be preempted any time."""


class Operator:
    """A compiled operator, the same for all threads and shards."""

    of: ClassVar[type | None] = None
    """The kind of node, or of window, that it implements."""
    emits_early: ClassVar[bool] = False
    """Whether results come as soon as records do, and not only at watermarks."""
    is_shared: ClassVar[bool] = False
    """Whether one process holds all its shards as one (``shared_state``)."""
    by_arrival: bool = False
    """Whether the states take records as they come, in their order, and give what comes at once."""
    has_timers: bool = False
    by_clock: bool = False
    """Whether timers go by the time of day, there being no event time."""
    every_watermark: ClassVar[bool] = False
    """Whether any watermark may bring results, and not just those that end a window's pane."""
    version: ClassVar[int] = 1
    """Of the state: another where a new state can no longer read an old one."""

    node: Any
    """The step of the plan."""
    is_keyed: bool
    """Whether there are shards of keys; else all goes to the first."""
    chains: tuple[Chain, ...]
    """For each input, the steps that lead to it."""

    def __init__(self, node: Any, inputs: Sequence[Input], zone: str) -> None:
        raise NotImplementedError

    def part_schema(self, lane: int, slice: int) -> pa.Schema:
        """The columns of the parts of an input: its own, unless they are partial results."""
        return self.chains[lane].schema

    def partial(self, lane: int, hosting: Hosting) -> Partial:
        """A fresh partial of one input."""
        raise NotImplementedError

    def state(self, store: Store, note: Note) -> State:
        """The state of one shard, as the store and the note have it."""
        raise NotImplementedError

    def shared_state(self, shards: Shards) -> SharedState | None:
        """What takes in the bundles of all shards of one process; None if each does by itself."""
        return None

    def advances(self, before: int, now: int) -> bool:
        """Whether there may be results when a watermark moves on: at the end, unless told."""
        return now == FOREVER

    def advance(self, shards: Shards, lane: int, watermark: int, emit: Emit) -> Phases:
        """The work of a watermark on all shards of one process, as parallel tasks."""
        return advance_shards(shards, lane, watermark, emit)

    def kinds(self) -> dict[int, Kind]:
        """The bundles that a state keeps, by their kind."""
        return {}

    def adapt(self, kept: list[tuple[Note, Bundles]], before: dict[int, pa.Schema]) -> None:
        """Have the states of all shards follow from aggregates that were fewer before.

        ``kept`` are the note and the bundles of each shard, ``before`` the columns of each kind.
        """
        raise NotImplementedError

    def describe(self) -> Description:
        """What a checkpoint depends on."""
        lanes = range(len(self.chains))
        keeps = tuple(field for lane in lanes for field in self.part_schema(lane, 0))
        return Description(f"{self.node.name} {self.node.detail}", self.version, keeps)


def advance_shards(
    shards: Shards, lane: int, watermark: int, emit: Callable[[int, Result], None]
) -> Phases:
    """What most operators do at a watermark: seal the partial, then let every shard go on."""
    partial = shards.partials[lane]
    sealing = partial.seal(watermark)
    if sealing:
        yield sealing

    def task(shard: int) -> Task:
        def run() -> None:
            for result in shards.take(shard, partial.sealed(shard)):
                emit(shard, result)

        return run

    yield [task(s) for s in range(shards.count)]
    partial.release()


class PassedOn:
    """A partial that holds nothing: bundles become parts at once."""

    nbytes = groups = 0
    is_full = False

    def __init__(
        self, split: Callable[[pa.RecordBatch, Order], Iterable[tuple[int, Part]]]
    ) -> None:
        self.split = split

    def add(self, batch: pa.RecordBatch, order: Order, worker: int) -> Iterable[tuple[int, Part]]:
        return self.split(batch, order)

    def seal(self, watermark: int | None) -> list[Task]:
        return []

    def sealed(self, shard: int) -> Iterator[Part]:
        return iter(())

    def release(self) -> None:
        """Nothing is held."""


def by_keys(
    keys: Sequence[str], lane: int, hosting: Hosting, *, drop_null: bool = False
) -> PassedOn:
    """A partial that sends records to the shards of their keys as they are."""

    def split(batch: pa.RecordBatch, order: Order) -> Iterator[tuple[int, Part]]:
        for shard, part in sharded(batch, keys, hosting.shards, drop_null=drop_null):
            yield shard, Part(0, part, order, lane)

    return PassedOn(split)
