"""Reads row groups of a Parquet file with pyarrow, and keeps the records that meet the conditions.

Row groups that the statistics in the footer rule out are skipped. The others are decoded in batches
that fit into the memory of the engine, and conditions are decided by the same kernels as filters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.io.parquet_footer import Damaged, Footer, RowGroup
from headrace.io.parquet_memory import rows_within
from headrace.io.parquet_statistics import Bounds, comparable_columns, may_hold
from headrace.io.source import BUNDLE_ROWS, SLICE_ROWS
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.expressions.codes import coded_schema
from headrace.plan.prune import columns_of
from headrace.types import chosen, normal_batch

_BATCH_BYTES = 32 << 20
"""About the most bytes of a batch of fixed-width columns."""


class Condition:
    """What records must meet: called with a batch, it returns a mask without nulls."""

    def __init__(
        self, tree: exp.Expr, schema: pa.Schema, zone: str, coded: Collection[str] = ()
    ) -> None:
        plain = chosen(schema, columns_of([tree]))
        self.schema = coded_schema(plain, coded)
        self.kernel = compile_expression(tree, self.schema, zone)
        self.may_hold = may_hold(tree, plain, zone)

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        return evaluate(self.kernel, normal_batch(batch, self.schema)).fill_null(False)


class Scan:
    """Reads row groups of one file.

    Args:
        parquet: The file as pyarrow opened it.
        file: The same file, for its footer and page headers.
        wanted: The columns to return.
        conditions: What records must meet.
        memory: The most bytes to hold while reading a row group.
    """

    def __init__(
        self,
        parquet: Any,
        file: Any,
        wanted: pa.Schema,
        conditions: Sequence[Condition],
        memory: int,
    ) -> None:
        self.parquet, self.file, self.wanted = parquet, file, wanted
        self.conditions, self.memory = conditions, memory
        names = [*wanted.names, *(n for c in conditions for n in c.schema.names)]
        self.names = list(dict.fromkeys(names))
        stored = [parquet.schema.column(i) for i in range(parquet.metadata.num_columns)]
        self.leaves = [
            (i, column)
            for i, column in enumerate(stored)
            if any(f"{column.path}.".startswith(f"{name}.") for name in self.names)
        ]
        self.rows = max(BUNDLE_ROWS, min(SLICE_ROWS, _BATCH_BYTES // (8 * len(self.names))))

    def read(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The records of some row groups, in order."""
        footer, comparable = Footer(self.file), comparable_columns(self.parquet)
        for number in groups:
            group = footer.row_group(number)
            rows = self.parquet.metadata.row_group(number).num_rows
            if rows < 0:
                raise Damaged(f"row group {number} has {rows} rows")
            bounds = Bounds(group, comparable, rows)
            if rows and all(condition.may_hold(bounds) for condition in self.conditions):
                yield from self._read_group(number, rows, group)

    def _read_group(self, number: int, rows: int, group: RowGroup) -> Iterator[pa.RecordBatch]:
        if len(group) != self.parquet.metadata.num_columns:
            raise Damaged(f"row group {number} has {len(group)} columns, and the schema has others")
        leaves = [(column, group.column(i)) for i, column in self.leaves]
        most = min(self.rows, rows)
        size = rows_within(self.memory, most, self.file, number, rows, leaves)
        read = 0
        for batch in self.parquet.iter_batches(
            batch_size=size, row_groups=[number], columns=self.names, use_threads=False
        ):
            read += batch.num_rows
            mask = None
            for condition in self.conditions:
                met = condition(batch)
                mask = met if mask is None else pc.and_(mask, met)
            kept = batch.num_rows if mask is None else mask.true_count
            if kept:
                batch = batch.select(self.wanted.names)
                batch = batch if kept == batch.num_rows else batch.filter(mask)
                yield normal_batch(batch, self.wanted)
        if read != rows:
            raise Damaged(f"row group {number} has {read} of the {rows} rows that its footer says")
