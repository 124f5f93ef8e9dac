"""Memory that is used again, for the large arrays that every bundle and every window makes.

The system hands out memory page by page, clears each page when it is first written, and takes all
of it back when an array is dropped: with many threads, whose arrays live longer, that is a fifth of
their time. Here whoever drops the last array in a block leaves the block for the next one.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

_SMALL = 1 << 17
"""Bytes: below this the allocator keeps memory by itself."""
_KEPT = 64 << 20
"""Bytes that are kept of each size."""
_STEPS = 4
"""How many sizes there are between a power of two and the next."""

_free: dict[int, deque[Any]] = {}


def empty(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """An array with anything in it, as ``np.empty`` gives."""
    kind = np.dtype(dtype)
    count = shape if isinstance(shape, int) else math.prod(shape)
    wanted = count * kind.itemsize
    if not _SMALL <= wanted <= _KEPT // 2:
        return np.empty(shape, kind)
    size = _size_for(wanted)
    try:
        memory = _free[size].pop()
    except (KeyError, IndexError):
        memory = np.empty(size, np.uint8)
    flat = np.asarray(_Block(memory))[:wanted].view(kind)
    return flat if isinstance(shape, int) else flat.reshape(shape)


def forget() -> None:
    """Give back what is not in use."""
    for blocks in list(_free.values()):
        blocks.clear()


def _size_for(wanted: int) -> int:
    step = 1 << max(0, (wanted - 1).bit_length() - _STEPS.bit_length())
    return -(-wanted // step) * step


class _Block:
    """A block in use: NumPy makes an array of it, and drops it with the last that is in it."""

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self, free: dict[int, deque[Any]] = _free) -> None:
        size = int(self.memory.size)
        blocks = free.get(size)
        if blocks is None:
            blocks = free.setdefault(size, deque(maxlen=max(1, _KEPT // size)))
        blocks.append(self.memory)  # a full one drops the oldest
