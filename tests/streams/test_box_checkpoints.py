"""Checkpoints of the box: its sources, its outputs and its threads at awkward moments."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.io.gathering import GatheringWriter
from headrace.io.offsets import OffsetSource, Positions
from headrace.io.sink import Sink
from headrace.io.source import Source, Split
from tests.conftest import PATIENCE, until
from tests.streams.conftest import drop
from tests.streams.test_stream_checkpoints import counts, put


@dataclass(frozen=True, eq=False)
class Numbers(OffsetSource):
    """Ten numbers a step, for ever or so many; a step may wait in its middle."""

    name: str
    upto: int | None = None
    waits_at: int = -1
    go_on: threading.Event = field(default_factory=threading.Event)
    forgotten: list[Positions] = field(default_factory=list)
    schema = pa.schema([("n", pa.int64())])

    def __str__(self) -> str:
        return f"numbers {self.name}"

    def initial(self) -> Positions:
        return {"all": 0}

    def available(self, since: Positions) -> Positions:
        if self.upto is None:
            time.sleep(0.002)
            return {"all": since["all"] + 10}
        return {"all": self.upto}

    def step(self, since: Positions, end: Positions) -> Positions:
        return {"all": min(end["all"], since["all"] + 10)}

    def between(
        self, start: Positions, end: Positions, parallelism: int
    ) -> Sequence[tuple[str, Split]]:
        return [("all", Ten(self, start["all"], end["all"]))]

    def ended(self, at: Positions) -> bool:
        return self.upto is not None and at["all"] >= self.upto

    def forget(self, upto: Positions) -> None:
        self.forgotten.append(upto)


@dataclass(frozen=True, eq=False)
class Ten(Split):
    of: Numbers
    start: int
    end: int

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        half = (self.start + self.end) // 2
        yield pa.record_batch({"n": pa.array(range(self.start, half), pa.int64())})
        if self.start <= self.of.waits_at < self.end:
            self.of.go_on.wait(PATIENCE)
        yield pa.record_batch({"n": pa.array(range(half, self.end), pa.int64())})


class Taken(Sink):
    """Remembers what each epoch had; a commit may wait."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[int]] = {}
        self.may_close, self.may_commit = threading.Event(), threading.Event()
        self.closes, self.commits = threading.Event(), threading.Event()
        self.may_close.set()
        self.may_commit.set()
        self.aborts = 0

    def __copy__(self) -> Taken:
        return self

    def open(self, schema: Any, task: str) -> Any:
        return TakenWriter(self)

    def commit(self, messages: list[Any]) -> None:
        raise AssertionError("it commits by epoch")

    def commit_epoch(self, job: str, epoch: int, messages: list[Any]) -> None:
        self.commits.set()
        self.may_commit.wait(PATIENCE)
        if messages and epoch not in self.epochs:
            with pa.ipc.open_stream(messages[0]) as stream:
                self.epochs[epoch] = stream.read_all()["n"].to_pylist()

    def abort(self) -> None:
        self.aborts += 1

    @property
    def numbers(self) -> list[int]:
        return sorted(n for epoch in self.epochs.values() for n in epoch)


class TakenWriter(GatheringWriter):
    def __init__(self, sink: Taken) -> None:
        super().__init__()
        self.sink = sink

    def close(self) -> Any:
        self.sink.closes.set()
        self.sink.may_close.wait(PATIENCE)
        return super().close()


BOX = hr.Box(workers=2, commit_every="5ms", debug=True)


def test_sources_are_told_what_is_not_asked_for_again(tmp_path: Path) -> None:
    source, sink = Numbers("a", 1000), Taken()
    assert hr.from_source(source).write_to(sink).start(on=BOX, checkpoint=tmp_path).wait(PATIENCE)
    assert source.forgotten[-1] == {"all": 1000}
    assert sink.numbers == list(range(1000))


def test_a_step_that_takes_long_does_not_hold_up_other_sources(tmp_path: Path) -> None:
    slow, sink = Numbers("slow", 100, waits_at=50), Taken()
    both = hr.from_source(slow).union(hr.from_source(Numbers("quick", None)))
    job = both.write_to(sink).start(on=BOX, checkpoint=tmp_path)
    until(lambda: job.progress().sources[0].records >= 50)
    seen = job.progress().sources[1].records
    until(lambda: job.progress().sources[1].records > seen + 200)
    slow.go_on.set()
    until(lambda: job.progress().sources[0].ended)
    job.stop()
    assert [n for n in range(100) if sink.numbers.count(n) != 2] == []


