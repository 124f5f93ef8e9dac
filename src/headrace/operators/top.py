"""``top_k``: the first records in an order, of each key or of all, of input that ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar

import pyarrow as pa

from headrace.kernels.aggregate import by_shard
from headrace.kernels.chain import compile_chain
from headrace.kernels.expressions import Kernel, compile_expression, evaluate
from headrace.kernels.order import Top
from headrace.operators.operator import Hosting, Input, Operator, Part, Result, State, Task
from headrace.operators.ordering import in_pieces
from headrace.operators.stores import Note, Order, Retained, Store
from headrace.plan.order import TopK
from headrace.windows import FOREVER


class TopRecords(Operator):
    """The first ``k`` records in an order, of each key or of all."""

    of: ClassVar[type | None] = TopK

    def __init__(self, node: TopK, inputs: Sequence[Input], zone: str) -> None:
        self.node = node
        self.chains = (compile_chain(inputs[0].steps, inputs[0].schema, None, zone),)
        self.schema = self.chains[0].schema
        self.is_keyed = bool(node.keys)
        kernels = [(compile_expression(t, self.schema, zone), down) for t, down in node.order]
        self.order = [(_evaluates(kernel), down) for kernel, down in kernels]

    def top(self) -> Top:
        return Top(self.schema, self.node.k, self.order, self.node.keys)

    def partial(self, lane: int, hosting: Hosting) -> TopPartial:
        return TopPartial(self, hosting)

    def state(self, store: Store, note: Note) -> TopState:
        return TopState(self, store, note)


def _evaluates(kernel: Kernel) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda batch: evaluate(kernel, batch)


class TopPartial:
    """The top records that each worker has seen."""

    is_full = False

    def __init__(self, operator: TopRecords, hosting: Hosting) -> None:
        self.operator, self.hosting = operator, hosting
        self.tops: dict[int, Top] = {}
        self.parts: dict[int, list[pa.RecordBatch]] = {}

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for top in list(self.tops.values()) for b in list(top.pending))

    groups = 0

    def add(self, batch: pa.RecordBatch, order: Order, worker: int) -> Iterable[tuple[int, Part]]:
        top = self.tops.get(worker)
        if top is None:
            top = self.tops.setdefault(worker, self.operator.top())
        top.add(batch)
        return ()

    def seal(self, watermark: int | None) -> list[Task]:
        tops, self.tops = self.tops, {}
        return [partial(self._split, top) for top in tops.values()]

    def _split(self, top: Top) -> None:
        batch = top.bundle()
        keys = [batch.column(k) for k in self.operator.node.keys]
        for shard, part in by_shard(batch, keys, self.hosting.shards):
            self.parts.setdefault(shard, []).append(part)

    def sealed(self, shard: int) -> Iterator[Part]:
        for batch in self.parts.pop(shard, ()):
            yield Part(0, batch)

    def release(self) -> None:
        self.parts = {}


class TopState(State):
    """The top records of one shard of keys."""

    def __init__(self, operator: TopRecords, store: Store, note: Note) -> None:
        self.operator = operator
        self.retained = Retained(store, note, 0, operator.schema)

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        top = self.operator.top()
        for batch in [*(b for _, b in self.retained.pop(0)), *(p.batch for p in parts)]:
            top.add(batch)
        if watermarks[0] == FOREVER:
            yield from in_pieces(top.bundle())
        elif top.held:
            self.retained.append(0, top.bundle())
