"""The temporal join: pairs of records with equal keys that are near in time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels import recycled
from headrace.kernels.aggregate import key_hashes
from headrace.kernels.columns import as_column, taken
from headrace.kernels.expressions.hashing import hash_columns
from headrace.kernels.group import as_key, is_fixed, key_words
from headrace.kernels.native import multimap
from headrace.kernels.order import order_key
from headrace.kernels.records import Records
from headrace.kernels.slots import empty_slots
from headrace.kernels.window import event_times, pane_ids
from headrace.plan.joins import JoinWithin
from headrace.windows import BEGINNING, Window

_LEAST_SLICE = 10_000
"""Microseconds: shorter slices of time would cost more than the records in them."""
_MOST_SPANS = 64
"""A bundle of more slices than this is divided by time first."""
_MOST_PAIRS = 1 << 20
"""The pairs of one bundle of results."""
_LEAST_ROOM = 1 << 4
_MANY_ROWS, _MOST_GROWTH = 1 << 10, 16
"""From so many rows on a table's room is guessed, up to so many times what it has."""


@dataclass(frozen=True)
class Side:
    """One side of a temporal join, as the kernel sees it."""

    keys: tuple[str, ...]
    exact: bool
    """Whether a key is one word, so that equal words are equal keys."""

    @staticmethod
    def of(schema: pa.Schema, keys: tuple[str, ...]) -> Side:
        return Side(keys, len(keys) == 1 and is_fixed(schema.field(keys[0]).type))

    def words(self, batch: pa.RecordBatch) -> Any:
        """A word for each row's key, equal where the keys are."""
        columns = [batch.column(n) for n in self.keys]
        if self.exact:
            return key_words(columns[0]).astype(np.int64, copy=False)
        return hash_columns([as_key(c) for c in columns], batch.num_rows).view(np.int64)


