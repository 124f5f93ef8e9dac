"""Ctrl-C and SIGTERM: what was read is finished, and the process ends well; again: at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr

PROGRAM = """
import sys, time, pyarrow as pa
import headrace as hr

engine, out, slow, grace = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]

def sleepy(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(slow)
    return batch

schema = {"value": "bigint", "at": "timestamp"}
stream = hr.rate(1000, limit=1000).event_time("at").map_batches(sleepy, schema=schema)
counts = stream.window(hr.tumbling("1s")).agg(n=hr.count(), last=hr.max("value"))
on = hr.Spark(master="local[2]") if engine == "spark" else hr.Box(workers=2)
job = counts.write_parquet(out).start(on=on)
while job.progress().records_in < (1500 if slow < 1 else 1):
    time.sleep(0.05)
time.sleep(1)  # in the middle of a batch
print("started", flush=True)
job.wait(grace=grace)
print("ended", job.progress().records_in, job.progress().error, flush=True)
"""


def started(engine: str, out: Path, slow: float = 0.2, grace: str = "30s") -> Any:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, engine, str(out), str(slow), grace],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n", process.communicate()[1]
    time.sleep(0.5)  # until it waits
    return process


@pytest.mark.parametrize(
    ("name", "by"),
    [("spark", "SIGTERM"), ("box", "SIGTERM"), ("box", "Ctrl-C"),
     pytest.param("spark", "Ctrl-C", marks=pytest.mark.slow)],
)  # fmt: skip
def test_what_was_read_is_finished(tmp_path: Path, name: str, by: str) -> None:
    process = started(name, tmp_path / "out", 0.2 if name == "spark" else 0.01)
    if by == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:  # as a terminal does it, to the whole group
        os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    word, records, error = out.split()
    assert (word, error) == ("ended", "None"), err
    written = hr.read_parquet(tmp_path / "out").agg(n=hr.sum("n")).collect(on="box")
    assert written.column("n").to_pylist() == [int(records)]
    assert "stopping" in err


@pytest.mark.parametrize("name", [pytest.param("spark", marks=pytest.mark.slow), "box"])
@pytest.mark.parametrize("how", ["twice", "grace"])
def test_a_second_signal_or_the_end_of_grace_stops_at_once(
    tmp_path: Path, name: str, how: str
) -> None:
    process = started(name, tmp_path / "out", 6.0, "1s" if how == "grace" else "60s")
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    if how == "twice":
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "stopping at once" in err
    assert time.monotonic() - begun < 40
