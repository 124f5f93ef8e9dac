"""Sinks a person writes: the parts of their life, and objects that only look like a sink."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import testing
from headrace.io.parquet import ParquetSink
from headrace.io.sink import Sink, as_sink

NUMBERS = pa.schema([("n", pa.int64())])


def numbers(*batches: list[int]) -> hr.Stream:
    """A stream that does not end by itself, of one epoch or more."""
    events = [testing.records(*({"n": n} for n in batch)) for batch in batches]
    return testing.script(events, schema={"n": "bigint"}, bounded=False, ends=True)


class Rows:
    def __init__(self) -> None:
        self.rows: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.column(0).to_pylist()

    def close(self) -> list[int]:
        return self.rows


class Least:
    """No more than a sink must have, and no subclass of one."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def check(self, schema: pa.Schema) -> None: ...

    def open(self, schema: pa.Schema, task: str) -> Rows:
        return Rows()

    def commit(self, messages: list[Any]) -> None:
        self.kept += [row for rows in messages for row in rows]

    def abort(self) -> None: ...


class Own(Sink):
    """No more than a subclass must have."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def open(self, schema: pa.Schema, task: str) -> Rows:
        return Rows()

    def commit(self, messages: list[Any]) -> None:
        self.kept += [row for rows in messages for row in rows]


@pytest.mark.parametrize("kind", [Least, Own])
def test_a_small_sink(engine: Any, kind: Any) -> None:
    sink = kind()
    hr.from_items([{"n": n} for n in range(5)]).write_to(sink, on=engine).run()
    assert sorted(sink.kept) == [0, 1, 2, 3, 4]
    sink = kind()
    outlet = numbers([1, 2], [3]).write_to(sink)
    assert outlet is not None
    assert f"{kind.__name__}: at least once" in outlet.explain(on="spark")
    assert outlet.start(on=engine).wait(60)
    assert sorted(sink.kept) == [1, 2, 3]
    sink = kind()
    assert hr.from_items([{"n": 7}]).start(on=engine, to=sink).wait(60)
    assert sink.kept == [7]


class Noted:
    """Every part of a sink's life, noted in a file: writers may be in other processes."""

    guarantee = "exactly once"

    def __init__(self, log: Path) -> None:
        self.log = log

    def note(self, part: str) -> None:
        with self.log.open("a") as file:
            file.write(part + "\n")

    def identity(self, schema: pa.Schema) -> str:
        self.note("identity")
        return f"noted with {schema.names}"

    def check(self, schema: pa.Schema) -> None:
        self.note("check")

    def ready(self, job: str | None = None) -> None:
        self.note("ready" if job is None else "ready of a job")

    def resume(self, epoch: int) -> None:
        self.note("resume")

    def begin(self, schema: pa.Schema) -> None:
        self.note("begin")

    def open(self, schema: pa.Schema, task: str) -> Rows:
        self.note("open")
        return Rows()

    def commit(self, messages: list[Any]) -> None:
        self.note("commit")

    def commit_epoch(self, job: str, epoch: int, messages: list[Any]) -> None:
        self.note("commit_epoch")

    def finish(self) -> None:
        self.note("finish")

    def abort(self) -> None:
        self.note("abort")


class NotedSink(Noted, Sink):
    """The same as a subclass."""


@pytest.fixture(params=[Noted, NotedSink])
def noted(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path / "log")


def life(sink: Any) -> list[str]:
    """The parts of its life in order, each once where it comes several times in a row."""
    parts = [part for part, _ in itertools.groupby(sink.log.read_text().split("\n"))][:-1]
    sink.log.unlink()
    return parts


def test_the_life_of_a_sink_when_input_ends(engine: Any, noted: Any) -> None:
    stream = hr.from_items([{"n": n} for n in range(3)])
    stream.write_to(noted, on=engine).run()
    assert life(noted) == ["check", "ready", "begin", "open", "commit"]
    assert stream.start(on=engine, to=noted).wait(60)
    assert life(noted) == ["check", "ready", "begin", "open", "commit"]
    with pytest.raises(hr.StepError):
        hr.from_items([{"n": 0}]).select("1 / n AS n").write_to(noted, on=engine).run()
    parts = life(noted)
    assert parts[:2] == ["check", "ready"]
    assert parts[-1] == "abort"
    assert "commit" not in parts


