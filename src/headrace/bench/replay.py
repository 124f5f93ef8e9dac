"""Input from memory, replayed at full speed or at a set rate, with watermarks of its own."""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.apps.streams import START
from headrace.io.source import SLICE_ROWS, Source, Split, Watermark
from headrace.kernels.columns import numbers
from headrace.windows import micros_of


@dataclass(frozen=True, eq=False)
class Replay(Source):
    """A table as a stream of epochs, over and over, its times going on where they ended.

    ``rate`` is in records a second; without it the input is read as fast as it is taken.
    """

    table: pa.Table
    per_second: int
    epoch_records: int
    records: int
    rate: float | None = None
    watermarks: bool = True
    seconds: int = 1
    """The seconds of event time that ``per_second`` records are in."""

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    @property
    def bounded(self) -> bool:
        return self.rate is None

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes)

    def span(self, records: int) -> int:
        """The event time that so many records take, in microseconds."""
        return records * self.seconds * 1_000_000 // self.per_second

    def splits(self, parallelism: int) -> list[ReplaySplit]:
        return [ReplaySplit(self)]

    def __str__(self) -> str:
        pace = "" if self.rate is None else f" at {self.rate:,.0f} a second"
        return f"{self.records:,} records from memory{pace}"


@dataclass(frozen=True, eq=False)
class ReplaySplit(Split):
    """The one split of it."""

    of: Replay

    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        return self.between(columns, 0, self.of.records)

    def between(self, columns: Sequence[str], first: int, end: int) -> Iterator[Any]:
        """The records from one number on and up to another."""
        source = self.of
        table = source.table.select([n for n in source.table.schema.names if n in columns])
        batches = table.combine_chunks().to_batches()  # several where a column has over 2 GB
        ends = list(itertools.accumulate(batch.num_rows for batch in batches))
        rows, start, sent = ends[-1], time.perf_counter(), first
        chunk = SLICE_ROWS if source.rate is None else max(64, int(source.rate / 1000))
        while sent < end:
            epoch_end = (sent // source.epoch_records + 1) * source.epoch_records
            at = sent % rows
            number = bisect.bisect_right(ends, at)
            count = min(chunk, epoch_end - sent, ends[number] - at, end - sent)
            if source.rate is not None:
                due = start + (sent - first + count) / source.rate
                while (left := due - time.perf_counter()) > 0:
                    time.sleep(left)
            begun = ends[number] - batches[number].num_rows
            yield self._moved(batches[number].slice(at - begun, count), sent // rows)
            sent += count
            if sent == epoch_end:
                yield Watermark(micros_of(START) + source.span(sent))

    def _moved(self, batch: pa.RecordBatch, turns: int) -> pa.RecordBatch:
        """Records of a later turn, their times moved on by as many lengths of the table."""
        place = batch.schema.get_field_index("at")
        if not turns or place < 0:
            return batch
        span = self.of.span(self.of.table.num_rows)
        moved = numbers(batch.column(place), np.int64) + turns * span
        return batch.set_column(
            place, batch.schema.field(place), pa.array(moved).cast(batch.schema.field(place).type)
        )
