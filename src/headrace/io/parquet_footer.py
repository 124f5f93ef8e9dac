"""The footer and the page headers of a Parquet file.

pyarrow's accessors of column chunks and statistics abort the process when a damaged footer makes
them throw, and so do the filters of ``pyarrow.dataset``. This reader raises ``Damaged`` instead.
Both structures are structs of Thrift's compact protocol, which become dicts by field number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Struct = dict[int, Any]
_MAX_DEPTH = 32
_HEADER, _MAX_HEADER = 256, 16 << 20
"""The bytes to read for a page header at first, and at most: it may contain long statistics."""
_DICTIONARY_PAGE = 2


class Damaged(Exception):
    """A Parquet file that contradicts itself or the format, or is too large to read."""


@dataclass(frozen=True)
class Chunk:
    """One column of one row group, as the footer describes it."""

    path: tuple[bytes, ...]
    codec: int
    encodings: frozenset[int]
    has_dictionary: bool
    values: int
    compressed: int
    uncompressed: int
    start: int
    """The offset of the first page."""
    statistics: Struct


@dataclass(frozen=True)
class PageSizes:
    """What the page headers of a column chunk say; sizes are uncompressed."""

    dictionary: int
    largest: int
    """Bytes of the largest data page."""
    total: int
    """Bytes of all data pages."""
    most_values: int
    """The most values in one data page."""
    values: int
    """The values of all data pages."""


class Footer:
    """The row groups of a file, each a list of column chunks, decoded when they are asked for.

    Args:
        file: An Arrow file with random access.

    Raises:
        Damaged: From any method, if the footer is damaged.
    """

    def __init__(self, file: Any) -> None:
        size = file.size()
        tail = file.read_at(8, max(0, size - 8))
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != b"PAR1" or length > size - 12:
            raise Damaged("it does not end with a footer")
        self._thrift = _Thrift(file.read_at(length, size - 8 - length))
        try:
            fields = self._thrift.fields(0)
            self._groups = self._thrift.starts(fields[4]) if 4 in fields else []
        except _MALFORMED:
            raise Damaged("its footer is damaged") from None

    def __len__(self) -> int:
        return len(self._groups)

    def row_group(self, number: int) -> RowGroup:
        try:
            fields = self._thrift.fields(self._groups[number])
            return RowGroup(self._thrift, self._thrift.starts(fields[1]))
        except _MALFORMED:
            raise Damaged(f"its footer is damaged at row group {number}") from None


class RowGroup:
    """The column chunks of a row group."""

    def __init__(self, thrift: _Thrift, starts: list[int]) -> None:
        self._thrift, self._starts = thrift, starts
        self._chunks: dict[int, Chunk] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def column(self, number: int) -> Chunk:
        try:
            if number not in self._chunks:
                self._chunks[number] = _chunk(self._thrift.struct(self._starts[number])[0])
            return self._chunks[number]
        except _MALFORMED:
            raise Damaged(f"its footer is damaged at column {number}") from None


def _chunk(column: Struct) -> Chunk:
    meta = column.get(3)
    if meta is None or 8 in column:
        raise Damaged("a column is encrypted")
    start = meta[9]
    if 11 in meta and 0 < meta[11] < start:
        start = meta[11]
    if min(meta[5], meta[6], meta[7], start) < 0 or not isinstance(meta.get(12, {}), dict):
        raise Damaged("its footer has a negative size")
    return Chunk(
        tuple(meta[3]), meta[4], frozenset(meta[2]), 11 in meta, meta[5], meta[7], meta[6], start,
        meta.get(12, {}),
    )  # fmt: skip


def read_page_sizes(file: Any, chunk: Chunk) -> PageSizes:
    """Read the page headers of a column chunk. The pages themselves are not read."""
    dictionary = 0
    sizes, counts = [0], [0]
    for header in _page_headers(file, chunk):
        if header[1] == _DICTIONARY_PAGE:
            dictionary = max(dictionary, header[2])
        else:
            sizes.append(header[2])
            counts.append((header.get(5) or header.get(8) or {}).get(1, 0))
    return PageSizes(dictionary, max(sizes), sum(sizes), max(counts), sum(counts))


def read_dictionary_size(file: Any, chunk: Chunk) -> int:
    """The uncompressed bytes of a chunk's dictionary page; 0 if it has none."""
    header = next(_page_headers(file, chunk), {1: -1})
    return int(header[2]) if header[1] == _DICTIONARY_PAGE else 0


