"""A hash table over the keys of one side of a join, in which rows of the other are looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.columns import Text, numbers, validity
from headrace.kernels.group import is_fixed, key_words
from headrace.kernels.native import hash_join as native
from headrace.kernels.native.memory import cleared
from headrace.kernels.slots import empty_slots

Rows = np.ndarray[Any, Any]

_DENSE = 8
"""Whole numbers are looked up in a list if it has at most so many places for each row."""
_WORD_DIGITS = 18
"""Decimals of so many digits are one word."""


class HashTable:
    """Rows by key. A null equals nothing; NaN equals NaN, and -0.0 equals 0.0.

    ``keys`` are the key columns of the rows, those of ``probe`` and ``contains`` have the same
    types. Once built it does not change, and threads may look up rows in it at once.

    >>> table = HashTable([pa.array(["a", "b", None, "a"])])
    >>> table.probe([pa.array(["b", None, "a"])])
    (array([0, 2, 2]), array([1, 0, 3]))
    >>> table.contains([pa.array(["b", None, "c"])])
    array([ True, False, False])
    """

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        self.kinds = [k.type for k in keys]
        self.rows = len(keys[0])
        """The rows it was built over, those with a null key among them."""
        firsts = np.empty(self.rows, np.int32)
        self._keys = _coded(keys)
        self._low: int | None = None
        """The key of the first place, where there is a place for each number."""
        again = self._build(firsts)
        self.is_unique = again == 0
        """Whether no two rows have the same key, so that a row matches one at most."""
        self._starts, self._listed = _NONE, _NONE
        if again:
            self._starts = np.empty(self.rows + 1, np.uint32)
            self._listed = np.empty(self.rows, np.uint32)
            native.list_rows(firsts, self._starts, self._listed)

    def _build(self, firsts: Rows) -> int:
        keys = self._keys
        if isinstance(keys, _Words):
            span = np.empty(2, np.int64)
            count = int(native.word_span(keys.words, keys.valid, span))
            low, width = int(span[0]), int(span[1]) - int(span[0]) + 1
            if 0 < width <= max(_DENSE * count, 1 << 10):
                self._low, self._table = low, cleared(width, np.int32)
                return int(native.build_dense(keys.words, keys.valid, low, self._table, firsts))
            self._table = _empty_slots(count, 2)
            return int(native.build_words(keys.words, keys.valid, self._table, firsts))
        self._table = _empty_slots(self.rows, 4)
        return int(native.build_bytes(keys.data, keys.offsets, keys.valid, self._table, firsts))

    @property
    def nbytes(self) -> int:
        """The memory it holds."""
        parts = (self._table, self._starts, self._listed)
        return sum(int(part.nbytes) for part in parts) + self._keys.nbytes

    def probe(self, keys: Sequence[pa.Array]) -> tuple[Rows, Rows]:
        """The pairs of rows with equal keys, the given row first: by it, then by the other."""
        return self.find(keys).pairs()

    def find(self, keys: Sequence[pa.Array]) -> Matches:
        """What ``probe`` gives, counted and not yet written."""
        firsts, count = self._find(keys)
        return Matches(self, firsts, count)

    def contains(self, keys: Sequence[pa.Array]) -> Rows:
        """Whether there is a row with the key of each given row."""
        return np.asarray(self._find(keys)[0] >= 0)

    def _find(self, keys: Sequence[pa.Array]) -> tuple[Rows, int]:
        """The first row with each key, or -1, and the number of rows with all of them."""
        assert [k.type for k in keys] == self.kinds
        coded, mine = _coded(keys), self._keys
        firsts = np.empty(len(keys[0]), np.int32)
        if isinstance(coded, _Bytes):
            assert isinstance(mine, _Bytes)
            found = native.find_bytes(
                coded.data, coded.offsets, coded.valid, self._table, mine.data, self._starts, firsts
            )
        elif self._low is not None:
            found = native.find_dense(
                coded.words, coded.valid, self._low, self._table, self._starts, firsts
            )
        else:
            found = native.find_words(coded.words, coded.valid, self._table, self._starts, firsts)
        return firsts, int(found)


@dataclass(frozen=True, slots=True)
class Matches:
    """The rows that match some others."""

    table: HashTable
    firsts: Rows
    """Of each row the first that matches it, or -1."""
    count: int
    """How many pairs there are."""

    @property
    def is_one_each(self) -> bool:
        """Whether every row matches just one."""
        return self.table.is_unique and self.count == self.firsts.size

    def pairs(self, *, alone: bool = False) -> tuple[Rows, Rows]:
        """The pairs; with ``alone`` rows that match none as well, each with -1."""
        count = self.count
        if alone:
            count += int(np.count_nonzero(self.firsts < 0))
        left, right = np.empty(count, np.int64), np.empty(count, np.int64)
        table = self.table
        native.write_pairs(self.firsts, table._starts, table._listed, alone, left, right)
        return left, right


def _empty_slots(rows: int, words: int) -> Rows:
    """Twice as many slots as rows at least."""
    slots: Rows = empty_slots(words << max(4, (2 * rows - 1).bit_length()), np.uint64)
    return slots


@dataclass(frozen=True, slots=True)
class _Words:
    """Keys of one word each."""

    words: Rows
    valid: Rows

    @property
    def nbytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Keys as byte strings, equal just when the keys are."""

    data: Rows
    offsets: Rows
    valid: Rows

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes + self.offsets.nbytes)


