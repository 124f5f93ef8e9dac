"""Windows made of panes: one step costs the same however many panes a window has.

Counts and sums of integers are kept running: a pane is added when it enters the window and taken
off when it leaves. Everything else that can be merged in any order goes through two stacks: the
older panes are merged once from the newest back, so that each window's older part is there
already, and the newer panes are merged as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import StepError
from headrace.kernels.accumulators.numeric import grown
from headrace.kernels.aggregate import Aggregation, Merge
from headrace.kernels.columns import numbers, validity
from headrace.kernels.group import Grouper
from headrace.windows import Window


def is_invertible(aggregation: Aggregation) -> bool:
    """Whether a pane can be taken off again: counts, and sums of integers."""
    for (_, aggregate), inputs in zip(aggregation.node.aggregates, aggregation.inputs, strict=True):
        if aggregate.kind == "count":
            continue
        if aggregate.kind != "sum" or not pa.types.is_integer(inputs[0].type):
            return False
    return True


_HALF = 0xFFFFFFFF


class Running:
    """The window's counts and sums, with each pane added once and taken off once."""

    def __init__(self, aggregation: Aggregation) -> None:
        self.aggregation = aggregation
        self.panes: dict[int, pa.RecordBatch] = {}
        self._begin()

    def _begin(self) -> None:
        self.grouper = Grouper([k.type for k in self.aggregation.keys])
        self.present = np.zeros(0, np.int64)
        count = len(self.aggregation.node.aggregates)
        # In halves of 32 bits: between two windows a sum may be out of range for a moment.
        self.high = [np.zeros(0, np.int64) for _ in range(count)]
        self.low = [np.zeros(0, np.int64) for _ in range(count)]
        self.filled = [np.zeros(0, np.int64) for _ in range(count)]

    @property
    def is_empty(self) -> bool:
        return not self.panes

    @property
    def nbytes(self) -> int:
        return self.grouper.nbytes + sum(b.nbytes for b in list(self.panes.values()))

    def push(self, pane: int, batch: pa.RecordBatch) -> None:
        """A pane enters the window."""
        self.panes[pane] = batch
        self._apply(batch, 1)

    def pop(self, pane: int) -> None:
        """A pane leaves it."""
        batch = self.panes.pop(pane, None)
        if batch is not None:
            self._apply(batch, -1)
            live = int(np.count_nonzero(self.present))
            if self.grouper.size > 2 * live + 1024:
                self._begin()
                for kept in self.panes.values():
                    self._apply(kept, 1)

    def _apply(self, batch: pa.RecordBatch, sign: int) -> None:
        keys = len(self.aggregation.keys)
        if keys:
            groups, _ = self.grouper.groups(batch.columns[:keys])
        else:
            groups = self.grouper.all_rows(batch.num_rows)
        size = self.grouper.size
        self.present = grown(self.present, size)
        self.present[groups] += sign  # a partial has each key once
        for i, column in enumerate(batch.columns[keys:]):
            for totals in (self.high, self.low, self.filled):
                totals[i] = grown(totals[i], size)
            valid, values = validity(column), numbers(column, np.int64)
            there = np.flatnonzero(valid) if valid.size else slice(None)
            self.high[i][groups[there]] += sign * (values[there] >> 32)
            self.low[i][groups[there]] += sign * (values[there] & _HALF)
            self.filled[i][groups[there]] += sign

    def result(self) -> pa.RecordBatch | None:
        """The window's results; None if it has no records."""
        live = np.flatnonzero(self.present[: self.grouper.size])
        if not live.size:
            return None
        rows = pa.array(live)
        keys: list[pa.Array] = self.grouper.keys()
        columns = [k.take(rows) for k in keys]
        for high, low, filled, (_, aggregate) in zip(
            self.high, self.low, self.filled, self.aggregation.node.aggregates, strict=True
        ):
            empty = None if aggregate.kind == "count" else filled[live] == 0
            upper = high[live] + (low[live] >> 32)
            if ((upper < -(1 << 31)) | (upper >= 1 << 31)).any():
                raise StepError(f"{self.aggregation.node.label}: bigint overflow in 'sum'")
            columns.append(pa.array(upper << 32 | low[live] & _HALF, mask=empty))
        return pa.RecordBatch.from_arrays(columns, schema=self.aggregation.result_schema)