def _page_headers(file: Any, chunk: Chunk) -> Iterator[Struct]:
    at, end = chunk.start, min(file.size(), chunk.start + chunk.compressed)
    while at < end:
        header, size = _page_header(file, at, end)
        yield header
        at += size + header[3]


def _page_header(file: Any, at: int, end: int) -> tuple[Struct, int]:
    """The header of the page at an offset, and the header's size."""
    room = _HEADER
    while True:
        data = file.read_at(min(room, end - at), at)
        try:
            header, size = _Thrift(data).struct(0)
            counts = [header[n].get(1, 0) for n in (5, 8) if n in header]
            if min(header[1], header[2], header[3], *counts) < 0:
                raise Damaged("a page header has a negative size")
            return header, size
        except IndexError:
            if len(data) < room or room >= _MAX_HEADER:
                raise Damaged("a page header is cut off") from None
            room *= 16
        except _MALFORMED:
            raise Damaged("a page header is damaged") from None


_MALFORMED = (IndexError, KeyError, TypeError, AttributeError, ValueError)
"""What decoding a damaged struct raises: it ends too early, or lacks a field of the right type."""


class _Thrift:
    """Data in the compact protocol. Reading past its end raises IndexError."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.array = np.frombuffer(data, np.uint8)

    def fields(self, at: int) -> dict[int, int]:
        """Where the lists of a struct begin, by field number. Other fields are left out."""
        return {number: start for number, kind, start in self._walk(at) if kind == 9}

    def starts(self, at: int) -> list[int]:
        """Where the structs of a list begin."""
        kind, count, at = self._list_head(at)
        if kind != 12:
            raise ValueError
        starts = []
        for _ in range(count):
            starts.append(at)
            at = self.skip(kind, at)
        return starts

    def _walk(self, at: int) -> Iterator[tuple[int, int, int]]:
        number = 0
        while self.data[at]:
            head = self.data[at]
            number, start = (number + (head >> 4), at + 1) if head >> 4 else self.integer(at + 1)
            yield number, head & 15, start
            at = start if head & 15 <= 2 else self.skip(head & 15, start)

    def skip(self, kind: int, at: int) -> int:
        if kind == 12:
            from headrace.kernels.native.thrift import skip_struct

            return int(skip_struct(self.array, at))
        if kind == 9:
            kind, count, at = self._list_head(at)
            for _ in range(count):
                at = self.skip(kind, at)
            return at
        return self.value(kind, at)[1]

    def struct(self, at: int, depth: int = 0) -> tuple[Struct, int]:
        """A struct, and where it ends."""
        if depth > _MAX_DEPTH:
            raise ValueError
        data, number = self.data, 0
        fields: Struct = {}
        while True:
            head = data[at]
            at += 1
            if head == 0:
                return fields, at
            if head >> 4:
                number += head >> 4
            else:
                number, at = self.integer(at)
            if head & 15 <= 2:
                fields[number] = head & 15 == 1
            else:
                fields[number], at = self.value(head & 15, at, depth)

    def value(self, kind: int, at: int, depth: int = 0) -> tuple[Any, int]:
        if 4 <= kind <= 6:
            return self.integer(at)
        if kind == 8:
            size, at = self.varint(at)
            return self.bytes(at, size)
        if kind == 12:
            return self.struct(at, depth + 1)
        if kind in (9, 10):
            kind, count, at = self._list_head(at)
            values = []
            for _ in range(count):
                value, at = self.value(kind, at, depth + 1)
                values.append(value)
            return values, at
        if kind == 7:
            return self.bytes(at, 8)
        if kind not in (1, 2, 3):
            raise ValueError
        return self.data[at], at + 1

    def _list_head(self, at: int) -> tuple[int, int, int]:
        """The type and the number of elements, and where they begin."""
        head = self.data[at]
        if head >> 4 < 15:
            return head & 15, head >> 4, at + 1
        count, at = self.varint(at + 1)
        return head & 15, count, at

    def bytes(self, at: int, size: int) -> tuple[bytes, int]:
        if size > len(self.data) - at:
            raise IndexError
        return self.data[at : at + size], at + size

    def integer(self, at: int) -> tuple[int, int]:
        value, at = self.varint(at)
        return (value >> 1) ^ -(value & 1), at

    def varint(self, at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = self.data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at
            shift += 7
            if shift > 63:
                raise ValueError
