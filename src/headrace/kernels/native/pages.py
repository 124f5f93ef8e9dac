"""Loops over the pages of a Parquet column as they are stored: headers, levels, codes, values.

What comes from a file may be anything, so every loop stays within its arrays, and says -1 where the
bytes do not make sense.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.kernels.native.memory import U64, _load64
from headrace.kernels.native.snappy import copy_bytes, decompress

KIND, UNPACKED, PACKED, AT, VALUES, ENCODING, LEVELS = range(7)
"""What ``page_table`` says of a page: the columns of its table."""
DATA, DICTIONARY = 0, 2
"""Kinds of pages."""
PLAIN, OLD_CODES, RLE, CODES = 0, 2, 3, 8
"""Encodings."""
_FAR = 1 << 40
_BOOLEANS, _BYTE, _INTEGER, _DOUBLE, _BINARY, _STRUCT = 2, 3, 6, 7, 8, 12
_INT32 = 5


@njit(nogil=True, cache=True)
def _varint(data: Any, at: int) -> tuple[int, int]:
    """A number of Thrift's compact protocol, and where it ends; -1 where it does not."""
    value, shift = np.int64(0), 0
    while at < data.size and shift < 63:
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return np.int64(0), -1


@njit(nogil=True, cache=True)
def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


@njit(nogil=True, cache=True)
def _field(data: Any, at: int, before: int) -> tuple[int, int, int]:
    """The type and the number of a field, and where its value begins; type 0 ends a struct."""
    if at < 0 or at >= data.size:
        return 0, 0, -1
    byte = np.int64(data[at])
    at += 1
    if byte == 0:
        return 0, 0, at
    number = before + (byte >> 4)
    if byte >> 4 == 0:
        value, at = _varint(data, at)
        number = _signed(value)
    return byte & 15, number, at


@njit(nogil=True, cache=True)
def _skipped(data: Any, at: int, kind: int) -> int:
    """Where a value ends that nobody asked for; -1 if it is of a type that headers do not have."""
    depth = 0
    while at >= 0:
        if kind == _STRUCT:
            depth += 1
        elif kind == _BYTE:
            at += 1
        elif _BYTE < kind <= _INTEGER:
            _, at = _varint(data, at)
        elif kind == _DOUBLE:
            at += 8
        elif kind == _BINARY:
            length, at = _varint(data, at)
            at = at + length if at >= 0 and length <= data.size - at else -1
        elif kind > _BOOLEANS:
            return -1
        while at >= 0 and depth > 0:
            kind, _, at = _field(data, at, 0)
            if at >= 0 and kind != 0:
                break
            depth -= 1
        if depth == 0:
            return at
    return -1


@njit(nogil=True, cache=True)
def _header(data: Any, at: int, row: Any) -> int:
    """What a page's header says; where it ends, or -1."""
    row[:] = -1
    number = 0
    while True:
        kind, number, at = _field(data, at, number)
        if at < 0 or kind == 0:
            return at
        if kind == _INT32 and 1 <= number <= 3:
            value, at = _varint(data, at)
            row[number - 1] = _signed(value)
        elif kind == _STRUCT and (number == 5 or number == 7):
            inner = 0
            while at >= 0:
                kind, inner, at = _field(data, at, inner)
                if at < 0 or kind == 0:
                    break
                if kind == _INT32 and 1 <= inner <= 3:
                    value, at = _varint(data, at)
                    row[VALUES + inner - 1] = _signed(value)
                else:
                    at = _skipped(data, at, kind)
        else:
            at = _skipped(data, at, kind)
        if at < 0:
            return -1


