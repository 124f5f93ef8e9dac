"""Memory for the slots of hash tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.kernels import recycled

_LINE, _PAGE = 64, 2 << 20
"""Bytes of a cache line, and of a large page."""


def empty_slots(count: int, dtype: Any) -> Any:
    """Zeros that begin with a cache line, and where they are many with a large page."""
    size = np.dtype(dtype).itemsize
    line = _PAGE if size * count >= _PAGE else _LINE
    slots = recycled.empty(count + line // size, dtype)
    slots.fill(0)
    skipped = -slots.ctypes.data % line // size
    return slots[skipped : skipped + count]
