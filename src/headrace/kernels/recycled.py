"""Memory that is used again, for the large arrays that every bundle and every window makes.

The system hands out memory page by page, clears each page when it is first written, and takes all
of it back when an array is dropped: with many threads, whose arrays live longer, that is a fifth of
their time. Here whoever drops the last array in a block leaves the block for the next one.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import psutil

_SMALL = 1 << 17
"""Bytes: below this the allocator keeps memory by itself."""
_LARGE = 32 << 20
"""Above this it is not worth keeping."""
_LIMIT = [min(512 << 20, psutil.virtual_memory().total // 32)]
"""Bytes that are kept in all, about: how many there are is looked up now and then."""
_STEPS = 4
"""How many sizes there are between a power of two and the next."""

_free: dict[int, list[Any]] = {}
_turn = itertools.count()
_is_full = [False]


def empty(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """An array with anything in it, as ``np.empty`` gives."""
    kind = np.dtype(dtype)
    count = shape if isinstance(shape, int) else math.prod(shape)
    wanted = count * kind.itemsize
    if not _SMALL <= wanted <= _LARGE:
        return np.empty(shape, kind)
    size = _size_for(wanted)
    try:
        memory = _free[size].pop()
    except (KeyError, IndexError):
        memory = np.empty(size, np.uint8)
    flat = np.asarray(_Block(memory))[:wanted].view(kind)
    return flat if isinstance(shape, int) else flat.reshape(shape)


def forget() -> None:
    """Give most of what is not in use back to the system: a job has ended."""
    left = _LIMIT[0] // 4
    for size, blocks in list(_free.items()):
        del blocks[left // size :]
        left = max(0, left - size * len(blocks))  # others add some meanwhile


def _size_for(wanted: int) -> int:
    step = 1 << max(0, (wanted - 1).bit_length() - _STEPS.bit_length())
    return -(-wanted // step) * step


class _Block:
    """A block in use: NumPy makes an array of it, and drops it with the last that is in it."""

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.__array_interface__ = memory.__array_interface__

    # What it needs is bound here, for it may be called when the module is gone.
    def __del__(
        self, free: Any = _free, turn: Any = _turn, is_full: Any = _is_full, limit: Any = _LIMIT
    ) -> None:
        size = int(self.memory.size)
        if next(turn) % 16 == 0:  # now and then
            kept = sum(n * len(blocks) for n, blocks in list(free.items()))
            is_full[0] = kept > limit[0]
        if not is_full[0]:
            free.setdefault(size, []).append(self.memory)
