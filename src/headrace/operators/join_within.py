"""``join_within``: pairs of records with equal keys that are near in time (StreamBox §5.3)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

import pyarrow as pa

from headrace.kernels.chain import compile_chain
from headrace.kernels.sharding import without_null
from headrace.kernels.temporal import Kept, TemporalJoin, span_of
from headrace.kernels.window import event_times
from headrace.operators.operator import (
    Hosting,
    Input,
    Kind,
    Operator,
    Part,
    PassedOn,
    Phases,
    Result,
    SharedState,
    State,
    by_keys,
)
from headrace.operators.shards import Shards
from headrace.operators.stores import Note, Order, Retained, Store
from headrace.plan.joins import JoinWithin
from headrace.windows import BEGINNING

_MANY_SCATTERED = 1 << 20
"""Records that may be set aside to be joined together."""


class NearInTime(Operator):
    """The temporal join: a record's pairs come with whichever of the two arrives last."""

    of: ClassVar[type | None] = JoinWithin
    emits_early: ClassVar[bool] = True
    is_shared: ClassVar[bool] = True
    every_watermark: ClassVar[bool] = True
    is_keyed = True

    version: ClassVar[int] = 2

    def __init__(self, node: JoinWithin, inputs: Sequence[Input], zone: str) -> None:
        self.node = node
        self.chains = tuple(compile_chain(i.steps, i.schema, None, zone) for i in inputs)
        self.keys = (node.left_on, node.right_on)
        self.clocks = (node.left_clock, node.right_clock)

    def partial(self, lane: int, hosting: Hosting) -> PassedOn:
        return by_keys(self.keys[lane], lane, hosting, drop_null=True)

    def state(self, store: Store, note: Note) -> NearState:
        return NearState(self, store, note)

    def kinds(self) -> dict[int, Kind]:
        span = span_of(self.node)
        sides = zip(("left", "right"), self.chains, self.keys, strict=True)
        return {i: Kind(f"{n} side", c.schema, k, span) for i, (n, c, k) in enumerate(sides)}

    def shared_state(self, shards: Shards) -> NearShared:
        return NearShared(self, shards)

    def advances(self, before: int, now: int) -> bool:
        return True

    def advance(
        self, shards: Shards, lane: int, watermark: int, emit: Callable[[int, Result], None]
    ) -> Phases:
        """Join the scattered bundles, then forget what the watermark rules out: one task."""
        shared = shards.shared
        assert isinstance(shared, NearShared)

        def task() -> None:
            for pair in shared.advance(shards.watermarks):
                emit(0, (0, pair))

        return iter([[task]])


class NearState(State):
    """The records of one shard of keys that may still find a partner, by slices of time.

    Those of a slice are loaded when a record of the other side may match them, and stay.
    """

    def __init__(self, operator: NearInTime, store: Store, note: Note) -> None:
        self.operator, self.note = operator, note
        self.join = TemporalJoin(operator.node)
        self.join.watermarks = list(note.get("watermarks", [BEGINNING, BEGINNING]))
        chains = operator.chains
        self.sides = [
            Retained(store, note, i, c.schema, pa.concat_batches) for i, c in enumerate(chains)
        ]
        self.unloaded = [set(side.numbers()) for side in self.sides]
        """The slices that are in the store alone."""

    @property
    def nbytes(self) -> int:
        return self.join.nbytes

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        arrived = [(part.lane, part.batch) for part in parts if part.batch.num_rows]
        for lane, batch in arrived:
            self._load(lane, batch)
        for lane, batch in arrived:
            pairs, kept = self.join.add(lane, batch)
            first = self.join.first_slice(lane)
            for _, slice, rows in (piece for bundle in kept for piece in bundle.pieces(first)):
                self._retain(lane, slice, rows)
            for pair in pairs:
                yield 0, pair
        self.forget(watermarks)

    def _load(self, lane: int, batch: pa.RecordBatch) -> None:
        """Have in memory the slices of the other side that a bundle may match."""
        other, join = 1 - lane, self.join
        if not self.unloaded[other]:
            return
        times = event_times(batch, self.operator.clocks[lane])
        low, high = join.reach[lane]
        first = join.span.pane_at(int(times.min()) - low)
        last = join.span.pane_at(int(times.max()) + high)
        for slice in [n for n in self.unloaded[other] if first <= n <= last]:
            self.unloaded[other].remove(slice)
            for _, stored in self.sides[other].load(slice):
                join.load(other, slice, stored)

    def _retain(self, lane: int, slice: int, rows: pa.RecordBatch) -> None:
        """Keep some rows that the join has taken in."""
        self.sides[lane].append(slice, rows)
        if slice in self.unloaded[lane]:  # most of it is in the store alone, and so is this now
            self.join.drop(lane, slice)

    def forget(self, watermarks: Sequence[int]) -> None:
        """Go on to the watermarks of the inputs."""
        join = self.join
        for side in (0, 1):
            if watermarks[side] <= join.watermarks[side]:
                continue
            join.forget(side, watermarks[side])
            other = 1 - side
            first = join.first_slice(other)
            for slice in [n for n in self.sides[other].numbers() if n < first]:
                self.sides[other].drop(slice)
                self.unloaded[other].discard(slice)
        self.note["watermarks"] = join.watermarks


