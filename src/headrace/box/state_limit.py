"""A limit on the state of a bounded run, so that it fails with a reason before memory runs out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace.box.host import Hosted
from headrace.errors import EngineError
from headrace.sizes import show_bytes

if TYPE_CHECKING:
    from headrace.box.run import Run

_EVERY = 0.2
"""Seconds between two looks."""
_SHARE = 0.02
"""The share of a core that looking may take."""


class StateLimit:
    """Watches what the operators of a bounded run hold, and stops the run above a limit.

    On bounded input operators hold their state until the input ends. Streams are not limited:
    watermarks release their state, and stopping one would not help.
    """

    def __init__(self, run: Run, limit: int) -> None:
        self.run, self.limit = run, limit
        self.hosts = [v for v in run.cascade.vertices if isinstance(v.transform, Hosted)]

    def watch(self) -> None:
        """Look from time to time until the run ends; a thread of its own."""
        pause = _EVERY
        while not self.run.ended.wait(pause):
            begun = time.thread_time()
            error = self.excess()
            pause = max(_EVERY, (time.thread_time() - begun) / _SHARE)
            if error is not None:
                with self.run.cascade.lock:
                    self.run.fail(error)

    def excess(self) -> EngineError | None:
        """What to raise if the operators hold more than the limit."""
        sizes = [(vertex.transform.nbytes, vertex) for vertex in self.hosts]
        if sum(size for size, _ in sizes) <= self.limit:
            return None
        size, largest = max(sizes, key=lambda each: each[0])
        return EngineError(
            f"{largest.transform.operator.node.label}: its state grew to {show_bytes(size)}, and "
            f"this box may hold {show_bytes(self.limit)}. Bounded input keeps state until it ends: "
            "raise hr.Box(memory=…), run it on Spark, which spills to disk, or read it as a stream "
            "(follow=True and trigger='available-now'), so that windows close as time passes"
        )
