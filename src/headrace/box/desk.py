"""Where evaluators hand in what they have done and get what they do next.

Whoever has the desk's lock does it for all: an evaluator that finds it taken leaves its work there
and sleeps until it is given more (flat combining). So no evaluator ever sleeps while it holds the
lock, or waits for the lock and for the interpreter's in turn, and others are woken only for work.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class Seat:
    """One evaluator's place at the desk."""

    __slots__ = ("error", "given", "ready", "worker")

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.given: Any = None
        """The work it was given last; None when there will be no more."""
        self.error: BaseException | None = None
        """What that work failed with."""
        self.ready = threading.Lock()
        self.ready.acquire()


class Desk:
    """A lock that, before it is released, serves those who came while it was held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.handed_in: deque[Seat] = deque()
        self.serve: Callable[[], None] | None = None
        """Takes what was handed in and gives out work; it must not raise. The lock is held."""

    def hand_in(self, seat: Seat) -> Any:
        """Hand in what a seat was given; the next work, or None when there will be no more."""
        self.handed_in.append(seat)
        if self._lock.acquire(blocking=False):
            self.release()
        seat.ready.acquire()
        return seat.given

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        while True:
            if self.serve is not None:
                self.serve()
            self._lock.release()
            # Who found the lock taken between the two relies on this look.
            if not self.handed_in or not self._lock.acquire(blocking=False):
                return

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> Desk:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
