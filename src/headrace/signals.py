"""Ctrl-C and SIGTERM while a job is waited for: finish what was read, then end; again: now.

That is how terminals, containers and schedulers stop a job. Handlers are in place only while a
job is waited for, and take the place of those of PySpark, which would cancel the running batch.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from headrace.windows import duration, show_duration

log = logging.getLogger("headrace")
GRACE = "30s"
"""How long a job that was asked to stop may take to finish what it has read."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Asked:
    """How often the process was asked to stop."""

    def __init__(self) -> None:
        self.count = 0

    def take(self, number: int, frame: Any) -> None:
        self.count += 1


_CURRENT: list[Asked] = []


@contextlib.contextmanager
def asked_to_stop() -> Iterator[Asked]:
    """Take signals in; where this is done already, or cannot be, only see what was asked."""
    if _CURRENT or threading.current_thread() is not threading.main_thread():
        yield _CURRENT[0] if _CURRENT else Asked()
        return
    asked = Asked()
    before = {number: signal.signal(number, asked.take) for number in _SIGNALS}
    _CURRENT.append(asked)
    try:
        yield asked
    finally:
        _CURRENT.clear()
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class Halt:
    """Stops a job as it is asked to: gently, and at once when asked again or out of patience."""

    def __init__(self, gently: Callable[[], Any], at_once: Callable[[], Any]) -> None:
        self.gently, self.at_once = gently, at_once
        self.deadline: float | None = None
        self.first: Asked | None = None
        """What took the first signal in; a job may be waited for again and again."""
        self.forced = False

    def look(self, asked: Asked, grace: Any) -> None:
        """Do what has been asked for since the last look."""
        if self.forced or (self.deadline is None and not asked.count):
            return
        now = time.monotonic()
        if self.deadline is None:
            self.first = asked
            span = duration(grace, "grace")
            self.deadline = now + span / 1e6
            log.warning(
                "stopping: no more is read, what was read is finished, for %s at the most (Ctrl-C "
                "or SIGTERM again: now)", show_duration(span),
            )  # fmt: skip
            self._start(self.gently)
        elif asked.count > (asked is self.first) or now >= self.deadline:
            self.forced = True
            log.warning("stopping at once: what was not finished is dropped here")
            self._start(self.at_once)

    def _start(self, function: Callable[[], Any]) -> None:
        def run() -> None:
            with contextlib.suppress(Exception):  # whoever waits is told what went wrong
                function()

        threading.Thread(target=run, name="headrace-stop", daemon=True).start()
