"""A bundle's records looked up in a table, which may be read again while the stream goes on."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from headrace.errors import StepError
from headrace.kernels.join import RIGHT, Lookup
from headrace.plan.table_join import TableJoin


class Finder:
    """A step's table as one to look up in, made anew when there is another version."""

    def __init__(self, step: TableJoin) -> None:
        self.step = step
        self.known: tuple[Any, Lookup] | None = None
        self.lock = threading.Lock()

    def lookup(self) -> Lookup:
        version, table = self.step.loaded.current()
        known = self.known
        if known is not None and known[0] == version:
            return known[1]
        with self.lock:
            if self.known is None or self.known[0] != version:
                self.known = version, self._made(table)
            return self.known[1]

    def _made(self, table: pa.Table) -> Lookup:
        wanted = self.step.as_join.reads(RIGHT)
        table = table.select([name for name in table.schema.names if name in wanted])
        batches = table.combine_chunks().to_batches()
        if len(batches) > 1:
            raise StepError(
                f"{self.step.label}: the table has more than 2 GB of text in a column; select less"
            )
        batch = batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
        return Lookup(self.step.as_join, RIGHT, batch)