def test_a_stop_while_a_checkpoint_is_written_takes_nothing_back(tmp_path: Path) -> None:
    sink = Taken()
    job = hr.from_source(Numbers("a", None)).write_to(sink).start(on=BOX, checkpoint=tmp_path)
    until(lambda: len(sink.epochs) > 1)
    sink.may_close.clear()
    sink.closes.clear()
    assert sink.closes.wait(PATIENCE)
    stopping = threading.Thread(target=lambda: job.stop(drain=False))
    stopping.start()
    until(lambda: not job.running)
    time.sleep(0.05)
    assert sink.aborts == 0  # what is being closed is in the checkpoint soon
    sink.may_close.set()
    stopping.join(PATIENCE)
    job = hr.from_source(Numbers("a", None)).write_to(sink).start(on=BOX, checkpoint=tmp_path)
    until(lambda: len(sink.epochs) > 3)
    job.stop()
    assert sink.numbers == list(range(len(sink.numbers)))


def test_a_checkpoint_is_in_use_until_it_is_written(tmp_path: Path) -> None:
    sink = Taken()
    stream = hr.from_source(Numbers("a", None))
    job = stream.write_to(sink).start(on=BOX, checkpoint=tmp_path)
    until(lambda: len(sink.epochs) > 1)
    sink.may_commit.clear()
    sink.commits.clear()
    assert sink.commits.wait(PATIENCE)
    threads = [threading.Thread(target=job.stop, kwargs={"drain": False}) for _ in range(3)]
    for thread in threads:  # at once, which is no harm
        thread.start()
    until(lambda: not job.running)
    with pytest.raises(hr.EngineError, match="is in use by process"):
        stream.write_to(sink).start(on=BOX, checkpoint=tmp_path)
    sink.may_commit.set()
    for thread in threads:
        thread.join(PATIENCE)
    stream.write_to(sink).start(on=BOX, checkpoint=tmp_path).stop()
    assert sink.numbers == list(range(len(sink.numbers)))


@pytest.mark.parametrize("kept", [True, False])
def test_available_now_waits_for_bounded_input_too(tmp_path: Path, kept: bool) -> None:
    few = hr.from_source(Slow())
    put(tmp_path / "in", "a.json", 1, 2)
    followed = hr.read_json(tmp_path / "in", schema={"v": "bigint"}, follow=True).select(n="v")
    sink = Taken()
    where = tmp_path / "state" if kept else None
    found: list[int] = []
    to: Any = sink if kept else lambda batch: found.extend(batch["n"].to_pylist())
    job = followed.union(few).start(on=BOX, to=to, checkpoint=where, trigger="available-now")
    assert job.wait(PATIENCE)
    assert sorted(sink.numbers if kept else found) == [1, 2, 7]


class Slow(Source):
    schema = pa.schema([("n", pa.int64())])
    bounded = True

    def splits(self, parallelism: int) -> list[Split]:
        return [SlowSplit()]


class SlowSplit(Split):
    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        time.sleep(0.3)
        yield pa.record_batch({"n": pa.array([7], pa.int64())})


def test_two_outputs_into_one_folder_go_on_though_one_has_written_nothing(tmp_path: Path) -> None:
    put(tmp_path / "in", "a.json", 1, 5, 12, 25)

    def outlets() -> list[Any]:
        stream = counts(tmp_path / "in")
        none = stream.filter("n > 100")
        return [stream.write_parquet(tmp_path / "out"), none.write_parquet(tmp_path / "out")]

    job = hr.start(outlets(), BOX, checkpoint=tmp_path / "state", trigger="available-now")
    assert job.wait(PATIENCE)
    drop(tmp_path / "in", "_DONE", "")
    assert hr.start(outlets(), BOX, checkpoint=tmp_path / "state").wait(PATIENCE)
    assert sorted(hr.read_parquet(tmp_path / "out").collect(on="box")["n"].to_pylist()) == [1, 1, 2]


def test_bytes_that_are_not_what_was_written_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "in", "a.json", 1, 5, 12, 25)
    outlet = counts(tmp_path / "in").write_parquet(tmp_path / "out")
    job = outlet.start(on=BOX, checkpoint=tmp_path / "state", trigger="available-now")
    assert job.wait(PATIENCE)
    (data,) = (tmp_path / "state" / "headrace" / "box").glob("data-*")
    found = bytearray(data.read_bytes())
    found[len(found) // 3] ^= 4
    data.write_bytes(bytes(found))
    with pytest.raises(hr.EngineError, match=r"its bytes are not what was written.*copy"):
        outlet.start(on=BOX, checkpoint=tmp_path / "state")


def test_what_a_kill_has_left_is_swept(tmp_path: Path) -> None:
    put(tmp_path / "in", "a.json", 1, 5, 12)
    outlet = counts(tmp_path / "in").write_parquet(tmp_path / "out")
    job = outlet.start(on=BOX, checkpoint=tmp_path / "state", trigger="available-now")
    assert job.wait(PATIENCE)
    folder = tmp_path / "state" / "headrace" / "box"
    for name in ("data-0000000099", "messages-0000000098", "manifest.json.123.tmp"):
        (folder / name).write_text("x")
    outlet.start(on=BOX, checkpoint=tmp_path / "state", trigger="available-now").wait(PATIENCE)
    assert not [p.name for p in folder.iterdir() if p.read_bytes() == b"x"]
