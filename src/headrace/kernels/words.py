"""Words counted as they are cut: the table of ``split``, explode, group by word, count."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.chain import SplitText
from headrace.kernels.columns import Text
from headrace.kernels.group import TextTable
from headrace.kernels.native import short_words, strings, word_tables
from headrace.kernels.native.memory import cleared
from headrace.kernels.tokenise import Tokeniser

ALL_ROWS = np.zeros(0, np.int64)
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
        """Take in a bundle of records that hold the text, as the only one who does."""
        array, tokeniser = self.split.input(batch)
        WordTurns(lambda: self, 1, self.keep_empty).add_text(Text.of(array), tokeniser)

    def make_room(self, need: int) -> None:
        """Make room for the words of a text of so many bytes."""
        self.table.grow(need, slots=need // 2 + 1)
        self._grow(need // 2 + 1)

    def describe(self, line: Any) -> None:
        """Tell in a line of a directory where its arrays are."""
        table = self.table
        line[word_tables.ROOM : word_tables.EMPTIES + 1] = (
            table.slots.shape[0], table.meta.ctypes.data, table.arena.ctypes.data, table.arena.size,
            self.shorts.ctypes.data, self.shorts.shape[0], self.size.ctypes.data,
            self.empties.ctypes.data,
        )  # fmt: skip
        line[word_tables.SLOTS] = table.slots.ctypes.data

    def _grow(self, more: int) -> None:
        """Make room for some more short words."""
        old, room = self.shorts, self.shorts.shape[0]
        while int(self.size[0]) + more >= room * short_words.FULL // 16:
            room *= 2 if room >= 1 << 14 else 4
        if room != old.shape[0]:
            self.shorts, self.size[0] = cleared((room, 2), np.uint64), 0
            short_words.merge_short(old, 0, self.shorts, self.size)

    def merge(self, other: WordTable) -> None:
        """Add another's counts."""
        self.empties += other.empties
        used = other.table.size, int(other.size[0])
        self.add_slots(other.table.slots, other.table.arena, other.shorts, used)

    def add_slots(self, slots: Any, arena: Any, shorts: Any, used: tuple[int, int]) -> None:
        """Add the counts of another's slots, or of some of them; so many of each are in use."""
        at = 0
        while True:
            at = strings.merge_counts(
                slots, arena, at, self.table.slots, self.table.meta, self.table.arena
            )
            if at == slots.shape[0]:
                break
            self.table.grow(int(slots[at, 2]) >> 32, slots=min(used[0], slots.shape[0] - at))
        at = 0
        while True:
            at = short_words.merge_short(shorts, at, self.shorts, self.size)
            if at == shorts.shape[0]:
                return
            self._grow(min(used[1], shorts.shape[0] - at))

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


class PartedWords:
    """The words of a table in parts by their hashes, so that each part can be merged by itself."""

    def __init__(self, table: WordTable, parts: int) -> None:
        """``parts`` is a power of two."""
        self.empties, self.arena = int(table.empties[0]), table.table.arena
        shift = np.uint64(64 - (parts - 1).bit_length())
        self.slots, self.starts = np.empty((table.table.size, 4), np.uint64), _starts(parts)
        strings.part_strings(table.table.slots, shift, self.starts, self.slots)
        self.shorts, self.short_starts = np.empty((table.size[0], 2), np.uint64), _starts(parts)
        short_words.part_short(table.shorts, shift, self.short_starts, self.shorts)

    def add_to(self, table: WordTable, part: int) -> None:
        """Add the counts of a part to a table."""
        if part == 0:
            table.empties += self.empties
        slots = self.slots[self.starts[part] : self.starts[part + 1]]
        shorts = self.shorts[self.short_starts[part] : self.short_starts[part + 1]]
        table.add_slots(slots, self.arena, shorts, (len(slots), len(shorts)))


def _starts(parts: int) -> Any:
    return np.zeros(parts + 1, np.int64)


class WordTurns:
    """Word tables that threads take turns at: as many as are counting at once.

    ``crowded`` says that there are more threads than cores; then a table is given back after a
    stretch of text, for the thread that has the core next.
    """

    def __init__(
        self, make: Callable[[], WordTable], most: int, keep_empty: bool, crowded: bool = False
    ) -> None:
        self.make, self.keep_empty, self.crowded = make, keep_empty, crowded
        self.directory = np.zeros((most, word_tables.LINE), np.int64)
        self.at: dict[int, WordTable] = {}
        """The tables by their lines in the directory."""
        self.lock = threading.Lock()

    @property
    def tables(self) -> list[WordTable]:
        return list(self.at.values())

    def add_text(self, text: Text, tokeniser: Tokeniser, rows: Any = ALL_ROWS) -> None:
        """Take in some rows of a bundle's text, or all, in one native call."""
        end = rows.size or text.offsets.size - 1
        if end == 0:
            return
        longest = int(np.diff(text.offsets).max())
        step = max(1, word_tables.STRETCH * end // max(1, text.nbytes)) if self.crowded else end
        at, held = 0, -1
        while True:
            if self.keep_empty:
                at, held = word_tables.count_tokens_shared(
                    text.data, text.offsets, text.valid, rows, at, step, longest, tokeniser.table,
                    tokeniser.ranges, tokeniser.foreign, tokeniser.fold, tokeniser.runs,
                    self.directory, held, self.crowded,
                )  # fmt: skip
            else:
                at, held = word_tables.count_words_shared(
                    text.data, text.offsets, text.valid, rows, at, step, longest, tokeniser.table,
                    tokeniser.bounds, tokeniser.foreign, tokeniser.folds, tokeniser.small,
                    self.directory, held, self.crowded,
                )  # fmt: skip
            if at == end:
                return
            if held < 0:
                held = self._one_more()
                continue
            row = int(rows[at]) if rows.size else at
            table = self.at[held]
            table.make_room(int(text.offsets[row + 1] - text.offsets[row]))
            table.describe(self.directory[held])

    def _one_more(self) -> int:
        """A new table, which is held; or none, where there are as many as may be."""
        with self.lock:
            place = word_tables.add_table(self.directory)
            if place < 0:
                return -1
            line, table = self.directory[place], self.make()
            line[word_tables.LOCK] = 1
            self.at[place] = table
            table.describe(line)
            return int(place)
