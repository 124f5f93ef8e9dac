"""``join``: pairs of records with equal keys, of inputs that end.

One side is put into a hash table, the right one or, where it is known to be much smaller, the
left. Threads share the table: it is made when its side has ended, and what comes of the other side
is looked up in it bundle by bundle.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import ClassVar

import pyarrow as pa

from headrace.kernels.chain import compile_chain
from headrace.kernels.join import LEFT, RIGHT, Lookup
from headrace.operators.operator import (
    Emit,
    Hosting,
    Input,
    Operator,
    PassedOn,
    Phases,
    Result,
    SharedState,
    State,
    Task,
)
from headrace.operators.ordering import in_pieces, together
from headrace.operators.shards import Shards
from headrace.operators.stores import Note, Order, Store
from headrace.plan.estimate import estimated_bytes
from headrace.plan.joins import Join
from headrace.windows import FOREVER

_MUCH_SMALLER = 2


def table_side(node: Join) -> int:
    """The side whose records are put into a table."""
    left, right = estimated_bytes(node.left), estimated_bytes(node.right)
    known = left is not None and right is not None
    return LEFT if known and left * _MUCH_SMALLER <= right else RIGHT  # type: ignore[operator]


class EqualKeys(Operator):
    """Pairs of records with equal keys, when one of the inputs has ended."""

    of: ClassVar[type | None] = Join
    is_keyed = False

    def __init__(self, node: Join, inputs: Sequence[Input], zone: str) -> None:
        self.node = node
        self.chains = tuple(
            compile_chain(i.steps, i.schema, node.reads(side), zone)
            for side, i in enumerate(inputs)
        )
        self.side = table_side(node)

    def partial(self, lane: int, hosting: Hosting) -> PassedOn:
        return PassedOn(lambda batch, order: ())

    def state(self, store: Store, note: Note) -> State:
        return State()

    def shared_state(self, shards: Shards) -> JoinShared:
        return JoinShared(self)

    def advance(self, shards: Shards, lane: int, watermark: int, emit: Emit) -> Phases:
        assert isinstance(shards.shared, JoinShared)
        return shards.shared.ended(lane, emit)


class JoinShared(SharedState):
    """All records of a join, and all that it remembers; a checkpoint takes no part that waits for
    an end.

    Those of the table's side are gathered until it has ended, those of the other until there is
    the table.
    """

    def __init__(self, operator: EqualKeys) -> None:
        self.operator = operator
        self.gathered: list[tuple[Order, pa.RecordBatch]] = []
        self.waiting: list[tuple[Order, pa.RecordBatch]] = []
        self.lookup: Lookup | None = None
        self.lock = threading.Lock()
        self.left = 2
        """Until nothing more can be looked up: the end of the other side, and what waited."""

    @property
    def nbytes(self) -> int:
        held = sum(int(b.nbytes) for _, b in [*self.gathered, *self.waiting])
        return held + (0 if self.lookup is None else self.lookup.nbytes)

    def add(self, lane: int, batch: pa.RecordBatch, order: Order, worker: int) -> Iterator[Result]:
        if lane == self.operator.side:
            self.gathered.append((order, batch))
            return
        with self.lock:
            if self.lookup is None:
                self.waiting.append((order, batch))
                return
        yield from enumerate(self.lookup.join(batch))

    def ended(self, lane: int, emit: Emit) -> Phases:
        """One of the inputs has ended."""
        if lane == self.operator.side:
            yield [self._build]
            yield [self._task(order, batch, emit) for order, batch in self.waiting]
            self.waiting.clear()
        with self.lock:
            self.left -= 1
            last = self.left == 0
        if last:
            yield [lambda: self._finish(emit)]

    def _build(self) -> None:
        operator = self.operator
        schema = operator.chains[operator.side].schema
        batch = together(self.gathered, schema, operator.node.label)
        self.gathered.clear()
        lookup = Lookup(operator.node, operator.side, batch)
        with self.lock:
            self.lookup = lookup

    def _task(self, order: Order, batch: pa.RecordBatch, emit: Emit) -> Task:
        def run() -> None:
            assert self.lookup is not None
            for i, joined in enumerate(self.lookup.join(batch)):
                emit(0, ((*order, i), joined))

        return run

    def _finish(self, emit: Emit) -> None:
        """What comes of the table's own records, after all others."""
        assert self.lookup is not None
        rest = self.lookup.rest()
        self.lookup = None
        for number, piece in in_pieces(rest) if rest is not None else ():
            emit(0, ((FOREVER, number), piece))
