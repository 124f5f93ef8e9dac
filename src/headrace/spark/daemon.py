"""Spark's Python daemon, with our kernels already imported.

Spark forks a worker process from this daemon for each core. What the daemon has imported the
workers need not import again, which saves each of them about two seconds. After every task a
worker has Python look through all its objects for garbage, a tenth of a second with all that is
loaded here; so what is loaded is set apart as never being garbage.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

import headrace.spark.level
import headrace.spark.reader
import headrace.spark.stage  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
