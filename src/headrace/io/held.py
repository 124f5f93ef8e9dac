"""Records kept from one iteration to the next: in memory, or in files mapped into it when large.

What one engine run writes the next reads, as any sink and source. Files are Arrow's own format, so
that reading one is no work; in a machine's memory they stay as long as there is room.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa

from headrace.cache import own_name
from headrace.io.memory import TableSource, TableSplit
from headrace.io.sink import Sink
from headrace.io.source import Source, Split
from headrace.plan.node import Node
from headrace.plan.sources import Read
from headrace.plan.time import said_zone
from headrace.types import chosen

_SPLIT_BYTES = 16 << 20


@dataclass(frozen=True, eq=False)
class Piece:
    """Records in a row: at hand, or some bundles of a file."""

    rows: int
    nbytes: int
    records: TableSplit | None = None
    path: str = ""
    bundles: tuple[int, ...] = ()


class Holding:
    """Records that come in any order, up to ``limit`` bytes of them in memory."""

    def __init__(self, schema: pa.Schema, folder: str, limit: int) -> None:
        self.schema, self.folder, self.limit = schema, folder, limit
        self.file: Any = None
        self.path, self.written = "", 0
        self.held: list[tuple[Any, int, int, pa.RecordBatch | None, int]] = []
        """Of each bundle its place, rows and bytes, and itself or its number in the file."""
        self.nbytes = 0

    def add(self, place: Any, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        size = int(batch.nbytes)
        if self.nbytes + size <= self.limit:
            self.nbytes += size
            self.held.append((place, batch.num_rows, size, batch, -1))
            return
        if self.file is None:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            self.path = os.path.join(self.folder, f"{uuid.uuid4().hex}.arrow")
            self.file = pa.ipc.new_file(self.path, self.schema)
        self.file.write_batch(batch)
        self.held.append((place, batch.num_rows, size, None, self.written))
        self.written += 1

    def pieces(self) -> tuple[Piece, ...]:
        """All of them, in the order of their places."""
        if self.file is not None:
            self.file.close()
        found = []
        self.held.sort(key=lambda each: each[0])
        for in_memory, group in groupby(self.held, key=lambda each: each[3] is not None):
            some = list(group)
            rows, size = sum(each[1] for each in some), sum(each[2] for each in some)
            if in_memory:
                table = pa.Table.from_batches([each[3] for each in some], self.schema)
                found.append(Piece(rows, size, TableSplit(table)))
            else:
                found.append(Piece(rows, size, None, self.path, tuple(e[4] for e in some)))
        self.held = []
        return tuple(found)


def held_folder() -> str:
    """Where what is too large for memory goes; made when there is something."""
    return os.path.join(tempfile.gettempdir(), f"{own_name('held')}{uuid.uuid4().hex}")


@dataclass
class HoldSink(Sink):
    """Keeps records where the next iteration finds them; each task up to ``limit`` in memory."""

    limit: int
    folder: str = field(default_factory=held_folder)
    pieces: tuple[Piece, ...] = ()

    def open(self, schema: pa.Schema, task: str) -> HeldWriter:
        return HeldWriter(Holding(schema, self.folder, self.limit))

    def commit(self, messages: list[Any]) -> None:
        self.pieces = tuple(piece for some in messages for piece in some)

    def abort(self) -> None:
        self.release()

    def release(self) -> None:
        """Give back what is kept."""
        self.pieces = ()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __str__(self) -> str:
        return "kept for the next iteration"


class HeldWriter:
    """One task's records, in the order in which they come."""

    def __init__(self, holding: Holding) -> None:
        self.holding, self.count = holding, 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.holding.add(self.count, batch)
        self.count += 1

    def close(self) -> tuple[Piece, ...]:
        return self.holding.pieces()


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
    bundles = piece.bundles
    count = max(1, min(len(bundles), piece.nbytes // _SPLIT_BYTES))
    edges = [len(bundles) * i // count for i in range(count + 1)]
    return [HeldSplit(piece.path, bundles[a:b], schema) for a, b in pairwise(edges)]


@dataclass(frozen=True)
class HeldSplit(Split):
    """Some bundles of a file."""

    path: str
    bundles: tuple[int, ...]
    schema: pa.Schema

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = chosen(self.schema, columns).names
        with contextlib.closing(pa.memory_map(self.path)) as mapped:
            file = pa.ipc.open_file(mapped)
            for i in self.bundles:
                yield file.get_batch(i).select(names)


class Held:
    """Records that are kept, as a plan reads them."""

    def __init__(self, node: Node, pieces: tuple[Piece, ...], folder: str) -> None:
        source = HeldSource(node.schema, pieces)
        self.folder, self.rows = folder, source.rows
        self.node: Node = Read(node.schema, node.step, source, said_zone(node))

    def release(self) -> None:
        """Forget them."""
        shutil.rmtree(self.folder, ignore_errors=True)
