"""Ends that are ends: what is there now, outputs without rows, results at once."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import testing
from headrace.box.sinks import WrittenTo
from headrace.io.gathering import EachBatch
from tests.conftest import until
from tests.streams.conftest import drop

SCHEMA = {"k": "string", "at": "timestamp"}


def test_available_now_without_a_checkpoint_closes_every_window(
    spark_engine: hr.Spark, tmp_path: Path
) -> None:
    for i in range(10):
        lines = [f'{{"k": "a", "at": "1970-01-01T00:00:{i:02d}.{j}Z"}}' for j in range(10)]
        drop(tmp_path / "in", f"{i}.json", "\n".join(lines) + "\n")
    stream = hr.read_json(tmp_path / "in", schema=SCHEMA, follow=True, limit=3)
    counts = stream.event_time("at").window(hr.tumbling("1s")).agg(n=hr.count())
    job = counts.start(on=spark_engine, trigger="available-now")
    assert job.wait(60)
    assert job.result().column("n").to_pylist() == [10] * 10


def test_available_now_of_nothing_ends(spark_engine: hr.Spark, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    stream = hr.read_json(tmp_path / "in", schema=SCHEMA, follow=True).event_time("at")
    job = (
        stream.window(hr.tumbling("1s"))
        .agg(n=hr.count())
        .start(on=spark_engine, trigger="available-now")
    )
    assert job.wait(60)
    assert job.result().num_rows == 0


def test_an_output_without_rows_is_a_folder_that_can_be_read(engine: Any, tmp_path: Path) -> None:
    rows = [testing.records({"k": "a", "at": testing.seconds(1)})]
    stream = testing.script(rows, schema=SCHEMA, bounded=False, ends=True).filter("k = 'b'")
    job = hr.start(
        [stream.write_parquet(tmp_path / "parquet"), stream.write_csv(tmp_path / "csv"),
         stream.write_json(tmp_path / "json"), stream.select("k").write_text(tmp_path / "text")],
        on=engine,
    )  # fmt: skip
    assert job.wait(60)
    assert all((tmp_path / kind).is_dir() for kind in ("parquet", "csv", "json", "text"))
    for read in (hr.read_parquet(tmp_path / "parquet"), hr.read_csv(tmp_path / "csv")):
        assert read.columns == ["k", "at"]
        assert read.count(on="box") == 0
    assert not list(tmp_path.glob("*/_temporary*"))


def test_results_reach_a_function_at_once_on_the_box() -> None:
    """Each window is given before the next but one is read, however seldom files are written."""
    tables: list[list[int]] = []

    class Paced:
        schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
        bounded = False

        def splits(self, parallelism: int) -> list[Any]:
            return [self]

        def read(self, columns: Any) -> Any:
            for n in range(12):
                at = pa.array([n * 1_000_000]).cast(self.schema.field("at").type)
                yield pa.record_batch({"n": pa.array([n]), "at": at})
                yield None
                until(lambda n=n: sum(map(len, tables)) >= n)

    windows = hr.from_source(Paced()).event_time("at", delay="0s").window(hr.tumbling("1s"))
    outlet = windows.agg(n=hr.max("n")).for_each_batch(
        lambda table, epoch: tables.append(table.column("n").to_pylist())
    )
    assert outlet is not None
    assert outlet.start(on=hr.Box(workers=2, commit_every="1h")).wait(60)
    assert [n for table in tables for n in table] == list(range(12))


def test_a_slow_commit_is_given_time_to_take_records() -> None:
    clock = [0.0]
    sink = EachBatch(lambda table, epoch: clock.__setitem__(0, clock[0] + 1.0), "slow")
    written = WrittenTo(sink, pa.schema([("v", pa.int64())]), 0.0, lambda: clock[0])

    class One:
        batch = pa.record_batch({"v": pa.array([1])})

    written.process(One(), None)  # type: ignore[arg-type]
    written.on_watermark(1, None)  # type: ignore[arg-type]
    assert written.commits == 1  # it took a second
    for now, commits in ((1.5, 1), (2.9, 1), (3.1, 2)):
        clock[0] = now
        written.process(One(), None)  # type: ignore[arg-type]
        written.tick()
        assert written.commits == commits


def test_files_are_committed_by_an_interval_and_not_by_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = time.time()
    monkeypatch.setattr(time, "time", lambda: begun - 3600.0)  # turned back an hour
    stream = hr.rate(2000).event_time("at", ahead="10 days")
    outlet = stream.window(hr.tumbling("100ms")).agg(n=hr.count()).write_parquet(tmp_path / "out")
    assert outlet is not None
    with outlet.start(on=hr.Box(workers=2, commit_every="200ms")):
        until(lambda: list((tmp_path / "out").glob("part-*")))


def test_an_overwriting_sink_may_be_used_twice(engine: Any, tmp_path: Path) -> None:
    from headrace.io.parquet import ParquetSink

    sink = ParquetSink(str(tmp_path / "out"), "overwrite")
    for value in (1, 2):
        hr.from_items([value]).write_to(sink, on=engine).run()
        assert hr.read_parquet(tmp_path / "out").to_list(on="box") == [value]
    assert sink.mode == "overwrite"


def test_a_job_of_bounded_input_refuses_a_folder_with_files(engine: Any, tmp_path: Path) -> None:
    from headrace.io.parquet import ParquetSink

    hr.from_items([1]).write_parquet(tmp_path / "out", on="box").run()
    with pytest.raises(hr.PlanError, match="already has files"):
        hr.from_items([2]).start(on=engine, to=ParquetSink(str(tmp_path / "out"), "error"))


def test_an_error_is_told_once(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    stream = hr.from_items([1]).map(lambda value: 1 // 0, schema="bigint")
    with caplog.at_level(logging.ERROR), pytest.raises(hr.StepError, match="ZeroDivisionError"):
        stream.collect(on=engine)
    job = testing.script([testing.records({"v": 0})], bounded=False, ends=True).map(
        lambda row: 1 // row.v, schema="bigint"
    )
    with caplog.at_level(logging.ERROR), pytest.raises(hr.StepError, match="ZeroDivisionError"):
        job.start(on=engine).wait(60)
    told = [r for r in caplog.records if r.name == "headrace" and "failed" in r.getMessage()]
    assert len(told) <= 1  # it may fail before anyone waits


def test_a_job_shows_itself(engine: Any) -> None:
    rows = [testing.records({"k": "a", "at": testing.seconds(1)})]
    stream = testing.script(rows, schema=SCHEMA, bounded=False, ends=True).event_time("at")
    job = stream.window(hr.tumbling("1s")).agg(n=hr.count()).start(on=engine)
    assert job.wait(60)
    assert "Job(ended after" in repr(job)
    assert "1 in" in repr(job)
    html = job._repr_html_()  # type: ignore[attr-defined]
    assert "records in" in html
    assert "watermark" in html


def test_a_shared_step_is_computed_once(engine: Any, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    log.touch()

    def noted(batch: pa.RecordBatch) -> pa.RecordBatch:
        with log.open("a") as file:
            file.write(f"{batch.num_rows}\n")
        return batch

    numbers = hr.from_items([{"k": i % 3, "v": i} for i in range(30)])
    sums = numbers.map_batches(noted).group_by("k").agg(t=hr.sum("v"))
    both = sums.join(sums.rename(t="u"), on="k").sort("k")
    assert [tuple(r) for r in both.to_list(on=engine)] == [
        (0, 135, 135),
        (1, 145, 145),
        (2, 155, 155),
    ]
    log.write_text("")
    both.to_list(on=engine)
    assert sum(map(int, log.read_text().split())) == 30


def test_what_killed_drivers_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys
    import tempfile

    from headrace.cache import sweep, temporary_folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]; from headrace.cache import "
        "temporary_folder; print(temporary_folder('job')); os._exit(9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    left, mine = Path(done.stdout.strip()), temporary_folder("job")
    assert left.is_dir()
    sweep()
    assert not left.exists()
    assert mine.is_dir()


def test_a_checkpoint_that_others_may_write_is_refused(
    spark_engine: hr.Spark, tmp_path: Path
) -> None:
    rows = [testing.records({"k": "a", "at": testing.seconds(1)})]
    stream = testing.script(rows, schema=SCHEMA, bounded=False, ends=True)
    assert stream.start(on=spark_engine, checkpoint=tmp_path / "state").wait(60)
    (tmp_path / "state" / "headrace").chmod(0o777)
    with pytest.raises(hr.PlanError, match="headrace can be written by other users"):
        stream.start(on=spark_engine, checkpoint=tmp_path / "state")


def test_a_function_that_cannot_travel_is_named(spark_engine: hr.Spark) -> None:
    lock = threading.Lock()

    def guarded(row: Any) -> int:
        with lock:
            return int(row.a)

    stream = hr.from_items([{"a": 1}]).map(guarded)
    with pytest.raises(
        hr.PlanError, match=r"step 2, map: .*guarded.* its variable 'lock' \(lock\)"
    ):
        stream.collect(on=spark_engine)
    assert stream.to_list(on="box") == [1]
