"""The cores of this machine that this process may use, and how threads share them."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

_TURN = 100_000_000
"""Nanoseconds: the longest turn that Linux gives."""
_CALLS = {"x86_64": (315, 314), "aarch64": (275, 274)}
"""The numbers of sched_getattr and sched_setattr, for which not every C library has a function."""
_ATTRIBUTES = "IIQiIQQQ"
"""struct sched_attr: its size, policy, flags, nice value, priority, runtime, deadline, period."""
_ORDINARY = (0, 3)
"""SCHED_OTHER and SCHED_BATCH."""


def usable_cores() -> list[int]:
    """Their numbers."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def are_crowded(workers: int) -> bool:
    """Whether so many workers have to take turns at the cores."""
    return workers > len(usable_cores())


def request_long_slices() -> None:
    """Have this thread keep its core for longer, where many take turns at it.

    A thread that is preempted while it has a lock keeps all others from it. With long slices it is
    preempted where it yields itself, which is where it has none (``native/locks.py``). Linux
    does that from 6.12 on; elsewhere nothing changes. It gets no larger share of the core.
    """
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        return
    ask, tell = _CALLS[platform.machine()]
    size = struct.calcsize(_ATTRIBUTES)
    attributes = ctypes.create_string_buffer(size)
    call = ctypes.CDLL(None).syscall
    if call(ask, 0, attributes, size, 0) == 0:
        _, policy, flags, nice, priority, *_ = struct.unpack(_ATTRIBUTES, attributes.raw)
        if policy in _ORDINARY:
            wanted = (size, policy, flags, nice, priority, _TURN, 0, 0)
            call(tell, 0, struct.pack(_ATTRIBUTES, *wanted), 0)