def _coded(keys: Sequence[pa.Array]) -> _Words | _Bytes:
    """Keys as the native tables take them. How depends on their types alone."""
    valid = all_valid(keys)
    kinds = [k.type for k in keys]
    if len(keys) == 1 and _is_bytes(kinds[0]):
        text = Text.of(keys[0])
        return _Bytes(_fixed(text.data), _fixed(text.offsets.astype(np.int64)), valid)
    widths = [_width(kind) for kind in kinds]
    if sum(widths) <= 64:
        words = _words(keys[0])[0]
        for key, width in zip(keys[1:], widths[1:], strict=True):
            low = _words(key)[0] & np.int64((1 << width) - 1)
            words = (words << np.int64(width)) | low
        return _Words(_fixed(words), valid)
    return _joined(keys, valid)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _width(kind: pa.DataType) -> int:
    """The bits of a key that a word can hold; more than a word has if none can."""
    if pa.types.is_null(kind):
        return 1
    if pa.types.is_decimal(kind):
        return 64 if kind.precision <= _WORD_DIGITS else 128
    return int(kind.bit_width) if is_fixed(kind) else 128


def _words(key: pa.Array) -> list[Rows]:
    """A key as words: one, but for long decimals."""
    if pa.types.is_null(key.type):
        return [np.zeros(len(key), np.int64)]
    if pa.types.is_decimal(key.type):
        halves = numbers(key, "V16").view(np.int64).reshape(-1, 2)
        wanted = 1 if key.type.precision <= _WORD_DIGITS else 2
        return [np.ascontiguousarray(halves[:, i]) for i in range(wanted)]
    return [key_words(key).astype(np.int64, copy=False)]


def _joined(keys: Sequence[pa.Array], valid: Rows) -> _Bytes:
    """Several keys as one: the words of some, then the bytes of others, each but the last after
    its length."""
    words = [w for k in keys if not _is_bytes(k.type) for w in _words(k)]
    texts = [Text.of(k) for k in keys if _is_bytes(k.type)]
    offsets = np.full(len(keys[0]) + 1, 8 * (len(words) + max(0, len(texts) - 1)), np.int64)
    offsets[0] = 0
    for text in texts:
        offsets[1:] += text.offsets[1:] - text.offsets[:-1]
    np.cumsum(offsets, out=offsets)
    data, places = np.empty(int(offsets[-1]), np.uint8), offsets[:-1].copy()
    for column in words:
        native.write_words(_fixed(column), places, data)
    for i, text in enumerate(texts):
        ends = _fixed(text.offsets.astype(np.int64))
        native.write_bytes(_fixed(text.data), ends, i + 1 < len(texts), places, data)
    return _Bytes(_fixed(data), _fixed(offsets), valid)


def all_valid(keys: Sequence[pa.Array]) -> Rows:
    """False for each row with a null key; empty where there is none."""
    valid = validity(keys[0])
    for key in keys[1:]:
        other = validity(key)
        if other.size:
            valid = other if not valid.size else valid & other
    return valid


def _fixed(array: Rows) -> Rows:
    """An array that is not to be written to, so that native code is compiled for one kind only."""
    view = array.view()
    view.flags.writeable = False
    return view


_NONE = np.zeros(0, np.uint32)
