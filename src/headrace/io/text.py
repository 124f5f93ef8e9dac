"""Lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import PlanError
from headrace.io.files import (
    MAX_LINE,
    File,
    LongLine,
    Range,
    blocks,
    count_lines,
    describe_files,
    find_files,
    line_limit,
    lines_before,
    ranges,
)
from headrace.io.filesink import FileSink, LineEncoder
from headrace.io.records import ErrorSource, bad_records, check_on_error, refused, too_long
from headrace.io.source import BUNDLE_ROWS, SetAside, Source, Split
from headrace.sizes import byte_size

SCHEMA = pa.schema([pa.field("line", pa.string())])


@dataclass(frozen=True)
class TextSource(Source):
    """Text files; each line is a record with one column, ``line``.

    Bytes that are not UTF-8 become U+FFFD, as in Spark; name another ``encoding`` to read it.
    """

    files: tuple[File, ...]
    encoding: str = "utf-8"
    on_error: str = "raise"
    longest: int = byte_size(MAX_LINE, "")

    @staticmethod
    def open(
        path: Any,
        *,
        encoding: str = "utf-8",
        on_error: str = "raise",
        max_line: Any = MAX_LINE,
    ) -> TextSource:
        check_on_error(on_error, "read_text")
        longest = line_limit(max_line, "read_text")
        try:
            plain = "\n".encode(encoding) == b"\n" and b"a\xff".decode(encoding, "replace") != ""
        except (LookupError, TypeError, UnicodeError):
            raise PlanError(f"read_text: there is no encoding {encoding!r}") from None
        if not plain:
            raise PlanError(
                f"read_text: lines cannot be found in {encoding!r}; convert the files to utf-8"
            )
        files = tuple(find_files(path, "read_text"))
        return TextSource(files, encoding, on_error, longest)

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def nbytes(self) -> int:
        return sum(f.nbytes for f in self.files)

    def splits(self, parallelism: int) -> list[Split]:
        how = (self.encoding, self.on_error, self.longest)
        return [TextSplit(r, *how) for r in ranges(self.files, parallelism)]

    def errors(self) -> Source | None:
        """The lines that are too long, where they are kept."""
        return ErrorSource(self) if self.on_error == "keep" else None

    def __str__(self) -> str:
        return describe_files("text", self.files)


@dataclass(frozen=True)
class TextSplit(Split):
    """The lines that begin in a byte range."""

    part: Range
    encoding: str
    on_error: str
    longest: int

    @property
    def sequence(self) -> str:
        return self.part.file.path

    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        seen = 0
        for buffer in blocks(self.part, self.longest):
            if isinstance(buffer, LongLine):
                if self.on_error == "raise":
                    raise refused(self._bad(buffer, seen))
                seen += 1
                yield SetAside(1)
                continue
            text = lines_of(buffer, self.encoding)
            seen += len(text)
            for start in range(0, len(text), BUNDLE_ROWS):
                part = text.slice(start, BUNDLE_ROWS)
                yield pa.RecordBatch.from_arrays([part], schema=SCHEMA)

    def bad(self) -> Iterator[pa.RecordBatch]:
        """The lines that are too long."""
        seen = 0
        for buffer in blocks(self.part, self.longest):
            if isinstance(buffer, LongLine):
                yield bad_records([self._bad(buffer, seen)])
                seen += 1
            else:
                seen += count_lines(buffer)

    def _bad(self, line: LongLine, seen: int) -> tuple[str, int, str, str]:
        number = lines_before(self.part) + seen + 1
        return too_long(self.part.file.path, number, line, self.longest)


def lines_of(buffer: pa.Buffer, encoding: str = "utf-8") -> pa.Array:
    """The lines of a block as strings."""
    from headrace.kernels.native import lines as native

    data = np.frombuffer(buffer, np.uint8)
    count = native.count_lines(data) + 1
    starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    count = native.find_lines(data, starts, ends)
    starts, ends = starts[:count], ends[:count]
    offsets = np.empty(count + 1, np.int32)
    out = np.empty(int((ends - starts).sum()), np.uint8)
    native.gather(data, starts, ends, offsets, out)
    raw = pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(out)]
    )
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            pass
    return pa.array([b.decode(encoding, "replace") for b in raw.to_pylist()], pa.string())


class TextSink(FileSink):
    """Text files: the one string column, a line a record."""

    suffix = ".txt"

    def check(self, schema: pa.Schema) -> None:
        if len(schema) != 1 or not pa.types.is_string(schema.field(0).type):
            raise PlanError(
                "write_text takes one string column, not "
                f"({', '.join(schema.names)}); select one, or use write_csv"
            )

    def encoder(self, file: Any, schema: pa.Schema) -> Any:
        return LineEncoder(file, _texts)


def _texts(batch: pa.RecordBatch) -> list[str]:
    return ["" if text is None else text for text in batch.column(0).to_pylist()]
