"""A keyed table for each slice of time that bundles touch: which kind, and what goes where."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import ExpressionError
from headrace.kernels.aggregate import (
    PartialPlan,
    single_partials,
)
from headrace.kernels.cells import Adding, NumberPlan, NumberTable
from headrace.kernels.chain import blame
from headrace.kernels.columns import Text, as_column
from headrace.kernels.window import rows_by_pane
from headrace.operators.operator import Hosting
from headrace.operators.stores import Order
from headrace.operators.tables import (
    CAUGHT_UP,
    EARLY_BYTES,
    FEW_ROWS,
    MANY_SLICES,
    GeneralTables,
    NumberTables,
    OrderedTables,
    SliceTable,
    SpareTables,
    WordTables,
    numbered,
)
from headrace.plan.groups import GroupBy
from headrace.windows import Window


class SlicedTables:
    """A table for each slice of time that bundles have touched; the only place that chooses one."""

    def __init__(self, plan: PartialPlan, node: GroupBy, hosting: Hosting) -> None:
        self.plan, self.node, self.aggregation = plan, node, plan.aggregation
        self.hosting, self.in_order = hosting, hosting.in_order
        window = node.window if isinstance(node.window, Window) else None
        self.per_record = node.is_ordered and window is not None and window.panes > 1
        self.numbers = None
        if plan.split is None and not node.is_ordered:
            self.numbers = NumberPlan.of(plan.aggregation)
        self.parts = 1 if hosting.in_order else max(16, 1 << (hosting.workers - 1).bit_length())
        """Of the hashes, each of which has a lock and a table where tables are shared."""
        self.workers = hosting.workers
        self.spare = SpareTables(self._new_table, 2 * self.parts + 2 * hosting.workers)
        self.slices: dict[int, Any] = {}
        self.recent: deque[Any] = deque(maxlen=_RECENT)
        """The newest of them: a new table begins as large as the largest of these."""
        self.unfinished: list[Adding] = []
        """Bundles of which not all could be added at once."""
        self.lock = threading.Lock()
        self.rows = 0

    def _new_table(self) -> Any:
        if self.numbers is None:
            return self.plan.start()
        recent = [slice.table for slice in list(self.recent)]
        largest = max(recent, key=lambda table: int(table.groups), default=None)
        return NumberTable(self.numbers, self.parts, like=largest)

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in list(self.slices.values()))

    @property
    def groups(self) -> int:
        return sum(s.groups for s in list(self.slices.values()))

    def table(self, number: int) -> Any:
        """The table of a slice, made if there is none."""
        known = self.slices.get(number)
        if known is not None:
            return known
        with self.lock:
            if number not in self.slices:
                self.slices[number] = self._new_slice()
                self.recent.append(self.slices[number])
            return self.slices[number]

    def _new_slice(self) -> SliceTable:
        if self.plan.split is not None:
            return WordTables(self.spare, self.plan.keep_empty, self.hosting)
        if self.numbers is not None:
            return NumberTables(self.numbers, self.spare)
        if self.node.is_ordered and (self.per_record or not self.in_order):
            return OrderedTables(self.aggregation, self.per_record)
        return GeneralTables(self.aggregation)

    def take(self, before: int) -> list[tuple[int, Any]]:
        """The slices below a number, in order, which it no longer has then."""
        for adding in list(self.unfinished):
            if adding.low < before:
                with adding.lock:
                    adding.go_on(patient=True)
                self._finished(adding)
        with self.lock:
            numbers = sorted(n for n in self.slices if n < before)
            return [(n, self.slices.pop(n)) for n in numbers]

    # Records in

    def add(
        self, batch: pa.RecordBatch, ids: Any, low: int, high: int, order: Order, worker: int
    ) -> None:
        """Take in a bundle whose records are of the slices ``ids``, from ``low`` to ``high``."""
        if self.plan.split is not None:
            self._count_words(batch, ids, low, high)
        elif self.numbers is not None and high - low > MANY_SLICES:
            for number, rows in rows_by_pane(ids, low, high):
                part = batch.take(as_column(rows))
                self._add_numbers(part, _NO_IDS, number, number, order, worker)
        elif self.numbers is not None:
            self._add_numbers(batch, ids, low, high, order, worker)
        elif self.per_record and (self.in_order or low != high):
            self._add_records(batch, ids, low, high, order)
        else:
            for number, rows in _rows_of(ids, low, high):
                part = batch if rows is None else batch.take(as_column(rows))
                self.table(number).add(part, order, worker)

    def _add_records(
        self, batch: pa.RecordBatch, ids: Any, low: int, high: int, order: Order
    ) -> None:
        first = self.rows if self.in_order else 0
        self.rows += batch.num_rows if self.in_order else 0
        places = np.arange(first, first + batch.num_rows)
        partials = numbered(single_partials(self.aggregation, batch), places)
        for number, rows in _rows_of(ids, low, high):
            part = partials if rows is None else partials.take(as_column(rows))
            self.table(number).add_records(part, () if self.in_order else order)

    def _count_words(self, batch: pa.RecordBatch, ids: Any, low: int, high: int) -> None:
        assert self.plan.split is not None
        array, tokeniser = self.plan.split.input(batch)
        text = Text.of(array)
        if low == high:
            table = self.table(low)
            table.add(text, tokeniser)
            table.catch_up(CAUGHT_UP)
            return
        for number, rows in rows_by_pane(ids, low, high):
            table = self.table(number)
            now = number == low or rows.size < FEW_ROWS or text.valid.size > 0 or self.in_order
            if now or table.early_bytes > EARLY_BYTES:
                table.add(text, tokeniser, rows)
                table.catch_up(CAUGHT_UP)
            else:
                table.wait(text.some(rows), tokeniser)

    def _add_numbers(
        self, batch: pa.RecordBatch, ids: Any, low: int, high: int, order: Order, worker: int
    ) -> None:
        assert self.numbers is not None
        try:
            keys, inputs = self.aggregation.evaluate(batch)
        except (ExpressionError, pa.ArrowException) as error:
            raise blame(self.node.label, self.aggregation.evaluate, batch, error) from error
        rows = self.numbers.rows(keys, inputs)
        if rows is None:  # nulls among them
            for number, mine in _rows_of(ids, low, high):
                part = batch if mine is None else batch.take(as_column(mine))
                self.table(number).general().add(part, order, worker)
            return
        count = high - low + 1
        there = [True] if count == 1 else np.bincount(ids - low, minlength=count).tolist()
        tables = [self.table(low + i).table if rows_of else None for i, rows_of in enumerate(there)]
        first = worker * count * self.parts // self.workers
        adding = Adding(rows, ids, low, tables, first, self.hosting.crowded)
        adding.go_on(patient=len(self.unfinished) >= self.workers)
        if not adding.is_done:
            with self.lock:
                self.unfinished.append(adding)
        elif self.unfinished:
            self._catch_up()

    def _catch_up(self) -> None:
        """Go on with bundles whose tables others held."""
        for adding in list(self.unfinished):
            if adding.lock.acquire(blocking=False):
                try:
                    adding.go_on(patient=False)
                finally:
                    adding.lock.release()
                self._finished(adding)

    def _finished(self, adding: Adding) -> None:
        with self.lock:
            if adding.is_done and adding in self.unfinished:
                self.unfinished.remove(adding)


_RECENT = 8
_NO_IDS = np.zeros(0, np.int64)


def _rows_of(ids: Any, low: int, high: int) -> Iterator[tuple[int, Any]]:
    """Each slice and its rows; no rows where all are in one."""
    if low == high:
        yield low, None
    else:
        yield from rows_by_pane(ids, low, high)
