"""Ctrl-C while something runs that must not stop half-way, such as an import.

After an interrupt within ``import numba`` Python drops the package but keeps its submodules, and
the next import fails with "module 'numba' has no attribute 'core'".
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def deferred_interrupts(on_interrupt: Callable[[], None] | None = None) -> Iterator[list[int]]:
    """Hold Ctrl-C back until the block has ended, then handle it as if it came then.

    Only the main thread receives signals; in other threads this does nothing.

    Args:
        on_interrupt: Called at once, for work that can be cut short in an orderly way.

    Yields:
        The signals received so far.
    """
    received: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield received
        return

    def receive(number: int, frame: Any) -> None:
        received.append(number)
        if on_interrupt is not None:
            on_interrupt()

    signal.signal(signal.SIGINT, receive)
    try:
        yield received
    finally:
        if received or signal.getsignal(signal.SIGINT) is receive:  # the block may set another
            signal.signal(signal.SIGINT, before)
        if received:
            signal.raise_signal(signal.SIGINT)


def import_whole(name: str) -> ModuleType:
    """Import a module with all that it imports; Ctrl-C waits until they are loaded."""
    with deferred_interrupts():
        return importlib.import_module(name)
