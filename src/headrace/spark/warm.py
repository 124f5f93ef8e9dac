"""A Python process with everything imported, from which Spark's Python processes are forked.

Spark on one machine starts Python processes all the time: daemons for each kind of worker, and two
helpers for every streaming query. Each would spend a quarter of a second to two seconds importing.
Here one process imports once, while Spark's Java is still starting, and forks itself for each.

Spark is told that Python is a script of ours, which runs ``launch.py``. Where that cannot reach the
warm process, or is asked for what should not be forked, it runs Python as if none of this were
here.
"""

from __future__ import annotations

import atexit
import contextlib
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
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
_OURS = {"pyspark.daemon": "headrace.spark.daemon"}
"""Some workers are forked from Spark's daemon, whatever a session says; ours does the same."""
_HASHES = "PYTHONHASHSEED"
_SCRIPT = """#!/bin/sh
# Made by headrace: Spark starts this as Python.
exec {python} -I -S {launch} {address} "$@"
"""

_Request = tuple[list[str], dict[str, str], str]
"""What follows ``python -m``, the environment, and the working folder."""
_program: str | None = None


def warm_python() -> str | None:
    """The program for Spark to start as Python; None where processes cannot be forked.

    The warm process ends with this one, however that ends.
    """
    global _program
    if _program is None and hasattr(os, "fork") and hasattr(socket, "send_fds"):
        folder = Path(tempfile.mkdtemp(prefix="headrace-python-"))
        try:
            _program, process = begin(folder)
        except OSError:  # such as a name that is too long for a socket
            shutil.rmtree(folder, ignore_errors=True)
            return None
        assert process.stdin is not None
        atexit.register(process.stdin.close)
    return _program


def begin(folder: Path) -> tuple[str, subprocess.Popen[bytes]]:
    """Start a warm process that has a folder of its own; it ends when its input is closed."""
    address, program = folder / "socket", folder / "python"
    launch = Path(__file__).with_name("launch.py")
    words = {"python": sys.executable, "launch": launch, "address": address}
    program.write_text(_SCRIPT.format(**{k: shlex.quote(str(v)) for k, v in words.items()}))
    program.chmod(0o700)
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.append({root!r}); from headrace.spark.warm import main; main()"
    # As Spark sets them for its processes: they are read when Python starts.
    settings = {_HASHES: os.environ.get(_HASHES, "0"), "PYTHONUNBUFFERED": "YES"}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen(128)  # whoever comes before all is imported waits
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder), str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=os.environ | settings,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    return str(program), process


def main() -> None:
    """The warm process: serve until the driver is gone, or be a fork to the end."""
    folder, number = sys.argv[1:]
    with socket.socket(fileno=int(number)) as listener:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for name in _NEEDED:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        fork = _serve(listener)
    if fork is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        fork()


def _serve(listener: socket.socket) -> Callable[[], None] | None:
    """Answer until the driver is gone; in a fork, what it is to do."""
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:  # nothing is ever written there: it was closed
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
    same = environment.get(_HASHES) == os.environ.get(_HASHES)
    if len(streams) != 3 or arguments[:1] != ["-m"] or not same:
        return None, streams
    return (arguments[1:], environment, folder), streams


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
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Spark puts a jar of its own there, whose list of files Python would read.
    path = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[1:1] = [p for p in path if p not in sys.path and not p.endswith(".jar")]
    module, sys.argv = _OURS.get(arguments[0], arguments[0]), arguments
    warnings.filterwarnings("ignore", "'pyspark", RuntimeWarning, "runpy")
    extra: dict[str, Any] = {"print": lambda *_, **__: None} if module == _TALKATIVE else {}
    connection.sendall(os.getpid().to_bytes(4, "big"))
    code: Any = 1
    try:
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
