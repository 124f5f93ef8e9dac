"""A Python process with everything imported, from which Spark's Python processes are forked.

Spark on one machine starts Python processes all the time: daemons for each kind of worker, and two
helpers for every streaming query. Each would spend a quarter of a second to two seconds importing.
Here one process imports once, while Spark's Java is still starting, and forks itself for each.

Spark is told that Python is a script of ours, which runs ``launch.py``. Where that cannot reach the
warm process, or is asked for what should not be forked, it runs Python as if none of this were
here.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import marshal
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from headrace.cache import cached_script, temporary_folder
from headrace.errors import EngineError
from headrace.spark.python.launch import ADDRESS

_NEEDED = (
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    "headrace.spark.planning",
    "headrace.spark.processor",
    "headrace.spark.level",
    "headrace.spark.reader",
    "headrace.spark.stage",
    "headrace.sources",
)
_TALKATIVE = "pyspark.sql.streaming.transform_with_state_driver_worker"
"""It prints what it does."""
_OURS = {"pyspark.daemon": "headrace.spark.python.daemon"}
"""Some workers are forked from Spark's daemon, whatever a session says; ours does the same."""
_SCRIPT = """#!/bin/sh
# Made by headrace: Spark starts this as Python.
exec {python} -I -S {launch} "$@"
"""
_Request = tuple[list[str], dict[str, str], str]
"""What follows ``python -m``, the environment, and the working folder."""


@dataclass(frozen=True)
class Warm:
    """A warm process. It ends when its input is closed: at the latest, with who began it."""

    process: subprocess.Popen[bytes]
    settings: dict[str, str]
    """What Spark's environment must say."""


_warm: Warm | None = None


def warm_python() -> Mapping[str, str]:
    """What to set while Spark is launched; nothing where there is no place for it.

    The warm process ends with this one, however that ends.
    """
    global _warm
    if _warm is not None and _warm.process.poll() is not None:
        _warm = None
    if _warm is None:
        folder = temporary_folder("python")
        try:
            _warm = begin(folder)
        except (OSError, EngineError):  # such as a name that is too long for a socket
            shutil.rmtree(folder, ignore_errors=True)
            return {}
    return _warm.settings


def begin(folder: Path) -> Warm:
    """Start a warm process that has a folder of its own, which it removes at its end."""
    program = str(_script())
    address = str(folder / "socket")
    root = str(Path(__file__).parents[3])
    code = f"import sys; sys.path.append({root!r}); from {__name__} import main; main()"
    # As Spark sets them for its workers: they are read when Python or a library starts.
    as_spark = {"PYTHONUNBUFFERED": "YES"}
    for name, usual in (("PYTHONHASHSEED", "0"), ("OMP_NUM_THREADS", "1")):
        as_spark[name] = os.environ.get(name, usual)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(128)  # whoever comes before all is imported waits
        number = fcntl.fcntl(listener, fcntl.F_DUPFD_CLOEXEC, 3)  # none of the three streams
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", code, str(folder), str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=None if _is_open(2) else subprocess.DEVNULL,
                env=os.environ | as_spark,
                pass_fds=[number],
                start_new_session=True,
            )
        finally:
            os.close(number)
    settings = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), program)
    return Warm(process, {**settings, ADDRESS: address})


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _script() -> Path:
    """The program for Spark to start as Python, in a place that nobody tidies."""
    launch = Path(__file__).with_name("launch.py")
    if not launch.is_file():
        raise EngineError(f"{launch} is not a file that Python could run")
    words = {"python": sys.executable, "launch": launch}
    text = _SCRIPT.format(**{k: shlex.quote(str(v)) for k, v in words.items()})
    program = cached_script("python", "python", text)
    if not os.access(program, os.X_OK):
        raise EngineError(f"{program} cannot be run where it is")
    return program


