"""Columns of a Parquet file read page by page, as they are stored.

Arrow's reader decodes all of a column before anybody can ask for some of it. Here a condition is
decided once for each value of a dictionary, rows are told apart by their codes, and of the other
columns only the rows that are left are decoded; a page without such rows is not even decompressed.

This is for columns of numbers, times and coded text in the usual encodings. A file may hold any
other: ``open_chunk`` then gives None, and Arrow reads the column.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.io.parquet_columns import Damaged, Stored
from headrace.kernels.native import pages as native
from headrace.kernels.native.pages import (
    AT,
    DICTIONARY,
    ENCODING,
    KIND,
    PACKED,
    PLAIN,
    UNPACKED,
    VALUES,
)
from headrace.kernels.native.snappy import MARGIN, decompress

_CODECS = {"GZIP": "gzip", "ZSTD": "zstd", "BROTLI": "brotli"}
"""Those that Arrow decompresses."""
Numbers = np.ndarray[Any, Any]
Test = Callable[[pa.Array], Numbers]
"""A condition of one column: 1 for each of its values that meets it, else 0."""


class Buffers:
    """Memory for one column, used again from row group to row group."""

    def __init__(self) -> None:
        self.held: dict[str, Numbers] = {}

    def get(self, what: str, size: int, kind: Any = np.uint8) -> Numbers:
        """An array of at least so many numbers, with anything in it."""
        array = self.held.get(what)
        if array is None or array.size < size:
            array = self.held[what] = np.empty(size + size // 8, kind)
        return array


def open_chunk(file: Any, meta: Any, stored: Stored, rows: int, buffers: Buffers) -> Chunk | None:
    """The column of a row group, by what its metadata says; or None."""
    _, optional, kind = stored
    codec = meta.compression
    if meta.file_path or codec not in ("UNCOMPRESSED", "SNAPPY", *_CODECS):
        return None
    text = pa.types.is_string(kind)
    if text and not (meta.has_dictionary_page and meta.total_uncompressed_size <= 8 * rows):
        return None  # most of it will not be codes
    size = meta.total_compressed_size
    data = buffers.get("data", size)[:size]
    first = meta.dictionary_page_offset
    file.seek(meta.data_page_offset if first is None else min(first, meta.data_page_offset))
    if file.readinto(data) < size:
        return None
    most, packed = 64, codec != "UNCOMPRESSED"
    while True:
        table, starts = np.empty((most, 7), np.int64), np.empty(most + 1, np.int64)
        pages = native.page_table(data, packed, optional, text, table, starts)
        if pages != -2:
            break
        most *= 8
    if pages <= 0 or starts[pages] != rows:
        return None
    return Chunk(data, table[:pages], starts[: pages + 1], codec, stored, buffers)


class Chunk:
    """A column of a row group. Rows are numbered from the group's first.

    What is decoded of it is a window of pages; where the next begins with the last page of this
    one, that is not decoded again.
    """

    def __init__(
        self, data: Numbers, table: Numbers, starts: Numbers, codec: str, stored: Stored,
        buffers: Buffers,
    ) -> None:  # fmt: skip
        self.data, self.codec, self.buffers = data, codec, buffers
        _, self.optional, self.kind = stored
        self.text = pa.types.is_string(self.kind)
        self.lane = np.dtype(np.int32 if self.text or self.kind.bit_width == 32 else np.int64)
        coded = int(table[0, KIND] == DICTIONARY)
        self.head, self.table, self.starts = table[:coded], table[coded:], starts[coded:]
        self.dictionary: Any = None
        self.size = int(self.head[0, VALUES]) if coded else 0
        """The values of the dictionary."""
        self.passing: dict[Test, Numbers] = {}
        self.low = self.high = 0
        """The pages of the window."""
        self.decoded = np.zeros(len(self.table), np.bool_)
        """Which of them are decoded."""
        self.nulls = False
        self.codes, self.values, self.valid = _WORDS, np.empty(0, self.lane), _BYTES
        """What the rows of the window hold: codes, or values where pages have no codes."""
        plain = [encoding == PLAIN for encoding in self.table[:, ENCODING].tolist()]
        edges = [i for i in range(1, len(plain)) if plain[i] != plain[i - 1]]
        self.runs = [
            (int(self.starts[a]), int(self.starts[b]), plain[a])
            for a, b in itertools.pairwise([0, *edges, len(plain)])
        ]
        """Rows of pages that are stored alike, from one to another: as values, or as codes."""
        most = int(self.table[:, UNPACKED].max()) if codec != "UNCOMPRESSED" else 0
        self.scratch = buffers.get("scratch", most + MARGIN)
        most = int(self.table[:, VALUES].max()) if self.optional else 0
        self.numbers = buffers.get("numbers", most, np.int32)

    # What rows hold

    def mark(self, test: Test, start: int, stop: int, kept: Numbers) -> None:
        """Keep the rows between ``start`` and ``stop`` that meet a condition."""
        first = self._decode(start, stop, None)
        for low, high, plain in self._runs(start, stop):
            part = kept[low - start : high - start]
            if plain:
                valid = self.valid[low - first : high - first] if self.nulls else None
                values = self.values[low - first : high - first]
                part &= test(_array(self.kind, values, valid))
            else:
                native.mark(self.codes[low - first : high - first], self._passing(test), part)

    def take(self, start: int, stop: int, rows: Numbers | None) -> pa.Array:
        """The values of some rows between ``start`` and ``stop``, in order; None for all of them.

        Text is given coded.
        """
        first = self._decode(start, stop, rows)
        count = stop - start if rows is None else rows.size
        # Of Arrow's pool, which does not give memory back and fetch it again for each bundle.
        out = np.frombuffer(pa.allocate_buffer(count * self.lane.itemsize), self.lane)
        for low, high, plain in self._runs(start, stop):
            stored: Numbers = self.values if plain else self.codes
            known = None if plain or self.text else self._dictionary()
            if rows is None:
                part, some = stored[low - first : high - first], out[low - start : high - start]
                if known is None:
                    some[:] = part
                else:
                    native.look_up(part, known, some)
                continue
            a, b = np.searchsorted(rows, (low, high)).tolist()
            if known is None:
                native.take(stored, rows[a:b], first, out[a:b])
            else:
                native.look_up_some(stored, rows[a:b], first, known, out[a:b])
        valid = None
        if self.nulls:
            valid = self.valid[start - first : stop - first]
            valid = valid if rows is None else valid[rows - start]
        if not self.text:
            return _array(self.kind, out, valid)
        codes = _array(pa.int32(), out, valid)
        return pa.DictionaryArray.from_arrays(codes, self._dictionary(), safe=False)

    def _runs(self, start: int, stop: int) -> list[tuple[int, int, bool]]:
        """Rows between ``start`` and ``stop`` that are stored alike."""
        cut = ((max(low, start), min(high, stop), plain) for low, high, plain in self.runs)
        return [(low, high, plain) for low, high, plain in cut if low < high]

    # What is stored

    def _decode(self, start: int, stop: int, rows: Numbers | None) -> int:
        """Have the pages decoded that have some rows; the first row of the window."""
        low = int(np.searchsorted(self.starts, start, side="right")) - 1
        high = int(np.searchsorted(self.starts, stop, side="left"))
        if (low, high) != (self.low, self.high):
            self._move(low, high)
        first = int(self.starts[low])
        wanted = ~self.decoded
        wanted[:low] = wanted[high:] = False
        if rows is not None:
            wanted[low:high] &= np.diff(np.searchsorted(rows, self.starts[low : high + 1])) > 0
        if wanted.any():
            nulls = self._decode_pages(wanted, first)
            if nulls < 0:
                raise Damaged("the pages of a column do not make sense")
            self.nulls = self.nulls or nulls > 0
            self.decoded |= wanted
        return first

    def _decode_pages(self, wanted: Numbers, first: int) -> int:
        more = (
            first, self.codec == "SNAPPY", self.optional, self.size, self.lane.itemsize,
            self.scratch, self.numbers, self.codes, self.values.view(np.uint8), self.valid,
        )  # fmt: skip
        if self.codec not in _CODECS:
            return int(native.decode(self.data, self.table, self.starts, wanted, *more))
        nulls = 0
        for page in np.flatnonzero(wanted).tolist():
            row = self.table[page : page + 1].copy()
            data = self._bytes(row[0], "scratch")
            row[0, AT], row[0, PACKED] = 0, row[0, UNPACKED]
            found = int(native.decode(data, row, self.starts[page:], wanted[page:], *more))
            if found < 0:
                return found
            nulls |= found
        return nulls

    def _move(self, low: int, high: int) -> None:
        """Have the window begin with a page and end before another."""
        size, count = int(self.starts[high] - self.starts[low]), int(self.table[low, VALUES])
        held = bool(self.low <= low < self.high and self.decoded[low])
        begin = int(self.starts[low] - self.starts[self.low])
        plain = any(plain for _, _, plain in self.runs)
        before = self.codes, self.values, self.valid
        self.codes = self.buffers.get("codes", size, np.int32)
        self.values = self.buffers.get("values", size if plain else 0, self.lane)
        self.valid = self.buffers.get("valid", size if self.optional else 0)
        if held:
            self.codes[:count] = before[0][begin : begin + count]
            if plain:
                self.values[:count] = before[1][begin : begin + count]
            if self.optional:
                self.valid[:count] = before[2][begin : begin + count]
        self.decoded[:] = False
        self.decoded[low] = held
        self.nulls = held and self.nulls
        self.low, self.high = low, high

    def _bytes(self, page: Numbers, what: str) -> Numbers:
        """The bytes of a page, with some to spare."""
        start, size = int(page[AT]), int(page[UNPACKED])
        stop = start + int(page[PACKED])
        out = self.buffers.get(what, size + MARGIN)
        if self.codec == "UNCOMPRESSED":
            out[:size] = self.data[start:stop]
        elif self.codec != "SNAPPY":
            data = _codec(_CODECS[self.codec]).decompress(self.data[start:stop], size)
            out[:size] = np.frombuffer(data, np.uint8)
        elif not decompress(self.data, start, stop, out, size):
            raise Damaged("a page cannot be decompressed")
        return out

    def _dictionary(self) -> Any:
        """The values by code, and one more for null; of text, as Arrow has them."""
        if self.dictionary is None:
            size = int(self.head[0, UNPACKED])
            data = self._bytes(self.head[0], "dictionary")
            if self.text:
                self.dictionary = _texts(data[:size], self.size)
            elif size < self.size * self.lane.itemsize:
                raise Damaged("a dictionary ends too early")
            else:
                end = (self.size + 1) * self.lane.itemsize
                data[size:end] = 0
                self.dictionary = data[:end].view(self.lane)
        return self.dictionary

    def _passing(self, test: Test) -> Numbers:
        """Which codes meet a condition; whether null does comes last."""
        known = self.passing.get(test)
        if known is None:
            values = self._dictionary()
            if not self.text:
                values = _array(self.kind, values[:-1], None)
            nothing = pa.nulls(1, values.type)
            known = self.passing[test] = test(pa.concat_arrays([values, nothing]))
        return known


_WORDS, _BYTES = np.empty(0, np.int32), np.empty(0, np.uint8)


@cache
def _codec(name: str) -> Any:
    return pa.Codec(name)


def _texts(data: Numbers, count: int) -> pa.Array:
    """A dictionary of texts."""
    offsets = np.empty(count + 1 if 4 * count <= data.size else 0, np.int32)
    total = native.text_offsets(data, offsets) if offsets.size else -1
    if total < 0:
        raise Damaged("a dictionary ends too early")
    texts = np.empty(total, np.uint8)
    native.text_bytes(data, offsets, texts)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(texts))


def _array(kind: pa.DataType, values: Numbers, valid: Numbers | None) -> pa.Array:
    """A column of numbers as they are stored."""
    nulls = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [nulls, pa.py_buffer(values)])
