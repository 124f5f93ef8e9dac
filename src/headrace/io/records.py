"""Files of a record a line (CSV, JSON): parsed by the block, and bad records told one by one.

A block is parsed whole. If that fails it is cut in halves until the lines that cannot be parsed
stand alone, so that one bad record costs a few parses and its neighbours are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import BadRecord, PlanError
from headrace.io.files import File, Range, blocks, lines_before, ranges
from headrace.io.source import BUNDLE_ROWS, ERRORS, Source, Split
from headrace.io.text import describe_files
from headrace.kernels.native import lines as native
from headrace.types import normal_batch, type_name

ON_ERROR = ("raise", "skip", "keep")


class Format(Protocol):
    """How the lines of a file become records."""

    name: str

    def parse(self, data: pa.Buffer, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
        """Whole lines as a table of ``columns``; raises ``pyarrow.ArrowInvalid`` if one is bad."""

    def header_lines(self) -> int:
        """How many lines at the start of a file are not records."""


def check_on_error(on_error: str, where: str) -> None:
    """Refuse a policy that is none."""
    if on_error not in ON_ERROR:
        raise PlanError(
            f"{where}: on_error={on_error!r} is not a policy; use 'raise', 'skip' or 'keep'"
        )


@dataclass(frozen=True)
class RecordSource:
    """Files in a format of a record a line."""

    files: tuple[File, ...]
    schema: pa.Schema
    format: Any
    on_error: str
    splittable: bool = True

    @property
    def nbytes(self) -> int:
        return sum(f.size for f in self.files)

    def splits(self, parallelism: int) -> list[Split]:
        parts = ranges(self.files, parallelism, self.splittable)
        return [RecordSplit(r, self.schema, self.format, self.on_error) for r in parts]

    def errors(self) -> Source | None:
        return ErrorSource(self) if self.on_error == "keep" else None

    def __str__(self) -> str:
        return describe_files(self.format.name, self.files)


@dataclass(frozen=True)
class RecordSplit:
    """The records that begin in a byte range of a file."""

    part: Range
    schema: pa.Schema
    format: Any
    on_error: str

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        wanted = pa.schema([f for f in self.schema if f.name in columns])
        for table, _ in self._parsed(wanted):
            for batch in table.to_batches(max_chunksize=BUNDLE_ROWS):
                yield normal_batch(batch, wanted)

    def bad(self) -> Iterator[pa.RecordBatch]:
        """The records that cannot be read, with their place and the reason."""
        for _, bad in self._parsed(self.schema):
            if bad:
                columns = list(zip(*bad, strict=True))
                yield pa.RecordBatch.from_arrays(
                    [pa.array(c, f.type) for c, f in zip(columns, ERRORS, strict=True)],
                    schema=ERRORS,
                )

    def _parsed(self, wanted: pa.Schema) -> Iterator[tuple[pa.Table, list[tuple[Any, ...]]]]:
        skip = self.format.header_lines() if self.part.start == 0 else 0
        seen = skip
        before: int | None = None
        # A record may be bad in a column nobody asked for; whoever keeps errors must see that.
        names = self.schema.names if self.on_error != "raise" else wanted.names
        for data in blocks(self.part):
            for _ in range(skip):
                data = data.slice(_first_line(data))
            skip = 0
            count = native.count_lines(np.frombuffer(data, np.uint8))
            try:
                table = self.format.parse(data, self.schema, names)
                bad: list[tuple[Any, ...]] = []
            except pa.ArrowInvalid:
                before = lines_before(self.part) if before is None else before
                table, bad = self._salvage(data, names, before + seen)
                if self.on_error == "raise" and bad:
                    file, line, reason, text = bad[0]
                    raise BadRecord(
                        f"{file}, line {line}: {reason}; the record is {_short(text)}. "
                        "Pass on_error='skip' or 'keep', or a schema= that fits"
                    ) from None
            seen += count
            yield table.select(wanted.names), bad

    def _salvage(
        self, data: pa.Buffer, names: Sequence[str], before: int
    ) -> tuple[pa.Table, list[tuple[Any, ...]]]:
        raw = np.frombuffer(data, np.uint8)
        count = native.count_lines(raw) + 1
        starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
        count = native.find_lines(raw, starts, ends)
        edges = np.append(starts[:count], raw.size)
        good: list[pa.Table] = []
        bad: list[tuple[Any, ...]] = []

        def parse(first: int, last: int) -> None:
            piece = data.slice(int(edges[first]), int(edges[last] - edges[first]))
            try:
                good.append(self.format.parse(piece, self.schema, names))
            except pa.ArrowInvalid as error:
                if last - first > 1:
                    middle = (first + last) // 2
                    parse(first, middle)
                    if not (bad and self.on_error == "raise"):
                        parse(middle, last)
                    return
                text = piece.to_pybytes().rstrip(b"\r\n").decode("utf-8", "replace")
                reason = _reason(error)
                bad.append((self.part.file.path, before + first + 1, reason, text))

        parse(0, count)
        empty = pa.schema([self.schema.field(n) for n in names]).empty_table()
        return (pa.concat_tables(good) if good else empty), bad


def _first_line(data: pa.Buffer) -> int:
    found = bytes(memoryview(data)[: 1 << 20]).find(b"\n")
    return found + 1 if found >= 0 else data.size


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:197] + "…")


def _reason(error: Exception) -> str:
    """Arrow's account of a bad record, without its own row numbers."""
    text = " ".join(str(error).split())
    for noise in ("In CSV column #", "JSON parse error: ", "CSV parse error: ", "Row #1: "):
        text = text.replace(noise, "column " if "#" in noise and "CSV col" in noise else "")
    return text


@dataclass(frozen=True)
class ErrorSource:
    """The bad records of a source."""

    of: RecordSource

    @property
    def schema(self) -> pa.Schema:
        return ERRORS

    def splits(self, parallelism: int) -> list[Split]:
        return [ErrorSplit(s) for s in self.of.splits(parallelism) if isinstance(s, RecordSplit)]

    def __str__(self) -> str:
        return f"bad records of {self.of}"


@dataclass(frozen=True)
class ErrorSplit:
    """The bad records of a split."""

    of: RecordSplit

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return self.of.bad()


def samples(files: Sequence[File], most: int = 8, size: int = 1 << 20) -> Iterator[pa.Buffer]:
    """The first lines of some of the files, to learn the columns from."""
    for file in files[:most]:
        for data in blocks(Range(file, 0, min(file.size, size) if not file.compression else 1)):
            yield data
            break


def widest(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The type that holds what two samples of a column held."""
    if a.equals(b) or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    pair = {type_name(a), type_name(b)}
    if pair == {"bigint", "double"}:
        return pa.float64()
    if pair == {"date", "timestamp_ntz"}:
        return pa.timestamp("us")
    return pa.string()
