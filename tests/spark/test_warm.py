"""Processes forked from a warm one are as those that Spark would start."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest

import headrace as hr
from headrace.spark.session import _quick_python
from headrace.spark.warm import Warm, begin, warm_python
from tests.conftest import PATIENCE, until

TOLD = """
import os, sys
import told_beside
warm = "headrace.spark.planning" in sys.modules
print(sys.argv[1:], os.environ["SAID"], os.getcwd(), sys.stdin.read(), warm, __name__)
print("oh", file=sys.stderr)
sys.exit(3)
"""
WAITING = """
import time
print("here", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "told.py").write_text(TOLD)
    (folder / "told_beside.py").touch()
    (folder / "waiting.py").write_text(WAITING)
    return folder


@contextlib.contextmanager
def begun(folder: Path) -> Iterator[Warm]:
    """A warm process, which takes its folder with it when it ends."""
    folder.mkdir()
    warm = begin(folder)
    yield warm
    assert warm.process.stdin is not None
    warm.process.stdin.close()
    warm.process.wait(PATIENCE)
    assert not folder.exists() or warm.process.returncode


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """One for all tests that leave it as it is."""
    with begun(tmp_path_factory.mktemp("forks") / "warm") as warm:
        yield warm


def environment(warm: Warm, modules: Path, **more: str) -> dict[str, str]:
    said = {"PYTHONPATH": str(modules), "PYTHONHASHSEED": "0", "SAID": "so"}
    return {**os.environ, **warm.settings, **said, **more}


