"""Spark's Python daemon, with our kernels already imported.

Spark forks a worker process from this daemon for each core. What the daemon has imported the
workers need not import again, which saves each of them about two seconds. After every task a
worker has Python look through all its objects for garbage, a tenth of a second with all that is
loaded here; so what is loaded is set apart as never being garbage.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import runpy
from typing import Any

import numpy

_LOG = logging.getLogger(__name__)
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
        manager()


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
