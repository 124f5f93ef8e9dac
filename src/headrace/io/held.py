"""Records kept from one iteration to the next: in memory, or in files mapped into it when large.

What one engine run writes the next reads, as any sink and source. Files are Arrow's own format, so
that reading one is no work; in a machine's memory they stay as long as there is room.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa

from headrace.cache import temporary_folder
from headrace.io.memory import TableSource, TableSplit
from headrace.io.sink import Sink
from headrace.io.source import Source, Split
from headrace.plan.nodes import Node, Read
from headrace.plan.time import zone_of
from headrace.types import chosen

_SPLIT_BYTES = 16 << 20


@dataclass(frozen=True, eq=False)
class Piece:
    """What one task has written: records, or the file they are in."""

    rows: int
    nbytes: int
    records: TableSplit | None = None
    path: str = ""
    bundles: int = 0


@dataclass
class HoldSink(Sink):
    """Keeps records where the next iteration finds them; each task up to ``limit`` in memory."""

    limit: int
    folder: str = field(default_factory=lambda: str(temporary_folder("held")))
    pieces: tuple[Piece, ...] = ()

    def open(self, schema: pa.Schema, task: str) -> HeldWriter:
        return HeldWriter(schema, self.folder, self.limit)

    def commit(self, messages: list[Any]) -> None:
        self.pieces = tuple(piece for piece in messages if piece is not None)

    def abort(self) -> None:
        self.release()

    def release(self) -> None:
        """Give back what is kept."""
        self.pieces = ()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __str__(self) -> str:
        return "kept for the next iteration"


class HeldWriter:
    """One task's records, in a file once they are many."""

    def __init__(self, schema: pa.Schema, folder: str, limit: int) -> None:
        self.schema, self.limit = schema, limit
        self.path = os.path.join(folder, f"{uuid.uuid4().hex}.arrow")
        self.batches: list[pa.RecordBatch] = []
        self.file: Any = None
        self.rows = self.nbytes = self.bundles = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes
        self.bundles += 1
        self.batches.append(batch)
        if self.nbytes > self.limit:
            self._spill()

    def _spill(self) -> None:
        if self.file is None:
            self.file = pa.ipc.new_file(self.path, self.schema)
        for batch in self.batches:
            self.file.write_batch(batch)
        self.batches = []

    def close(self) -> Piece | None:
        if not self.rows:
            return None
        if self.file is None:
            table = pa.Table.from_batches(self.batches, self.schema)
            return Piece(self.rows, self.nbytes, TableSplit(table))
        self.file.close()
        return Piece(self.rows, self.nbytes, None, self.path, self.bundles)


@dataclass(frozen=True, eq=False)
class HeldSource(Source):
    """What an iteration has kept."""

    schema: pa.Schema
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    def splits(self, parallelism: int) -> list[Split]:
        made: list[Split] = []
        for spilled, pieces in groupby(self.pieces, key=lambda piece: piece.records is None):
            if spilled:
                for piece in pieces:
                    made += _splits(piece, self.schema)
            else:
                tables = [piece.records.table for piece in pieces if piece.records is not None]
                made += TableSource(pa.concat_tables(tables)).splits(parallelism)
        return made

    def __str__(self) -> str:
        return "the iteration before"


def _splits(piece: Piece, schema: pa.Schema) -> list[Split]:
    """A file in parts of some megabytes, between its bundles."""
    count = max(1, min(piece.bundles, piece.nbytes // _SPLIT_BYTES))
    edges = [piece.bundles * i // count for i in range(count + 1)]
    return [HeldSplit(piece.path, a, b, schema) for a, b in pairwise(edges)]


@dataclass(frozen=True)
class HeldSplit(Split):
    """Some bundles of a file."""

    path: str
    first: int
    end: int
    schema: pa.Schema

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = chosen(self.schema, columns).names
        with contextlib.closing(pa.memory_map(self.path)) as mapped:
            file = pa.ipc.open_file(mapped)
            for i in range(self.first, self.end):
                yield file.get_batch(i).select(names)


class Held:
    """Records that a sink has kept, as a plan reads them."""

    def __init__(self, sink: HoldSink, node: Node) -> None:
        self.sink = sink
        source = HeldSource(node.schema, sink.pieces)
        self.rows = source.rows
        self.node: Node = Read(node.schema, node.step, source, zone_of(node))

    def release(self) -> None:
        """Forget them."""
        self.sink.release()
