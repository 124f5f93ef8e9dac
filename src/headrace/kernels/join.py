"""Joins: equal keys of bounded input, and equal keys near in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels.aggregate import by_shard
from headrace.kernels.expressions.hashing import hash_columns
from headrace.kernels.expressions.kernel import validity
from headrace.kernels.group import Grouper, _coded, is_fixed, key_words
from headrace.kernels.native import multimap
from headrace.kernels.order import order_key
from headrace.kernels.window import event_times, pane_ids, rows_by_pane
from headrace.plan.nodes import Join, JoinWithin
from headrace.windows import Window


def matched(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> tuple[Any, Any]:
    """The pairs of rows with equal keys, by left row and then by right row. Null equals nothing."""
    grouper = Grouper([k.type for k in left])
    codes = [grouper.groups(side)[0] for side in (left, right)]
    there = [_all_valid(side, len(c)) for side, c in zip((left, right), codes, strict=True)]
    rows = [np.flatnonzero(valid) for valid in there]
    a, b = (c[r] for c, r in zip(codes, rows, strict=True))
    order = np.argsort(b, kind="stable")
    ranked = b[order]
    first, end = np.searchsorted(ranked, a, "left"), np.searchsorted(ranked, a, "right")
    sizes = end - first
    lefts = np.repeat(rows[0], sizes)
    ends = np.cumsum(sizes)
    places = np.arange(int(ends[-1]) if ends.size else 0) - np.repeat(ends - sizes - first, sizes)
    return lefts, rows[1][order[places]]


def _all_valid(keys: Sequence[pa.Array], rows: int) -> Any:
    there = np.ones(rows, np.bool_)
    for key in keys:
        valid = validity(key)
        if valid.size:
            there &= valid
    return there


def equi_join(node: Join, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    """All the records of a join, of one shard of keys."""
    a, b = matched([left.column(n) for n in node.left_on], [right.column(n) for n in node.right_on])
    if node.how in ("semi", "anti"):
        there = np.zeros(left.num_rows, np.bool_)
        there[a] = True
        return left.filter(pa.array(there if node.how == "semi" else ~there))
    lefts, rights = pa.array(a, pa.int64()), pa.array(b, pa.int64())
    parts = [(lefts, rights)]
    if node.how in ("left", "outer"):
        alone = np.setdiff1d(np.arange(left.num_rows), a)
        parts.append((pa.array(alone, pa.int64()), pa.nulls(alone.size, pa.int64())))
    if node.how in ("right", "outer"):
        alone = np.setdiff1d(np.arange(right.num_rows), b)
        parts.append((pa.nulls(alone.size, pa.int64()), pa.array(alone, pa.int64())))
    lefts, rights = (pa.concat_arrays([p[i] for p in parts]) for i in (0, 1))
    keys = dict(zip(node.left_on, node.right_on, strict=True))
    columns = []
    for name in left.schema.names:
        column = left.column(name).take(lefts)
        if name in keys and node.how in ("right", "outer"):
            column = pc.coalesce(column, right.column(keys[name]).take(rights))
        columns.append(column)
    columns += [right.column(old).take(rights) for old, _ in node.renamed]
    return pa.RecordBatch.from_arrays(columns, schema=node.schema)


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
        return hash_columns([_coded(c) for c in columns], batch.num_rows).view(np.int64)


class Bucket:
    """One side's records of a slice of event time."""

    def __init__(self) -> None:
        self.rows = 0
        self.keys = np.empty(1 << 3, np.int64)
        self.times = np.empty(1 << 3, np.int64)
        self.nexts = np.empty(1 << 3, np.int64)
        self.heads = np.zeros(1 << 4, np.int64)
        self.chunks: list[pa.RecordBatch] = []
        """The rows themselves, which whoever keeps them puts here."""
        self.least = 2**63 - 1
        self.most = -(2**63)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes * 3 + self.heads.nbytes

    def add(self, keys: Any, times: Any) -> None:
        """Know some more rows, which are to be found at the end of ``chunks``."""
        end = self.rows + keys.size
        if end > self.keys.size:
            room = max(2 * self.keys.size, 1 << int(end - 1).bit_length())
            self.keys, self.times, self.nexts = (
                np.concatenate([a[: self.rows], np.empty(room - self.rows, np.int64)])
                for a in (self.keys, self.times, self.nexts)
            )
        self.keys[self.rows : end], self.times[self.rows : end] = keys, times
        first = self.rows
        if 2 * end > self.heads.size:
            self.heads = np.zeros(1 << int(4 * end - 1).bit_length(), np.int64)
            first = 0
        multimap.link_rows(self.keys, first, end, self.heads, self.nexts)
        self.rows = end
        self.least, self.most = min(self.least, int(times.min())), max(self.most, int(times.max()))

    def matches(self, keys: Any, times: Any, low: int, high: int) -> tuple[Any, Any]:
        """Pairs of a row of the caller's and a row of this bucket."""
        known, stamps = self.keys[: self.rows], self.times[: self.rows]
        found = multimap.count_matches(
            keys, times, low, high, known, stamps, self.heads, self.nexts
        )
        rows, others = np.empty(found, np.int64), np.empty(found, np.int64)
        if found:
            multimap.write_matches(
                keys, times, low, high, known, stamps, self.heads, self.nexts, rows, others
            )
        return rows, others

    def take(self, rows: Any) -> pa.RecordBatch:
        if len(self.chunks) == 1:
            return self.chunks[0].take(pa.array(rows))
        table = pa.Table.from_batches(self.chunks).take(pa.array(rows)).combine_chunks()
        return table.to_batches()[0]


