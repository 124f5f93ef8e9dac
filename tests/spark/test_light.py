"""What the processes load that Spark starts beside a query: little of ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numba", "pandas", "sqlglot", "headrace.kernels.native", "headrace.kernels.expressions")


@pytest.mark.parametrize(
    "name",
    ["spark.offsets", "spark.processor"]
    + [f"io.{n}" for n in ("parquet", "csv", "json", "text", "kafka", "redis", "rate", "socket")],
)
def test_what_the_driver_helpers_load_is_light(name: str) -> None:
    code = f"import sys, headrace.{name}; print(*[n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
