"""``rank``: which record of its key each one is, by event time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.columns import as_column, numbers
from headrace.kernels.native import scans
from headrace.kernels.scans.steps import Records, Steps, grown
from headrace.plan.scans import RankStep, Scan
from headrace.windows import BEGINNING


class RankSteps(Steps):
    """Of each key, how many records there were, the last one's time, and its rank."""

    fields = (
        pa.field("count", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("rank", pa.int64()),
    )

    def __init__(self, node: Scan, what: RankStep, schema: pa.Schema) -> None:
        super().__init__()
        self.schema = node.schema
        self.known = np.zeros((0, 3), np.int64)

    @property
    def nbytes(self) -> int:
        return int(self.known.nbytes)

    def enlarge(self, room: int) -> None:
        before = self.known.shape[0]
        self.known = grown(self.known, room, 0)
        self.known[before:, 1] = BEGINNING

    def reset(self, slots: Any) -> None:
        self.known[slots] = (0, BEGINNING, 0)

    def run(self, records: Records) -> tuple[pa.RecordBatch | None, Any]:
        ranks = np.empty(records.slots.size, np.int64)
        resets = _NONE if records.resets is None else records.resets
        scans.rank(records.slots, records.times, resets, self.known, ranks)
        columns = [*records.batch.columns, as_column(ranks)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), None

    def state(self, slots: Any) -> list[pa.Array]:
        return [as_column(self.known[slots, i]) for i in range(3)]

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        for i, column in enumerate(columns):
            self.known[slots, i] = numbers(column, np.int64)


_NONE = np.zeros(0, np.bool_)
