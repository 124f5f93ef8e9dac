"""Functions that cannot be compiled, in processes of the box: same answers, order and errors."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

import headrace as hr
from headrace.box import processes
from headrace.box.effects import why_here
from tests.conftest import ended, until

SOME, MANY = 4_000, 30_000
SEEN: list[int] = []
NAMES = {0: "zero", 1: "one"}
PATTERN = re.compile("a")
FORCED = hr.Box(workers=2, processes=2)


def who(n: int) -> dict[str, int]:
    return {"n": n, "pid": os.getpid()}


def test_all_steps_of_records_run_there_in_order():
    stream = (
        hr.from_items(range(SOME))
        .map(who, schema={"n": "bigint", "pid": "bigint"})
        .filter(lambda r: os.getpid() == r.pid or r.n % 2 == 0)
        .flat_map(lambda r: [r.n, os.getpid()], keep="pid", schema="bigint")
        .with_columns(last=lambda r: os.getpid() if r.value else None)
    )
    table = stream.collect(on=FORCED)
    pids = set(table.column("pid").to_pylist())
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2
    numbers = [v for v in table.column("value").to_pylist() if v not in pids]
    assert [n for n in numbers if n % 2 == 0] == sorted(n for n in numbers if n % 2 == 0)
    assert set(range(0, SOME, 2)) - pids <= set(numbers)
    here = stream.collect(on=hr.Box(workers=2, processes=0))
    assert set(here.column("pid").to_pylist()) == {os.getpid()}
    until(lambda: not any(map(psutil.pid_exists, pids)))  # they end with the run


def test_effects_stay_in_this_process():
    seen: list[int] = []
    pids: set[int] = set()
    stream = hr.from_items(range(100)).inspect(seen.append).inspect(lambda n: pids.add(os.getpid()))
    stream.collect(on=FORCED)
    assert sorted(seen) == list(range(100))
    assert pids == {os.getpid()}


def fails_at(n: int) -> str:
    return repr(1 / (n - 777))


def test_errors_are_those_of_this_process():
    stream = hr.from_items(range(1000)).map(fails_at)
    errors = []
    for box in (hr.Box(workers=2, processes=0), FORCED):
        with pytest.raises(hr.StepError) as caught:
            stream.collect(on=box)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert "step 2, map (fails_at) failed on record 777: ZeroDivisionError" in errors[0]
    assert "return repr(1 / (n - 777))" in errors[0]


def test_what_cannot_be_pickled_stays_here():
    lock = threading.Lock()

    def held(n: int) -> int:
        with lock:
            return os.getpid()

    stream = hr.from_items([1, 2]).map(held)
    assert set(stream.to_list(on=FORCED)) == {os.getpid()}
    place = stream.explain(on=FORCED)
    assert "stays in this process: it cannot be sent to another (TypeError" in place


def dies(n: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return n


def exits(n: int) -> int:
    if n is not None:
        os._exit(3)
    return n


def stops(n: int) -> int:
    os.kill(os.getpid(), signal.SIGSTOP)
    return n


def crashes(n: int) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return n


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (dies, r"map \(dies\): its worker process was killed \(SIGKILL\).*memory"),
        (exits, r"map \(exits\): its worker process ended with exit code 3.*os\._exit"),
        (stops, r"map \(stops\): its worker process was stopped \(SIGSTOP\)"),
        (crashes, r"map \(crashes\): its worker process crashed \(SIGSEGV\)"),
    ],
)
def test_a_process_that_dies_fails_the_job(function, words):
    with pytest.raises(hr.StepError, match=words):
        hr.from_items(range(10)).map(function).collect(on=FORCED)


def test_a_job_that_is_stopped_ends_its_processes():
    def endless(row) -> str:
        while True:
            repr(row)

    job = hr.rate(1000).map(endless, schema="string").start(on=FORCED)
    me = psutil.Process()

    def workers() -> list[psutil.Process]:
        found = []
        for child in me.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # one of another test, on its way out
                found += [child] if "row_worker" in " ".join(child.cmdline()) else []
        return found

    until(lambda: [p for p in workers() if p.cpu_times().user > 0.5])
    children = workers()
    assert children
    job.stop(drain=False)
    until(lambda: all(map(ended, children)))


def test_processes_end_when_this_one_is_killed(tmp_path):
    program = tmp_path / "victim.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, time
            import headrace as hr

            def slow(row):
                os.write(1, b"%d\\n" % os.getpid())  # in one piece: two processes print
                while True:
                    repr(row)

            if __name__ == "__main__":
                hr.rate(1000).map(slow, schema="string").start(
                    on=hr.Box(workers=2, processes=2)).wait()
            """
        )
    )
    path = os.pathsep.join(p for p in sys.path if p)
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as victim:
        assert victim.stdout is not None
        worker = psutil.Process(int(victim.stdout.readline()))
        assert worker.pid != victim.pid
        victim.kill()
        until(lambda: ended(worker))