def tell(warm: Warm, modules: Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [warm.settings["PYSPARK_PYTHON"], "-m", "told", "a", "b"]
    told = environment(warm, modules, **more)
    return subprocess.run(command, input="in", capture_output=True, text=True, env=told, cwd=cwd)


def test_a_fork_is_the_process_that_was_asked_for(
    warm: Warm, modules: Path, tmp_path: Path
) -> None:
    done = tell(warm, modules, tmp_path)
    assert done.stdout == f"['a', 'b'] so {tmp_path} in True __main__\n"
    assert done.stderr == "oh\n"
    assert done.returncode == 3


def test_forks_draw_different_numbers(warm: Warm, modules: Path) -> None:
    (modules / "draw.py").write_text("import numpy\nprint(numpy.random.randint(1 << 40))")
    command = [warm.settings["PYSPARK_PYTHON"], "-m", "draw"]
    told = environment(warm, modules)
    draws = {subprocess.check_output(command, env=told) for _ in range(3)}
    assert len(draws) == 3


def test_workers_draw_different_numbers(spark_engine: hr.Spark) -> None:
    def draw(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(0.5)  # so that two workers are at it
        return pa.record_batch({"by": [os.getpid()], "number": [int(np.random.randint(1 << 40))]})

    schema = {"by": "bigint", "number": "bigint"}
    items = hr.from_items(list(range(100_000)))
    found = items.map_batches(draw, schema=schema).collect(on=spark_engine).to_pylist()
    assert len({row["by"] for row in found}) > 1
    assert len({row["number"] for row in found}) == len(found)


def test_a_driver_without_streams(tmp_path: Path, modules: Path) -> None:
    code = f"""
import os, subprocess, sys
from pathlib import Path
from headrace.spark.warm import begin
warm = begin(Path({str(tmp_path)!r}))
said = {{**os.environ, **warm.settings, "PYTHONPATH": {str(modules)!r}, "SAID": "so"}}
command = [warm.settings["PYSPARK_PYTHON"], "-m", "told"]
told = subprocess.run(command, input=b"", capture_output=True, env=said).stdout
Path({str(modules / "closed")!r}).write_bytes(told)
"""
    (tmp_path / "code.py").write_text(code)
    command = shlex.join([sys.executable, str(tmp_path / "code.py")])
    shell = f"exec {command} <&- >&- 2>&-"
    subprocess.run(["/bin/sh", "-c", shell], check=True)
    assert (modules / "closed").read_text() == f"[] so {os.getcwd()}  True __main__\n"


OTHERWISE = {
    "hashes": {"PYTHONHASHSEED": "7"},
    "optimized": {"PYTHONOPTIMIZE": "1"},
    "threads": {"OMP_NUM_THREADS": "7"},
    "tidied": {"HEADRACE_PYTHON": "/nowhere"},
}


@pytest.mark.parametrize("why", OTHERWISE)
def test_without_the_warm_process_python_runs(
    warm: Warm, modules: Path, tmp_path: Path, why: str
) -> None:
    done = tell(warm, modules, tmp_path, **OTHERWISE[why])
    assert done.stdout == f"['a', 'b'] so {tmp_path} in False __main__\n"
    assert done.returncode == 3


def test_when_the_warm_process_is_gone_python_runs(modules: Path, tmp_path: Path) -> None:
    with begun(tmp_path / "warm") as warm:
        warm.process.kill()
        warm.process.wait()
        done = tell(warm, modules, tmp_path)
    assert done.stdout == f"['a', 'b'] so {tmp_path} in False __main__\n"
    assert done.returncode == 3


def test_a_fork_ends_with_what_spark_knows_of_it(warm: Warm, modules: Path) -> None:
    command = [warm.settings["PYSPARK_PYTHON"], "-m", "waiting"]
    told = environment(warm, modules)
    parent = psutil.Process(warm.process.pid)
    before = parent.children()  # those of other tests may be about to end
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=told) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        (fork,) = [child for child in parent.children() if child not in before]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 1
    until(lambda: not _is_alive(fork))


def _is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended may not have been waited for yet."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


JOB = """
import os, signal, sys
import headrace as hr
from headrace.spark import warm
hr.from_items([1]).map(lambda n: n + 1).collect(on=hr.Spark(master="local[1]"))
print(warm._warm.settings["HEADRACE_PYTHON"], flush=True)
for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
    assert os.environ[name] == sys.executable
assert not {{"SPARK_HOME", "HEADRACE_PYTHON"}} & set(os.environ)
if {how!r}:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", [pytest.param("", marks=pytest.mark.slow), "killed"])
def test_nothing_is_left_when_the_driver_ends(how: str) -> None:
    code = JOB.format(how=how)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK"))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=plain)
    assert done.returncode == (-signal.SIGKILL if how else 0), done.stderr
    folder = Path(done.stdout.strip()).parent
    assert folder.name.startswith("headrace-")
    assert "-python-" in folder.name
    until(lambda: not folder.exists() and not _named(folder))


def _named(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        found += [line] if str(folder) in line else []
    return found


def test_launches_do_not_cross() -> None:
    def launch(_: int) -> str | None:
        with _quick_python("local[1]", {"spark.pyspark.python": "said"}):
            time.sleep(0.001)
            return os.environ.get("SPARK_HOME")

    before = os.environ.get("SPARK_HOME")
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(launch, range(100)))
    assert len(homes) == 1
    assert os.environ.get("SPARK_HOME") == before


def test_where_programs_may_not_be_run_spark_starts_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.spark.warm._warm", None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("os.access", lambda path, mode: not str(path).endswith("bin/python"))
    assert warm_python() == {}
    assert list(tmp_path.iterdir()) == []


def test_workers_of_spark_are_forks(spark_engine: hr.Spark) -> None:
    if os.environ["PYSPARK_PYTHON"] != sys.executable:
        pytest.skip("PYSPARK_PYTHON names another Python")

    def line(value: int) -> str:
        return " ".join(psutil.Process().cmdline())

    seen = hr.from_items([1]).map(line).collect(on=spark_engine).column(0)[0].as_py()
    assert "headrace.spark.warm" in seen


@pytest.mark.slow
def test_a_python_that_a_person_named_is_used(tmp_path: Path) -> None:
    mine = tmp_path / "python"
    python = shlex.quote(sys.executable)
    mine.write_text(f'#!/bin/sh\nexport MINE=yes\nexec {python} "$@"\n')
    mine.chmod(0o755)
    code = """
import os, headrace as hr
said = hr.from_items([1]).map(lambda n: os.environ.get("MINE", "no"))
print(said.collect(on="spark").column(0)[0])
"""
    told = {**os.environ, "PYSPARK_PYTHON": str(mine)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=told)
    assert done.stdout == "yes\n", done.stderr
