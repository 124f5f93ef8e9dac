"""``group_by``, ``agg`` and ``distinct`` of input that ends: aggregates of each key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.kernels.aggregate import (
    Aggregation,
    GeneralTable,
    Merge,
    PartialPlan,
    compile_partial,
)
from headrace.operators.operator import (
    Description,
    Hosting,
    Input,
    Operator,
    Part,
    Phases,
    Result,
    State,
    Task,
)
from headrace.operators.shards import Shards
from headrace.operators.sliced_tables import SlicedTables
from headrace.operators.stores import Note, Order, Retained, Store
from headrace.operators.tables import tasks_for
from headrace.plan.fingerprint import fingerprint
from headrace.plan.groups import GroupBy
from headrace.windows import FOREVER

_ONE_SLICE = (np.zeros(0, np.int64), 0, 0)


class Group(Operator):
    """Aggregates of each key; without keys, of all records; without aggregates, the keys."""

    of: ClassVar[type | None] = type(None)

    def __init__(self, node: GroupBy, inputs: Sequence[Input], zone: str) -> None:
        self.node = node
        self.plan: PartialPlan = compile_partial(inputs[0].steps, inputs[0].schema, node, zone)
        self.aggregation = self.plan.aggregation
        self.chains = (self.plan.chain,)
        self.is_keyed = bool(node.keys)

    def part_schema(self, lane: int, slice: int) -> pa.Schema:
        return self.aggregation.partial_schema

    def partial(self, lane: int, hosting: Hosting) -> GroupPartial:
        return GroupPartial(self, hosting)

    def state(self, store: Store, note: Note) -> GroupState:
        return GroupState(self, store, note)

    def advance(
        self, shards: Shards, lane: int, watermark: int, emit: Callable[[int, Result], None]
    ) -> Phases:
        """All records are in the tables: they give the results themselves."""
        for _, table in shards.partials[0].tables.take(1):  # type: ignore[attr-defined]
            yield from closing(
                [(0, table)], shards.count, lambda part, result: emit(part, (0, result[1]))
            )
            return
        if not self.is_keyed:
            emit(0, (0, of_nothing(self.aggregation)))

    def describe(self) -> Description:
        return describe_group(self)


def closing(
    tables: Sequence[tuple[int, Any]], shards: int, emit: Callable[[int, Result], None]
) -> Phases:
    """Slices whose results their tables give, each as one task or by parts of the keys."""
    parts = [(number, table, tasks_for(table, shards)) for number, table in tables]
    preparing = [task for _, table, count in parts for task in table.prepare(count, whole=True)]
    if preparing:
        yield preparing

    def task(number: int, table: Any, part: int, count: int) -> Task:
        def run() -> None:
            batch = table.results(part, count)
            if batch is not None:
                emit(part, (number, batch))

        return run

    yield [task(n, table, i, count) for n, table, count in parts for i in range(count)]


def of_nothing(aggregation: Aggregation) -> pa.RecordBatch:
    """The results of no records at all, without a key."""
    merge = Merge(aggregation)
    merge.add(GeneralTable(aggregation).bundle())
    return merge.finish()


class GroupPartial:
    """One table of all records."""

    is_full = False

    def __init__(self, operator: Group, hosting: Hosting) -> None:
        self.operator, self.hosting = operator, hosting
        self.tables = SlicedTables(operator.plan, operator.node, hosting)
        self.table: Any = None

    @property
    def nbytes(self) -> int:
        return self.tables.nbytes

    @property
    def groups(self) -> int:
        return self.tables.groups

    def add(self, batch: pa.RecordBatch, order: Order, worker: int) -> Iterable[tuple[int, Part]]:
        self.tables.add(batch, *_ONE_SLICE, order, worker)
        return ()

    def seal(self, watermark: int | None) -> list[Task]:
        taken = self.tables.take(1)
        self.table = taken[0][1] if taken else None
        return [] if self.table is None else self.table.prepare(self.hosting.shards, whole=False)

    def sealed(self, shard: int) -> Iterator[Part]:
        if self.table is not None:
            for order, batch in self.table.partials(shard, self.hosting.shards):
                yield Part(0, batch, order)
        elif not self.operator.is_keyed:
            yield Part(0, GeneralTable(self.operator.aggregation).bundle())

    def release(self) -> None:
        if self.table is not None:
            self.table.recycle()
            self.table = None


class GroupState(State):
    """The keys of one shard: results when all has come."""

    def __init__(self, operator: Group, store: Store, note: Note) -> None:
        self.operator = operator
        self.retained = Retained(store, note, 0, operator.aggregation.partial_schema)

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        if watermarks[0] < FOREVER:
            for part in parts:
                self.retained.append(0, part.batch, part.order)
            return
        slices = Merging(self.operator.aggregation, self.operator.node.is_ordered)
        for order, batch in self.retained.pop(0):
            slices.add(order, batch)
        for part in parts:
            slices.add(part.order, part.batch)
        if not slices.is_empty:
            yield 0, slices.results()
        elif not self.operator.is_keyed:
            yield 0, of_nothing(self.operator.aggregation)


class Merging:
    """Partials of one slice, merged as they come; in their order where it matters."""

    def __init__(self, aggregation: Aggregation, is_ordered: bool) -> None:
        self.aggregation, self.is_ordered = aggregation, is_ordered
        self.waiting: list[tuple[Order, pa.RecordBatch]] = []
        self.merge: Merge | None = None

    @property
    def is_empty(self) -> bool:
        return not self.waiting and self.merge is None

    def add(self, order: Order, batch: pa.RecordBatch) -> None:
        self.waiting.append((order, batch))
        if not self.is_ordered and (self.merge is not None or len(self.waiting) > 1):
            self._merge()

    def _merge(self) -> Merge:
        if self.merge is None:
            self.merge = Merge(self.aggregation)
        if self.is_ordered:
            self.waiting.sort(key=lambda item: item[0])
        for _, batch in self.waiting:
            self.merge.add(batch)
        self.waiting = []
        return self.merge

    def partials(self) -> pa.RecordBatch:
        """Everything as one bundle of partials."""
        if self.merge is None and len(self.waiting) == 1:
            return self.waiting[0][1]
        return self._merge().bundle()

    def results(self) -> pa.RecordBatch:
        """The results of everything."""
        return self._merge().finish()


def describe_group(operator: Any) -> Description:
    """What the state of aggregates depends on."""
    node: GroupBy = operator.node
    users = [(name, a.user) for name, a in node.aggregates if a.user is not None]
    functions = ", ".join(
        f"{name} of {user.name} {fingerprint(*user.written)}" for name, user in users
    )
    keeps = tuple(operator.aggregation.partial_schema)
    return Description(f"{node.name} {node.detail}", operator.version, keeps, functions)


def padded(aggregation: Aggregation, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Partials with those of more aggregates beside them, which have seen nothing yet."""
    keys = len(aggregation.keys)
    states = zip(aggregation.partial_schema.names[keys:], aggregation.accumulators(), strict=True)
    fresh = {name: state for name, state in states if name not in batch.schema.names}
    columns = [
        fresh[field.name].partials(batch.num_rows).cast(field.type)
        if field.name in fresh
        else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