@njit(nogil=True, cache=True)
def page_table(data: Any, packed: bool, optional: bool, text: bool, table: Any, starts: Any) -> int:
    """What the headers of a column's pages say, a row of ``table`` each, and the row of the group
    that each begins with; how many pages there are.

    -1 where it is not a dictionary, if there is one, and pages of the usual encodings after it, and
    -2 where the table is too small.
    """
    at, pages, rows = 0, 0, np.int64(0)
    while at < data.size:
        if pages == table.shape[0]:
            return -2
        row = table[pages]
        at = _header(data, at, row)
        if at < 0 or row[PACKED] < 0 or row[PACKED] > data.size - at or row[UNPACKED] < 0:
            return -1
        if row[VALUES] < 0 or (not packed and row[PACKED] != row[UNPACKED]):
            return -1
        row[AT] = at
        starts[pages] = rows
        coded = row[ENCODING] == CODES or row[ENCODING] == OLD_CODES
        if row[KIND] == DICTIONARY:
            if pages > 0 or not (row[ENCODING] == PLAIN or row[ENCODING] == OLD_CODES):
                return -1
        elif row[KIND] == DATA:
            if not (coded or (row[ENCODING] == PLAIN and not text)):
                return -1
            if (optional and row[LEVELS] != RLE) or (coded and table[0, KIND] != DICTIONARY):
                return -1
            rows += row[VALUES]
        else:
            return -1
        at += row[PACKED]
        pages += 1
    starts[pages] = rows
    return pages


