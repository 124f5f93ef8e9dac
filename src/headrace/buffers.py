"""How many records the box gathers before it sends them on together (RStream §IV-B).

>>> fixed(1024)
fixed(1024)
>>> adaptive(1024, "50ms")
adaptive(1024, 50ms)
>>> immediate
immediate
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.errors import PlanError
from headrace.sizes import is_whole
from headrace.windows import duration, show_duration

MOST = 1 << 20
"""The most records a buffer gathers."""


@dataclass(frozen=True, repr=False)
class Buffer:
    """Records are sent on when there are ``size`` of them, or when ``timeout`` microseconds have
    passed since the first of them came; None waits for all of them."""

    size: int
    timeout: int | None = None

    def __repr__(self) -> str:
        if self.timeout == 0:
            return "immediate"
        if self.timeout is None:
            return f"fixed({self.size})"
        return f"adaptive({self.size}, {show_duration(self.timeout)})"


immediate = Buffer(1, 0)
"""Each record by itself, as soon as it is there: the least delay, and the least throughput."""


def fixed(size: int) -> Buffer:
    """Records in bundles of ``size``, however long the last of them takes to come."""
    return Buffer(_size(size, "fixed"))


def adaptive(size: int, timeout: Any) -> Buffer:
    """Bundles of ``size`` records, or of fewer once the first has waited for ``timeout``."""
    return Buffer(_size(size, "adaptive"), duration(timeout, "adaptive: timeout", 1))


def _size(size: Any, where: str) -> int:
    if not is_whole(size, 1, MOST):
        raise PlanError(f"{where}: {size!r} is not a number of records from 1 to {MOST:,}")
    return size


def checked(what: Any, where: str) -> Buffer:
    """A buffering policy as it was given, checked."""
    if not isinstance(what, Buffer):
        called = "; call it with its size" if what is fixed or what is adaptive else ""
        raise PlanError(
            f"{where}: {what!r} is not a buffering policy{called}; use hr.fixed(1024), "
            "hr.adaptive(1024, '50ms') or hr.immediate"
        )
    return what
