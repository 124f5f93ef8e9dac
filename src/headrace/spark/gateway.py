"""The Java process that PySpark starts and talks to: one that Ctrl-C ends while it starts.

PySpark waits for Java to answer. Interrupted there, it forgets Java, which goes on for ever without
a driver; interrupted a little later, it keeps a connection of which half an answer was read.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import psutil

from headrace.interrupts import deferred_interrupts

T = TypeVar("T")
_PAUSE = 0.05
"""Seconds between two looks for a Java that is just being started."""


def start_or_end(start: Callable[[], T]) -> T:
    """Call a function that starts Spark. After Ctrl-C there is no Java, and another call can start
    one again."""
    others = set(psutil.Process().children())
    over = threading.Event()

    def end() -> None:
        threading.Thread(target=_end_until, args=(over, others), daemon=True).start()

    with deferred_interrupts(end) as received:
        try:
            started = start()
            if received:
                _forget(others)
            return started
        except BaseException as error:
            # Near the end of its start PySpark has a handler of its own, which raises.
            if received or isinstance(error, KeyboardInterrupt):
                _forget(others)
            if received:
                raise KeyboardInterrupt from None
            raise
        finally:
            over.set()


def _end_until(over: threading.Event, others: set[psutil.Process]) -> None:
    """End Java repeatedly, in case it is only now being started, so that the wait for it fails."""
    while not over.wait(_PAUSE):
        _end(others)


def _end(others: set[psutil.Process]) -> None:
    """Kill what PySpark started: spark-submit, which becomes Java, and Spark's launcher."""
    for child in set(psutil.Process().children()) - others:
        with contextlib.suppress(psutil.Error):
            command = " ".join(child.cmdline())
            if "spark-submit" not in command and "SparkSubmit" not in command:
                continue
            for process in (child, *child.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    process.kill()  # PySpark takes its exit code


def _forget(others: set[psutil.Process]) -> None:
    """End Java, and have PySpark start from the beginning next time."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    _end(others)
    gateway: Any = SparkContext._gateway
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.kill()
            process.stdin.close()
            process.wait()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
