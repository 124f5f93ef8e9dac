"""Joins of bounded input, by equal keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels.columns import as_column
from headrace.kernels.hash_join import HashTable
from headrace.kernels.native import hash_join as native
from headrace.plan.joins import Join

LEFT, RIGHT = 0, 1
_MOST_PAIRS = 1 << 20
"""A bundle with more matches is looked up in parts."""


class Lookup:
    """One side of a join, all of it, in which the records of the other are looked up.

    Threads may look up bundles at once. What comes of the records of this side alone, such as
    those without a match in an outer join, comes at the end.
    """

    def __init__(self, node: Join, side: int, batch: pa.RecordBatch) -> None:
        self.node, self.side = node, side
        keys = (node.left_on, node.right_on)
        self.keys, self.other_keys = keys[side], keys[1 - side]
        self.table = HashTable([batch.column(n) for n in self.keys])
        outer = ("left", "right")
        self.is_filter = node.how in ("semi", "anti")
        self.others_alone = node.how in ("outer", outer[1 - side])
        """Whether the other side's records come out without a match."""
        alone = node.how in ("outer", outer[side]) or (self.is_filter and side == LEFT)
        self.matched = np.zeros(batch.num_rows, np.bool_) if alone else None
        """Which records of this side have a match, where that matters."""
        self.batch, self.shown = batch, batch.select(self._shown())
        """All columns, and those that come out beside the other side's."""

    def _shown(self) -> list[str]:
        node = self.node
        if self.side == LEFT:
            return [n for n in node.left_names if node.how != "right" or n not in node.left_on]
        keys = node.right_on if node.how in ("right", "outer") else ()
        return [*(old for old, _ in node.renamed), *keys]

    @property
    def nbytes(self) -> int:
        """The memory it holds."""
        return self.table.nbytes + int(self.batch.nbytes)

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What comes of a bundle of the other side."""
        if batch.num_rows == 0:
            return
        found = self.table.find([batch.column(n) for n in self.other_keys])
        if found.count > _MOST_PAIRS and batch.num_rows > 1:
            half = batch.num_rows // 2
            yield from self.join(batch.slice(0, half))
            yield from self.join(batch.slice(half))
            return
        if self.is_filter and self.side == RIGHT:
            there = found.firsts >= 0
            yield self._filtered(batch, there if self.node.how == "semi" else ~there)
            return
        if self.matched is None and found.is_one_each:
            yield self._beside(batch, found.firsts, alone=False)
            return
        rows, mine = found.pairs(alone=self.others_alone)
        if self.matched is not None:
            native.mark_rows(mine, self.matched)
        if self.is_filter or rows.size == 0:
            return
        if not (rows.size == batch.num_rows and self.table.is_unique):
            batch = batch.take(as_column(rows))
        yield self._beside(batch, mine, alone=rows.size > found.count)

    def rest(self) -> pa.RecordBatch | None:
        """What comes of this side's records alone, when all of the other have been looked up."""
        if self.matched is None:
            return None
        rest = self._filtered(self.batch, self.matched == (self.node.how == "semi"))
        if self.is_filter:
            return rest
        return self._paired(rest, None) if self.side == LEFT else self._paired(None, rest)

    def _beside(self, others: pa.RecordBatch, rows: Any, *, alone: bool) -> pa.RecordBatch:
        """Records of the other side beside rows of this one; with ``alone`` some are NONE."""
        places = pa.array(rows, mask=rows < 0) if alone else as_column(rows)
        mine = self.shown.take(places) if self.shown.num_columns else self.shown
        return self._paired(mine, others) if self.side == LEFT else self._paired(others, mine)

    def _filtered(self, batch: pa.RecordBatch, mask: Any) -> pa.RecordBatch:
        names = self.node.schema.names
        if self.is_filter and batch.schema.names != names:
            batch = batch.select(names)
        return batch if mask.all() else batch.filter(pa.array(mask))

    def _paired(self, left: pa.RecordBatch | None, right: pa.RecordBatch | None) -> pa.RecordBatch:
        """Records of both sides beside each other; None for nulls."""
        node = self.node
        rows = (left if right is None else right).num_rows  # type: ignore[union-attr]
        keys: dict[str, pa.Array] = {}
        if right is not None and node.how in ("right", "outer"):
            pairs = zip(node.left_on, node.right_on, strict=True)
            keys = {ours: right.column(theirs) for ours, theirs in pairs}
        columns = []
        for name in node.left_names:
            if name in keys and (left is None or node.how == "right"):
                columns.append(keys[name])
            elif left is None:
                columns.append(pa.nulls(rows, node.schema.field(name).type))
            elif name in keys:
                columns.append(pc.coalesce(left.column(name), keys[name]))
            else:
                columns.append(left.column(name))
        for old, new in node.renamed:
            kind = node.schema.field(new).type
            columns.append(pa.nulls(rows, kind) if right is None else right.column(old))
        return pa.RecordBatch.from_arrays(columns, schema=node.schema)
