"""A process with everything imported, from which Spark's Python processes are forked.

Spark on one machine starts Python processes all the time: daemons for each kind of worker, and two
helpers for every streaming query. Each would spend a quarter of a second to two seconds importing.
Here one process imports once, while Spark's Java is still starting, and forks itself for each.

Spark is told that Python is a script of ours, which runs ``launch.py``. Where that cannot reach the
fork server, gets no answer, or is asked for what should not be forked, it runs Python as if none of
this were here. Linux only: elsewhere libraries do not survive a fork.

Switched off by ``hr.Spark(fork_server=False)`` or ``HEADRACE_FORK_SERVER=0``.
"""

from __future__ import annotations

import contextlib
import gc
import logging
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from headrace.cache import cached_script, mark_used, temporary_folder
from headrace.descriptors import above_streams, stream_for_child
from headrace.errors import EngineError
from headrace.spark.python.daemon import import_ahead
from headrace.spark.python.launch import ADDRESS, GO, PATIENCE, receive

_LOG = logging.getLogger(__name__)
VARIABLE = "HEADRACE_FORK_SERVER"
"""An environment variable: 0 switches the fork server off."""

_NEEDED = (
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    "headrace.spark.offsets",
    "headrace.spark.processor",
    "headrace.spark.host",
    "headrace.spark.ingress",
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
_DAY = 24 * 3600 * 1000
"""In milliseconds."""
_Request = tuple[list[str], dict[str, str], str]
"""What follows ``python -m``, the environment, and the working folder."""


@dataclass(frozen=True)
class ForkServer:
    """A running one. It ends when its input is closed: at the latest, with who began it."""

    process: subprocess.Popen[bytes]
    settings: dict[str, str]
    """What Spark's environment must say."""

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Have it end. Its forks go on: they are Spark's."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_server: ForkServer | None = None


def is_wanted(said: bool | None = None) -> bool:
    """Whether to use one: as said, or else as the environment says, or else yes; on Linux."""
    if said is None:
        word = os.environ.get(VARIABLE, "")
        words = {"": True, "1": True, "true": True, "0": False, "false": False}
        if word.lower() not in words:
            raise EngineError(f"{VARIABLE}={word!r} is not a boolean; set it to 0 or 1")
        said = words[word.lower()]
    return said and sys.platform == "linux"


def fork_server() -> Mapping[str, str]:
    """What to set while Spark is launched; nothing where there is no place for a fork server.

    It ends with this process, however that ends.
    """
    global _server
    if _server is not None and _server.is_running:
        return _server.settings
    _server = None
    if _has_java():  # one knows only the fork server that it was started with
        return {}
    folder = temporary_folder("python")
    try:
        _server = begin(folder)
    except (OSError, EngineError) as error:  # such as a name that is too long for a socket
        _LOG.debug("no fork server: %s", error)
        shutil.rmtree(folder, ignore_errors=True)
        return {}
    return _server.settings


def no_fork_server() -> Mapping[str, str]:
    """What to set while Spark is launched without one: nothing. One that runs is stopped."""
    global _server
    if _server is not None:
        _server.stop()
        _server = None
    return {}


def is_used_by(session: Any) -> bool:
    """Whether a session's Python processes are forks."""
    if _server is None or not _server.is_running:
        return False
    program = getattr(session.sparkContext, "pythonExec", None)
    return bool(program == _server.settings["PYSPARK_PYTHON"])


def described(session: Any) -> str:
    """Whether a session's Python processes are forks, and if not, why."""
    if is_used_by(session):
        return "in use: Spark's Python processes are forks of it"
    if sys.platform != "linux":
        return "not in use: it is for Linux"
    if not is_wanted():
        return f"switched off by {VARIABLE}"
    return "not in use: Spark starts Python itself"


def _has_java() -> bool:
    from pyspark import SparkContext

    return getattr(SparkContext, "_gateway", None) is not None


def begin(folder: Path) -> ForkServer:
    """Start a fork server that has a folder of its own, which it removes at its end."""
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
        number = above_streams(listener.fileno())
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", code, str(folder), str(number), program],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stream_for_child(2),
                env=os.environ | as_spark,
                pass_fds=[number],
                start_new_session=True,
            )
        finally:
            os.close(number)
    settings = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), program)
    return ForkServer(process, {**settings, ADDRESS: address})


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
    """The fork server: serve until the driver is gone, or be a fork to the end."""
    folder, number, program = sys.argv[1:]
    connection = None
    try:
        with socket.socket(fileno=int(number)) as listener:
            for one in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(one, signal.SIG_IGN)  # it ends with the driver, and waits for none
            import_ahead(_NEEDED)
            gc.collect()
            gc.freeze()
            connection = _serve(listener, Path(program))
    finally:
        if connection is None:
            shutil.rmtree(folder, ignore_errors=True)
    if connection is not None:
        _answer(connection)


def _serve(listener: socket.socket, program: Path) -> socket.socket | None:
    """Fork for everyone who connects, until the driver is gone; in a fork, the connection.

    It is the fork that hears what is wanted: one who connects and says nothing holds up nobody.
    """
    listener.settimeout(PATIENCE)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(sys.stdin, select.POLLIN)
    while True:
        ready = {number for number, _ in poll.poll(_DAY)}
        mark_used(program)  # a job may run for longer than the cache keeps what nobody uses
        if sys.stdin.fileno() in ready:  # nothing is ever written there: it was closed
            return None
        if not ready:
            continue
        connection = None
        try:
            connection, _ = listener.accept()
            if os.fork() == 0:
                return connection
        except OSError as error:
            _LOG.debug("not forked: %s", error)
        if connection is not None:
            connection.close()


def _answer(connection: socket.socket) -> None:
    """In a fork: be what is asked for, or say no by closing the connection."""
    with connection:
        try:
            request = _received(connection)
            streams = _agreed(connection) if request is not None else []
        except Exception as error:
            _LOG.debug("a request that cannot be answered: %s", error)
            return
        if request is not None and len(streams) == 3:
            _become(connection, streams, *request)


def _received(connection: socket.socket) -> _Request | None:
    """What is asked for, if it can be forked."""
    deadline = time.monotonic() + PATIENCE
    count = int.from_bytes(receive(connection, 4, deadline), "big")
    arguments, environment, folder = marshal.loads(receive(connection, count, deadline))
    if arguments[:1] != ["-m"] or not _is_as_here(environment):
        return None
    return arguments[1:], environment, folder


def _agreed(connection: socket.socket) -> list[int]:
    """The streams of the one who asked; none if it has become Python itself."""
    connection.settimeout(12 * PATIENCE)  # it has until then to be given the processor
    connection.sendall(os.getpid().to_bytes(4, "big"))
    said, streams, _, _ = socket.recv_fds(connection, 1, 3)
    return streams if said == GO else []


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
    warnings.filterwarnings("ignore", "'(pyspark|headrace)", RuntimeWarning, "runpy")
    extra: dict[str, Any] = {"print": lambda *_, **__: None} if module == _TALKATIVE else {}
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
