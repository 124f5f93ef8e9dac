"""Count windows: aggregates of every so many records of a key.

Of each key the records are kept that a window which is not full yet has, in a queue; of these only
what the aggregates read. When a window is full, its records are a slice of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.aggregates import Aggregate
from headrace.errors import ExpressionError, StepError
from headrace.kernels.accumulators import Accumulator, accumulator
from headrace.kernels.aggregate import aggregate_trees
from headrace.kernels.chain import blame
from headrace.kernels.columns import as_column, numbers
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.group import normal_key
from headrace.kernels.native import queues
from headrace.kernels.native.queues import FIRST, GIVEN, LAST, NEEDS
from headrace.kernels.scans.kept import KeptColumn, Taken, kept_column
from headrace.kernels.scans.slices import of_slices
from headrace.kernels.scans.steps import Records, Steps, grown
from headrace.kernels.window import event_times
from headrace.plan.node import show
from headrace.plan.scans import CountStep, Scan
from headrace.windows import FOREVER

_MOST = 1 << 20
"""So many rows are taken out of queues at once, unless one window has more."""
_FEW = 1 << 14
"""So many rows that no window needs any more are not worth moving the others."""


def count_steps(node: Scan, what: CountStep, schema: pa.Schema, zone: str) -> CountSteps:
    """Fresh states for count windows."""
    return (PartialSteps if what.window.partial else CountSteps)(node, what, schema, zone)


def aggregate_fields(
    aggregates: Sequence[tuple[str, Aggregate]], schema: pa.Schema, zone: str
) -> list[pa.Field]:
    """The columns of aggregates of records; refuses what an aggregate does not take."""
    kinds = [
        [compile_expression(tree, schema, zone).type for tree in aggregate_trees(a)]
        for _, a in aggregates
    ]
    return [
        pa.field(name, accumulator(aggregate, types).result)
        for (name, aggregate), types in zip(aggregates, kinds, strict=True)
    ]


class CountSteps(Steps):
    """Of each key, how many records it has had, and those that windows still need."""

    def __init__(self, node: Scan, what: CountStep, schema: pa.Schema, zone: str) -> None:
        super().__init__()
        self.node, self.schema, self.what = node, node.schema, what
        self.size, self.every = what.window.size, what.window.every
        trees = {show(tree): tree for _, a in what.aggregates for tree in aggregate_trees(a)}
        self.kernels = [compile_expression(tree, schema, zone) for tree in trees.values()]
        self.inputs = [
            [list(trees).index(show(tree)) for tree in aggregate_trees(a)]
            for _, a in what.aggregates
        ]
        """Of each aggregate, which of the columns that are kept it reads."""
        self.kinds = [kernel.type for kernel in self.kernels]
        self.kinds += [schema.field(name).type for name in self._beside()]
        self.columns: list[KeptColumn] = [kept_column(kind) for kind in self.kinds]
        self.states = np.zeros((0, 4), np.int64)
        self.shares = np.zeros((0, 2), np.int64)
        self.following = np.zeros(0, np.int64)
        self.rows = 0
        """How many rows there are, in queues and no longer."""
        self.live = 0
        """How many are in queues."""
        record = [pa.field(str(i), kind) for i, kind in enumerate(self.kinds)]
        lists = [pa.field("records", pa.list_(pa.struct(record)))] if record else []
        self.fields = (pa.field("seen", pa.int64()), *lists)

    def _beside(self) -> tuple[str, ...]:
        """What is kept of a record beside what the aggregates read."""
        return ()

    @property
    def nbytes(self) -> int:
        arrays = (self.states, self.shares, self.following)
        return sum(int(a.nbytes) for a in arrays) + sum(c.nbytes for c in self.columns)

    def enlarge(self, room: int) -> None:
        before = self.states.shape[0]
        self.states = grown(self.states, room, -1)
        self.states[before:, NEEDS], self.states[before:, GIVEN] = self.size, 0
        self.shares = grown(self.shares, room, 0)

    def reset(self, slots: Any) -> None:
        self.live -= int(self._waiting(slots).sum())
        self.states[slots] = (self.size, 0, -1, -1)

    def _waiting(self, slots: Any) -> Any:
        """How many records of some keys windows still need."""
        return self.size - self.states[slots, NEEDS]

    # Records

    def run(self, records: Records) -> tuple[pa.RecordBatch | None, Any]:
        slots, batch = records.slots, records.batch
        self._append([*self._evaluated(batch), *(batch.column(n) for n in self._beside())])
        most = slots.size // self.every + min(slots.size, self.states.shape[0])
        full, which = np.empty(most, np.int64), np.empty(most, np.int64)
        count = queues.arrive(
            slots, self.rows - slots.size, self.every, self.states, self.following, full, which
        )
        self.live += slots.size - count * self.every
        if not count:
            return None, full[:0]
        full, which = full[:count], which[:count]
        results = self._aggregated(slots[full])
        self._tidy()
        places = as_column(full)
        beside = [batch.column(name).take(places) for name in self.node.kept]
        keys = len(self.node.keys)
        beside = [*(normal_key(key) for key in beside[:keys]), *beside[keys:]]
        return self._given([*beside, as_column(which), *results]), full

    def _evaluated(self, batch: pa.RecordBatch) -> list[pa.Array]:
        def computed(some: pa.RecordBatch) -> list[pa.Array]:
            return [evaluate(kernel, some) for kernel in self.kernels]

        try:
            return computed(batch)
        except (ExpressionError, pa.ArrowException) as error:
            raise blame(self.node.label, computed, batch, error) from error

    def _append(self, arrays: Sequence[pa.Array]) -> None:
        """Rows after those there are, in no queue yet."""
        if not arrays:
            return
        for column, array in zip(self.columns, arrays, strict=True):
            column.append(array)
        self.rows += len(arrays[0])
        if self.rows > self.following.size:
            self.following = grown(self.following, max(1024, 2 * self.rows), -1)

    def _aggregated(self, slots: Any) -> list[pa.Array]:
        """The aggregates of full windows of these keys, which leave the queues."""
        if not self.columns:
            starts = np.zeros(slots.size, np.int64)
            return self._of_slices([], starts, starts + self.size)
        room = max(self.size, min(_MOST, self.size * slots.size))
        rows, starts = np.empty(room, np.int64), np.empty(slots.size, np.int64)
        begin, found = 0, []
        while begin < slots.size:
            end, used = queues.take_full(
                slots, begin, self.size, self.every, self.states, self.following, self.shares,
                rows, starts,
            )  # fmt: skip
            some = starts[: end - begin]
            found.append(self._of_slices(self._taken(rows[:used]), some, some + self.size))
            begin = end
        if len(found) == 1:
            return found[0]
        return [pa.concat_arrays(list(parts)) for parts in zip(*found, strict=True)]

    def _taken(self, rows: Any) -> list[Taken]:
        return [column.take(rows) for column in self.columns[: len(self.kernels)]]

    def _of_slices(self, columns: list[Taken], starts: Any, ends: Any) -> list[pa.Array]:
        found = []
        for (_, aggregate), which in zip(self.what.aggregates, self.inputs, strict=True):

            def make(aggregate: Aggregate = aggregate, which: list[int] = which) -> Accumulator:
                return accumulator(aggregate, [self.kinds[i] for i in which])

            try:
                result = of_slices(aggregate, make, [columns[i] for i in which], starts, ends)
            except ExpressionError as error:
                raise StepError(f"{self.node.label}: {error}") from error
            found.append(result)
        return found

    def _given(self, columns: list[pa.Array]) -> pa.RecordBatch:
        cast = [
            c if c.type.equals(f.type) else c.cast(f.type)
            for c, f in zip(columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)

    def _tidy(self) -> None:
        """Forget rows that are in no queue, once they are more than those that are."""
        if self.rows - self.live <= max(_FEW, self.live, self.room):
            return
        slots = np.flatnonzero(self.states[:, FIRST] >= 0)
        rows = self._walked(slots, self.live)
        following = np.full(max(1024, 2 * rows.size), -1, np.int64)
        queues.renumber(slots, self.states, self.following, following)
        self.following = following
        for column in self.columns:
            column.keep(rows)
        self.rows = rows.size

    def _walked(self, slots: Any, count: int) -> Any:
        rows = np.empty(count, np.int64)
        queues.walk(slots, self.states, self.following, rows)
        return rows

    # What lasts

    def state(self, slots: Any) -> list[pa.Array]:
        states = self.states[slots]
        seen = as_column(self.size + states[:, GIVEN] * self.every - states[:, NEEDS])
        if not self.columns:
            return [seen]
        ends = np.cumsum(self._waiting(slots))
        rows = self._walked(slots, int(ends[-1]) if ends.size else 0)
        arrays = [column.take(rows).array for column in self.columns]
        fields = list(self.fields[1].type.value_type)
        records = pa.StructArray.from_arrays(arrays, fields=fields)
        offsets = as_column(np.concatenate([[0], ends]).astype(np.int32))
        return [seen, pa.ListArray.from_arrays(offsets, records, type=self.fields[1].type)]

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        seen = numbers(columns[0], np.int64)
        given = np.where(seen < self.size, 0, (seen - self.size) // self.every + 1)
        self.states[slots, GIVEN] = given
        self.states[slots, NEEDS] = self.size + given * self.every - seen
        if not self.columns:
            return
        records = columns[1].flatten()
        before = self.rows
        self._append(
            [array.cast(k) for array, k in zip(records.flatten(), self.kinds, strict=True)]
        )
        lengths = self._waiting(slots)
        queues.append(np.repeat(slots, lengths), before, self.states, self.following)
        self.live += int(lengths.sum())


class PartialSteps(CountSteps):
    """Count windows of which those that are not full are given when the input ends."""

    def _beside(self) -> tuple[str, ...]:
        return () if self.node.clock is None else self.node.clock.columns

    def _times(self, rows: Any) -> dict[str, pa.Array]:
        """The columns of event time of some rows."""
        columns = self.columns[len(self.kernels) :]
        return {n: c.take(rows).array for n, c in zip(self._beside(), columns, strict=True)}

    def passed(self, watermark: int) -> tuple[pa.RecordBatch | None, Any]:
        waiting = self._waiting(slice(None))
        slots = np.flatnonzero(waiting > 0)
        if watermark < FOREVER or not slots.size:
            return None, slots[:0]
        lengths = waiting[slots]
        counts = -(-lengths // self.every)  # the windows that some of a key's records are in
        ends = np.cumsum(lengths)
        place = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = np.repeat(ends - lengths, counts) + place * self.every
        rows = self._walked(slots, int(ends[-1]) if self.columns else 0)
        results = self._of_slices(self._taken(rows), starts, np.repeat(ends, counts))
        which = np.repeat(self.states[slots, GIVEN], counts) + place
        owners = np.repeat(slots, counts)
        times = self._times(self.states[owners, LAST])
        kept = self.node.kept[len(self.node.keys) :]
        beside = [*self.key_columns(owners), *(times[name] for name in kept)]
        self.reset(slots)
        return self._given([*beside, as_column(which), *results]), slots

    def promised(self, watermark: int) -> int:
        """A window that is not full would have the time of its last record when the input ends."""
        slots = np.flatnonzero(self.states[:, FIRST] >= 0)
        clock = self.node.clock
        if clock is None or not slots.size:
            return watermark
        times = self._times(self.states[slots, LAST])
        batch = pa.RecordBatch.from_arrays(list(times.values()), names=list(times))
        return min(watermark, int(event_times(batch, clock).min()))
