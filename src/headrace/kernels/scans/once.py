"""``deduplicate``: the first record of each key passes, and later ones do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.columns import as_column, numbers
from headrace.kernels.native import scans
from headrace.kernels.scans.steps import Records, Steps, grown
from headrace.plan.scans import OnceStep, Scan
from headrace.windows import BEGINNING, FOREVER

_FEW = 4


class OnceSteps(Steps):
    """Of each key, the times of the last few records that passed."""

    fields = tuple(pa.field(f"passed_{i}", pa.int64()) for i in range(_FEW))

    def __init__(self, node: Scan, what: OnceStep, schema: pa.Schema) -> None:
        super().__init__()
        self.within = FOREVER if what.within is None else what.within
        self.last = np.zeros((0, _FEW), np.int64)

    @property
    def nbytes(self) -> int:
        return int(self.last.nbytes)

    def enlarge(self, room: int) -> None:
        self.last = grown(self.last, room, BEGINNING)

    def reset(self, slots: Any) -> None:
        self.last[slots] = BEGINNING

    def run(self, records: Records) -> tuple[pa.RecordBatch | None, Any]:
        times = np.zeros(records.slots.size, np.int64) if records.times is None else records.times
        passed = np.empty(records.slots.size, np.int64)
        count = scans.once(records.slots, times, self.last, self.within, passed)
        if count == records.slots.size:
            return records.batch, None
        return records.batch.take(as_column(passed[:count])), passed[:count]

    def state(self, slots: Any) -> list[pa.Array]:
        return [as_column(self.last[slots, i]) for i in range(_FEW)]

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        for i, column in enumerate(columns):
            self.last[slots, i] = numbers(column, np.int64)