@njit(nogil=True, cache=True)
def _packed(data: Any, at: int, width: int, out: Any) -> None:
    """Numbers of ``width`` bits, one right after the other."""
    mask = (U64(1) << U64(width)) - U64(1)
    size, start, wide = out.size, U64(at), U64(width)  # unsigned: no place is below zero
    if width == 0:
        out[:] = 0
        return
    whole = min(size, max(0, (data.size - 8 - at) * 8 // width))
    for i in range(whole):
        bit = U64(i) * wide
        word = _load64(data, np.int64(start + (bit >> U64(3))))
        out[i] = np.int32((word >> (bit & U64(7))) & mask)
    for i in range(whole, size):
        bit = U64(i) * wide
        first = np.int64(start + (bit >> U64(3)))
        word = U64(0)
        for k in range(min(8, data.size - first)):
            word |= U64(data[first + k]) << U64(8 * k)
        out[i] = np.int32((word >> (bit & U64(7))) & mask)


@njit(nogil=True, cache=True)
def unpack(data: Any, at: int, end: int, width: int, count: int, out: Any) -> int:
    """So many numbers of ``width`` bits, in runs and packed; the greatest of them, or -1."""
    if width > 31 or end > data.size or count > out.size:
        return -1
    done = 0
    while done < count:
        header, at = _varint(data, at)
        if at < 0 or at > end or not 0 < header >> 1 < _FAR:
            return -1
        if header & 1:
            some = min((header >> 1) * 8, count - done)
            if at + (some * width + 7) // 8 > end:
                return -1
            _packed(data, at, width, out[done : done + some])
            at += (header >> 1) * width
        else:
            some = min(header >> 1, count - done)
            size = (width + 7) // 8
            if at + size > end:
                return -1
            value = np.int64(0)
            for k in range(size):
                value |= np.int64(data[at + k]) << (8 * k)
            if value >> 31:
                return -1
            at += size
            out[done : done + some] = value
        done += some
    greatest = np.int32(0)
    for i in range(count):
        greatest = max(greatest, out[i])
    return greatest


@njit(nogil=True, cache=True)
def _levels(data: Any, at: int, end: int, scratch: Any, valid: Any) -> int:
    """Which rows of a page are not null; how many, or -1."""
    rows = valid.size
    header, first = _varint(data, at)
    if 0 < first < end and not header & 1 and header >> 1 >= rows and data[first] == 1:
        valid[:] = 1  # one run for all of them
        return rows
    if unpack(data, at, end, 1, rows, scratch) < 0:
        return -1
    present = 0
    for row in range(rows):
        valid[row] = scratch[row]
        present += scratch[row]
    return present


@njit(nogil=True, cache=True)
def _values(data: Any, at: int, width: int, valid: Any, out: Any) -> None:
    """Values of ``width`` bytes, spread to the rows that have one; 0 where a row has none."""
    for row in range(valid.size):
        for k in range(width):
            out[row * width + k] = data[at + k] if valid[row] else 0
        at += width if valid[row] else 0


@njit(nogil=True, cache=True)
def decode(
    data: Any, table: Any, starts: Any, wanted: Any, first: int, snappy: bool, optional: bool,
    size: int, width: int, scratch: Any, numbers: Any, codes: Any, values: Any, valid: Any,
) -> int:  # fmt: skip
    """Decode the ``wanted`` pages of a column: codes of pages that have a dictionary of ``size``
    values, values of ``width`` bytes of others, and which rows are there.

    A page's rows begin at ``starts``, less ``first``. The code of null is ``size``. What comes back
    is whether there are nulls, or -1 where a page does not make sense.
    """  # fmt: skip
    nulls = 0
    for page in range(table.shape[0]):
        if not wanted[page]:
            continue
        row = table[page]
        begin, rows, at, end = starts[page] - first, row[VALUES], row[AT], row[AT] + row[PACKED]
        bytes_ = data
        if snappy:
            if not decompress(data, at, end, scratch, row[UNPACKED]):
                return -1
            bytes_, at, end = scratch, 0, row[UNPACKED]
        present = rows
        there = valid[begin : begin + rows] if optional else valid[:0]
        if optional:
            if at + 4 > end:
                return -1
            length = np.int64(0)
            for k in range(4):
                length |= np.int64(bytes_[at + k]) << (8 * k)
            if length > end - at - 4:
                return -1
            present = _levels(bytes_, at + 4, at + 4 + length, numbers, there)
            if present < 0:
                return -1
            at += 4 + length
        nulls |= present < rows
        if row[ENCODING] == PLAIN:
            if at + present * width > end:
                return -1
            if present == rows:
                copy_bytes(bytes_, at, values, begin * width, rows * width)
            else:
                _values(bytes_, at, width, there, values[begin * width : (begin + rows) * width])
            continue
        out = codes[begin : begin + rows]
        if present < rows:
            out[:] = size
        if present == 0:
            continue
        if at >= end:
            return -1
        packed = out if present == rows else numbers
        greatest = unpack(bytes_, at + 1, end, np.int64(bytes_[at]), present, packed)
        if greatest < 0 or greatest >= size:
            return -1
        if present < rows:
            taken = 0
            for i in range(rows):
                if there[i]:
                    out[i] = numbers[taken]
                    taken += 1
    return nulls


@njit(nogil=True, cache=True)
def mark(codes: Any, passes: Any, kept: Any) -> None:
    """Keep the rows whose code passes, of those that are still kept."""
    for row in range(codes.size):
        kept[row] &= passes[np.uint32(codes[row])]


@njit(nogil=True, cache=True)
def look_up(codes: Any, values: Any, out: Any) -> None:
    """The value of each code."""
    for row in range(codes.size):
        out[row] = values[np.uint32(codes[row])]


@njit(nogil=True, cache=True)
def look_up_some(codes: Any, rows: Any, first: int, values: Any, out: Any) -> None:
    """The values of the codes of some rows; the codes begin with that of row ``first``."""
    for i in range(rows.size):
        out[i] = values[codes[rows[i] - first]]


@njit(nogil=True, cache=True)
def take(values: Any, rows: Any, first: int, out: Any) -> None:
    """The values of some rows; they begin with that of row ``first``."""
    for i in range(rows.size):
        out[i] = values[rows[i] - first]


@njit(nogil=True, cache=True)
def text_offsets(data: Any, offsets: Any) -> int:
    """Where texts begin that have their lengths before them, without those; all bytes, or -1."""
    at, total = 0, 0
    for i in range(offsets.size - 1):
        offsets[i] = total
        if at + 4 > data.size:
            return -1
        length = np.int64(0)
        for k in range(4):
            length |= np.int64(data[at + k]) << (8 * k)
        at += 4 + length
        total += length
        if at > data.size or total >= 1 << 31:
            return -1
    offsets[offsets.size - 1] = total
    return total


@njit(nogil=True, cache=True)
def text_bytes(data: Any, offsets: Any, out: Any) -> None:
    """The texts themselves, one after the other."""
    for i in range(offsets.size - 1):
        start = offsets[i] + 4 * (i + 1)
        for k in range(offsets[i + 1] - offsets[i]):
            out[offsets[i] + k] = data[start + k]