def spelled(n: int) -> str:
    return f"{n:08.3f} {PATTERN.sub('b', 'banana')} {NAMES.get(n % 2)}"


def test_a_step_that_takes_long_moves_by_itself(monkeypatch):
    monkeypatch.setattr(processes, "AFTER", 0.001)
    monkeypatch.setitem(processes.WAITS, False, 60.0)
    asked: list[int] = []
    ask = processes._Worker.ask

    def counted(self, number, program, batch):
        asked.append(batch.num_rows)
        return ask(self, number, program, batch)

    monkeypatch.setattr(processes._Worker, "ask", counted)
    stream = hr.from_items(range(MANY)).map(spelled)
    assert stream.to_list(on=hr.Box(workers=2)) == [spelled(n) for n in range(MANY)]
    assert sum(asked) > 0
    asked.clear()
    stream.limit(10).collect(on=hr.Box(workers=1))
    assert not asked


def remembers(n: int) -> int:
    SEEN.append(n)
    return len(SEEN)


def calls(n: int) -> int:
    return remembers(n) + 1


def prints(n: int) -> int:
    print(n)
    return n


COUNT = 0


def counts(n: int) -> int:
    global COUNT
    COUNT += 1
    return COUNT


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (spelled, None),
        (fails_at, None),
        (remembers, "it holds 'SEEN', a list"),
        (calls, "it holds 'SEEN', a list"),
        (prints, "it calls print"),
        (counts, "it changes 'COUNT'"),
        (SEEN.append, "it holds 'append', a builtin"),
        ((lambda pattern: lambda n: pattern.sub("", str(n)))(PATTERN), None),
        (lambda n, kept={}: kept, "it holds 'kept', a dict"),
    ],
)
def test_only_what_changes_nothing_here_moves_by_itself(function, why):
    found = why_here(function, forced=False)
    assert found is None if why is None else str(found).startswith(why)


def test_the_number_of_processes_is_checked():
    for wrong in (-1, True, "2", 1025):
        with pytest.raises(hr.PlanError, match=r"processes=.* is not a number from 0 to 1024"):
            hr.Box(processes=wrong)
    stream = hr.from_items([1]).map(spelled)
    assert "; in 3 processes]" in stream.explain(on=hr.Box(processes=3))
    assert "; in 2 processes after 1 s]" in stream.explain(on=hr.Box(workers=2))
    assert "process" not in stream.explain(on=hr.Box(workers=2, processes=0))


def test_a_slow_start_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(processes, "AFTER", 0.0)
    monkeypatch.setattr(processes._Worker, "is_ready", lambda self: time.sleep(1) or False)
    numbers = range(20_000)
    stream = hr.from_items(numbers).map(spelled)
    assert stream.to_list(on=hr.Box(workers=2)) == [spelled(n) for n in numbers]


CLOSED = """
import os, sys
from pathlib import Path
import headrace as hr

def spelled(n):
    print(n)
    return f"{n:08.3f}"

if __name__ == "__main__":
    numbers = range(4000)
    rows = hr.from_items(numbers).map(spelled).to_list(on=hr.Box(workers=2, processes=2))
    Path(sys.argv[1]).write_text(f"{rows == [f'{n:08.3f}' for n in numbers]}")
"""


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-", "2>&-", "<&-"])
def test_a_daemon_without_standard_streams_has_processes(tmp_path, closed):
    program, result = tmp_path / "daemon.py", tmp_path / "result"
    program.write_text(CLOSED)
    command = shlex.join([sys.executable, str(program), str(result)])
    path = os.pathsep.join(p for p in sys.path if p)
    shell = ["/bin/sh", "-c", f"exec {command} {closed}"]
    done = subprocess.run(
        shell, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert result.read_text() == "True"
