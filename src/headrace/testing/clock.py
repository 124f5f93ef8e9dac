"""A clock that stands still until it is turned."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class TestClock:
    """Give it to ``hr.Box(clock=…)``; then nothing times out until you ``advance`` it."""

    __test__ = False  # pytest: not a test case

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def __reduce__(self) -> Any:
        return TestClock, (self._now,)  # in another process it is another clock

    def now(self) -> float:
        """Seconds since it was made."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Turn it, and let those who keep time by it know."""
        with self._lock:
            self._now += seconds
        for listener in list(self._listeners):
            listener()

    def subscribe(self, function: Callable[[], None]) -> None:
        """Call a function whenever the clock has been turned."""
        self._listeners.append(function)
