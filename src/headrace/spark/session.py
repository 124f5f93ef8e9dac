"""A Spark session: the one that is running, or one of our own making."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from headrace.cache import sweep, temporary_folder
from headrace.errors import EngineError
from headrace.interrupts import deferred_interrupts
from headrace.spark.gateway import start_or_end
from headrace.spark.java import find_java
from headrace.spark.python.fork_server import fork_server, is_used_by, is_wanted, no_fork_server
from headrace.spark.stderr import without_noise

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SOCKETS = "spark.python.unix.domain.socket.enabled"
_SOCKET_PATH = 103
"""The longest path of a socket, on macOS; Linux takes four more."""
_LOCAL_CONFIG = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.maxResultSize": "0",
    "spark.sql.shuffle.partitions": "{cores}",
    "spark.default.parallelism": "{cores}",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.shuffle.compress": "true",
    _SOCKETS: "true",
    "spark.io.compression.codec": "lz4",
}
_CONFIG = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.python.daemon.module": "headrace.spark.python.daemon",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}


def running() -> Any:
    """The session this process has, or None."""
    with deferred_interrupts():
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

    try:
        return SparkSession.active()  # of this thread, or else the process's
    except PySparkException:
        return None


def is_stopped(session: Any) -> bool:
    """Whether a session's Spark is gone."""
    return session.sparkContext._jsc is None


_MEANING = {"spark.sql.ansi.enabled": "true", "spark.sql.caseSensitive": "true"}
_ZONE = "spark.sql.session.timeZone"
_HELD_CHANGED = threading.Condition()
_LAUNCHING = threading.Lock()
_HELD: dict[int, tuple[int, str, dict[str, str]]] = {}
"""For each session: how many lower plans on it, in which zone, and its own settings."""


@contextlib.contextmanager
def ansi_semantics(session: Any, zone: str) -> Iterator[None]:
    """While a plan is lowered: expressions and names mean on Spark what they mean to us.

    A person's session may be set otherwise, and several threads may lower plans on it at once,
    those in another time zone one after the other; its own settings come back when the last of
    them is done.
    """
    key = id(session)
    with _HELD_CHANGED:
        _HELD_CHANGED.wait_for(lambda: key not in _HELD or _HELD[key][1] == zone)
        count, _, before = _HELD.get(key, (0, zone, {}))
        if not count:
            meaning = _MEANING | {_ZONE: zone}
            before = {name: session.conf.get(name) for name in meaning}
            for name, value in meaning.items():
                session.conf.set(name, value)
        _HELD[key] = (count + 1, zone, before)
    try:
        yield
    finally:
        with _HELD_CHANGED:
            count, _, before = _HELD.pop(key)
            if count > 1:
                _HELD[key] = (count - 1, zone, before)
            else:
                for name, value in before.items():
                    session.conf.set(name, value)
            _HELD_CHANGED.notify_all()


@contextlib.contextmanager
def with_settings(session: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings while a query starts; it keeps them, and the session gets its own back."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def start(
    master: str | None = None,
    config: Mapping[str, Any] | None = None,
    forks: bool | None = None,
) -> Any:
    """A new session, or the running one where it fits; ``forks``: with a fork server or not."""
    session = running()
    if session is not None:
        if master is not None and session.sparkContext.master != master:
            raise EngineError(
                f"a Spark session is running on {session.sparkContext.master!r}; "
                f"stop it before you start one on {master!r}"
            )
        for name, value in (config or {}).items():
            if session.conf.get(name, None) != str(value):
                raise EngineError(
                    f"a Spark session is running without {name}={value}; stop it, or pass "
                    "on=hr.Spark() to use it as it is"
                )
        if forks is False and is_used_by(session):
            raise EngineError(
                "a Spark session is running with the fork server; stop it before you start one "
                "without it"
            )
        return session
    master = master or os.environ.get("SPARK_MASTER") or "local[*]"
    settings = dict(_CONFIG)
    if master.startswith("local"):
        cores = cores_of(master)
        settings |= {k: v.format(cores=cores) for k, v in _LOCAL_CONFIG.items()}
        settings["spark.driver.memory"] = f"{driver_megabytes()}m"
        log = Path(__file__).with_name("log4j2.properties").as_uri()  # a path may have spaces
        settings[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={log}"
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings |= {k: str(v) for k, v in (config or {}).items()}
    sweep()
    where, wants_forks = master, is_wanted(forks)
    with _own_folder(settings) as within:
        return start_or_end(lambda: _launch(where, settings | within, wants_forks))


def _launch(master: str, settings: Mapping[str, str], forks: bool) -> Any:
    from pyspark.sql import SparkSession

    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    builder = SparkSession.builder.master(master).appName("headrace")
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with _quick_python(master, settings, forks), without_noise():
            return builder.getOrCreate()
    except Exception as error:
        first = str(error).strip().splitlines()
        raise EngineError(
            f"Spark did not start on {master!r}: {first[0] if first else type(error).__name__}; "
            "run 'headrace doctor' to see what is wrong"
        ) from error


@contextlib.contextmanager
def _own_folder(settings: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """While Spark is launched: settings that put the driver's files into a folder of its own.

    These are block files, artifacts, libraries and sockets. Java removes them and the folder when
    it ends, and ``sweep`` does after Java was killed. A user's Java options follow ours and win.
    """
    from pyspark import SparkContext

    if SparkContext._gateway is not None:  # Java runs, and has its folder
        yield {}
        return
    folder = temporary_folder("spark")
    options = f'"-Djava.io.tmpdir={folder}" {settings.get(_JAVA_OPTIONS, "")}'
    within = {_JAVA_OPTIONS: options.strip()}
    if len(f"{folder}/.{uuid.uuid4()}.sock") > _SOCKET_PATH:
        within[_SOCKETS] = "false"
    try:
        yield within
        java: Any = SparkContext._jvm
        java.java.io.File(str(folder)).deleteOnExit()  # if it is empty
        atexit.register(_remove_sockets, folder)
    except BaseException:
        if SparkContext._gateway is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _remove_sockets(folder: Path) -> None:
    """Remove the sockets on which PySpark listened, which it leaves."""
    for path in folder.glob(".*.sock"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _quick_python(master: str, settings: Mapping[str, str], forks: bool) -> Iterator[None]:
    """While Spark is launched: what it takes for Python, unless a person has said.

    On this machine its processes are forks; a cluster has a Python of its own. One launch at a
    time, for the environment is the process's.
    """
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    with _LAUNCHING:
        for name in names:
            os.environ.setdefault(name, sys.executable)
        is_local = master == "local" or master.startswith("local[")
        is_said = any(os.environ[n] != sys.executable for n in names)
        is_said = is_said or "spark.pyspark.python" in settings
        quick = fork_server() if forks and is_local and not is_said else no_fork_server()
        before = {name: os.environ.get(name) for name in quick}
        os.environ.update(quick)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def cores_of(master: str) -> int:
    """How many tasks a local master runs at once: ``local[2]`` two, ``local[*]`` all cores."""
    inside = master.partition("[")[2].rstrip("]").partition(",")[0]
    if not inside:
        return 1
    return os.cpu_count() or 1 if inside == "*" else int(inside)


def driver_megabytes() -> int:
    """The JVM's share of the machine: a quarter, between 1 and 4 GB."""
    quarter = psutil.virtual_memory().total // 4 >> 20
    return int(max(1024, min(4096, quarter)))
