"""What the processes load that Spark starts beside a query: little of ours."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numba", "pandas", "sqlglot", "headrace.kernels.native", "headrace.kernels.expressions")


HELPERS = ["spark.offsets", "spark.processor"] + [
    f"io.{n}" for n in ("parquet", "csv", "json", "text", "kafka", "redis", "rate", "socket")
]
LOADED = f"""
import os, sys
import headrace
for name in {HELPERS}:  # each in a fork that has loaded none of the others
    if os.fork() == 0:
        __import__(f"headrace.{{name}}")
        print(name, *[n for n in {HEAVY} if n in sys.modules], flush=True)
        os._exit(0)
    os.wait()
"""


def test_what_the_driver_helpers_load_is_light() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert done.stdout.splitlines() == HELPERS, done.stderr
