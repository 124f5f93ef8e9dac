"""``lag`` and ``lead``: the values of the record some places before or after each one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.columns import as_column
from headrace.kernels.scans.steps import Records, Steps, by_slot
from headrace.kernels.window import event_times
from headrace.plan.scans import Scan, ShiftStep
from headrace.windows import FOREVER


class _Kept(Steps):
    """Steps that keep a few of the last records of each key, as they came."""

    def __init__(self, node: Scan, what: ShiftStep, kept: pa.Schema) -> None:
        super().__init__()
        self.node, self.what, self.schema = node, what, node.schema
        self.kept_schema = kept
        self.slots = np.zeros(0, np.int64)
        """The keys of the records that are kept, in order."""
        self.kept = pa.RecordBatch.from_pylist([], kept)
        self.fields = (pa.field("records", pa.list_(pa.struct(list(kept)))),)

    @property
    def nbytes(self) -> int:
        return int(self.kept.nbytes)

    def reset(self, slots: Any) -> None:
        self._keep(np.isin(self.slots, slots, invert=True))

    def _keep(self, which: Any) -> None:
        if not which.all():
            self.slots = self.slots[which]
            self.kept = self.kept.filter(pa.array(which))

    def state(self, slots: Any) -> list[pa.Array]:
        order = np.argsort(self.slots, kind="stable")
        ordered = self.slots[order]
        first = np.searchsorted(ordered, slots, side="left")
        count = np.searchsorted(ordered, slots, side="right") - first
        ends = np.cumsum(count)
        rows = np.arange(int(count.sum())) + np.repeat(first - (ends - count), count)
        records = self.kept.take(as_column(order[rows].astype(np.int64))).to_struct_array()
        offsets = as_column(np.concatenate([[0], ends]).astype(np.int32))
        return [pa.ListArray.from_arrays(offsets, records, type=self.fields[0].type)]

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        lists = columns[0]
        counts = np.diff(np.asarray(lists.offsets))
        records = pa.RecordBatch.from_struct_array(lists.flatten())
        self.slots = np.concatenate([self.slots, np.repeat(slots, counts)])
        self.kept = pa.concat_batches([self.kept, records.cast(self.kept_schema)])


class LagSteps(_Kept):
    """Of each key, what later records look back to."""

    def __init__(self, node: Scan, what: ShiftStep, schema: pa.Schema) -> None:
        names = list(dict.fromkeys(old for _, old in what.columns))
        super().__init__(node, what, pa.schema([schema.field(n) for n in names]))

    def run(self, records: Records) -> tuple[pa.RecordBatch | None, Any]:
        by, known = self.what.by, self.slots.size
        slots = np.concatenate([self.slots, records.slots])
        mine = records.batch.select(self.kept_schema.names)
        together = pa.concat_batches([self.kept, mine])
        order, first = by_slot(slots)
        if records.resets is None:
            starts = first
        else:  # what was before a reset is out of sight
            starts = first | np.concatenate([np.zeros(known, np.bool_), records.resets])[order]
        begins = np.maximum.accumulate(np.where(starts, np.arange(slots.size), 0))
        place = np.arange(slots.size) - by
        before = np.full(slots.size, -1, np.int64)
        there = place >= begins
        before[order[there]] = order[place[there]]
        before = before[known:]
        rows = pa.array(before, mask=before < 0)
        found = {n: together.column(n).take(rows) for n in self.kept_schema.names}
        columns = [*records.batch.columns, *(found[old] for _, old in self.what.columns)]
        # The last records of each key are kept for those to come.
        ends = np.append(np.flatnonzero(first)[1:], slots.size)
        last = np.repeat(ends, np.diff(np.append(np.flatnonzero(first), slots.size)))
        stay = np.arange(slots.size) >= np.maximum(last - by, begins)
        rows_kept = np.sort(order[stay])
        self.slots = slots[rows_kept]
        self.kept = together.take(as_column(rows_kept))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), None


class LeadSteps(_Kept):
    """Of each key, the records that wait for those after them."""

    def __init__(self, node: Scan, what: ShiftStep, schema: pa.Schema) -> None:
        super().__init__(node, what, schema)

    def run(self, records: Records) -> tuple[pa.RecordBatch | None, Any]:
        slots = np.concatenate([self.slots, records.slots])
        together = pa.concat_batches([self.kept, records.batch.cast(self.kept_schema)])
        order, first = by_slot(slots)
        ends = np.append(np.flatnonzero(first)[1:], slots.size)
        last = np.repeat(ends, np.diff(np.append(np.flatnonzero(first), slots.size)))
        place = np.arange(slots.size) + self.what.by
        there = place < last
        after = np.full(slots.size, -1, np.int64)
        after[order[there]] = order[place[there]]
        if self.what.within is not None and self.node.clock is not None:
            times = event_times(together, self.node.clock)
            far = times[np.maximum(after, 0)] - times > self.what.within
            given = after >= 0
            after[far] = -1
        else:
            given = after >= 0
        out = self._given(together, np.flatnonzero(given), after)
        self.slots, self.kept = slots, together
        self._keep(~given)
        return out, None

    def _given(self, together: pa.RecordBatch, rows: Any, after: Any) -> pa.RecordBatch:
        looked = pa.array(after[rows], mask=after[rows] < 0)
        columns = together.take(as_column(rows)).columns
        columns += [together.column(old).take(looked) for _, old in self.what.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def soonest(self) -> int:
        if self.what.within is None or not self.slots.size or self.node.clock is None:
            return FOREVER
        return int(event_times(self.kept, self.node.clock).min()) + self.what.within + 1

    def passed(self, watermark: int) -> tuple[pa.RecordBatch | None, Any]:
        """Records that need not wait any longer: the input has ended, or it has been too long."""
        if not self.slots.size:
            return None, self.slots
        if watermark == FOREVER:
            over = np.ones(self.slots.size, np.bool_)
        elif self.what.within is not None and self.node.clock is not None:
            over = event_times(self.kept, self.node.clock) + self.what.within < watermark
        else:
            return None, self.slots[:0]
        gone = self.slots[over]
        out = self._given(self.kept, np.flatnonzero(over), np.full(over.size, -1, np.int64))
        self._keep(~over)
        return (out if out.num_rows else None), gone

    def promised(self, watermark: int) -> int:
        if not self.slots.size or self.node.clock is None:
            return watermark
        return min(watermark, int(event_times(self.kept, self.node.clock).min()))
