"""Damaged checkpoints: any flip, cut or removal is refused with the name of the file.

Only files that Headrace writes are damaged. Those of Spark (``offsets``, ``commits``, ``state``)
are its own: it has checksums beside them, and checks these itself.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.io.gathering import GatheringWriter
from headrace.io.sink import Sink
from headrace.state import read_state
from tests.conftest import PATIENCE
from tests.fuzz.budget import named
from tests.streams.test_stream_kills import records
from tests.streams.test_stream_state import put, timed

BOX = hr.Box(workers=2)
NOT_STATE = {"driver.json", "driver.json.lock"}
"""What says who uses a checkpoint; it is not there after a stop, or says nothing."""


class Says(Sink):
    """Takes records, and fails to commit while there is a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def open(self, schema: pa.Schema, task: str) -> Any:
        return GatheringWriter()

    def commit(self, messages: list[Any]) -> None:
        raise AssertionError("it commits by epoch")

    def commit_epoch(self, job: str, epoch: int, messages: list[Any]) -> None:
        if messages and os.path.exists(self.path):
            raise OSError("not just now")


def outlet(folder: Path) -> Any:
    keyed = timed(folder / "in").key_by("k")
    counts = keyed.window(hr.tumbling("5s")).agg(n=hr.count())
    return counts.write_to(Says(folder / "fail"))


def run(folder: Path, engine: Any, checkpoint: Path) -> None:
    job = outlet(folder).start(on=engine, checkpoint=checkpoint, trigger="available-now")
    assert job.wait(PATIENCE)


def begun(folder: Path, engine: Any) -> Path:
    """A checkpoint with open windows, after two files of input."""
    found = records(900)
    for i in range(2):
        put(folder / "in", f"{i}.csv", found[300 * i : 300 * i + 300])
        run(folder, engine, folder / "state")
    return folder / "state"


@pytest.fixture(scope="module")
def on_box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the box, whose last results the output does not have."""
    folder = tmp_path_factory.mktemp("box")
    state = begun(folder, BOX)
    put(folder / "in", "2.csv", records(900)[600:])
    (folder / "fail").touch()
    with pytest.raises(hr.EngineError, match="not just now"):
        run(folder, BOX, state)
    (folder / "fail").unlink()
    names = {path.name for path in ours(state)}
    assert {"job.json", "manifest.json", "files-000000000002.json"} <= names
    assert any(name.startswith("messages-") for name in names)
    assert any(name.startswith("data-") for name in names)
    return state


@pytest.fixture(scope="module")
def on_spark(spark_engine: hr.Spark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return begun(tmp_path_factory.mktemp("spark"), spark_engine)


@pytest.fixture(scope="module")
def moved_to_spark(on_box: Path) -> Path:
    """A checkpoint for Spark of state that was moved there and not started."""
    old, new = on_box.with_name("old"), on_box.with_name("moved")
    shutil.copytree(on_box, old)
    hr.move_state(old, new, on="spark")
    assert {"initial.json", "messages", "control.json"} <= {path.name for path in ours(new)}
    return new


def ours(checkpoint: Path) -> list[Path]:
    """The files that Headrace writes."""
    found = sorted(path for path in (checkpoint / "headrace").rglob("*") if path.is_file())
    return [path for path in found if path.name not in NOT_STATE]


def damage(rng: random.Random, path: Path) -> None:
    """Damage a file."""
    data = path.read_bytes()
    at = rng.randrange(len(data))
    how = rng.choice(["flip", "flip", "bytes", "cut", "longer", "removal"])
    worse = bytearray(data)
    if how == "flip":
        worse[at] ^= 1 << rng.randrange(8)
    elif how == "bytes":
        worse[at : at + 8] = rng.randbytes(min(8, len(data) - at))
    elif how == "cut":
        del worse[at:]
    elif how == "longer":
        worse += rng.randbytes(rng.randrange(1, 9))
    if how == "removal":
        path.unlink()
    elif worse == data:
        damage(rng, path)
    else:
        path.write_bytes(bytes(worse))


def refused(checkpoint: Path, count: int, use: Callable[[Path], object], *but: str) -> None:
    """Damage copies of a checkpoint, each once; every one is refused with the name of the file.

    A copy that is not damaged is taken.
    """
    first = int(os.environ.get("HEADRACE_FUZZ_SEED", "1"))
    for seed in range(first, first + count):
        with named(seed), copied(checkpoint) as copy:
            rng = random.Random(seed)
            path = rng.choice([p for p in ours(copy) if not p.name.startswith(but)])
            damage(rng, path)
            with pytest.raises(hr.HeadraceError, match=re.escape(path.name)):
                use(copy)
    with copied(checkpoint) as copy:
        use(copy)


@contextlib.contextmanager
def copied(checkpoint: Path) -> Iterator[Path]:
    copy = checkpoint.with_name("copy")
    shutil.copytree(checkpoint, copy)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


few_or_many = pytest.mark.parametrize(
    "count", [pytest.param(40, id="few"), pytest.param(500, id="many", marks=pytest.mark.slow)]
)


@few_or_many
def test_a_damaged_checkpoint_of_the_box_is_refused(on_box: Path, count: int) -> None:
    refused(on_box, count, lambda copy: run(on_box.parent, BOX, copy))


@few_or_many
def test_damaged_state_is_neither_shown_nor_moved(on_box: Path, count: int) -> None:
    refused(on_box, count, read_state)


@few_or_many
def test_a_damaged_checkpoint_of_moved_state_is_refused(
    moved_to_spark: Path, spark_engine: hr.Spark, count: int
) -> None:
    """What sources keep is read once Spark runs, which takes longer; the next test damages it."""
    folder = moved_to_spark.parent
    refused(moved_to_spark, count, lambda copy: run(folder, spark_engine, copy), "files-")


@pytest.mark.parametrize(
    "count", [pytest.param(6, id="few"), pytest.param(60, id="many", marks=pytest.mark.slow)]
)
def test_what_headrace_writes_for_spark_is_refused_when_damaged(
    on_spark: Path, spark_engine: hr.Spark, count: int
) -> None:
    refused(on_spark, count, lambda copy: run(on_spark.parent, spark_engine, copy))
