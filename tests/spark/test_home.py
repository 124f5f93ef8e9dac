"""What Spark's Python processes load: pyspark from a folder, and little of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.spark.home import _links, make_home, quick_home


def test_a_worker_imports_compiled_files(spark_engine: hr.Spark) -> None:
    if "SPARK_HOME" in os.environ:
        pytest.skip("SPARK_HOME names a home")

    def seen(value: int) -> str:
        import py4j
        import pyspark

        return f"{pyspark.__cached__}\n{py4j.__cached__}"

    found = hr.from_items([1]).map(seen).collect(on=spark_engine)
    paths = found.column(0)[0].as_py().splitlines()
    assert all(Path(path).exists() for path in paths)
    assert "SPARK_HOME" not in os.environ


def test_a_home_that_a_person_named_is_kept(monkeypatch: Any) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert quick_home() == {}


def test_links_that_lead_nowhere_are_made_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = make_home()
    assert home is not None
    assert (home / "jars").is_dir()
    assert make_home() == home
    (home / "jars").unlink()
    (home / "jars").symlink_to(tmp_path / "gone")
    assert make_home() == home
    assert (home / "jars").is_dir()
    assert len(list(home.parent.iterdir())) == 1


def test_a_home_that_was_given_stays(tmp_path: Path, monkeypatch: Any) -> None:
    """However many make it at once."""

    def made(_: int) -> bool:
        home = make_home()
        assert home is not None
        return all((home / "bin" / "spark-submit").exists() for _ in range(500))

    with ThreadPoolExecutor(8) as pool:
        for i in range(8):
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(i)))
            assert all(pool.map(made, range(8)))


def test_settings_in_the_home_are_kept(tmp_path: Path) -> None:
    for name in ("conf", "jars", "python/lib", "__pycache__"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "python" / "lib" / "py4j-0.1-src.zip").touch()
    links = _links(tmp_path)
    assert links is not None
    assert sorted(links) == ["conf", "jars", "python/lib/py4j-0.1-src.zip/py4j"]


def test_without_a_place_for_it_spark_starts_as_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert make_home() is None
    assert quick_home() == {}


HEAVY = ("numba", "pandas", "sqlglot", "headrace.kernels.native", "headrace.kernels.expressions")


HELPERS = ["spark.planning", "spark.processor"] + [
    f"io.{n}" for n in ("parquet", "csv", "json", "text", "kafka", "redis", "rate", "socket")
]
LOADED = f"""
import os, sys
import headrace
for name in {HELPERS}:  # each in a fork that has loaded none of the others
    if os.fork() == 0:
        __import__(f"headrace.{{name}}")
        print(name, *[n for n in {HEAVY} if n in sys.modules], flush=True)
        os._exit(0)
    os.wait()
"""


def test_what_the_driver_helpers_load_is_light() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert done.stdout.splitlines() == HELPERS, done.stderr
