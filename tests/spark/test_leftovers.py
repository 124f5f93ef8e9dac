"""What Spark's driver leaves in the temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from headrace.cache import sweep
from headrace.spark.session import _JAVA_OPTIONS, _SOCKETS, _own_folder
from headrace.spark.streaming import _UNLESS_SET, _unless_set
from tests.conftest import ended, until

DRIVER = """
import headrace as hr
rows = hr.from_items(range(100)).map(lambda n: n + 1).sort("value").collect()
print(rows.num_rows, flush=True)
input()
"""


def driver(folder: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    said = {"TMPDIR": str(folder), "PYTHONPATH": path, "SPARK_MASTER": "local[1]"}
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        env={**os.environ, **said, "XDG_CACHE_HOME": str(folder.parent / "cache")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "100\n"
    return process


def names(folder: Path) -> set[str]:
    """The kinds of the entries: those of ours by kind, others by how their names begin."""
    found = (path.name.split("-") for path in folder.iterdir())
    return {parts[3] if parts[0] == "headrace" else parts[0] for parts in found}


def test_a_killed_driver_leaves_one_folder_that_is_swept(tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    with driver(folder) as process:
        children = psutil.Process(process.pid).children(recursive=True)
        java = [child for child in children if child.name() == "java"]
        assert "spark" in names(folder) <= {"spark", "python"}
        own = next(folder.glob("*-spark-*"))
        assert own.stat().st_mode & 0o777 == 0o700
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        before = names(own)
        assert {"blockmgr", "spark", "artifacts"} <= before
        sweep()
        assert names(own) == before  # its process runs
        for each in (*java, process):
            each.kill()
    until(lambda: all(map(ended, children)))
    assert own.is_dir()
    sweep()
    assert list(folder.iterdir()) == []


def test_a_driver_that_ends_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    with driver(folder) as process:
        process.communicate("\n")
    until(lambda: list(folder.iterdir()) == [])


def test_a_users_java_options_come_after_ours(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))

    def fail() -> None:
        with _own_folder({_JAVA_OPTIONS: "-Djava.io.tmpdir=/mine"}) as settings:
            (folder,) = deep.iterdir()
            assert settings[_JAVA_OPTIONS].split(" ", 1) == [
                f'"-Djava.io.tmpdir={folder}"',
                "-Djava.io.tmpdir=/mine",
            ]
            assert settings[_SOCKETS] == "false"  # the path is too long for a socket
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail()
    assert list(deep.iterdir()) == []


def test_settings_that_bound_a_checkpoint_are_a_users_first() -> None:
    name = "spark.sql.streaming.minBatchesToRetain"
    session = SimpleNamespace(conf=SimpleNamespace(getAll={name: "100"}))
    assert _unless_set(session) == {k: v for k, v in _UNLESS_SET.items() if k != name}