def main() -> None:
    """The warm process: serve until the driver is gone, or be a fork to the end."""
    folder, number = sys.argv[1:]
    fork = None
    try:
        with socket.socket(fileno=int(number)) as listener:
            for one in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(one, signal.SIG_IGN)  # it ends with the driver, and waits for none
            for name in _NEEDED:
                importlib.import_module(name)
            gc.collect()
            gc.freeze()
            fork = _serve(listener)
    finally:
        if fork is None:
            shutil.rmtree(folder, ignore_errors=True)
    if fork is not None:
        fork()


def _serve(listener: socket.socket) -> Callable[[], None] | None:
    """Answer until the driver is gone; in a fork, what it is to do."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(sys.stdin, select.POLLIN)
    while True:
        ready = {number for number, _ in poll.poll()}
        if sys.stdin.fileno() in ready:  # nothing is ever written there: it was closed
            return None
        connection, _ = listener.accept()
        fork = _answer(connection)
        if fork is not None:
            return fork


def _answer(connection: socket.socket) -> Callable[[], None] | None:
    """Fork for one who asks; in the fork, what it is to do. A closed connection says no."""
    request, streams = _received(connection)
    try:
        if request is not None and os.fork() == 0:
            return lambda: _become(connection, streams, *request)
    except OSError:
        pass
    connection.close()
    for stream in streams:
        os.close(stream)
    return None


def _received(connection: socket.socket) -> tuple[_Request | None, list[int]]:
    """What is asked for, if it can be forked, and the streams that came with it."""
    streams: list[int] = []
    try:
        head, streams, _, _ = socket.recv_fds(connection, 4, 3)
        body = connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        arguments, environment, folder = marshal.loads(body)
    except (OSError, EOFError, ValueError, TypeError):
        return None, streams
    if len(streams) != 3 or arguments[:1] != ["-m"] or not _is_as_here(environment):
        return None, streams
    return (arguments[1:], environment, folder), streams


def _is_as_here(environment: Mapping[str, str]) -> bool:
    """Whether what Python and its libraries read when they start is what this process read."""
    threads = "OMP_NUM_THREADS"
    same_threads = environment.get(threads, os.environ[threads]) == os.environ[threads]
    return same_threads and _for_python(environment) == _for_python(os.environ)


def _for_python(environment: Mapping[str, str]) -> dict[str, str]:
    """Python's own settings. Those with an underscore are Spark's."""
    aside = ("PYTHONPATH", "PYTHONUNBUFFERED")
    found = {
        name: value
        for name, value in environment.items()
        if name.startswith("PYTHON") and name[6:7] != "_" and name not in aside
    }
    return {"PYTHONHASHSEED": "0", **found}  # where nothing is said of hashes, these will do


def _become(
    connection: socket.socket,
    streams: list[int],
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
) -> None:
    """Be the process that Spark asked for: ``python -m module …`` with its streams and settings."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # What was read from them, and what must differ from one process to the next.
    time.tzset()
    tempfile.tempdir = None
    numpy.random.seed()
    for one in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(one, signal.SIG_DFL)
    sys.path[0] = folder
    # Spark puts a jar of its own there, whose list of files Python would read.
    path = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[1:1] = [p for p in path if p not in sys.path and not p.endswith(".jar")]
    module, sys.argv = _OURS.get(arguments[0], arguments[0]), arguments
    warnings.filterwarnings("ignore", "'pyspark", RuntimeWarning, "runpy")
    extra: dict[str, Any] = {"print": lambda *_, **__: None} if module == _TALKATIVE else {}
    code: Any = 1
    try:
        connection.sendall(os.getpid().to_bytes(4, "big"))
        runpy.run_module(module, extra, "__main__", alter_sys=True)
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        pass  # Spark has gone, and there is no one to tell
    except SystemExit as end:
        code = end.code
        raise
    finally:
        with contextlib.suppress(OSError):
            connection.sendall(bytes([code & 255 if isinstance(code, int) else code is not None]))