_LEAST_SLICE = 10_000
"""Microseconds: shorter slices of time would cost more than the records in them."""


def span_of(node: JoinWithin) -> Window:
    """The slices of time by which records wait for a partner."""
    width = max(node.before + node.after + 1, _LEAST_SLICE)
    return Window(width, width)


class TemporalJoin:
    """The records of one shard of keys that may still find a partner (StreamBox §5.3).

    A record looks among those of the other side that came before it, and stays for those that come
    after; one call at a time, so that every pair is found once.
    """

    def __init__(self, node: JoinWithin) -> None:
        self.node = node
        self.clocks = (node.left_clock, node.right_clock)
        sides = ((node.left, node.left_on), (node.right, node.right_on))
        self.sides = tuple(Side.of(s.schema, keys) for s, keys in sides)
        self.span = span_of(node)
        self.buckets: tuple[dict[int, Bucket], dict[int, Bucket]] = ({}, {})
        # How far a partner's time may be before and after a record's own, by the record's side.
        self.reach = ((node.before, node.after), (node.after, node.before))
        self.watermarks = [-(2**63), -(2**63)]

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for side in self.buckets for b in list(side.values()))

    def add(
        self, side: int, batch: pa.RecordBatch
    ) -> tuple[list[pa.RecordBatch], list[tuple[int, pa.RecordBatch]]]:
        """Take in a bundle of one side.

        Gives the pairs it makes with what is there, and the rows to keep by slices of time.
        """
        words, times = self.sides[side].words(batch), event_times(batch, self.clocks[side])
        low, high = self.reach[side]
        found = []
        least, most = int(times.min()) - low, int(times.max()) + high
        for bucket in self._near(self.buckets[1 - side], least, most):
            if bucket.most < least or bucket.least > most:
                continue
            rows, others = bucket.matches(words, times, low, high)
            if rows.size:
                pair = [batch.take(pa.array(rows)), bucket.take(others)]
                found.append(self._paired(*(pair if side == 0 else reversed(pair))))
        return [f for f in found if f.num_rows], list(self._keep(side, batch, words, times))

    def _near(self, buckets: dict[int, Bucket], least: int, most: int) -> list[Bucket]:
        """The buckets that may have records of a span of time."""
        first, last = self.span.pane_at(least), self.span.pane_at(most)
        if last - first < len(buckets):
            found = (buckets.get(n) for n in range(first, last + 1))
            return [b for b in found if b is not None]
        return list(buckets.values())

    def _keep(
        self, side: int, batch: pa.RecordBatch, words: Any, times: Any
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Remember the records that a later one of the other side may still match."""
        oldest = self.watermarks[1 - side] - self.reach[side][1]
        if int(times.min()) < oldest:
            rows = np.flatnonzero(times >= oldest)
            if not rows.size:
                return
            batch, words, times = batch.take(pa.array(rows)), words[rows], times[rows]
        ids, lo, hi = pane_ids(times, self.span)
        mine = self.buckets[side]
        if lo == hi:
            mine.setdefault(lo, Bucket()).add(words, times)
            yield lo, batch
            return
        for pane, rows in rows_by_pane(ids, lo, hi):
            mine.setdefault(pane, Bucket()).add(words[rows], times[rows])
            yield pane, batch.take(pa.array(rows))

    def forget(self, side: int, watermark: int) -> None:
        """One side will send nothing before ``watermark``: what could only match that, goes."""
        self.watermarks[side] = watermark
        other = 1 - side
        oldest = watermark - self.reach[other][1]
        for pane, bucket in list(self.buckets[other].items()):
            if bucket.most < oldest:
                del self.buckets[other][pane]

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


def sharded(
    batch: pa.RecordBatch, keys: Sequence[str], shards: int, *, drop_null: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A bundle by the shard of its keys; rows with a null key left out if they match nothing."""
    columns = [batch.column(n) for n in keys]
    if drop_null and any(c.null_count for c in columns):
        batch = batch.filter(pa.array(_all_valid(columns, batch.num_rows)))
        columns = [batch.column(n) for n in keys]
    yield from by_shard(batch, columns, shards)
