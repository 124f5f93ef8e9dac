"""Spark's Python daemon, with our kernels already imported.

Spark forks a worker process from this daemon for each core. What the daemon has imported the
workers need not import again, which saves each of them about two seconds. After every task a
worker has Python look through all its objects for garbage, a tenth of a second with all that is
loaded here; so what is loaded is set apart as never being garbage.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy
from pyspark import daemon

import headrace.spark.level
import headrace.spark.reader
import headrace.spark.stage  # noqa: F401

_worker = daemon.worker


def worker(sock: Any, authenticated: bool) -> int:
    """A worker, which says nothing when Spark is gone and there is no one to answer."""
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    os.register_at_fork(after_in_child=numpy.random.seed)  # or all workers draw the same numbers
    daemon.worker = worker
    daemon.manager()
