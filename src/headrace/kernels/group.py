"""Numbering the distinct keys of a stream of bundles.

A ``Grouper`` gives each row the number of its key, in the order in which keys first appear, and
remembers them from bundle to bundle. One or two fixed-width columns are one table lookup; text is
another table; anything more is numbered part by part and then by the parts' numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PlanError
from headrace.kernels.columns import Text, as_column, numbers, validity
from headrace.kernels.expressions.codes import by_code, decoded, mapped
from headrace.kernels.expressions.hashing import float_bits
from headrace.kernels.native import pairs, strings
from headrace.kernels.native.memory import cleared
from headrace.types import type_name

_NONE = np.zeros(0, np.int64)
_ALL = np.zeros(0, np.bool_)
_SMALL = 1 << 10


class Numbering(Protocol):
    """Numbers values in the order in which they first appear."""

    @property
    def size(self) -> int:
        """How many numbers have been given."""

    @property
    def nbytes(self) -> int:
        """The memory it holds."""

    def number(self, columns: Sequence[pa.Array]) -> np.ndarray[Any, Any]:
        """The number of each row."""


class TextTable:
    """Numbers strings and byte strings; ``full`` is how many sixteenths of it may be in use."""

    def __init__(self, full: int = 8) -> None:
        self.full = full
        self.slots = np.zeros((_SMALL, 4), np.uint64)
        self.meta = np.array([0, 0, -1], np.int64)
        self.arena = np.zeros(1 << 12, np.uint8)

    @property
    def size(self) -> int:
        return int(self.meta[strings.GROUPS])

    @property
    def nbytes(self) -> int:
        return int(self.slots.nbytes + self.arena.nbytes)

    def number(self, columns: Sequence[pa.Array]) -> np.ndarray[Any, Any]:
        if isinstance(columns[0], pa.DictionaryArray):
            return self.number_codes(columns[0])
        text = Text.of(columns[0])
        groups = np.empty(text.offsets.size - 1, np.int64)
        at = 0
        while True:
            at = strings.group_strings(
                text.data, text.offsets, text.valid, at, self.slots, self.meta, self.arena, groups
            )
            if at == groups.size:
                return groups
            self.grow(int(text.offsets[at + 1] - text.offsets[at]))

    def number_codes(self, array: pa.DictionaryArray) -> np.ndarray[Any, Any]:
        """The same for text that is stored once for each value."""
        if len(array.dictionary) > len(array):
            return self.number([decoded(array)])
        words, places = by_code(array)
        groups = self.number([words])
        values = np.where(places < 0, 0, groups[places] if groups.size else 0)
        return np.asarray(mapped(array, values))

    def clear(self) -> None:
        """Forget every key, and keep the room they took."""
        self.slots[:] = 0
        self.meta[:] = (0, 0, -1)

    def grow(self, need: int, slots: int = 0) -> None:
        """Make room for a key of ``need`` bytes and ``slots`` more keys."""
        used = int(self.meta[strings.ARENA])
        if used + need > self.arena.size:
            larger = np.zeros(max(2 * self.arena.size, used + 2 * need), np.uint8)
            larger[:used] = self.arena[:used]
            self.arena = larger
        room = self.slots.shape[0]
        while self.size + slots + 1 >= room * self.full // 16:
            room *= 2 if room >= 1 << 14 else 4
        if room != self.slots.shape[0]:
            table = cleared((room, 4), np.uint64)
            strings.grow_strings(self.slots, table)
            self.slots = table


class PairTable:
    """Numbers one or two columns of fixed width."""

    def __init__(self) -> None:
        self.slots = np.zeros((_SMALL, 4), np.uint64)
        self.meta = np.zeros(1, np.int64)

    @property
    def size(self) -> int:
        return int(self.meta[strings.GROUPS])

    @property
    def nbytes(self) -> int:
        return int(self.slots.nbytes)

    def number(self, columns: Sequence[pa.Array]) -> np.ndarray[Any, Any]:
        a = columns[0]
        second = columns[1] if len(columns) > 1 else None
        return self.number_words(
            key_words(a),
            validity(a),
            _NONE if second is None else key_words(second),
            _ALL if second is None else validity(second),
        )

    def number_words(self, a: Any, a_valid: Any, b: Any, b_valid: Any) -> np.ndarray[Any, Any]:
        groups = np.empty(a.size, np.int64)
        at = 0
        while True:
            at = pairs.group_pairs(a, a_valid, b, b_valid, at, self.slots, self.meta, groups)
            if at == groups.size:
                return groups
            room = self.slots.shape[0]
            larger = cleared((room * (2 if room >= 1 << 20 else 4), 4), np.uint64)
            pairs.grow_pairs(self.slots, larger)
            self.slots = larger


class Composite:
    """Numbers rows of several columns, through the numbers of their parts."""

    def __init__(self, left: Numbering, width: int, right: Numbering) -> None:
        self.left, self.width, self.right = left, width, right
        self.table = PairTable()

    @property
    def size(self) -> int:
        return self.table.size

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes + self.table.nbytes

    def number(self, columns: Sequence[pa.Array]) -> np.ndarray[Any, Any]:
        a = self.left.number(columns[: self.width])
        b = self.right.number(columns[self.width :])
        return self.table.number_words(a, _ALL, b, _ALL)


class Single:
    """Numbers rows without a key: all are one group."""

    size = 1
    nbytes = 0

    def number(self, columns: Sequence[pa.Array]) -> np.ndarray[Any, Any]:
        raise AssertionError("a grouper without keys numbers rows itself")


def key_words(array: pa.Array) -> np.ndarray[Any, Any]:
    """A fixed-width column as 64-bit words that are equal just when the values are."""
    kind, t = array.type, pa.types
    if t.is_float64(kind):
        return np.asarray(float_bits(numbers(array, np.float64), np.int64))
    if t.is_float32(kind):
        return np.asarray(float_bits(numbers(array, np.float32), np.int32))
    if t.is_boolean(kind):
        return numbers(array.cast(pa.int8()), np.int8)
    return numbers(array, f"i{kind.bit_width // 8}")


def is_fixed(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) or t.is_date(kind)
        or t.is_timestamp(kind) or t.is_duration(kind)
    )  # fmt: skip


_MANY_KEYS = 8


def _numbering(kinds: Sequence[pa.DataType]) -> Numbering:
    fixed = [is_fixed(k) for k in kinds]
    if len(kinds) <= 2 and all(fixed):
        return PairTable()
    if len(kinds) == 1:
        return TextTable()
    cut = 2 if len(kinds) > 2 and all(fixed[:2]) else 1
    if len(kinds) > _MANY_KEYS:  # by halves, so that it does not get deep
        cut = len(kinds) // 2
    return Composite(_numbering(kinds[:cut]), cut, _numbering(kinds[cut:]))


def normal_key(array: pa.Array) -> pa.Array:
    """A key column as grouping sees it and shows it: one zero, and one NaN."""
    if not pa.types.is_floating(array.type):
        return array
    dtype = np.float64 if pa.types.is_float64(array.type) else np.float32
    plain = numbers(array, dtype) + dtype(0)
    valid = validity(array)
    return pa.array(plain, array.type, mask=~valid if valid.size else None)


class Grouper:
    """Numbers the keys of successive bundles, and keeps each key once."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        for kind in kinds:
            if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_struct(kind):
                raise PlanError(f"a {type_name(kind)} cannot be a key; use one of its parts")
        self.kinds = list(kinds)
        self._table: Numbering = _numbering(kinds) if kinds else Single()
        self._keys: list[list[pa.Array]] = []
        self._kept = 0
        self.size = 0

    @property
    def nbytes(self) -> int:
        """The memory the table and the kept keys hold."""
        return self._table.nbytes + self._kept

    def groups(self, columns: Sequence[pa.Array]) -> tuple[Any, Any]:
        """The group number of each row, and the rows that brought a new key."""
        codes = [as_key(c) for c in columns]
        groups = self._table.number(codes)
        fresh = np.empty(self._table.size - self.size, np.int64)
        if fresh.size:
            pairs.first_rows(groups, self.size, fresh)
            rows = as_column(fresh)
            self._keys.append([normal_key(decoded(c.take(rows))) for c in columns])
            self._kept += sum(_size(a) for a in self._keys[-1])
            self.size = self._table.size
        return groups, fresh

    def all_rows(self, rows: int) -> Any:
        """Group numbers for rows without a key."""
        self.size = 1
        return np.zeros(rows, np.int64)

    def keys(self) -> list[pa.Array]:
        """The key columns, a row a group, in the order of their numbers."""
        if not self._keys:
            return [pa.array([], kind) for kind in self.kinds]
        merged = [pa.concat_arrays([c[i] for c in self._keys]) for i in range(len(self.kinds))]
        self._keys = [merged]
        return merged


def _size(array: pa.Array) -> int:
    """The bytes of an array, about; to ask it gives up the interpreter lock."""
    if pa.types.is_primitive(array.type):
        return len(array) * int(array.type.bit_width) // 8
    return int(array.nbytes)


def as_key(array: pa.Array) -> pa.Array:
    """A column as the tables take it: decimals by their bytes."""
    if pa.types.is_decimal(array.type):
        return pc.cast(array, pa.string()).cast(pa.string())
    if pa.types.is_null(array.type):
        return array.cast(pa.int8())
    return array
