"""Ctrl-C and SIGTERM: what was read is finished, and the process ends well; again: at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.conftest import PATIENCE, until

PROGRAM = """
import signal, sys, threading, time, pyarrow as pa
import headrace as hr

engine, out, slow, grace = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]

def sleepy(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(slow if batch.column("value")[0].as_py() else 0)  # the first passes
    return batch

schema = {"value": "bigint", "at": "timestamp"}
stream = hr.rate(1000, limit=1000).event_time("at").map_batches(sleepy, schema=schema)
counts = stream.window(hr.tumbling("1s")).agg(n=hr.count(), last=hr.max("value"))
on = hr.Spark(master="local[2]") if engine == "spark" else hr.Box(workers=2)
job = counts.write_parquet(out).start(on=on)
before = signal.getsignal(signal.SIGTERM)

def tell():
    while job.progress().records_in < (1500 if slow < 1 else 1):
        time.sleep(0.05)
    while signal.getsignal(signal.SIGTERM) is before:  # until it is waited for
        time.sleep(0.01)
    time.sleep(0.5)  # in the middle of a batch, most likely
    print("started", flush=True)

threading.Thread(target=tell, daemon=True).start()
job.wait(grace=grace)
print("ended", job.progress().records_in, job.progress().error, flush=True)
"""


@contextlib.contextmanager
def started(
    engine: str, folder: Path, slow: float = 0.2, grace: str = "30s"
) -> Iterator[tuple[Any, Path]]:
    """The program while its job is waited for, and the file of what it says."""
    said = folder / "said"
    with said.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, engine, str(folder / "out"), str(slow), grace],
            stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n", said.read_text()
        yield process, said
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("name", "by"),
    [("spark", "SIGTERM"), ("box", "SIGTERM"), ("box", "Ctrl-C"),
     pytest.param("spark", "Ctrl-C", marks=pytest.mark.slow)],
)  # fmt: skip
def test_what_was_read_is_finished(tmp_path: Path, name: str, by: str) -> None:
    with started(name, tmp_path, 0.2 if name == "spark" else 0.01) as (process, said):
        if by == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:  # as a terminal does it, to the whole group
            os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said.read_text()
    word, records, error = out.split()
    assert (word, error) == ("ended", "None"), said.read_text()
    written = hr.read_parquet(tmp_path / "out").agg(n=hr.sum("n")).collect(on="box")
    assert written.column("n").to_pylist() == [int(records)]
    assert "stopping" in said.read_text()


@pytest.mark.parametrize("name", [pytest.param("spark", marks=pytest.mark.slow), "box"])
@pytest.mark.parametrize("how", ["twice", "grace"])
def test_a_second_signal_or_the_end_of_grace_stops_at_once(
    tmp_path: Path, name: str, how: str
) -> None:
    """What was read takes an hour to finish, so a process that ends has not finished it."""
    with started(name, tmp_path, 3600.0, "1s" if how == "grace" else "1h") as (process, said):
        process.send_signal(signal.SIGTERM)
        until(lambda: "stopping: " in said.read_text())
        if how == "twice":
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said.read_text()
    assert "stopping at once" in said.read_text()
