"""Spark's Python daemon, with our kernels already imported.

Spark forks a worker process from this daemon for each core. What the daemon has imported the
workers need not import again, which saves each of them about two seconds. After every task a
worker has Python look through all its objects for garbage, a tenth of a second with all that is
loaded here; so what is loaded is set apart as never being garbage.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import runpy
import signal
import threading
import time
from collections import Counter
from typing import Any

import numpy

_LOG = logging.getLogger(__name__)
_STOPPED = 3
"""Looks in a row, a second apart, at which a worker must be stopped: Ctrl-Z stops all at once."""
_KERNELS = ("headrace.spark.host", "headrace.spark.ingress", "headrace.spark.stage")


def import_ahead(names: tuple[str, ...]) -> None:
    """Import what a process will need. What cannot be imported is left for when it is needed."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            _LOG.debug("%s is not imported ahead: %s", name, error)


def main() -> None:
    """Be Spark's daemon; as Spark's own is, where it is not what we know."""
    import_ahead(_KERNELS)
    gc.collect()
    gc.freeze()
    os.register_at_fork(after_in_child=numpy.random.seed)  # or all workers draw the same numbers
    try:
        daemon: Any = importlib.import_module("pyspark.daemon")
        manager, daemon.worker = daemon.manager, quiet(daemon.worker)
    except (ImportError, AttributeError) as error:
        _LOG.debug("Spark's daemon runs as it is: %s", error)
        runpy.run_module("pyspark.daemon", run_name="__main__")
    else:
        threading.Thread(target=_end_stopped, daemon=True).start()
        manager()


def _end_stopped() -> None:
    """Kill workers that have been stopped for some seconds: Spark would wait for them for ever."""
    children = f"/proc/self/task/{os.getpid()}/children"
    looks: Counter[str] = Counter()
    while os.path.exists(children):
        time.sleep(1.0)
        with contextlib.suppress(OSError), open(children) as file:
            numbers = file.read().split()
            stopped = [number for number in numbers if _is_stopped(number)]
            looks = Counter({number: looks[number] + 1 for number in stopped})
            for number in (n for n in stopped if looks[n] >= _STOPPED):
                os.kill(int(number), signal.SIGKILL)


def _is_stopped(number: str) -> bool:
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(") ")[2].startswith("T")
    except OSError:
        return False


def quiet(worker: Any) -> Any:
    """The worker, which says nothing when Spark is gone and there is no one to answer."""

    def work(*arguments: Any) -> int:
        try:
            code: int = worker(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            return 1
        return code

    return work


if __name__ == "__main__":
    main()
