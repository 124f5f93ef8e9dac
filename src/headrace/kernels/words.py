"""Words counted as they are cut: the table of ``split``, explode, group by word, count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.chain import SplitText
from headrace.kernels.columns import Text
from headrace.kernels.group import TextTable
from headrace.kernels.native import short_words, strings, tokens
from headrace.kernels.native.memory import cleared
from headrace.kernels.tokenise import Tokeniser

_ALL_ROWS = np.zeros(0, np.int64)
_LEAST = 1 << 10


class WordTable:
    """Words counted as they are cut: the partial of ``split``, explode, group by word, count.

    Short words have a table of their own. None becomes a string until the counts are asked for.
    """

    def __init__(self, split: SplitText, keep_empty: bool, partial_schema: pa.Schema) -> None:
        self.split, self.keep_empty, self.schema = split, keep_empty, partial_schema
        self.table = TextTable(short_words.FULL)
        self.shorts, self.size = cleared((_LEAST, 2), np.uint64), np.zeros(1, np.int64)
        self.empties = np.zeros(1, np.int64)
        self.scratch = np.zeros(1 << 10, np.uint8)

    def reset(self) -> None:
        """Forget every word, and keep the room they took."""
        self.table.clear()
        self.shorts[:] = 0
        self.size[0] = self.empties[0] = 0

    @property
    def groups(self) -> int:
        return self.table.size + int(self.size[0])

    used = groups

    @property
    def room(self) -> int:
        return int(self.table.slots.shape[0] + self.shorts.shape[0])

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + int(self.shorts.nbytes)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in a bundle of records that hold the text."""
        self.add_text(*self.text(batch))

    def text(self, batch: pa.RecordBatch) -> tuple[Text, Tokeniser]:
        """The text of a bundle and what cuts it."""
        array, tokeniser = self.split.input(batch)
        return Text.of(array), tokeniser

    def add_text(self, text: Text, tokeniser: Tokeniser, rows: Any = _ALL_ROWS) -> None:
        """Take in some rows of a bundle's text, or all."""
        end = rows.size or text.offsets.size - 1
        if end == 0:
            return
        longest = int(np.diff(text.offsets).max())
        if longest > self.scratch.size:
            self.scratch = np.zeros(2 * longest, np.uint8)
        at = 0
        while True:
            table = self.table
            if self.keep_empty:
                at = tokens.count_tokens(
                    text.data, text.offsets, text.valid, rows, at, tokeniser.table,
                    tokeniser.ranges, tokeniser.foreign, tokeniser.fold, tokeniser.runs,
                    table.slots, table.meta, table.arena, self.shorts, self.size, self.scratch,
                    self.empties,
                )  # fmt: skip
            else:
                at = tokens.count_words(
                    text.data, text.offsets, text.valid, rows, at, tokeniser.table,
                    tokeniser.bounds, tokeniser.foreign, tokeniser.folds, tokeniser.small,
                    table.slots, table.meta, table.arena, self.shorts, self.size, self.scratch,
                )  # fmt: skip
            if at == end:
                return
            row = int(rows[at]) if rows.size else at
            need = int(text.offsets[row + 1] - text.offsets[row])
            table.grow(need, slots=need // 2 + 1)
            self._grow(need // 2 + 1)

    def _grow(self, more: int) -> None:
        """Make room for some more short words."""
        old, room = self.shorts, self.shorts.shape[0]
        while int(self.size[0]) + more >= room * short_words.FULL // 16:
            room *= 2 if room >= 1 << 14 else 4
        if room != old.shape[0]:
            self.shorts, self.size[0] = cleared((room, 2), np.uint64), 0
            short_words.merge_short(old, 0, np.uint64(0), np.uint64(64), self.shorts, self.size)

    def merge(self, other: WordTable, part: int, bits: int) -> None:
        """Add another's counts, of the words in one of ``2**bits`` parts of the hashes."""
        if part == 0:
            self.empties += other.empties
        chosen, at, old = (np.uint64(part), np.uint64(64 - bits)), 0, other.table
        while True:
            at = strings.merge_counts(
                old.slots, old.arena, at, *chosen,
                self.table.slots, self.table.meta, self.table.arena,
            )  # fmt: skip
            if at == old.slots.shape[0]:
                break
            length = int(old.slots[at, 2]) >> 32
            self.table.grow(length, slots=1 + (old.size >> bits))
        at = 0
        while True:
            at = short_words.merge_short(other.shorts, at, *chosen, self.shorts, self.size)
            if at == other.shorts.shape[0]:
                return
            self._grow(1 + (int(other.size[0]) >> bits))

    def bundle(self) -> pa.RecordBatch:
        """Every word and its count."""
        size, long = self.groups, self.table.size
        offsets, counts = np.empty(size + 1, np.int32), np.empty(size, np.int64)
        room = strings.string_room(self.table.slots) + short_words.short_bytes(self.shorts)
        data = np.empty(room + 16, np.uint8)
        strings.write_strings(self.table.slots, self.table.arena, offsets, data, counts)
        short_words.write_short(self.shorts, offsets[long:], data, counts[long:])
        words = pa.StringArray.from_buffers(size, pa.py_buffer(offsets), pa.py_buffer(data))
        if self.keep_empty and self.empties[0]:
            words = pa.concat_arrays([words, pa.array([""])])
            counts = np.append(counts, self.empties[0])
        return pa.RecordBatch.from_arrays([words, pa.array(counts)], schema=self.schema)
