"""Forks of the fork server are as the processes that Spark would start."""

from __future__ import annotations

import contextlib
import marshal
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest

import headrace as hr
from headrace.spark.python import daemon, fork_server
from headrace.spark.python.fork_server import ForkServer, begin, is_wanted
from headrace.spark.python.launch import PATIENCE
from headrace.spark.session import _quick_python

TOLD = """
import os, sys
import told_beside
forked = "headrace.spark.offsets" in sys.modules
print(sys.argv[1:], os.environ["SAID"], os.getcwd(), sys.stdin.read(), forked, __name__)
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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    folder = tmp_path / "server"
    folder.mkdir()
    server = begin(folder)
    yield server
    assert server.process.stdin is not None
    server.process.stdin.close()
    server.process.wait(30)
    assert not folder.exists() or server.process.returncode


def environment(server: ForkServer, modules: Path, **more: str) -> dict[str, str]:
    said = {"PYTHONPATH": str(modules), "PYTHONHASHSEED": "0", "SAID": "so"}
    return {**os.environ, **server.settings, **said, **more}


def tell(
    server: ForkServer, modules: Path, cwd: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    command = [server.settings["PYSPARK_PYTHON"], "-m", "told", "a", "b"]
    told = environment(server, modules, **more)
    return subprocess.run(command, input="in", capture_output=True, text=True, env=told, cwd=cwd)


def test_a_fork_is_the_process_that_was_asked_for(
    server: ForkServer, modules: Path, tmp_path: Path
) -> None:
    done = tell(server, modules, tmp_path)
    assert done.stdout == f"['a', 'b'] so {tmp_path} in True __main__\n"
    assert done.stderr == "oh\n"
    assert done.returncode == 3


def test_forks_draw_different_numbers(server: ForkServer, modules: Path) -> None:
    (modules / "draw.py").write_text("import numpy\nprint(numpy.random.randint(1 << 40))")
    command = [server.settings["PYSPARK_PYTHON"], "-m", "draw"]
    told = environment(server, modules)
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
from headrace.spark.python.fork_server import begin
server = begin(Path({str(tmp_path)!r}))
said = {{**os.environ, **server.settings, "PYTHONPATH": {str(modules)!r}, "SAID": "so"}}
command = [server.settings["PYSPARK_PYTHON"], "-m", "told"]
told = subprocess.run(command, input=b"", capture_output=True, env=said).stdout
Path({str(modules / "closed")!r}).write_bytes(told)
"""
    (tmp_path / "code.py").write_text(code)
    command = shlex.join([sys.executable, str(tmp_path / "code.py")])
    shell = f"exec {command} <&- >&- 2>&-"
    subprocess.run(["/bin/sh", "-c", shell], check=True)
    assert (modules / "closed").read_text() == f"[] so {os.getcwd()}  True __main__\n"


OTHERWISE = {
    "gone": {},
    "hashes": {"PYTHONHASHSEED": "7"},
    "optimized": {"PYTHONOPTIMIZE": "1"},
    "threads": {"OMP_NUM_THREADS": "7"},
    "tidied": {"HEADRACE_PYTHON": "/nowhere"},
}


@pytest.mark.parametrize("why", OTHERWISE)
def test_without_the_fork_server_python_runs(
    server: ForkServer, modules: Path, tmp_path: Path, why: str
) -> None:
    if why == "gone":
        server.process.kill()
        server.process.wait()
    done = tell(server, modules, tmp_path, **OTHERWISE[why])
    assert done.stdout == f"['a', 'b'] so {tmp_path} in False __main__\n"
    assert done.returncode == 3


def test_a_hung_server_is_not_waited_for(server: ForkServer, modules: Path, tmp_path: Path) -> None:
    tell(server, modules, tmp_path)
    server.process.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    try:
        done = tell(server, modules, tmp_path)
        took = time.monotonic() - begun
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert done.stdout == f"['a', 'b'] so {tmp_path} in False __main__\n"
    assert PATIENCE <= took < 6 * PATIENCE
    assert tell(server, modules, tmp_path).stdout.split()[-2] == "True"
    _, left = psutil.wait_procs(psutil.Process(server.process.pid).children(), 30)
    assert not left  # the one who gave up is not forked for after all