class NearShared(SharedState):
    """The records of all shards of a process in one join; the states keep what is to last.

    Where there is a checkpoint, bundles are put into their stores before it is written.
    """

    def __init__(self, operator: NearInTime, shards: Shards) -> None:
        self.operator = operator
        self.states = [state for state in shards.states if isinstance(state, NearState)]
        self.join = TemporalJoin(operator.node, shards.count, crowded=shards.hosting.crowded)
        self.is_kept, self.workers = shards.is_kept, shards.hosting.workers
        self.kept: deque[Kept] = deque()
        self.scattered: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
        """Bundles of each side whose times are far apart. They are joined together, at the next
        watermark or when they are many: one by one, each would touch every slice of time."""
        self.scattered_rows = 0
        self.joining = threading.Lock()
        """Held while scattered bundles are joined: nothing may be forgotten meanwhile."""
        self.lock = threading.Lock()
        for shard, state in enumerate(self.states):
            self.join.watermarks = list(state.join.watermarks)
            for lane, side in enumerate(state.sides):
                for slice in side.numbers():
                    for _, stored in side.load(slice):
                        self.join.load(lane, slice, stored, shard)

    @property
    def nbytes(self) -> int:
        waiting = sum(int(kept.batch.nbytes) for kept in list(self.kept))
        waiting += sum(int(batch.nbytes) for side in self.scattered for batch in list(side))
        return self.join.nbytes + waiting

    def add(self, lane: int, batch: pa.RecordBatch, order: Order, worker: int) -> Iterator[Result]:
        batch = without_null(batch, self.operator.keys[lane])
        if batch.num_rows and not self.is_kept and self.join.is_scattered(lane, batch):
            with self.lock:
                self.scattered[lane].append(batch)
                self.scattered_rows += batch.num_rows
                are_many = self.scattered_rows >= _MANY_SCATTERED
            if are_many:
                with self.joining:
                    pairs = self._join_scattered()
                for pair in pairs:
                    yield 0, pair
        elif batch.num_rows:
            # Each worker begins far from the others, so that they seldom meet at a lock.
            first = worker * self.join.parts // self.workers
            pairs, kept = self.join.add(lane, batch, first)
            if self.is_kept:
                self.kept.extend(kept)
            for pair in pairs:
                yield 0, pair

    def _join_scattered(self) -> list[pa.RecordBatch]:
        """The pairs of the bundles that were set aside. ``joining`` is held."""
        with self.lock:
            scattered, self.scattered, self.scattered_rows = self.scattered, ([], []), 0
        pairs: list[pa.RecordBatch] = []
        for side, batches in enumerate(scattered):
            if batches:
                pairs += self.join.add(side, pa.concat_batches(batches))[0]
        return pairs

    def advance(self, watermarks: Sequence[int]) -> list[pa.RecordBatch]:
        """Go on to the watermarks of the inputs; the pairs of scattered bundles before them."""
        with self.joining:
            # Read first: a bundle set aside from now on may still need what these would drop.
            reached = list(watermarks)
            pairs = self._join_scattered()
            with self.lock:
                for side in (0, 1):
                    if reached[side] > self.join.watermarks[side]:
                        self.join.forget(side, reached[side])
        return pairs

    def flush(self) -> None:
        with self.lock:
            join = self.join
            first = [join.first_slice(side) for side in (0, 1)]
            pieces: dict[tuple[int, int, int], list[pa.RecordBatch]] = {}
            while self.kept:
                kept = self.kept.popleft()
                for shard, slice, rows in kept.pieces(first[kept.side]):
                    pieces.setdefault((shard, kept.side, slice), []).append(rows)
            for (shard, side, slice), batches in pieces.items():
                self.states[shard].sides[side].extend(slice, batches)
            for state in self.states:
                state.forget(join.watermarks)
