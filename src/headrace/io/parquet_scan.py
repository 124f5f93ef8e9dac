"""Records of a Parquet file, those that meet some conditions, and no more of it decoded than that.

Row groups whose statistics rule a condition out are not read. Of the others conditions are decided
first, and only the rows that are left are decoded of the columns that somebody asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from sqlglot import exp

from headrace.io.parquet_columns import Damaged, paged_columns
from headrace.io.parquet_pages import Buffers, Chunk, Numbers, open_chunk
from headrace.io.parquet_statistics import Bounds, may_hold
from headrace.io.source import BUNDLE_ROWS, SLICE_ROWS
from headrace.kernels.columns import as_column
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.plan.prune import columns_of
from headrace.types import normal_batch

_SLAB, _SLAB_BYTES = SLICE_ROWS, 32 << 20
"""The rows of a group that are decoded together, and about the bytes of them at most."""


def conditions_of(trees: Sequence[exp.Expr], schema: pa.Schema, zone: str) -> list[Condition]:
    """Conditions ready to run: those of the same columns as one."""
    together: dict[frozenset[str], exp.Expr] = {}
    for tree in trees:
        names = frozenset(columns_of([tree]))
        known = together.get(names)
        both = tree if known is None else exp.And(this=known.copy(), expression=tree.copy())
        together[names] = both
    return [Condition(tree, schema, zone) for tree in together.values()]


class Condition:
    """What records must meet: called with columns, it says 1 or 0 for each row."""

    def __init__(self, tree: exp.Expr, schema: pa.Schema, zone: str) -> None:
        names = columns_of([tree])
        self.schema = pa.schema([field for field in schema if field.name in names])
        self.names = self.schema.names
        self.kernel = compile_expression(tree, self.schema, zone)
        self.may_hold = may_hold(tree, self.schema, zone)

    def __call__(self, *columns: pa.Array) -> Numbers:
        batch = pa.RecordBatch.from_arrays(list(columns), names=self.names)
        met = evaluate(self.kernel, normal_batch(batch, self.schema))
        return np.asarray(met.fill_null(False).cast(pa.uint8()))


class Scan:
    """Reads row groups of one file, opened as ``parquet`` and, for its bytes, as ``file``."""

    def __init__(
        self,
        parquet: Any,
        file: Any,
        wanted: pa.Schema,
        conditions: Sequence[Condition],
        slab: int | None = None,
    ) -> None:
        self.parquet, self.file, self.wanted = parquet, file, wanted
        # What is decided by codes leaves fewer rows to compare columns on.
        self.conditions = sorted(conditions, key=lambda condition: len(condition.names) > 1)
        self.paged = paged_columns(parquet)
        self.buffers: dict[str, Buffers] = {}
        names = [*wanted.names, *(n for c in self.conditions for n in c.names)]
        self.names = list(dict.fromkeys(names))
        rows = _SLAB_BYTES // (8 * len(self.names))
        self.slab = slab or max(BUNDLE_ROWS, min(_SLAB, rows))

    def read(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The records of some row groups, in order."""
        for group in groups:
            meta = self.parquet.metadata.row_group(group)
            bounds = Bounds(meta, self.paged, meta.num_rows)
            if all(condition.may_hold(bounds) for condition in self.conditions):
                yield from self._group(_Group(self, group, meta))

    def _group(self, group: _Group) -> Iterator[pa.RecordBatch]:
        for start in range(0, group.rows, self.slab):
            stop = min(group.rows, start + self.slab)
            rows = self._left(group, start, stop)
            if rows is not None and not rows.size:
                continue
            columns = group.take(self.wanted.names, start, stop, rows)
            batch = pa.RecordBatch.from_arrays(columns, names=self.wanted.names)
            yield normal_batch(batch, self.wanted)

    def _left(self, group: _Group, start: int, stop: int) -> Numbers | None:
        """The rows from ``start`` to ``stop`` that meet all conditions; None for all of them."""
        rows: Numbers | None = None
        kept = np.ones(stop - start, np.uint8)
        for condition in self.conditions:
            chunk = group.chunk(condition.names[0]) if len(condition.names) == 1 else None
            if chunk is not None:
                chunk.mark(condition, start, stop, kept)
                rows = None
            else:
                rows = _rows(kept, start) if rows is None else rows
                if not rows.size:
                    return rows
                some = None if rows.size == stop - start else rows
                met = condition(*group.take(condition.names, start, stop, some))
                kept[rows - start] = met
                rows = rows[met.view(np.bool_)]
        if rows is None and np.count_nonzero(kept.view(np.bool_)) == stop - start:
            return None
        rows = _rows(kept, start) if rows is None else rows
        return None if rows.size == stop - start else rows


def _rows(kept: Numbers, start: int) -> Numbers:
    rows = np.flatnonzero(kept.view(np.bool_))
    rows += start
    return rows


class _Group:
    """A row group that is being read: its columns, opened as they are asked for."""

    def __init__(self, scan: Scan, number: int, meta: Any) -> None:
        self.scan, self.number, self.meta, self.rows = scan, number, meta, meta.num_rows
        self.chunks: dict[str, Chunk | None] = {}
        self.rest: _Rest | None = None

    def chunk(self, name: str) -> Chunk | None:
        """A column by its pages; None where Arrow must read it."""
        if name not in self.chunks:
            chunk = None
            if name in self.scan.paged:
                stored = self.scan.paged[name]
                buffers = self.scan.buffers.setdefault(name, Buffers())
                meta = self.meta.column(stored[0])
                chunk = open_chunk(self.scan.file, meta, stored, self.rows, buffers)
            self.chunks[name] = chunk
        return self.chunks[name]

    def take(
        self, names: Sequence[str], start: int, stop: int, rows: Numbers | None
    ) -> list[pa.Array]:
        """Some columns of some rows between ``start`` and ``stop``; None for all of them."""
        columns = []
        for name in names:
            chunk = self.chunk(name)
            if chunk is not None:
                columns.append(chunk.take(start, stop, rows))
                continue
            if self.rest is None:
                others = [n for n in self.scan.names if self.chunk(n) is None]
                self.rest = _Rest(self.scan.parquet, self.number, others, self.scan.slab)
            column = self.rest.between(start, stop).column(name)
            columns.append(column if rows is None else column.take(as_column(rows - start)))
        return columns


class _Rest:
    """Columns of a row group as Arrow reads them, from its first row on.

    Of one group at a time, for Arrow reads a dictionary within a list or a struct only so.
    """

    def __init__(self, parquet: Any, group: int, names: list[str], slab: int) -> None:
        self.batches: Iterator[pa.RecordBatch] = parquet.iter_batches(
            batch_size=slab, row_groups=[group], columns=names, use_threads=False
        )
        self.held: list[pa.RecordBatch] = []
        self.first = self.end = 0
        """The rows that are held."""

    def between(self, start: int, stop: int) -> pa.RecordBatch:
        """The records from row ``start``, or a later one than before, to row ``stop``."""
        while self.end < stop:
            batch = next(self.batches, None)
            if batch is None:
                raise Damaged("a column has fewer rows than its row group")
            self.held.append(batch)
            self.end += batch.num_rows
        while self.held and self.first + self.held[0].num_rows <= start:
            self.first += self.held.pop(0).num_rows
        if len(self.held) > 1:
            self.held = [pa.concat_batches(self.held)]
        return self.held[0].slice(start - self.first, stop - start)
