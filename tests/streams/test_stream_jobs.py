"""The life of a job on Spark: stop and go on, what it tells, what it refuses."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import testing
from headrace.box import manifest
from headrace.checkpoints import control
from headrace.io import folder as folder_source
from headrace.io.parquet import ParquetSink
from headrace.jobs import Rates
from tests.conftest import tuples
from tests.streams.conftest import drop
from tests.streams.test_stream_sources import until


def lines(folder: Path, first: int, count: int) -> None:
    rows = "".join(f"k{i % 2},{i}\n" for i in range(first, first + count))
    drop(folder, f"{first:04d}.csv", "k,s\n" + rows)


def pipeline(folder: Path, window: Any = None) -> hr.Stream:
    stream = hr.read_csv(
        folder, follow=True, limit=1, until="_DONE", schema={"k": "string", "s": "bigint"}
    )
    timed = stream.with_columns(at="timestamp_seconds(s)").event_time("at", delay="0s")
    return timed.key_by("k").window(window or hr.tumbling("10s")).agg(n=hr.count())


def counted(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((k, round(start.timestamp()), n) for k, start, _, n in tuples(table))


def expected(records: int) -> list[tuple[Any, ...]]:
    found: dict[tuple[str, int], int] = {}
    for i in range(records):
        key = (f"k{i % 2}", i // 10 * 10)
        found[key] = found.get(key, 0) + 1
    return sorted((k, start, n) for (k, start), n in found.items())


def test_a_job_goes_on_where_it_stopped(engine: Any, tmp_path: Path) -> None:
    folder, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "state"
    for first in range(0, 35, 7):
        lines(folder, first, 7)
    outlet = pipeline(folder).write_parquet(out)
    assert outlet is not None
    job = outlet.start(on=engine, checkpoint=checkpoint)
    until(job, lambda: job.progress().records_in == 35)
    assert job.stop()
    # The window that was open stays open; nothing of it was written.
    assert counted(hr.read_parquet(out).collect(on="box")) == expected(30)
    for first in range(35, 49, 7):
        lines(folder, first, 7)
    # The same program, with another step that holds no state.
    again = pipeline(folder).filter("n > 0").write_parquet(out)
    assert again is not None
    job = again.start(on=engine, checkpoint=checkpoint, trigger="available-now")
    assert job.wait(60)
    assert job.progress().records_in == 14
    (folder / "_DONE").touch()
    third = pipeline(folder).write_parquet(out)
    assert third is not None
    job = third.start(on=engine, checkpoint=checkpoint)
    assert job.wait(60)
    assert counted(hr.read_parquet(out).collect(on="box")) == expected(49)
    # A job whose input has ended has nothing more to do.
    job = third.start(on=engine, checkpoint=checkpoint)
    assert job.wait(60)
    assert job.progress().records_in == 0


def test_a_checkpoint_of_another_pipeline_is_refused(engine: Any, tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "state"
    lines(folder, 0, 7)
    job = pipeline(folder).start(on=engine, checkpoint=checkpoint, trigger="available-now")
    assert job.wait(60)
    other = pipeline(folder, hr.tumbling("20s"))
    with pytest.raises(
        hr.PlanError, match=r"of another pipeline: step 1 was '.*10s.*' and is '.*20s"
    ):
        other.start(on=engine, checkpoint=checkpoint)
    twice = pipeline(folder).window(hr.tumbling("20s")).agg(n=hr.sum("n"))
    with pytest.raises(hr.PlanError, match=r"step \d, '.*', is new|output 1.* had the columns"):
        twice.start(on=engine, checkpoint=checkpoint)
    if engine.name == "box":  # which takes another output with a source of its own
        return
    with pytest.raises(hr.PlanError, match=r"source 2, 'csv .*', is new"):
        hr.start([pipeline(folder), pipeline(folder)], on=engine, checkpoint=checkpoint)
    shutil.rmtree(checkpoint / "headrace")
    with pytest.raises(hr.PlanError, match="is the checkpoint of another program"):
        pipeline(folder).start(on=engine, checkpoint=checkpoint)


def test_without_a_checkpoint_stop_closes_the_windows(engine: Any, tmp_path: Path) -> None:
    lines(tmp_path / "in", 0, 15)
    job = pipeline(tmp_path / "in").start(on=engine)
    until(job, lambda: job.progress().records_in == 15)
    assert job.stop()
    assert counted(job.result()) == expected(15)


def test_a_job_tells_of_itself(engine: Any, tmp_path: Path) -> None:
    lines(tmp_path / "in", 0, 15)
    lines(tmp_path / "in", 15, 15)
    with pipeline(tmp_path / "in").start(on=engine) as job:
        until(job, lambda: job.progress().records_in == 30 and job.result().num_rows == 4)
        told = job.progress()
        assert told.running
        assert told.sources[0].watermark == 29_000_000
        assert told.stages[0].watermark == 29_000_000
        assert told.stages[0].records_out == 4
        assert told.late == told.bad == 0
        if engine.name == "spark":
            assert "transformWithState" in job.explain()
        assert "30 in" in str(told)
    assert not job.running
    assert job.progress().rate_in > 0


def test_late_records_are_kept_and_explained(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    at = testing.seconds
    script = [
        testing.records({"v": 1, "at": at(1)}, {"v": 2, "at": at(30)}),
        testing.records({"v": 3, "at": at(5)}, {"v": 4, "at": at(29)}),
    ]
    stream = testing.script(script, bounded=False, ends=True).event_time("at", delay="2s")
    job = hr.start([stream.window(hr.tumbling("10s")).count(), stream.late], on=engine)
    assert job.wait(60)
    assert [n for _, _, n in tuples(job.result(0))] == [1, 1, 1]
    assert job.result(1).select(["v", "late_by"]).to_pylist() == [
        {"v": 3, "late_by": at(28) - at(5)}
    ]
    assert job.progress().late == 1
    assert "came after the watermark 1970-01-01 00:00:28" in caplog.text


def test_watermarks_of_a_source_and_of_records(engine: Any) -> None:
    at = testing.seconds
    script = [
        testing.records({"v": 1, "at": at(1)}),
        testing.watermark(at(10)),
        testing.records({"v": 2, "at": at(12)}),
    ]
    own = testing.script(script, bounded=False, ends=True).event_time("at")
    said = testing.script(
        [testing.records({"v": i, "at": at(i)}) for i in range(4)], bounded=False, ends=True
    ).event_time("at", punctuation="CASE WHEN v = 2 THEN at END")
    job = hr.start([s.window(hr.tumbling("2s")).agg(v=hr.sum("v")) for s in (own, said)], on=engine)
    assert job.wait(60)
    assert sorted(v for _, _, v in tuples(job.result(0))) == [1, 2]
    assert sorted(v for _, _, v in tuples(job.result(1))) == [1, 5]


def test_a_silent_split_does_not_hold_windows_back(engine: Any) -> None:
    at = testing.seconds
    scripts = [
        [testing.records({"v": i, "at": at(5 * i)}) for i in range(8)],
        [testing.records({"v": 100, "at": at(1)})],
    ]
    stream = testing.script(*scripts, bounded=False).event_time("at", delay="0s", idle="1s")
    job = stream.window(hr.tumbling("10s")).count().start(on=engine)
    until(job, lambda: job.result().num_rows == 3)
    assert any("silent" in note for note in job.progress().notes)
    job.stop(drain=False)


def test_a_silent_source_holds_nothing_back(engine: Any) -> None:
    """Over a join, over windows of windows, and beside a source that has ended."""
    at = testing.seconds
    lively = hr.rate(5).select(k="CAST(1 AS bigint)", at="timestamp_seconds(5 * value)")
    silent = testing.script([testing.records({"k": 1, "at": at(1)})], bounded=False)
    done = testing.script([testing.records({"k": 1, "at": at(2)})], bounded=False, ends=True)
    one, two = (s.event_time("at", delay="0s", idle="1s") for s in (lively, silent))
    three = done.event_time("at", delay="0s", idle="1s")
    tens = hr.tumbling("10s")
    joined = one.join_within(two, on="k", before="5s", after="5s").window(tens).count()
    twice = one.window(tens).count().union(two.window(tens).count()).window(tens).agg(n=hr.count())
    moved = one.shuffle().union(two, three).window(tens).count()
    job = hr.start([joined, twice, moved], on=engine)
    until(job, lambda: all(job.result(i).num_rows >= n for i, n in enumerate([1, 3, 3])))
    assert job.progress().late == 0
    job.stop(drain=False)


def test_a_step_that_fails_is_named(engine: Any) -> None:
    stream = testing.script([testing.records({"v": 0})], bounded=False, ends=True)
    job = stream.select(w="1 / v").start(on=engine)
    with pytest.raises(hr.StepError, match=r"step 2, select"):
        job.wait(60)
    assert not job.running
    assert "step 2" in str(job.progress().error)


REFUSED = {
    "sort": (lambda s: s.sort("v"), "this input never ends"),
    "group_by": (lambda s: s.group_by("v").count(), "use a window before it"),
    "join": (lambda s: s.join(s, on="v"), "use join_within"),
    "limit": (lambda s: s.limit(3), "this input never ends; which records"),
    "top_k": (lambda s: s.top_k(3, by="v"), "use a window before it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_never_end_is_refused(engine: Any, name: str) -> None:
    make, message = REFUSED[name]
    stream = testing.script([testing.records({"v": 0})], bounded=False)
    with pytest.raises(hr.PlanError, match=message):
        make(stream).start(on=engine)


def test_triggers_and_checkpoints_are_checked(engine: Any) -> None:
    stream = testing.script([testing.records({"v": 0})], bounded=False)
    with pytest.raises(hr.PlanError, match="use 'available-now'"):
        stream.start(on=engine, trigger="now")
    if engine.name == "box":
        with pytest.raises(hr.PlanError, match="the box has no batches"):
            stream.start(on=engine, trigger="1s")
    else:
        with pytest.raises(hr.PlanError, match="not a span of time"):
            stream.start(on=engine, trigger="soon")
    with pytest.raises(hr.PlanError, match="checkpoint=3 is not a path"):
        stream.start(on=engine, checkpoint=3)


def test_a_job_with_a_checkpoint_is_not_drained(engine: Any, tmp_path: Path) -> None:
    stream = testing.script([testing.records({"v": 0})], bounded=False)
    job = stream.start(on=engine, checkpoint=tmp_path / "state")
    with pytest.raises(hr.EngineError, match="keeps its open windows for the next start"):
        job.stop(drain=True)
    job.stop()


def test_any_streaming_dataframe(spark_engine: hr.Spark, tmp_path: Path) -> None:
    """Whatever Spark can read: windows over it, late records, and a restart."""
    from pyspark.sql import functions as F

    session, folder = spark_engine.session, tmp_path / "in"
    folder.mkdir()

    def stream() -> hr.Stream:
        frame = session.readStream.schema("s long").option("maxFilesPerTrigger", 1).csv(str(folder))
        frame = frame.select("s", F.timestamp_seconds("s").alias("at"))
        return hr.from_spark(frame).event_time("at", delay="0s")

    def run(name: str) -> hr.Job:
        timed = stream()
        counts = timed.window(hr.tumbling("10s")).agg(n=hr.count())
        job = hr.start(
            [counts.write_parquet(tmp_path / "out"), timed.late.write_parquet(tmp_path / "late")],
            on=spark_engine, checkpoint=tmp_path / "state", trigger="available-now",
        )  # fmt: skip
        assert job.wait(60)
        return job

    for i, rows in enumerate([range(15), range(15, 30)]):
        drop(folder, f"{i}.csv", "".join(f"{r}\n" for r in rows))
        time.sleep(0.02)
    run("one")
    drop(folder, "2.csv", "3\n31\n45\n")
    job = run("two")
    assert job.progress().late == 1
    found = tuples(hr.read_parquet(tmp_path / "out").collect(on="box"))
    assert sorted((round(s.timestamp()), n) for s, _, n in found) == [
        (0, 10),
        (10, 10),
        (20, 10),
        (30, 1),
    ]
    assert hr.read_parquet(tmp_path / "late").collect(on="box")["s"].to_pylist() == [3]
    (tmp_path / "state" / "headrace" / "watermarks-2.json").unlink()
    with pytest.raises(hr.EngineError, match=r"watermarks-2\.json is gone"):
        run("three")


def test_a_checkpoint_that_cannot_be_made_is_told(engine: Any) -> None:
    stream = testing.script([testing.records({"v": 0})], bounded=False, ends=True)
    with pytest.raises(hr.EngineError, match=r"cannot be written: .* give a folder"):
        stream.start(on=engine, checkpoint="/proc/headrace")


@pytest.mark.parametrize("bounded", [True, False])
def test_an_output_that_cannot_be_written_is_told(engine: Any, bounded: bool) -> None:
    items = [testing.records({"v": 0})]
    stream = hr.from_items([1]) if bounded else testing.script(items, bounded=False, ends=True)
    words = "the output folder '/proc/headrace' cannot be written: .*write access"
    with pytest.raises(hr.EngineError, match=words):
        stream.start(on=engine, to=ParquetSink("/proc/headrace")).wait(60)


def test_a_full_disk_beside_a_followed_folder_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines(tmp_path / "in", 0, 5)

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_source, "save_json", full)
    stream = hr.read_text(tmp_path / "in", follow=True)
    words = "the checkpoint's list of files .* cannot be written: No space left"
    with pytest.raises(hr.EngineError, match=words):
        stream.start(on="box", to=print, checkpoint=tmp_path / "state").wait(60)


def test_a_function_may_stop_its_own_job(engine: Any, tmp_path: Path) -> None:
    for checkpoint in (None, tmp_path / "state"):
        started: list[hr.Job] = []
        begun = threading.Event()

        def stop(batch: Any, begun: Any = begun, started: Any = started) -> None:
            begun.wait()
            started[0].stop()

        started.append(hr.rate(100).start(on=engine, to=stop, checkpoint=checkpoint))
        begun.set()
        assert started[0].wait(60)
        assert not started[0].running


def test_a_full_disk_is_told_and_nothing_is_lost(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "state"
    lines(folder, 0, 15)
    lines(folder, 15, 15)
    (folder / "_DONE").touch()

    def run() -> hr.Job:
        outlet = pipeline(folder).write_parquet(tmp_path / "out")
        assert outlet is not None
        job = outlet.start(on=engine, checkpoint=checkpoint)
        job.wait(60)
        return job

    where: Any = control if engine.name == "spark" else manifest
    calls, real = [0], control.save_json

    def full(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] > (3 if engine.name == "spark" else 1):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(where, "save_json", full)
    with pytest.raises(hr.EngineError, match=r"cannot be written: .*No space left"):
        run()
    monkeypatch.setattr(where, "save_json", real)
    run()
    assert counted(hr.read_parquet(tmp_path / "out").collect(on="box")) == expected(30)


def test_input_that_ends_runs_as_a_job_too(engine: Any, tmp_path: Path) -> None:
    numbers = hr.from_items([{"k": i % 2, "v": i} for i in range(10)])
    totals = numbers.group_by("k").agg(v=hr.sum("v")).sort("k")
    seen: list[pa.RecordBatch] = []
    job = hr.start([totals, (numbers.filter("v > 7"), seen.append)], on=engine)
    assert job.wait(60)
    assert tuples(job.result()) == [(0, 20), (1, 25)]
    assert sorted(pa.Table.from_batches(seen)["v"].to_pylist()) == [8, 9]
    assert not job.running


def test_a_bounded_part_that_must_be_computed_first_is_refused(spark_engine: hr.Spark) -> None:
    sorted_items = hr.from_items([{"v": 1}]).sort("v")
    live = testing.script([testing.records({"v": 0})], bounded=False)
    with pytest.raises(hr.PlanError, match="takes bounded input only as it is read"):
        live.union(sorted_items).start(on=spark_engine)


def test_a_session_that_was_given_is_used_as_it_is(spark_engine: hr.Spark) -> None:
    session = spark_engine.session
    names = ("spark.sql.shuffle.partitions", "spark.sql.ansi.enabled")
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = [session.conf.get(n) for n in names], session.conf.get(provider, None)
    stream = testing.script(
        [testing.records({"v": 1, "at": testing.seconds(1)})], bounded=False, ends=True
    ).event_time("at", delay="0s")
    job = stream.window(hr.tumbling("1s")).count().start(on=session)
    assert job.wait(60)
    assert job.result().num_rows == 1
    assert ([session.conf.get(n) for n in names], session.conf.get(provider, None)) == before
    assert session.range(3).count() == 3


def test_rates_are_those_of_some_seconds_though_records_are_counted_in_batches() -> None:
    rates = Rates(0.0)
    assert rates.at(5.0, 5000, 50) == (1000.0, 10.0)
    assert rates.at(5.5, 5000, 50)[0] > 0  # no batch has ended since
    assert rates.at(20.0, 5000, 50) == (0.0, 0.0)  # nothing for long