class Tables:
    """One side's records of a slice of event time: a table for each part of the keys."""

    def __init__(self, parts: int) -> None:
        self.directory = np.zeros((parts, multimap.ENTRY), np.int64)
        self.address = int(self.directory.ctypes.data)
        self.blocks: list[Any] = []
        """The memory they are in, and have been in: another thread may be reading it."""
        self.columns: list[Any] = []
        """The keys and times that runs refer to."""

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    def make_room(self, parts: Any, records: Any, runs: Any, locks: int, crowded: bool) -> None:
        """Give some tables room for so many records and runs; 0 where they have enough."""
        rooms = np.where(records > 0, np.maximum(records, _LEAST_ROOM), 0)
        rooms = np.where(rooms > 0, 1 << np.ceil(np.log2(np.maximum(rooms, 1))).astype(np.int64), 0)
        slots, chains = (
            empty_slots(2 * int(rooms.sum()), np.uint32),
            recycled.empty(int(rooms.sum()), np.uint32),
        )
        kept = recycled.empty(int(runs.sum()) * multimap.RUN, np.int64)
        self.blocks += slots, chains, kept
        before, runs_before = np.cumsum(rooms) - rooms, np.cumsum(runs) - runs
        multimap.rehouse(
            self.directory, locks, parts, rooms, slots.ctypes.data + 8 * before,
            chains.ctypes.data + 4 * before, runs,
            kept.ctypes.data + 8 * multimap.RUN * runs_before, crowded,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kept:
    """A bundle as the join keeps it: by shard, and then by slice of time from ``low`` on."""

    side: int
    batch: pa.RecordBatch
    starts: Any
    low: int
    spans: int

    def pieces(self, first: int) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """The records of each shard and slice, from the slice ``first`` on."""
        if first >= self.low + self.spans:
            return
        starts = self.starts.tolist()
        for i in range(len(starts) - 1):
            shard, slice = divmod(i, self.spans)
            if starts[i + 1] > starts[i] and self.low + slice >= first:
                rows = self.batch.slice(starts[i], starts[i + 1] - starts[i])
                yield shard, self.low + slice, rows


def span_of(node: JoinWithin) -> Window:
    """The slices of time by which records wait for a partner."""
    width = max(node.before + node.after + 1, _LEAST_SLICE)
    return Window(width, width)


class TemporalJoin:
    """The records that may still find a partner (StreamBox §5.3), in parts that are the shards of
    their keys; threads add bundles at once.

    A record looks among those of the other side that came before it, and stays for those that come
    after, while its part is locked: so every pair is found once.
    """

    def __init__(self, node: JoinWithin, parts: int = 1, *, crowded: bool = False) -> None:
        """``crowded`` says that there are more threads than cores."""
        self.node, self.parts, self.crowded = node, parts, crowded
        self.clocks = (node.left_clock, node.right_clock)
        inputs = ((node.left.schema, node.left_on), (node.right.schema, node.right_on))
        self.sides = tuple(Side.of(schema, keys) for schema, keys in inputs)
        self.span = span_of(node)
        self.slices: tuple[dict[int, Tables], dict[int, Tables]] = ({}, {})
        self.records = tuple(Records(schema) for schema, _ in inputs)
        # How far a partner's time may be before and after a record's own, by the record's side.
        self.reach = ((node.before, node.after), (node.after, node.before))
        self.watermarks = [BEGINNING, BEGINNING]
        self.lock = threading.Lock()
        self.locks = np.zeros((parts, multimap.LINE), np.int64)

    @property
    def nbytes(self) -> int:
        return sum(tables.nbytes for side in self.slices for tables in list(side.values()))

    def oldest(self, side: int) -> int:
        """A record of a side that is older than this will find no partner any more."""
        return max(self.watermarks[1 - side] - self.reach[side][1], BEGINNING)

    def first_slice(self, side: int) -> int:
        """The first slice with records of a side that may still find a partner."""
        return self.span.pane_at(self.oldest(side))

    def add(
        self, side: int, batch: pa.RecordBatch, first: int = 0
    ) -> tuple[list[pa.RecordBatch], list[Kept]]:
        """Take in a bundle of one side, whose keys are not null, beginning with the part ``first``.

        Gives the pairs it makes with what is there, and what is kept of it.
        """
        ids, low, high = pane_ids(event_times(batch, self.clocks[side]), self.span)
        spans = high - low + 1
        if spans > _MOST_SPANS:
            order = np.argsort(ids, kind="stable")
            starts = np.flatnonzero(np.diff(ids[order] // _MOST_SPANS)) + 1
            each = [
                self.add(side, taken(batch, rows.astype(np.int32)), first)
                for rows in np.split(order, starts)
            ]
            return [p for pairs, _ in each for p in pairs], [k for _, kept in each for k in kept]
        starts = np.array([0, batch.num_rows], np.int64)
        if self.parts * spans > 1:
            columns = [batch.column(n) for n in self.sides[side].keys]
            hashes = key_hashes(columns, batch.num_rows) if self.parts > 1 else _NO_HASHES
            starts = np.empty(self.parts * spans + 1, np.int64)
            rows, buckets = (recycled.empty(batch.num_rows, np.int32) for _ in range(2))
            multimap.split_rows(hashes, self.parts, ids, low, spans, starts, rows, buckets)
            batch = taken(batch, rows)
        kept = Kept(side, batch, starts, low, spans)
        near = [self._tables(1 - side, n) for n in range(low - 1, high + 2)]
        return self._join(kept, near, first), [kept]

    def is_scattered(self, side: int, batch: pa.RecordBatch) -> bool:
        """Whether a bundle's times are so far apart that few records share a slice."""
        _, low, high = pane_ids(event_times(batch, self.clocks[side]), self.span)
        return bool(high - low >= _MOST_SPANS)

    def load(self, side: int, slice: int, batch: pa.RecordBatch, part: int = 0) -> None:
        """Take in records of one part and slice that have found their partners so far."""
        starts = np.zeros(self.parts + 1, np.int64)
        starts[part + 1 :] = batch.num_rows
        self._join(Kept(side, batch, starts, slice, 1), [None, None, None], 0)

    def _tables(self, side: int, slice: int) -> Tables:
        tables = self.slices[side].get(slice)
        if tables is None:
            with self.lock:
                tables = self.slices[side].setdefault(slice, Tables(self.parts))
        return tables

    def _join(self, kept: Kept, near: Sequence[Tables | None], first: int) -> list[pa.RecordBatch]:
        side, batch, spans = kept.side, kept.batch, kept.spans
        words, times = self.sides[side].words(batch), event_times(batch, self.clocks[side])
        first_slice, panes = self.first_slice(side), range(kept.low, kept.low + spans)
        mine = [self._tables(side, n) if n >= first_slice else None for n in panes]
        for i, tables in enumerate(mine):
            if tables is not None:
                tables.columns += words, times
                self._make_room(kept, i, tables)
        before = self.records[1 - side].current
        number = self.records[side].add(batch, panes[-1]) << 32 if any(mine) else 0
        left, meta = np.ones(self.parts, np.bool_), np.zeros(2, np.int64)
        rows, others = (recycled.empty(batch.num_rows, np.int64) for _ in range(2))
        addresses = [
            np.array([0 if t is None else t.address for t in tables], np.int64)
            for tables in (mine, near)
        ]
        hashes = recycled.empty(batch.num_rows, np.uint64)
        while True:
            part = multimap.join_bundle(
                words, times, hashes, number, kept.starts, spans, *addresses, *self.reach[side],
                self.locks.ctypes.data, first, self.crowded, left, meta, rows, others,
            )  # fmt: skip
            if part < 0:
                break
            found = int(meta[multimap.FOUND])
            if meta[multimap.WANTED] > rows.size:
                more = np.empty(2 * int(meta[multimap.WANTED]) - found, np.int64)
                rows, others = (np.concatenate([a[:found], more]) for a in (rows, others))
            for i, tables in enumerate(mine):
                if tables is not None:
                    self._make_room(kept, i, tables)
        found = int(meta[multimap.FOUND])
        return list(self._pairs(side, batch, rows[:found], others[:found], before))

    def _make_room(self, kept: Kept, span: int, tables: Tables) -> None:
        """Make room in a slice's tables for what a bundle has for it."""
        if multimap.has_room(tables.directory, kept.starts, span, kept.spans):
            return
        counts, known = np.diff(kept.starts)[span :: kept.spans], tables.directory.copy()
        wanted, runs = known[:, multimap.SIZE] + counts, known[:, multimap.RUN_COUNT]
        is_full = wanted > known[:, multimap.ROOM]
        has_no_run = runs >= known[:, multimap.RUN_ROOM]
        parts = np.flatnonzero((counts > 0) & (is_full | has_no_run))
        if parts.size:
            records = np.where(is_full, wanted, 0)[parts]
            if records.any():
                expected = self._expected(kept, span, parts, records)
                records = np.where(records > 0, np.maximum(records, expected), 0)
            more = np.where(has_no_run, 2 * runs + 8, 0)[parts]
            tables.make_room(parts, records, more, self.locks.ctypes.data, self.crowded)

    def _expected(self, kept: Kept, span: int, parts: Any, rows: Any) -> Any:
        """How many rows tables that have so many may get: as many as those of the slice before, or
        in proportion to the time that is left of their own."""
        last = self.slices[kept.side].get(kept.low + span - 1)
        before = 0 if last is None else last.directory[parts, multimap.SIZE]
        if rows.max() < _MANY_ROWS:
            return before
        newest = int(event_times(kept.batch, self.clocks[kept.side]).max())
        gone = newest - self.span.pane_end(kept.low + span) + self.span.every
        growth = min(max(1.125 * self.span.every / max(1, gone), 2), _MOST_GROWTH)
        grown = np.where(rows < _MANY_ROWS, 0, rows * growth).astype(np.int64)
        return np.maximum(before, grown)

    def drop(self, side: int, slice: int) -> None:
        """Forget one side's records of a slice."""
        with self.lock:
            self.slices[side].pop(slice, None)

    def forget(self, side: int, watermark: int) -> None:
        """One side will send nothing before ``watermark``: what could only match that, goes."""
        self.watermarks[side] = watermark
        other = 1 - side
        first = self.first_slice(other)
        with self.lock:
            for slice in [n for n in self.slices[other] if n < first]:
                del self.slices[other][slice]
        self.records[other].forget(first)

    def _pairs(
        self, side: int, batch: pa.RecordBatch, rows: Any, others: Any, before: Any
    ) -> Iterator[pa.RecordBatch]:
        for start in range(0, rows.size, _MOST_PAIRS):
            end = start + _MOST_PAIRS
            pair = [
                batch.take(as_column(rows[start:end])),
                self.records[1 - side].take(others[start:end], before),
            ]
            paired = self._paired(*(pair if side == 0 else reversed(pair)))
            if paired.num_rows:
                yield paired

    def _paired(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        node = self.node
        if not self.sides[0].exact:
            same = np.ones(left.num_rows, np.bool_)
            for a, b in zip(node.left_on, node.right_on, strict=True):
                equal = pc.equal(order_key(left.column(a)), order_key(right.column(b)))
                same &= equal.fill_null(False).to_numpy(zero_copy_only=False)
            if not same.all():
                left, right = left.filter(pa.array(same)), right.filter(pa.array(same))
        columns = [*left.columns, *(right.column(old) for old, _ in node.renamed)]
        return pa.RecordBatch.from_arrays(columns, schema=node.schema)


_NO_HASHES = np.zeros(0, np.uint64)
