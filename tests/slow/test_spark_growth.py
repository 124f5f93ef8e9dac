"""A stream on Spark runs for long: neither processes nor the checkpoint grow.

``HEADRACE_GROWTH_SECONDS`` says for how long (150 by default; 3600 for the hour before a release).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

import psutil
import pytest

import headrace as hr

SECONDS = float(os.environ.get("HEADRACE_GROWTH_SECONDS", "150"))
WARM = 40.0
"""Seconds after which every process has loaded what it needs and Spark has removed old files."""
MEGABYTE = 1 << 20


def python_memory() -> int:
    """The memory of the Python processes below this one that they share with no other."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        try:
            if child.name() != "java":
                total += child.memory_full_info().uss
        except psutil.Error:
            continue
    return total


@pytest.mark.slow
def test_a_stream_on_spark_does_not_grow(spark_engine: hr.Spark, tmp_path: Path) -> None:
    runtime = spark_engine.session._jvm.java.lang.Runtime.getRuntime()
    stream = hr.rate(5000, splits=2).event_time("at", delay="1s").with_columns(k="value % 1000")
    counts = stream.key_by("k").window(hr.tumbling("10s")).agg(n=hr.count())
    output = counts.write_parquet(tmp_path / "out")
    job = output.start(checkpoint=tmp_path / "checkpoint", on=spark_engine)
    samples: list[tuple[int, int, int]] = []
    begun = time.monotonic()
    while time.monotonic() - begun < SECONDS:
        time.sleep(5)
        assert job.running
        if time.monotonic() - begun > WARM:
            runtime.gc()
            heap = runtime.totalMemory() - runtime.freeMemory()
            files = sum(len(names) for _, _, names in os.walk(tmp_path / "checkpoint"))
            samples.append((python_memory(), heap, files))
    job.stop()
    part = len(samples) // 3
    early = [median(column) for column in zip(*samples[:part], strict=True)]
    late = [median(column) for column in zip(*samples[-part:], strict=True)]
    for when, (python, heap, files) in (("early", early), ("late", late)):
        print(f"{when}: Python {python / 1e6:.0f} MB, Java {heap / 1e6:.0f} MB, {files:.0f} files")
    assert late[0] - early[0] < 64 * MEGABYTE
    assert late[1] - early[1] < 128 * MEGABYTE
    assert late[2] < 1.5 * early[2] + 100
