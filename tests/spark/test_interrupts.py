"""Ctrl-C in the first seconds of a process: it can go on, and no Java is left behind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from headrace.spark.gateway import _end
from tests.conftest import until

MARK = "HEADRACE_TEST_MARK"
PROGRAM = """
import os, signal, sys, threading
import headrace as hr

def run():
    words = hr.from_items(["a b a"]).map(lambda line: line.upper())
    counts = words.flat_map("split(value, ' ')", name="w").group_by("w").agg(n=hr.count())
    return sorted((row["w"], row["n"]) for row in counts.collect(on=sys.argv[1]).to_pylist())

for seconds in sys.argv[3:]:
    timer = threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        run()
        timer.cancel()
        timer.join()
    except KeyboardInterrupt:
        timer.cancel()
if sys.argv[2] == "go on":
    print(run())
"""


def interrupted(on: str, then: str, moments: list[float], folder: Path) -> str:
    """What a process prints that is interrupted at these moments, each in an attempt of its own."""
    mark = uuid.uuid4().hex
    program = folder / "program.py"
    program.write_text(PROGRAM)
    temporary = folder / "t"
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, MARK: mark, "TMPDIR": str(temporary), "SPARK_MASTER": "local[1]"}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, str(program), on, then, *(f"{each:.3f}" for each in moments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (moments, done.stderr)
    until(lambda: not marked(mark))
    assert not list(temporary.glob("*-spark-*"))
    return done.stdout


def marked(mark: str) -> list[psutil.Process]:
    """The running processes that come of one test."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


IMPORTING = """
import signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[3]:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize("module", ["numpy.linalg", "numba.core.decorators", "pandas.core.frame"])
def test_an_import_is_finished_before_an_interrupt(tmp_path: Path, module: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(IMPORTING + PROGRAM.replace("sys.argv[3:]", "[60.0]"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, str(program), "box", "go on", module]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (ANSWER, 0), done.stderr


ANSWER = "[('A', 2), ('B', 1)]\n"
QUICK = [[0.1], [0.5], [0.9], [1.4]]
SLOW = [[i / 10] for i in range(30)]


@pytest.mark.parametrize(
    "moments", [pytest.param(QUICK), pytest.param(SLOW, marks=pytest.mark.slow)], ids=len
)
def test_the_box_runs_after_an_interrupt_in_the_first_seconds(
    tmp_path: Path, moments: list[list[float]]
) -> None:
    for each in moments:
        assert interrupted("box", "go on", each, tmp_path) == ANSWER


SOME = [[0.3, 1.5, 3.0]]
MANY = [[0.1 + 0.4 * i, *(random.Random(i).uniform(0, 6) for _ in range(2))] for i in range(6)]


@pytest.mark.parametrize(
    "moments", [pytest.param(SOME), pytest.param(MANY, marks=pytest.mark.slow)], ids=len
)
def test_spark_starts_after_interrupts_of_its_start(
    tmp_path: Path, moments: list[list[float]]
) -> None:
    for each in moments:
        assert interrupted("spark", "go on", each, tmp_path) == ANSWER


@pytest.mark.parametrize(
    "moments", [[2.0], pytest.param([1.5, 2.5, 3.5, 4.5], marks=pytest.mark.slow)], ids=len
)
def test_no_java_is_left_when_the_process_ends_after_an_interrupt(
    tmp_path: Path, moments: list[float]
) -> None:
    for each in moments:
        assert interrupted("spark", "end", [each], tmp_path) == ""


def test_other_children_are_left_alone() -> None:
    others = set(psutil.Process().children())
    with subprocess.Popen(["sh", "-c", "read line"], stdin=subprocess.PIPE) as child:
        _end(others)
        assert child.poll() is None
        child.communicate()