class TwoStacks:
    """Any aggregate: merges only, about three of them for each step."""

    def __init__(self, aggregation: Aggregation) -> None:
        self.aggregation = aggregation
        self.front: list[tuple[int, pa.RecordBatch]] = []
        self.back: list[tuple[int, pa.RecordBatch]] = []
        self.newer: Merge | None = None

    @property
    def is_empty(self) -> bool:
        return not self.front and not self.back

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for _, b in [*self.front, *self.back])

    def push(self, pane: int, batch: pa.RecordBatch) -> None:
        """A pane enters the window."""
        self.back.append((pane, batch))
        if self.newer is None:
            self.newer = Merge(self.aggregation)
        self.newer.add(batch)

    def pop(self, pane: int) -> None:
        """A pane leaves it."""
        if not self.front and self.back and self.back[0][0] <= pane:
            older: pa.RecordBatch | None = None
            for number, batch in reversed(self.back):
                older = batch if older is None else self._merged(batch, older).bundle()
                self.front.append((number, older))
            self.back, self.newer = [], None
        while self.front and self.front[-1][0] <= pane:
            self.front.pop()

    def _merged(self, *batches: pa.RecordBatch) -> Merge:
        merge = Merge(self.aggregation)
        for batch in batches:
            merge.add(batch)
        return merge

    def result(self) -> pa.RecordBatch | None:
        """The window's results; None if it has no records."""
        older = [self.front[-1][1]] if self.front else []
        if self.newer is None:
            return self._merged(*older).finish() if older else None
        return self._merged(*older, self.newer.bundle()).finish()


Placed = tuple[Any, list[Any], pa.RecordBatch]
"""Partials: the part of the input they are of, columns with their places in it, and themselves."""


class InInputOrder:
    """Aggregates that follow the input: what its records gave, put in order for each window.

    The order of the input is not that of time, so nothing can be merged before the window is
    known. What is kept is a partial for each record, or for a bundle whose records are of one pane.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        self.aggregation = aggregation
        self.panes: dict[int, list[Placed]] = {}

    @property
    def is_empty(self) -> bool:
        return not self.panes

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for parts in list(self.panes.values()) for _, _, b in parts)

    def push(self, pane: int, parts: list[Placed]) -> None:
        """A pane enters the window."""
        self.panes[pane] = parts

    def pop(self, pane: int) -> None:
        """A pane leaves it."""
        self.panes.pop(pane, None)

    def result(self) -> pa.RecordBatch | None:
        """The window's results; None if it has no records."""
        parts = [item for pane in self.panes.values() for item in pane]
        if not parts:
            return None
        parts.sort(key=lambda item: item[0])
        ranks = {order: i for i, order in enumerate(dict.fromkeys(o for o, _, _ in parts))}
        owners = np.concatenate([np.full(b.num_rows, ranks[o]) for o, _, b in parts])
        places = [np.concatenate(column) for column in zip(*(p for _, p, _ in parts), strict=True)]
        batch = pa.concat_batches([b for _, _, b in parts])
        merge = Merge(self.aggregation)
        merge.add(batch.take(pa.array(np.lexsort((*reversed(places), owners)))))
        return merge.finish()


def slid(
    state: Any, window: Window, panes: dict[int, Callable[[], Any]], first: int, end: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Let panes from ``first`` to before ``end`` enter the windows, and give each window's results.

    ``panes`` are functions that give what is in them. A result comes with the pane its window ends
    with.
    """
    step, count, number = window.step, window.panes, first
    while number < end:
        if state.is_empty:  # over a silence, however long, in one step
            if not panes:
                return
            number = max(number, min(panes))
        entering = panes.pop(number, None)
        batch = None if entering is None else entering()
        state.pop(number - count)
        if batch is not None:
            state.push(number, batch)
        # A window ends with this pane if one began ``count`` panes before the next.
        if (number + 1 - count) % step == 0:
            found = state.result()
            if found is not None:
                yield number, found
        number += 1


def sliding_state(aggregation: Aggregation, ordered: bool) -> Any:
    """What keeps the panes of a window together."""
    if ordered:
        return InInputOrder(aggregation)
    return Running(aggregation) if is_invertible(aggregation) else TwoStacks(aggregation)
