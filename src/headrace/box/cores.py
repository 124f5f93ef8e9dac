"""The cores of this machine that this process may use, and how threads share them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys

_TURN = 100_000_000
"""Nanoseconds: the longest turn that Linux gives."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, for which not every C library has a function."""


def usable_cores() -> list[int]:
    """Their numbers."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def are_crowded(workers: int) -> bool:
    """Whether so many workers have to take turns at the cores."""
    return workers > len(usable_cores())


def take_long_turns() -> None:
    """Have this thread keep its core for longer, where many take turns at it.

    A thread that is put aside while it has a lock keeps all others from it. With long turns it is
    put aside where it gives way itself, which is where it has none (``native/locks.py``). Linux
    does that from 6.12 on; elsewhere nothing changes. It gets no larger share of the core.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform == "linux" and number is not None:
        # struct sched_attr: its size, policy, flags, nice value, priority, runtime, …
        wanted = struct.pack("IIQiIQQQ", 48, 0, 0, 0, 0, _TURN, 0, 0)
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 0, wanted, 0)
