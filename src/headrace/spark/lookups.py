"""Joins without an exchange: a small side becomes a table that every Python worker has.

Records of the other side are looked up where they are read, and what follows the join, up to the
next exchange, runs there too. Spark's own joins take what is larger, or not known to be small.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.plan.estimate import estimated_bytes
from headrace.plan.joins import Join, LookUp
from headrace.plan.order import Limit, Sort, TopK
from headrace.plan.stages import Stage

if TYPE_CHECKING:
    from headrace.kernels.join import Lookup

SMALL = 64 << 20
"""About the most bytes of a side that is sent to every worker."""
SENT = 8 << 20
"""The same where a worker may be on another machine."""
_FEW = 10_000
"""So many records of an order are found by partials, and more by Spark's sort."""


def most_bytes(master: str) -> int:
    """The most bytes of a side that is sent to the workers of a Spark."""
    return SMALL if is_local(master) else SENT


def is_local(master: str) -> bool:
    """Whether the workers of a Spark see this machine's files."""
    return master.startswith("local")


def table_side(join: Join, most: int) -> int | None:
    """The side that is small enough to be a table, if there is one; 0 is the left one.

    Only records of the other side come out by themselves: nobody sees all workers' matches.
    """
    allowed = {"inner": (1, 0), "left": (1,), "semi": (1,), "anti": (1,), "right": (0,)}
    sizes = {side: estimated_bytes(join.inputs[side]) for side in allowed.get(join.how, ())}
    known = [(size, -side) for side, size in sizes.items() if size is not None and size <= most]
    return -min(known)[1] if known else None


_HELD: dict[str, Lookup] = {}


@dataclass(frozen=True)
class WorkerTable:
    """A table on its way to the workers, in a file on this machine or as it is."""

    job: str
    key: str
    schema: pa.Schema
    data: str | bytes

    def lookup(self, join: Join, side: int) -> Lookup:
        """The table in a worker, made once; those of the last job are forgotten."""
        from headrace.kernels.join import Lookup

        name = f"{self.job}-{self.key}"
        if name not in _HELD:
            for other in [n for n in _HELD if not n.startswith(self.job)]:
                del _HELD[other]
            _HELD[name] = Lookup(join, side, self._read())
        return _HELD[name]

    def _read(self) -> pa.RecordBatch:
        source = pa.memory_map(self.data) if isinstance(self.data, str) else self.data
        with pa.ipc.open_file(source) as file:
            batches = [file.get_batch(i) for i in range(file.num_record_batches)]
        if not batches:
            return pa.RecordBatch.from_pylist([], self.schema)
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def packed(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Buffer:
    """Records as the bytes of an Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


@dataclass
class Lookups:
    """Rewrites the stages of a plan so that joins with a small side have none of their own."""

    most: int
    shared: set[int]
    """Heads that several stages read: those are computed once, and stay."""
    made_by_spark: Callable[[Stage], bool]
    collect: Callable[[Stage, str, str], Any]
    """Computes a stage now, for the table of a job with a key."""
    job: str = field(default_factory=lambda: uuid.uuid4().hex)
    known: dict[int, Stage] = field(default_factory=dict)

    def rewritten(self, stage: Stage) -> Stage:
        if id(stage) not in self.known:
            self.known[id(stage)] = self._rewritten(stage)
        return self.known[id(stage)]

    def _rewritten(self, stage: Stage) -> Stage:
        inputs = tuple(map(self.rewritten, stage.inputs))
        head = stage.head
        if id(head) not in self.shared:
            if isinstance(head, Join):
                side = self.side_of(head, inputs)
                if side is not None:
                    return self._looked_up(stage, head, inputs, side)
            top = first_of_all(stage, inputs, self.made_by_spark)
            if top is not None:
                return top
        same = all(a is b for a, b in zip(stage.inputs, inputs, strict=True))
        return stage if same else replace(stage, inputs=inputs)

    def side_of(self, join: Join, inputs: tuple[Stage, ...]) -> int | None:
        side = table_side(join, self.most)
        return None if side is None or self.made_by_spark(inputs[1 - side]) else side

    def _looked_up(self, stage: Stage, join: Join, inputs: tuple[Stage, ...], side: int) -> Stage:
        other = inputs[1 - side]
        table = self.collect(inputs[side], self.job, str(len(self.known)))
        last = other.steps[-1] if other.steps else other.head
        step = LookUp(join.schema, join.step, last, join, side, table)
        return Stage(other.head, (*other.steps, step, *stage.steps), other.inputs)


def first_of_all(
    stage: Stage, inputs: tuple[Stage, ...], made_by_spark: Callable[[Stage], bool]
) -> Stage | None:
    """A few first records of an order, by partials where records are read."""
    head = stage.head
    if not isinstance(head, Limit) or not 0 < head.count <= _FEW:
        return None
    (before,) = inputs
    order = before.head
    if not isinstance(order, Sort) or before.steps or made_by_spark(before.inputs[0]):
        return None
    top = TopK(head.schema, order.step, order.input, head.count, order.order, ())
    return Stage(top, stage.steps, before.inputs)