def test_one_who_says_nothing_holds_up_nobody(
    server: ForkServer, modules: Path, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as silent:
        clients = []
        for says in (b"", b"\0\0", b"\0\0\1\0half"):
            client = silent.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(60)
            client.connect(server.settings["HEADRACE_PYTHON"])
            client.sendall(says)
            clients.append(client)
        done = tell(server, modules, tmp_path)
        assert done.stdout == f"['a', 'b'] so {tmp_path} in True __main__\n"
        assert [client.recv(1) for client in clients] == [b""] * 3  # closed, after a while


def test_one_who_went_away_gets_no_process(
    server: ForkServer, modules: Path, tmp_path: Path
) -> None:
    """Else two would read one input: the fork, and the Python that was started for want of it."""
    (modules / "trace.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    request = marshal.dumps((["-m", "trace"], environment(server, modules), str(tmp_path)))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(server.settings["HEADRACE_PYTHON"])
        client.sendall(len(request).to_bytes(4, "big") + request)
        client.settimeout(60)
        number = int.from_bytes(client.recv(4), "big")
        fork = psutil.Process(number)
    psutil.wait_procs([fork], 30)
    assert not fork.is_running()
    assert not (tmp_path / "trace").exists()


def test_a_fork_ends_with_what_spark_knows_of_it(server: ForkServer, modules: Path) -> None:
    command = [server.settings["PYSPARK_PYTHON"], "-m", "waiting"]
    told = environment(server, modules)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=told) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        forks = psutil.Process(server.process.pid).children()
        assert len(forks) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
    psutil.wait_procs(forks, 30)
    assert not forks[0].is_running()


JOB = """
import os, signal, sys
import headrace as hr
from headrace.spark.python import fork_server
hr.from_items([1]).map(lambda n: n + 1).collect(on=hr.Spark(master="local[1]"))
print(fork_server._server.settings["HEADRACE_PYTHON"], flush=True)
for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
    assert os.environ[name] == sys.executable
assert "HEADRACE_PYTHON" not in os.environ
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
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (folder.exists() or _named(folder)):
        time.sleep(0.1)
    assert not folder.exists()
    assert not _named(folder)


def _named(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        found += [line] if str(folder) in line else []
    return found


def test_launches_do_not_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"HEADRACE_PYTHON": "there"}
    monkeypatch.setattr("headrace.spark.session.fork_server", lambda: settings)
    monkeypatch.delenv("HEADRACE_PYTHON", raising=False)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)

    def launch(_: int) -> str | None:
        with _quick_python("local[1]", {}, True):
            time.sleep(0.001)
            return os.environ.get("HEADRACE_PYTHON")

    with ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(launch, range(100)))
    assert seen == {"there"}
    assert "HEADRACE_PYTHON" not in os.environ


def test_where_programs_may_not_be_run_spark_starts_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_server", None)
    monkeypatch.setattr(fork_server, "_has_java", lambda: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("os.access", lambda path, mode: not str(path).endswith("bin/python"))
    assert fork_server.fork_server() == {}
    assert list(tmp_path.iterdir()) == []


def test_workers_of_spark_are_forks(spark_engine: hr.Spark) -> None:
    if os.environ["PYSPARK_PYTHON"] != sys.executable:
        pytest.skip("PYSPARK_PYTHON names another Python")

    def line(value: int) -> str:
        return " ".join(psutil.Process().cmdline())

    seen = hr.from_items([1]).map(line).collect(on=spark_engine).column(0)[0].as_py()
    assert "headrace.spark.python.fork_server" in seen


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


WITHOUT = """
import headrace as hr
from headrace import testing
from headrace.spark.python import fork_server

spark = hr.Spark(master="local[2]", {option})
doubled = hr.from_items(list(range(10))).map(lambda n: 2 * n).agg(total=hr.sum("value"))
print(doubled.collect(on=spark).to_pylist())
rows = [testing.records(*({{"k": str(i % 2), "at": testing.seconds(i)}} for i in range(20)))]
stream = testing.script(rows, schema={{"k": "string", "at": "timestamp"}}, bounded=False, ends=True)
counts = stream.event_time("at").key_by("k").window(hr.tumbling("10s")).agg(n=hr.count())
job = counts.start(on=spark)
assert job.wait(300)
print(sorted((row["k"], row["n"]) for row in job.result().to_pylist()))
print(fork_server.described(spark.session))
"""
RESULTS = """[{'total': 90}]
[('0', 5), ('0', 5), ('1', 5), ('1', 5)]
"""


@pytest.mark.parametrize(
    ("option", "variables"),
    [
        pytest.param("fork_server=False", {}, marks=pytest.mark.slow),
        pytest.param("", {"HEADRACE_FORK_SERVER": "0"}, marks=pytest.mark.slow),
        pytest.param("", {}, marks=pytest.mark.slow),
    ],
)
def test_switched_off_it_gives_the_same(option: str, variables: dict[str, str]) -> None:
    code = WITHOUT.format(option=option)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK"))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=plain | variables
    )
    assert done.stdout.startswith(RESULTS), done.stderr
    said = done.stdout.removeprefix(RESULTS)
    if variables:
        assert said == "switched off by HEADRACE_FORK_SERVER\n"
    else:
        assert said.startswith("not in use" if option else "in use")


def test_what_is_said_must_be_a_boolean(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hr.PlanError, match="fork_server='no' is not True or False"):
        hr.Spark(fork_server="no")  # type: ignore[arg-type]
    monkeypatch.setenv("HEADRACE_FORK_SERVER", "maybe")
    with pytest.raises(hr.EngineError, match="HEADRACE_FORK_SERVER='maybe' is not a boolean"):
        is_wanted()
    assert is_wanted(True)
    monkeypatch.setenv("HEADRACE_FORK_SERVER", "False")
    assert not is_wanted()
    monkeypatch.setenv("HEADRACE_FORK_SERVER", "1")
    assert is_wanted()
    assert not is_wanted(False)


def test_a_running_session_is_not_changed(spark_engine: hr.Spark) -> None:
    with pytest.raises(hr.PlanError, match="drop the others"):
        hr.Spark(session=spark_engine.session, fork_server=False)
    if not fork_server.is_used_by(spark_engine.session):
        pytest.skip("the session was started without it")
    with pytest.raises(hr.EngineError, match="running with the fork server"):
        _ = hr.Spark(fork_server=False).session


def test_it_is_for_linux_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert not is_wanted()
    assert not is_wanted(True)
    code = "import sys; sys.modules['fcntl'] = None; import headrace.spark.session"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_java_that_runs_without_it_goes_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_server", None)
    monkeypatch.setattr(fork_server, "_has_java", lambda: True)
    assert fork_server.fork_server() == {}


def test_without_it_one_that_runs_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java has its address, and would go on asking for forks."""
    server = begin(tmp_path)
    monkeypatch.setattr(fork_server, "_server", server)
    server.process.send_signal(signal.SIGSTOP)  # even one that hangs
    assert fork_server.no_fork_server() == {}
    assert not server.is_running
    assert fork_server._server is None


def test_what_cannot_be_imported_ahead_is_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        daemon.import_ahead(("headrace.errors", "pyspark.no_such_module"))
    assert [r.levelname for r in caplog.records] == ["DEBUG"]
    assert "pyspark.no_such_module is not imported ahead" in caplog.text


def test_a_server_that_lacks_a_module_still_forks(
    modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of Spark's own that another version does not have."""
    lacking = ["pyspark.sql.worker.plan_data_source_read", "pyspark.worker"]
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules |= dict.fromkeys({lacking})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "server").mkdir()
    server = begin(tmp_path / "server")
    try:
        done = tell(server, modules, tmp_path)
    finally:
        server.stop()
    assert done.stdout == f"['a', 'b'] so {tmp_path} in True __main__\n"
    assert done.stderr == "oh\n"


@pytest.mark.parametrize("lacks", ["worker", "manager", "nothing"])
def test_a_daemon_unlike_the_one_we_know_runs_as_it_is(
    lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    known = types.ModuleType("pyspark.daemon")
    known.__dict__.update(worker=lambda *_: 0, manager=lambda: ran.append("manager"))
    known.__dict__.pop(lacks, None)
    monkeypatch.setitem(sys.modules, "pyspark.daemon", known)
    monkeypatch.setattr("runpy.run_module", lambda name, run_name: ran.append(name))
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    daemon.main()
    assert ran == ["manager" if lacks == "nothing" else "pyspark.daemon"]


def test_a_worker_is_quiet_when_spark_is_gone() -> None:
    def gone(*_: object) -> int:
        raise BrokenPipeError

    assert daemon.quiet(gone)(None, True) == 1
    assert daemon.quiet(lambda *_: 0)(None, True) == 0
