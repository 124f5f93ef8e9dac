"""Files of a record a line (CSV, JSON): parsed by the block, and bad records told one by one.

A block is parsed whole. If that fails it is cut in halves until the lines that cannot be parsed
stand alone, so that one bad record costs a few parses and its neighbours are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import BadRecord, ExpressionError, PlanError
from headrace.io.files import (
    BLOCK,
    MAX_LINE,
    File,
    LongLine,
    Range,
    blocks,
    count_lines,
    describe_files,
    lines_before,
    ranges,
)
from headrace.io.source import BUNDLE_ROWS, ERRORS, SetAside, Source, Split
from headrace.sizes import byte_size, show_bytes
from headrace.types import chosen, normal_batch, type_name

ON_ERROR = ("raise", "skip", "keep")


class Format(Protocol):
    """How the lines of a file become records."""

    @property
    def name(self) -> str: ...

    @property
    def multiline(self) -> bool:
        """Whether a record may span several lines, so that a file must be read in one piece."""

    def parse(self, data: pa.Buffer, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
        """Whole lines as a table of ``columns``; raises ``pyarrow.ArrowInvalid`` if one is bad."""

    def header_records(self) -> int:
        """How many records at the start of a file are its header."""

    def edges(self, data: pa.Buffer) -> np.ndarray[Any, Any]:
        """Where each record begins, and the end of the last."""


def check_on_error(on_error: str, where: str) -> None:
    """Refuse a policy that is none."""
    if on_error not in ON_ERROR:
        raise PlanError(
            f"{where}: on_error={on_error!r} is not a policy; use 'raise', 'skip' or 'keep'"
        )


@dataclass(frozen=True)
class RecordSource(Source):
    """Files in a format of a record a line."""

    files: tuple[File, ...]
    schema: pa.Schema
    format: Format
    on_error: str
    splittable: bool = True
    longest: int = byte_size(MAX_LINE, "")

    @property
    def nbytes(self) -> int:
        return sum(f.nbytes for f in self.files)

    def splits(self, parallelism: int) -> list[Split]:
        parts = ranges(self.files, parallelism, self.splittable)
        how = (self.schema, self.format, self.on_error, self.longest)
        return [RecordSplit(r, *how) for r in parts]

    def errors(self) -> Source | None:
        return ErrorSource(self) if self.on_error == "keep" else None

    def __str__(self) -> str:
        return describe_files(self.format.name, self.files)


@dataclass(frozen=True)
class RecordSplit(Split):
    """The records that begin in a byte range of a file."""

    part: Range
    schema: pa.Schema
    format: Format
    on_error: str
    longest: int

    @property
    def sequence(self) -> str:
        return self.part.file.path

    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        wanted = chosen(self.schema, columns)
        for table, bad in self._parsed(wanted):
            if bad:
                yield SetAside(len(bad))
            for batch in table.to_batches(max_chunksize=BUNDLE_ROWS):
                yield normal_batch(batch, wanted)

    def bad(self) -> Iterator[pa.RecordBatch]:
        """The records that cannot be read, with their place and the reason."""
        for _, bad in self._parsed(self.schema):
            if bad:
                yield bad_records(bad)

    def _parsed(self, wanted: pa.Schema) -> Iterator[tuple[pa.Table, list[tuple[Any, ...]]]]:
        before: int | None = None
        seen = 0
        # A record may be bad in a column nobody asked for; whoever keeps errors must see that.
        names = self.schema.names if self.on_error != "raise" else wanted.names
        empty = pa.schema([self.schema.field(n) for n in wanted.names]).empty_table()
        for number, data in enumerate(self._blocks()):
            if isinstance(data, LongLine):
                before = lines_before(self.part) if before is None else before
                seen += 1
                found = too_long(self.part.file.path, before + seen, data, self.longest)
                if self.on_error == "raise":
                    raise refused(found)
                yield empty, [found]
                continue
            if number == 0 and self.part.start == 0:
                data = without_mark(data)
            count = count_lines(data)
            if number == 0 and self.part.start == 0 and self.format.header_records():
                edges = self.format.edges(data)
                cut = int(edges[min(self.format.header_records(), edges.size - 1)])
                skipped = count_lines(data.slice(0, cut))
                data = data.slice(cut)
                seen, count = skipped, count - skipped
            try:
                table = self.format.parse(data, self.schema, names)
                bad: list[tuple[Any, ...]] = []
            except pa.ArrowInvalid:
                before = lines_before(self.part) if before is None else before
                table, bad = self._salvage(data, names, before + seen)
                if self.on_error == "raise" and bad:
                    raise refused(bad[0], "or a schema= that fits") from None
            seen += count
            yield table.select(wanted.names), bad

    def _blocks(self) -> Iterator[pa.Buffer | LongLine]:
        """Whole records, some at a time: lines, unless a record may span several."""
        if not self.format.multiline:
            yield from blocks(self.part, self.longest)
            return
        with self.part.file.open() as stream:
            data = pa.py_buffer(stream.read(_MOST_MULTILINE + 1))
        if data.size > _MOST_MULTILINE:
            raise BadRecord(
                f"{self.part.file.path} is larger than a file with multiline=True may be, "
                f"{show_bytes(_MOST_MULTILINE)}: it is read in one piece; cut it"
            )
        edges = self.format.edges(data)
        start = 0
        while start < edges.size - 1:
            stop = int(np.searchsorted(edges, edges[start] + BLOCK, side="right")) - 1
            stop = max(stop, start + 1)
            yield data.slice(int(edges[start]), int(edges[stop] - edges[start]))
            start = stop

    def _salvage(
        self, data: pa.Buffer, names: Sequence[str], before: int
    ) -> tuple[pa.Table, list[tuple[Any, ...]]]:
        """The records of a block that can be read, and those that cannot."""
        edges = self.format.edges(data)
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
                line = before + count_lines(data.slice(0, int(edges[first]))) + 1
                bad.append((self.part.file.path, line, _reason(error), text))

        if edges.size > 1:
            parse(0, edges.size - 1)
        empty = pa.schema([self.schema.field(n) for n in names]).empty_table()
        return (pa.concat_tables(good) if good else empty), bad


_MOST_MULTILINE = 2 << 30


def too_long(path: str, line: int, data: LongLine, longest: int) -> tuple[str, int, str, str]:
    """A line that is too long, as a bad record."""
    return path, line, data.reason(longest), data.head.decode("utf-8", "replace")


def refused(bad: tuple[Any, ...], fix: str = "or a larger max_line=") -> BadRecord:
    """The error of a bad record where none is allowed."""
    file, line, reason, text = bad
    return BadRecord(
        f"{file}, line {line}: {reason}; the record is {short(text)}. "
        f"Pass on_error='skip' or 'keep', {fix}"
    )


def bad_records(bad: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Bad records as ``.errors`` has them."""
    columns = list(zip(*bad, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, ERRORS, strict=True)], schema=ERRORS
    )


BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def without_mark(data: pa.Buffer) -> pa.Buffer:
    """The beginning of a file without the mark that some programs put there."""
    return data.slice(3) if bytes(memoryview(data)[:3]) == BYTE_ORDER_MARK else data


def line_edges(data: pa.Buffer) -> np.ndarray[Any, Any]:
    """Where each line begins, and the end of the last."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw == 10) + 1
    if raw.size and (not ends.size or ends[-1] < raw.size):
        ends = np.append(ends, raw.size)
    return np.append(0, ends)


def short(text: str) -> str:
    """A record as a message shows it."""
    return repr(text if len(text) <= 200 else text[:197] + "…")


def _reason(error: Exception) -> str:
    """Arrow's account of a bad record, without its own row numbers."""
    text = " ".join(str(error).split())
    return re.sub(r"^(JSON|CSV) parse error: |Row #\d+: | in row \d+|, row \d+", "", text)


@dataclass(frozen=True)
class ErrorSource(Source):
    """The bad records of a source whose splits can tell them."""

    of: Any

    @property
    def schema(self) -> pa.Schema:
        return ERRORS

    def splits(self, parallelism: int) -> list[Split]:
        return [ErrorSplit(s) for s in self.of.splits(parallelism)]

    def __str__(self) -> str:
        return f"bad records of {self.of}"


@dataclass(frozen=True)
class ErrorSplit(Split):
    """The bad records of a split."""

    of: Any

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        found: Iterator[pa.RecordBatch] = self.of.bad()
        return found


def samples(files: Sequence[File], most: int = 8, size: int = 1 << 20) -> Iterator[pa.Buffer]:
    """The first lines of some of the files, to learn the columns from."""
    for file in files[:most]:
        for data in blocks(Range(file, 0, min(file.size, size) if not file.compression else 1)):
            if not isinstance(data, LongLine):
                yield without_mark(data)
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


def typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Text as another type, read as our CAST reads it."""
    if array.type.equals(kind):
        return array
    from headrace.kernels.expressions import Kernel, evaluate
    from headrace.kernels.expressions.casts import cast

    batch = pa.RecordBatch.from_arrays([array], names=["v"])
    try:
        return evaluate(cast(Kernel(pa.string(), lambda b: b.column(0)), kind), batch)
    except ExpressionError as error:
        raise pa.ArrowInvalid(str(error).split(";")[0]) from None
