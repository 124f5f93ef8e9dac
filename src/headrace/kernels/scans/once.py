"""``deduplicate``: the first record of each key passes, and others near it in time do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.columns import as_column, numbers
from headrace.kernels.native import scans
from headrace.kernels.scans.steps import NO_SLOTS, Records, Steps, grown
from headrace.plan.scans import OnceStep, Scan
from headrace.windows import BEGINNING, FOREVER


class OnceSteps(Steps):
    """The times at which records of each key passed.

    A time is needed until the watermark is ``within`` past it: no record that comes then is near
    it. Times that are not needed are dropped when the arrays are full.
    """

    fields = (pa.field("passed", pa.list_(pa.int64())),)

    def __init__(self, node: Scan, what: OnceStep, schema: pa.Schema) -> None:
        super().__init__()
        self.within = FOREVER if what.within is None else what.within
        self.watermark = BEGINNING
        self.heads = np.zeros(0, np.int64)
        self.sizes = np.zeros(2, np.int64)
        self.is_indexed = False
        """Whether there is a hash table: once a key has had more than a few times at once."""
        self._allocate(0)

    @property
    def nbytes(self) -> int:
        return int(self.heads.nbytes + self.rows.nbytes + self.table.nbytes)

    def enlarge(self, room: int) -> None:
        self.heads = grown(self.heads, room, -1)

    def reset(self, slots: Any) -> None:
        self.heads[slots] = -1  # the watermark has passed their times, which match no record now

    def run(self, records: Records) -> tuple[pa.RecordBatch | None, Any]:
        count = records.slots.size
        times = np.zeros(count, np.int64) if records.times is None else records.times
        passed = np.empty(count, np.int64)
        self.sizes[1] = done = 0
        while True:
            done = scans.once(
                records.slots, times, self.within, self._oldest, self.heads, self.rows, self.table,
                self.sizes, done, passed,
            )  # fmt: skip
            if done == count:
                break
            self.is_indexed = self.is_indexed or self.sizes[0] < self.rows.shape[0]
            self._make_room(1)
        passed = passed[: self.sizes[1]]
        if passed.size == count:
            return records.batch, None
        return records.batch.take(as_column(passed)), passed

    def passed(self, watermark: int) -> tuple[pa.RecordBatch | None, Any]:
        if watermark < FOREVER:
            self.watermark = watermark
        return None, NO_SLOTS

    def state(self, slots: Any) -> list[pa.Array]:
        starts, none = np.empty(slots.size + 1, np.int64), np.empty(0, np.int64)
        found = (slots, self._oldest, self.heads, self.rows, starts)
        scans.passed_of(*found, none, False)
        times = np.empty(starts[-1], np.int64)
        scans.passed_of(*found, times, True)
        return [pa.ListArray.from_arrays(as_column(starts.astype(np.int32)), as_column(times))]

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        counts = np.asarray(columns[0].value_lengths())
        times = numbers(columns[0].flatten(), np.int64)
        self._make_room(times.size)
        slots = np.repeat(slots, counts)
        scans.remember(slots, times, self.within, self.heads, self.rows, self.table, self.sizes)

    @property
    def _oldest(self) -> int:
        """Times after this one are needed."""
        forever = self.within == FOREVER or self.watermark == BEGINNING
        return BEGINNING if forever else self.watermark - self.within

    def _make_room(self, more: int) -> None:
        """Drop what is not needed, and have room for more times."""
        rows = self.rows[: self.sizes[0]]
        rows = rows[rows[:, scans.TIME] > self._oldest]
        self.heads[:] = -1
        self._allocate(rows.shape[0] + more)
        slots, times = (np.ascontiguousarray(rows[:, i]) for i in (scans.SLOT, scans.TIME))
        scans.remember(slots, times, self.within, self.heads, self.rows, self.table, self.sizes)

    def _allocate(self, count: int) -> None:
        room = max(64, 2 * count)
        self.rows = np.empty((room, 4), np.int64)
        cells = 1 << (2 * room - 1).bit_length() if self.is_indexed else 0
        self.table = np.full(cells, -1, np.int64)
        self.sizes[0] = 0
