"""One Spark session for all tests, and one fixture that runs a test on every engine."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pyarrow as pa
import pytest

import headrace as hr

hypothesis.settings.register_profile(
    "default",
    deadline=None,
    max_examples=60,
    derandomize=bool(os.environ.get("CI")),  # the same examples on every run there, new ones here
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.load_profile("default")

# Java compiles quickly and collects with one thread: of a test's short jobs most of the time goes
# into starting, and none of it into what Java would do for a job that runs for hours.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

ENGINES = ["spark", "box"]


def _say_no_more() -> None:
    """DuckDB's bindings print what they take for leaks when the interpreter ends, eighty lines."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


atexit.register(_say_no_more)


@pytest.fixture(scope="session")
def spark_engine() -> Iterator[hr.Spark]:
    """Spark on two cores of this machine."""
    engine = hr.Spark(master="local[2]")
    session = engine.session
    yield engine
    session.stop()


@pytest.fixture(scope="session")
def box_engine() -> hr.Box:
    """Two evaluators, with the engine's invariants checked."""
    return hr.Box(workers=2, debug=True)


@pytest.fixture(scope="session")
def session(spark_engine: hr.Spark) -> Any:
    return spark_engine.session


@pytest.fixture(params=ENGINES, scope="session")
def engine(request: pytest.FixtureRequest) -> Any:
    """Each engine in turn: every operator is tested on all of them."""
    return request.getfixturevalue(f"{request.param}_engine")


def for_all(engine: Any, *, box: int = 25, spark: int = 6, **strategies: Any) -> Any:
    """Run a property at once: on the box for many examples, on Spark, a second each, for some."""

    def check(function: Callable[..., None]) -> None:
        count = spark if engine.name == "spark" else box
        hypothesis.settings(max_examples=count)(hypothesis.given(**strategies)(function))()

    return check


def for_any(quick: int, slow: int, **strategies: Any) -> Any:
    """A property of the box as a test of a few examples, and as a slow one of many."""

    def made(function: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("examples", [quick, pytest.param(slow, marks=pytest.mark.slow)])
        def test(examples: int) -> None:
            settings = hypothesis.settings(max_examples=examples)
            settings(hypothesis.given(**strategies)(function))()

        test.__name__, test.__doc__ = function.__name__, function.__doc__
        return test

    return made


PATIENCE = 120.0
"""Seconds after which what a test waits for counts as never coming, on a busy machine too."""


def until(enough: Callable[[], Any], meanwhile: Callable[[], Any] = lambda: None) -> None:
    """Wait for something, and do something again and again meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while not enough():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s"
        meanwhile()
        time.sleep(0.005)


def ended(process: psutil.Process) -> bool:
    """Whether a process runs no more; it may go away while it is asked."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


Rows = list[tuple[Any, ...]]


@pytest.fixture
def rows(engine: Any) -> Callable[[hr.Stream], Rows]:
    """The records of a stream as tuples, in the order they come out."""

    def collect(stream: hr.Stream) -> Rows:
        return tuples(stream.collect(on=engine))

    return collect


def tuples(table: pa.Table) -> Rows:
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Real data sets, where they are at hand; the suite is complete without them."""
    told = os.environ.get("HEADRACE_DATA")
    beside = sorted(Path(__file__).parents[2].glob("*/data"))
    for folder in [Path(told)] if told else beside:
        if (folder / "gutenberg").is_dir():
            return folder
    pytest.skip("the real data sets are not here; set HEADRACE_DATA to their folder")
