"""A clock that stands still until it is turned."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.cache import own_name


class TestClock:
    """Give it to ``hr.Box(clock=…)`` or ``hr.Spark(clock=…)``, and ``advance`` it.

    On the box nothing times out until you do. It is the time of day of ``processing_time`` on both
    engines, in seconds since 1970; processes that it is sent to see it turn.
    """

    __test__ = False  # pytest: not a test case

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._told: Path | None = None
        """Where other processes read it."""

    def __reduce__(self) -> Any:
        with self._lock:
            if self._told is None:
                file, path = tempfile.mkstemp(prefix=own_name("clock"))
                os.close(file)
                self._told = Path(path)
                weakref.finalize(self, self._told.unlink, missing_ok=True)
                self._tell()
        return _Seen, (str(self._told),)

    def _tell(self) -> None:
        if self._told is not None:
            draft = self._told.with_suffix(".draft")
            draft.write_text(repr(self._now))
            draft.rename(self._told)  # at once, for others who read it

    def now(self) -> float:
        """Seconds since it was made."""
        return self._now

    def time_of_day(self) -> float:
        """The time of day by this clock, in seconds since 1970."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Turn it, and let those who keep time by it know."""
        with self._lock:
            self._now += seconds
            self._tell()
        for listener in list(self._listeners):
            listener()

    def subscribe(self, function: Callable[[], None]) -> None:
        """Call a function whenever the clock has been turned."""
        self._listeners.append(function)


class _Seen:
    """A clock that is turned in another process."""

    def __init__(self, path: str) -> None:
        self.path = path

    def now(self) -> float:
        return float(Path(self.path).read_text())

    def time_of_day(self) -> float:
        return self.now()

    def subscribe(self, function: Callable[[], None]) -> None:
        """Nobody tells when it is turned: it is looked at."""
