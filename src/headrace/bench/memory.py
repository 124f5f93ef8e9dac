"""The memory of the processes a job runs in, sampled while it runs."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil


class MemoryWatch:
    """Samples this process and those below it: their peak, and the largest Python worker's."""

    def __init__(self, every: float = 0.05) -> None:
        self.every = every
        self.tree = 0
        self.worker = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while True:
            total = me.memory_info().rss
            for process in me.children(recursive=True):
                try:
                    resident = process.memory_info().rss
                    python = "python" in process.name()
                except psutil.Error:
                    continue
                total += resident
                if python:
                    self.worker = max(self.worker, resident)
            self.tree = max(self.tree, total)
            if self._done.wait(self.every):
                return
