"""Says when kernels are being compiled, which the first run on a machine does."""

from __future__ import annotations

import functools
import logging
from typing import Any

from numba.core import event

from headrace.cache import cache_folder

log = logging.getLogger("headrace")
_NATIVE = "headrace.kernels.native"


class _Announcer(event.Listener):  # type: ignore[misc]
    """Logs one line when the first of our kernels is compiled rather than loaded."""

    def __init__(self) -> None:
        self.count = 0

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        if not (function.__module__ or "").startswith(_NATIVE):
            return
        self.count += 1
        if self.count == 1:
            log.warning(
                "compiling kernels, which takes some seconds the first time; they are kept in %s",
                cache_folder("").resolve(),
            )

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


@functools.cache
def announce_compiling() -> _Announcer:
    """Log one line when this process first compiles kernels; ``count`` says how many it has."""
    announcer = _Announcer()
    event.register("numba:compile", announcer)
    return announcer
