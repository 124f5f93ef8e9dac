"""``sort`` and ``limit``: steps that need the order of all records, of input that ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import pyarrow as pa

from headrace.errors import EngineError
from headrace.kernels.chain import compile_chain
from headrace.kernels.columns import as_column
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.order import first_rows, order_key, sort_rows
from headrace.operators.operator import Hosting, Input, Operator, Part, PassedOn, Result, State
from headrace.operators.stores import Note, Order, Retained, Store
from headrace.plan.order import Limit, Sort
from headrace.windows import FOREVER

PIECE = 1 << 16
"""The records of a bundle of a large result."""


def in_pieces(batch: pa.RecordBatch) -> Iterator[Result]:
    """A large result as bundles of ordinary size, in order."""
    for number, start in enumerate(range(0, batch.num_rows, PIECE)):
        yield number, batch.slice(start, PIECE)


def together(
    parts: Iterable[tuple[Order, pa.RecordBatch]], schema: pa.Schema, label: str
) -> pa.RecordBatch:
    """All records in the order of the input, as one bundle."""
    batches = [batch for _, batch in sorted(parts, key=lambda part: part[0])]
    if not batches:
        return pa.RecordBatch.from_pylist([], schema)
    try:
        return pa.concat_batches(batches)
    except pa.ArrowInvalid as error:
        raise EngineError(
            f"{label} holds at most 2 GB of text in a column of one shard ({error}); drop columns "
            "before it, use keys that are spread more evenly, or more shards: run it on Spark"
        ) from error


class _OfAll(Operator):
    """What steps of one input without keys have in common."""

    is_keyed = False

    def __init__(self, node: Sort | Limit, inputs: Sequence[Input], zone: str) -> None:
        self.node = node
        self.chains = (compile_chain(inputs[0].steps, inputs[0].schema, None, zone),)
        self.schema = self.chains[0].schema


class SortAll(_OfAll):
    """All records in an order."""

    of: ClassVar[type | None] = Sort
    node: Sort

    def __init__(self, node: Sort, inputs: Sequence[Input], zone: str) -> None:
        super().__init__(node, inputs, zone)
        self.order = [(compile_expression(t, self.schema, zone), down) for t, down in node.order]

    def partial(self, lane: int, hosting: Hosting) -> PassedOn:
        return PassedOn(lambda batch, order: [(0, Part(0, self.sorted(batch), order))])

    def sorted(self, batch: pa.RecordBatch, *, wholly: bool = False) -> pa.RecordBatch:
        """The records in order, or those of them that may be wanted; as they are if all may be."""
        first = self.node.first
        if not wholly and (first is None or 2 * first >= batch.num_rows):
            return batch
        keys = [order_key(evaluate(kernel, batch)) for kernel, _ in self.order]
        downs = [down for _, down in self.order]
        rows = sort_rows(keys, downs) if first is None else first_rows(keys, downs, first)
        if not wholly:
            rows.sort()  # which of two equal ones is first is decided by their order
        return batch.take(as_column(rows))

    def state(self, store: Store, note: Note) -> SortState:
        return SortState(self, store, note)


class SortState(State):
    """All records until the input ends."""

    def __init__(self, operator: SortAll, store: Store, note: Note) -> None:
        self.operator = operator
        self.retained = Retained(store, note, 0, operator.schema)

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        for part in parts:
            self.retained.append(0, part.batch, part.order)
        if watermarks[0] < FOREVER:
            return
        operator = self.operator
        batch = together(self.retained.pop(0), operator.schema, operator.node.label)
        yield from in_pieces(operator.sorted(batch, wholly=True))


class FirstRecords(_OfAll):
    """The first records of the input."""

    of: ClassVar[type | None] = Limit
    node: Limit

    def partial(self, lane: int, hosting: Hosting) -> FirstPartial:
        return FirstPartial(self.node.count, hosting.in_order)

    def state(self, store: Store, note: Note) -> LimitState:
        return LimitState(self, store, note)


class FirstPartial(PassedOn):
    """The first records of each bundle; where bundles come in order, of all of them."""

    def __init__(self, count: int, in_order: bool) -> None:
        super().__init__(self._first)
        self.left, self.in_order = count, in_order

    @property
    def is_full(self) -> bool:  # type: ignore[override]
        return self.in_order and self.left == 0

    def _first(self, batch: pa.RecordBatch, order: Order) -> Iterator[tuple[int, Part]]:
        rows = min(batch.num_rows, self.left)
        if self.in_order:
            self.left -= rows
        if rows:
            yield 0, Part(0, _cut(batch, rows), order)


def _cut(batch: pa.RecordBatch, rows: int) -> pa.RecordBatch:
    """The first rows, without those after them in memory."""
    if 2 * rows >= batch.num_rows:
        return batch.slice(0, rows)
    return batch.take(pa.array(range(rows)))


class LimitState(State):
    """The first of the records that have come."""

    def __init__(self, operator: FirstRecords, store: Store, note: Note) -> None:
        self.operator = operator
        self.retained = Retained(store, note, 0, operator.schema)

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        bundles = [*self.retained.pop(0), *((part.order, part.batch) for part in parts)]
        bundles.sort(key=lambda item: item[0])
        count = self.operator.node.count
        before = itertools.accumulate((b.num_rows for _, b in bundles), initial=0)
        first = [
            (order, batch.slice(0, count - rows))
            for (order, batch), rows in zip(bundles, before, strict=False)
            if rows < count
        ]
        if watermarks[0] < FOREVER:
            for order, batch in first:
                self.retained.append(0, batch, order)
        else:
            label = self.operator.node.label
            yield from in_pieces(together(first, self.operator.schema, label))
