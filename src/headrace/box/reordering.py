"""Reordering: workers finish outputs in any order, and they are sent downstream in serial order.

Every input of an operator has a serial number, counted from 0, and what it produces is one output
under that number. Each scheme sends output n only after outputs 0 to n - 1. (§3)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

EMPTY = object()
"""What a slot holds when it holds no output; None may be one."""


class Reorder(Protocol):
    """Sends outputs downstream in serial order.

    If ``send_downstream`` raises, the job fails: the sender that called it gets the error. Its
    output may have been sent in part, so it is neither dropped nor sent again: ``next`` stays
    where it is, nothing later is sent, and every later ``send`` that would send raises too.
    """

    send_downstream: Callable[[Any], None]
    """Gets the outputs, one call at a time."""

    @property
    def next(self) -> int:
        """The serial number that is sent next; all before it have been sent."""

    def send(self, serial: int, output: Any) -> bool:
        """Send an output in its turn; any worker may call this, once per serial number.

        False if there is no room for it yet: do other work, then try again. Do not wait for room
        while holding a partition that the missing output may be in.
        """


class NonBlockingReorder:
    """A circular buffer and a flag: nobody waits while another worker sends (§3.2, fig. 4).

    Whoever has the flag sends what is ready; the others only leave their outputs in the buffer.
    An output ``size`` or more ahead of ``next`` is refused.
    """

    def __init__(self, send_downstream: Callable[[Any], None], size: int = 1024) -> None:
        if size < 1:
            raise ValueError(f"a reorder buffer of {size} slots holds nothing; give it at least 1")
        self.send_downstream = send_downstream
        self.next = 0
        self._slots: list[Any] = [EMPTY] * size
        self._flag = threading.Lock()
        self._error: BaseException | None = None

    def send(self, serial: int, output: Any) -> bool:
        # ``next`` may move on after this look. It only grows, so there is room still, and it
        # cannot pass ``serial``, whose output is not in the buffer yet: the slot stays ours.
        first, size = self.next, len(self._slots)
        if serial < first:
            raise ValueError(f"output {serial} was sent before; the next is {first}")
        accepted = serial < first + size
        if accepted:
            self._slots[serial % size] = output
        self._send_pending()
        return accepted

    def _send_pending(self) -> None:
        slots, size = self._slots, len(self._slots)
        # Who found the flag taken while we released it relies on the second look.
        while slots[self.next % size] is not EMPTY and self._flag.acquire(blocking=False):
            try:
                if self._error is not None:
                    raise _after(self._error, self.next)
                serial = self.next
                while (output := slots[serial % size]) is not EMPTY:
                    self.send_downstream(output)
                    # Emptied before ``next`` grows: from then on the slot is the next round's.
                    slots[serial % size] = EMPTY
                    self.next = serial = serial + 1
            except BaseException as error:
                self._error = self._error or error
                raise
            finally:
                self._flag.release()


class LockingReorder:
    """A dict and a lock: a worker waits while another one sends; never refuses (§3.1, fig. 2)."""

    def __init__(self, send_downstream: Callable[[Any], None]) -> None:
        self.send_downstream = send_downstream
        self.next = 0
        self._waiting: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def send(self, serial: int, output: Any) -> bool:
        with self._lock:
            if serial < self.next:
                raise ValueError(f"output {serial} was sent before; the next is {self.next}")
            if self._error is not None:
                raise _after(self._error, self.next)
            self._waiting[serial] = output
            try:
                while self.next in self._waiting:
                    self.send_downstream(self._waiting[self.next])
                    del self._waiting[self.next]
                    self.next += 1
            except BaseException as error:
                self._error = error
                raise
        return True


def _after(error: BaseException, serial: int) -> RuntimeError:
    failure = RuntimeError(f"output {serial} could not be sent downstream, nor can any after it")
    failure.__cause__ = error
    return failure
