"""Word tables that threads take turns at, a stretch of text at a time.

A directory has a line for each table: a lock, and where its arrays are. Whoever counts takes any
table that is free, that of its core first, and gives it back after a stretch. So there are as many
tables as threads that run at once, and not as many as there are threads: fewer to keep in the
caches, and fewer to merge.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numba import carray, njit, types

from headrace.kernels.native.locks import give_way, pointer, try_lock, unlock
from headrace.kernels.native.tokens import count_tokens, count_words

LOCK, SLOTS, ROOM, META, ARENA, BYTES, SHORTS, SHORT_ROOM, SIZE, EMPTIES = range(10)
"""A table in a directory: its lock, and its arrays' addresses and sizes; no slots, no table."""
LINE = 16
"""Words of a directory for each table: two locks never share a cache line."""
TRIES = 3
"""How often all tables are asked for before there is to be one more."""
STRETCH = 1 << 18
"""The bytes of text, about, after which a table is given back where others may wait for it."""

_sched_getcpu = types.ExternalFunction("sched_getcpu", types.intc())

if sys.platform == "linux":

    @njit(nogil=True, cache=True)
    def _core() -> int:
        return max(0, _sched_getcpu())

else:

    @njit(nogil=True, cache=True)
    def _core() -> int:
        return 0


@njit(nogil=True, cache=True)
def take_table(directory: Any, crowded: bool) -> int:
    """Take a table that is free; -1 if there is none."""
    count = directory.shape[0]
    for _ in range(TRIES):
        first = _core() % count
        for i in range(count):
            table = (first + i) % count
            if directory[table, SLOTS] != 0 and try_lock(directory[table].ctypes.data):
                return table
        if crowded:
            give_way()
    return -1


@njit(nogil=True, cache=True)
def add_table(directory: Any) -> int:
    """The line of a new table, that of this core if it can be; nobody may add at the same time."""
    count = directory.shape[0]
    first = _core() % count
    for i in range(count):
        table = (first + i) % count
        if directory[table, SLOTS] == 0:
            return table
    return -1


@njit(nogil=True, cache=True)
def give_table_back(directory: Any, table: int) -> None:
    unlock(directory[table].ctypes.data)


@njit(nogil=True, cache=True, inline="always")
def _slots(line: Any) -> Any:
    return carray(pointer(line[SLOTS]), (line[ROOM], 4), np.uint64)


@njit(nogil=True, cache=True, inline="always")
def _shorts(line: Any) -> Any:
    return carray(pointer(line[SHORTS]), (line[SHORT_ROOM], 2), np.uint64)


@njit(nogil=True, cache=True, inline="always")
def _numbers(line: Any, which: int, count: int) -> Any:
    return carray(pointer(line[which]), count, np.int64)


@njit(nogil=True, cache=True)
def count_words_shared(
    data: Any, offsets: Any, valid: Any, rows: Any, first: int, step: int, longest: int,
    table: Any, bounds: Any, foreign: Any, fold: Any, small: Any,
    directory: Any, held: int, crowded: bool,
) -> tuple[int, int]:  # fmt: skip
    """``count_words`` into any of the tables, ``step`` rows at a time; where it stopped, and which
    table it still holds.

    It stops before the end with a table that needs room, or with none (-1) if all are taken.
    """
    last = rows.size if rows.size > 0 else offsets.size - 1
    scratch = np.empty(longest, np.uint8)
    at = first
    while at < last:
        if held < 0:
            held = take_table(directory, crowded)
            if held < 0:
                return at, held
        line = directory[held]
        end = min(last, at + step)
        at = count_words(
            data, offsets, valid, rows, at, end, table, bounds, foreign, fold, small,
            _slots(line), _numbers(line, META, 3), carray(pointer(line[ARENA]), line[BYTES],
            np.uint8), _shorts(line), _numbers(line, SIZE, 1), scratch,
        )  # fmt: skip
        if at < end:
            return at, held
        give_table_back(directory, held)
        held = -1
        if crowded:
            give_way()
    return at, held


@njit(nogil=True, cache=True)
def count_tokens_shared(
    data: Any, offsets: Any, valid: Any, rows: Any, first: int, step: int, longest: int,
    table: Any, ranges: Any, foreign: Any, fold: Any, runs: bool,
    directory: Any, held: int, crowded: bool,
) -> tuple[int, int]:  # fmt: skip
    """The same of ``count_tokens``."""
    last = rows.size if rows.size > 0 else offsets.size - 1
    scratch = np.empty(longest, np.uint8)
    at = first
    while at < last:
        if held < 0:
            held = take_table(directory, crowded)
            if held < 0:
                return at, held
        line = directory[held]
        end = min(last, at + step)
        at = count_tokens(
            data, offsets, valid, rows, at, end, table, ranges, foreign, fold, runs,
            _slots(line), _numbers(line, META, 3), carray(pointer(line[ARENA]), line[BYTES],
            np.uint8), _shorts(line), _numbers(line, SIZE, 1), scratch,
            _numbers(line, EMPTIES, 1),
        )  # fmt: skip
        if at < end:
            return at, held
        give_table_back(directory, held)
        held = -1
        if crowded:
            give_way()
    return at, held
