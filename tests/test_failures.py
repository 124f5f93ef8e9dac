"""What a user sees at the end of the terminal when a job fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr

NUMBERS = hr.from_items([{"n": i} for i in range(100)])
FAILS = """
import headrace as hr

def fails(row) -> int:
    return 10 // (row.value - 30)

pipeline = hr.rate(100).with_columns(x=fails)
"""
KILLED = """
import os, signal, threading, time
import psutil
import headrace as hr

def kill():
    time.sleep(1)
    for child in psutil.Process().children(recursive=True):
        if "java" in child.name():
            child.kill()

def slow(n) -> int:
    time.sleep(0.02)
    return n

engine = hr.Spark(master="local[2]")
engine.session
threading.Thread(target=kill, daemon=True).start()
{}
"""
BOUNDED = "hr.from_items(range(10_000)).map(slow).collect(on=engine)"
ENDLESS = "hr.rate(100).start(on=engine, to=print).wait()"


def lines_of(*arguments: str) -> list[str]:
    """What a program that fails writes to its standard error."""
    ran = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 1, ran.stderr
    return ran.stderr.splitlines()


def test_a_stream_that_fails_ends_in_its_step_and_line(engine: Any, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(FAILS)
    on = ["--on", engine.name]
    *before, step, line = lines_of("-m", "headrace", "run", str(script), *on)
    assert not [each for each in before if "Traceback" in each or "headrace Step" in each]
    assert re.match(r"headrace: step 2, map \(fails\) failed on record .*ZeroDivisionError", step)
    assert line == f"  at {script}:5 in fails: return 10 // (row.value - 30)"


@pytest.mark.slow
@pytest.mark.parametrize("run", [BOUNDED, ENDLESS])
def test_a_java_process_that_is_killed_is_named(tmp_path: Path, run: str) -> None:
    script = tmp_path / "job.py"
    script.write_text(KILLED.format(run))
    last = lines_of(str(script))[-1]
    assert "EngineError: Spark's Java process was killed (SIGKILL) while the job ran" in last


def leaves(row: Any) -> int:
    if row is not None:
        sys.exit(3)
    return 1


@pytest.mark.parametrize("method", ["map", "filter", "with_columns", "map_batches"])
def test_a_function_that_calls_exit_fails_its_step(engine: Any, method: str) -> None:
    streams = {
        "map": lambda: NUMBERS.map(leaves),
        "filter": lambda: NUMBERS.filter(leaves),
        "with_columns": lambda: NUMBERS.with_columns(x=leaves),
        "map_batches": lambda: NUMBERS.map_batches(leaves, schema={"n": "bigint"}),
    }
    with pytest.raises(hr.StepError, match=r"step 2, .*leaves.* it called sys\.exit\(3\); raise"):
        streams[method]().collect(on=engine)


def stops(row: Any) -> int:
    os.kill(os.getpid(), signal.SIGSTOP)
    return 1


def dies(row: Any) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


@pytest.mark.parametrize("function", [stops, dies])
def test_a_worker_of_spark_that_is_gone_is_reported_with_its_step(
    spark_engine: hr.Spark, function: Any
) -> None:
    words = rf"step 2, map \({function.__name__}\): its worker process was killed, was stopped"
    with pytest.raises(hr.StepError, match=words):
        NUMBERS.map(function).collect(on=spark_engine)