def test_the_life_of_a_sink_on_a_stream(engine: Any, noted: Any) -> None:
    outlet = numbers([1], [2]).write_to(noted)
    assert outlet is not None
    assert life(noted) == ["check"]
    assert "exactly once" in outlet.explain(on="spark")
    assert outlet.start(on=engine).wait(60)
    parts = life(noted)
    if engine.name == "box":
        assert parts[:2] == ["check", "ready"]
        rounds = len(parts[2:]) // 3
        assert parts[2:] == ["begin", "open", "commit"] * rounds
        assert rounds >= 1
        return
    assert parts[:6] == ["check", "identity", "ready of a job", "begin", "open", "commit_epoch"]
    assert set(parts[6:-2]) <= {"open", "commit_epoch"}
    assert parts[-2:] == ["finish", "abort"]


def test_a_sink_is_told_that_a_job_goes_on(
    spark_engine: hr.Spark, noted: Any, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"n": 1}\n')
    outlet = hr.read_json(tmp_path / "in", follow=True).write_to(noted)
    assert outlet is not None
    for known in (False, True):
        job = outlet.start(on=spark_engine, checkpoint=tmp_path / "state", trigger="available-now")
        assert job.wait(60)
        parts = life(noted)
        after = parts[parts.index("ready of a job") + 1 :]
        assert after[:2] == (["resume", "begin"] if known else ["begin", "open"])


def test_what_a_sink_lacks_has_a_default() -> None:
    sink = as_sink(Least())
    assert sink is not None
    assert (sink.guarantee, sink.by_interval) == ("at least once", False)
    assert sink.identity(NUMBERS) == "Least"
    assert str(sink) == "Least"
    sink.ready("job")
    sink.resume(1)
    sink.begin(NUMBERS)
    sink.commit_epoch("job", 1, [])
    sink.finish()
    assert as_sink(sink) is sink
    assert as_sink(3) is None


def test_a_copy_of_a_sink_that_only_looks_like_one_is_of_its_own() -> None:
    class Named(Least):
        name = "old"

    thing = Named()
    one = copy.copy(as_sink(thing))
    assert one is not None
    one.thing.name = "new"  # type: ignore[attr-defined]
    assert thing.name == "old"
    assert pickle.loads(pickle.dumps(as_sink(Least()))).thing.kept == []


def test_a_stream_overwrites_what_was_there_before_it_and_nothing_of_its_own(
    tmp_path: Path,
) -> None:
    hr.from_items([{"n": 100}]).write_parquet(tmp_path / "out", on="box").run()
    sink = ParquetSink(str(tmp_path / "out"), "overwrite")
    for runs in (1, 2):  # a sink may be used again
        sink.ready()
        for n in (1, 2):
            sink.begin(NUMBERS)
            writer = sink.open(NUMBERS, str(n))
            writer.write(pa.record_batch({"n": [n * runs]}))
            sink.commit([writer.close()])
        got = hr.read_parquet(tmp_path / "out").collect(on="box")["n"].to_pylist()
        assert sorted(got) == [1 * runs, 2 * runs]


def test_an_object_that_overwrites_does_so_once_in_a_run() -> None:
    class Overwriting(Least):
        mode = "overwrite"

        def commit(self, messages: list[Any]) -> None:
            self.kept = self.kept if self.mode == "append" else []
            super().commit(messages)

    thing = Overwriting()
    sink = as_sink(thing)
    assert sink is not None
    sink.ready()
    sink.commit([[1]])
    sink.commit([[2]])
    assert thing.kept == [1, 2]


def test_a_sink_without_its_least_parts_is_none() -> None:
    class Half(Sink):
        def open(self, schema: pa.Schema, task: str) -> Rows:
            return Rows()

    with pytest.raises(TypeError, match="commit"):
        Half()  # type: ignore[abstract]

    class Nothing:
        def open(self, schema: pa.Schema, task: str) -> Rows:
            return Rows()

    with pytest.raises(hr.PlanError, match="is not a sink; see headrace"):
        hr.from_items([1]).write_to(Nothing())  # type: ignore[arg-type]
    with pytest.raises(hr.PlanError, match="neither a sink nor a function"):
        hr.from_items([1]).start(on="box", to=Nothing())
