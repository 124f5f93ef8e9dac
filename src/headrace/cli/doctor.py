"""Check this machine, and say how to fix what is wrong."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

import psutil
from rich.console import Console

from headrace.cache import cache_folder
from headrace.cli.warm import warm
from headrace.errors import HeadraceError
from headrace.spark.engine import Spark
from headrace.spark.java import find_java
from headrace.spark.python import fork_server


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was found, and what to do about it if it is not well."""

    what: str
    found: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", metavar="URL", help="Spark's master to try (local[*])")
    parser.add_argument(
        "--java-home", action="store_true", help="only print the JAVA_HOME that Spark is given"
    )
    parser.add_argument(
        "--warm",
        action="store_true",
        help="only compile the common kernels into the cache, as part of a container's build",
    )


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    if arguments.java_home:
        print(find_java().home)
        return 0
    if arguments.warm:
        _warm(console)
        return 0
    bad = 0
    for finding in check(arguments.master):
        bad += bool(finding.fix)
        mark = "[red]✗[/red]" if finding.fix else "[green]✓[/green]"
        console.print(f"{mark} {finding.what}: {finding.found}", highlight=False)
        if finding.fix:
            console.print(f"    {finding.fix}", highlight=False)
    console.print("\nAll is well." if not bad else f"\n{bad} of these need attention.")
    return 1 if bad else 0


def _warm(console: Console) -> None:
    start = time.perf_counter()
    count = warm()
    console.print(
        f"{count} kernels compiled in {time.perf_counter() - start:.0f} s; the cache is "
        f"{cache_folder('')}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    console.print(
        "In a container's build, run this after pip install, as the user that runs the job.\n"
        "On another type of processor the kernels are compiled again.",
        highlight=False,
    )


def needed() -> list[str]:
    """What headrace needs, as its own metadata says."""
    return sorted(r for r in requires("headrace") or () if "extra ==" not in r)


def check(master: str | None = None) -> Iterator[Finding]:
    """Everything a pipeline needs, the cheap things first."""
    found = platform.python_version()
    old = sys.version_info < (3, 11)
    yield Finding("Python", found, "Install Python 3.11 or later." if old else "")
    for wanted in needed():
        package = re.split(r"[^\w-]", wanted)[0]
        try:
            yield Finding(package, version(package))
        except PackageNotFoundError:
            yield Finding(package, "missing", f"pip install '{wanted}'")
    cores = os.cpu_count() or 1
    yield Finding("cores", str(cores))
    memory = psutil.virtual_memory()
    free = memory.available / 2**30
    yield Finding(
        "memory",
        f"{memory.total / 2**30:.1f} GB, {free:.1f} GB free",
        "Spark and its workers want about 2 GB; close something." if free < 2 else "",
    )
    try:
        java = find_java()
        yield Finding("Java", f"{java.version} from {java.origin} ({java.home})")
    except HeadraceError as error:
        yield Finding("Java", "none", str(error))
        return
    yield from _spark(master)


def _spark(master: str | None) -> Iterator[Finding]:
    import headrace as hr

    engine = Spark(master=master)
    start = time.perf_counter()
    try:
        session = engine.session
        where = session.sparkContext.master
        yield Finding(
            "Spark", f"{session.version} on {where}, started in {time.perf_counter() - start:.1f} s"
        )
        yield Finding("fork server", fork_server.described(session))
        start = time.perf_counter()
        total = hr.from_items(range(1000)).agg(total=hr.sum("value")).collect(on=engine)
        right = total["total"][0].as_py() == 499_500
        yield Finding(
            "a job in Spark's Python workers",
            f"done in {time.perf_counter() - start:.1f} s" if right else "gave a wrong answer",
            "" if right else "Check that the workers run the same headrace and pyarrow as here.",
        )
    except HeadraceError as error:
        yield Finding("Spark", "does not work", _advice(str(error)))


def _advice(error: str) -> str:
    if "ModuleNotFoundError" in error:
        return f"{error} Install headrace on every worker, with the same Python version."
    return error
