"""Partial aggregates by pane of event time, in one thread."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import ExpressionError
from headrace.kernels.aggregate import Partial, PartialPlan, TokenCounts, single_partials
from headrace.kernels.cells import CellPlan, Cells, bucket
from headrace.kernels.chain import blame
from headrace.kernels.tokenise import Text
from headrace.kernels.window import event_times, pane_ids, rows_by_pane
from headrace.plan.nodes import GroupBy
from headrace.windows import Window

ROW = "__row"
"""Where the order of the input matters across panes: a record's place among all that came."""
_MANY_PANES = 64
_ONE = np.zeros(0, np.int64)


class PanedPartials:
    """Bundles taken in, and a table of partials for each pane they touched.

    Where the order of the input matters to a sliding window, nothing can be merged before the
    window is known: each record is a partial of its own, with its place in a column ``ROW``.
    """

    def __init__(self, plan: PartialPlan, node: GroupBy) -> None:
        assert isinstance(node.window, Window)
        self.plan, self.node, self.window = plan, node, node.window
        self.singly = node.is_ordered and node.window.panes > 1
        self.cells = None
        if plan.split is None and not node.is_ordered:
            self.cells = CellPlan.of(plan.aggregation)
        self.rows = 0
        self._begin()

    def _begin(self) -> None:
        self.words: dict[int, TokenCounts] = {}
        self.numbers: dict[int, Cells] = {}
        self.general: dict[int, Partial] = {}
        self.single: dict[int, list[pa.RecordBatch]] = {}
        self.single_bytes = 0

    @property
    def schema(self) -> pa.Schema:
        """The columns of what ``take`` gives."""
        schema = self.plan.aggregation.partial_schema
        return schema.append(pa.field(ROW, pa.int64())) if self.singly else schema

    @property
    def groups(self) -> int:
        tables: list[Any] = [*self.words.values(), *self.general.values()]
        return sum(t.groups for t in tables) + sum(c.size for c in self.numbers.values())

    @property
    def nbytes(self) -> int:
        tables: list[Any] = [*self.words.values(), *self.numbers.values()]
        tables += self.general.values()
        return sum(t.nbytes for t in tables) + self.single_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in a bundle."""
        if not batch.num_rows:
            return
        assert self.node.clock is not None
        ids, low, high = pane_ids(event_times(batch, self.node.clock), self.window)
        if self.singly:
            self._add_singly(batch, ids, low, high)
        elif self.plan.split is not None:
            self._count_words(batch, ids, low, high)
        elif self.cells is not None and high - low <= _MANY_PANES:
            self._add_numbers(batch, ids, low, high)
        else:
            self._add_general(batch, ids, low, high)

    def _add_singly(self, batch: pa.RecordBatch, ids: Any, low: int, high: int) -> None:
        partials = single_partials(self.plan.aggregation, batch)
        places = pa.array(np.arange(self.rows, self.rows + batch.num_rows))
        self.rows += batch.num_rows
        numbered = partials.append_column(pa.field(ROW, pa.int64()), places)
        self.single_bytes += numbered.nbytes
        for pane, rows in _parts(ids, low, high):
            part = numbered if rows is None else numbered.take(pa.array(rows))
            self.single.setdefault(pane, []).append(part)

    def _count_words(self, batch: pa.RecordBatch, ids: Any, low: int, high: int) -> None:
        assert self.plan.split is not None
        array, tokeniser = self.plan.split.input(batch)
        text = Text.of(array)
        for pane, rows in _parts(ids, low, high):
            table = self.words.get(pane)
            if table is None:
                table = self.words[pane] = self.plan.start()  # type: ignore[assignment]
            assert table is not None
            table.add_text(text, tokeniser, *(() if rows is None else (rows,)))

    def _add_numbers(self, batch: pa.RecordBatch, ids: Any, low: int, high: int) -> None:
        assert self.cells is not None
        aggregation = self.plan.aggregation
        try:
            keys, inputs = aggregation.evaluate(batch)
        except (ExpressionError, pa.ArrowException) as error:
            raise blame(self.node.label, aggregation.evaluate, batch, error) from error
        rows = self.cells.rows(keys, inputs)
        if rows is None:  # nulls among them
            self._add_general(batch, ids, low, high)
            return
        places, starts = bucket(rows, ids, low, high, 0)
        edges = starts.tolist()
        for i, (start, end) in enumerate(pairwise(edges)):
            if end > start:
                cells = self.numbers.get(low + i)
                if cells is None:
                    cells = self.numbers[low + i] = Cells(self.cells)
                cells.add(places, start, end, rows)

    def _add_general(self, batch: pa.RecordBatch, ids: Any, low: int, high: int) -> None:
        for pane, rows in _parts(ids, low, high):
            table = self.general.get(pane)
            if table is None:
                table = self.general[pane] = Partial(self.plan.aggregation)
            table.add(batch if rows is None else batch.take(pa.array(rows)))

    def take(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The partials of every pane, in order; then it is empty."""
        words, numbers, general, single = self.words, self.numbers, self.general, self.single
        self._begin()
        schema = self.plan.aggregation.partial_schema
        for pane in sorted({*words, *numbers, *general, *single}):
            if pane in words:
                yield pane, words[pane].bundle()
            if pane in numbers:
                columns = numbers[pane].columns(False)
                yield pane, pa.RecordBatch.from_arrays(columns, schema=schema)
            if pane in general:
                yield pane, general[pane].bundle()
            if pane in single:
                yield pane, pa.concat_batches(single[pane])


def _parts(ids: Any, low: int, high: int) -> Iterator[tuple[int, Any]]:
    """Each pane and its rows; no rows where all are in one."""
    if low == high:
        yield low, None
    else:
        yield from rows_by_pane(ids, low, high)
