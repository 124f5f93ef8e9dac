"""The time of day for an engine: real, or (in tests) turned by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """What the engine asks the time of."""

    def now(self) -> float:
        """Seconds, from anywhere."""

    def subscribe(self, function: Callable[[], None]) -> None:
        """Call a function whenever the clock has been turned by hand."""


class RealClock:
    """The machine's own."""

    def now(self) -> float:
        return time.perf_counter()

    def subscribe(self, function: Callable[[], None]) -> None:
        """It is never turned by hand."""
