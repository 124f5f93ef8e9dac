"""Jobs whose state moves between engines and numbers of shards, and go on as if it had not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.state import read_state
from tests.conftest import PATIENCE
from tests.streams import victim
from tests.streams.conftest import drop
from tests.streams.test_stream_kills import Killed, records, windows, written
from tests.streams.test_stream_state import put, timed


def _waits(n: int, row: Any, timer: Any) -> Any:
    timer.after("500ms")
    return n + 1, None


PIPELINES: dict[str, Callable[[hr.Stream], hr.Stream]] = {
    "tumbling": lambda s: (
        s.key_by("k").window(hr.tumbling("20s")).agg(n=hr.count(), first=hr.first("v"))
    ),
    "sliding": lambda s: (
        s.key_by("k").window(hr.sliding("9s", every="3s")).agg(n=hr.count(), most=hr.max("v"))
    ),
    "sliding in order": lambda s: (
        s.key_by("k").window(hr.sliding("9s", every="3s")).agg(one=hr.first("v"), n=hr.last("v"))
    ),
    "sessions": lambda s: s.key_by("k").window(hr.session("300ms")).agg(n=hr.count()),
    "without a key": lambda s: s.window(hr.tumbling("7s")).agg(n=hr.count(), total=hr.sum("v")),
    "pairs, then windows": lambda s: (
        s.filter("v % 2 = 1")
        .join_within(s.filter("v % 2 = 0"), on="k", before="500ms", after="500ms")
        .key_by("k")
        .window(hr.tumbling("5s"))
        .agg(n=hr.count(), total=hr.sum("v_right"))
    ),
    "records by place": lambda s: (
        s.filter("v % 2 = 1").zip(s.filter("v % 3 = 0")).select("k", "v", "v_right", "at")
    ),
    "a union in order": lambda s: (
        s.filter("v % 2 = 1").union(s.filter("v % 2 = 0"))
        .key_by("k").window(hr.tumbling("9s")).agg(all=hr.collect("v"))
    ),
    "a union in order, sliding": lambda s: (
        s.filter("v % 2 = 1").union(s.filter("v % 2 = 0"))
        .key_by("k").window(hr.sliding("9s", every="3s")).agg(all=hr.collect("v"))
    ),
    "a scan": lambda s: (
        s.key_by("k").scan(lambda n, row: (n + row.v, n + row.v), 0, schema={"total": "bigint"})
    ),
    "a scan of objects, forgotten": lambda s: (
        s.key_by("k").scan(
            lambda seen, row: ([*seen[-3:], row.v], str(seen)), list, schema={"seen": "string"},
            ttl="2s",
        )
    ),
    "a scan with timers": lambda s: (
        s.key_by("k").scan(_waits, 0, schema={"n": "bigint"}, on_timer=lambda n, at, timer: (0, n))
    ),
    "running, lag and rank": lambda s: (
        s.key_by("k").running(n=hr.count(), m=hr.mean("v")).key_by("k").lag(2, before="v")
        .key_by("k").rank()
    ),
    "count windows": lambda s: (
        s.key_by("k").window(hr.count_window(30, every=20)).agg(n=hr.sum("v"), all=hr.collect("v"))
    ),
    "count windows by arrival, then more": lambda s: (
        s.key_by("k").window(hr.count_window(8, every=3, order="arrival", partial=True))
        .agg(n=hr.count(), m=hr.mean("v")).key_by("k").window(hr.count_window(4)).agg(m=hr.sum("n"))
    ),
    "windows of windows": lambda s: (
        s.key_by("k").window(hr.tumbling("2s")).agg(n=hr.count())
        .window(hr.tumbling("10s")).agg(n=hr.sum("n"))
    ),
}  # fmt: skip


def rows(table: pa.Table) -> list[Any]:
    return sorted(map(str, table.to_pylist()))


def moved(
    tmp_path: Path, name: str, engines: list[tuple[Any, int | None]], spark: Any = None
) -> None:
    """Run a pipeline on some engines by turns, a file of input each, and compare."""
    found = records(1500, seed=len(name))
    folder = tmp_path / "in"
    folder.mkdir()
    size = -(-len(found) // len(engines))
    outlet = PIPELINES[name](timed(folder)).write_parquet(tmp_path / "out")
    for i, (engine, shards) in enumerate(engines):
        put(folder, f"{i}.csv", found[i * size : (i + 1) * size])
        here = tmp_path / f"state-{i}"
        if i:
            before = tmp_path / f"state-{i - 1}"
            hr.move_state(before, here, on=engine.name, shards=shards, spark=spark)
        last = i == len(engines) - 1
        if last:
            drop(folder, "_DONE", "")
        job = outlet.start(on=engine, checkpoint=here, trigger=None if last else "available-now")
        assert job.wait(PATIENCE)
    got = hr.read_parquet(tmp_path / "out").collect(on="box")
    assert rows(got) == rows(PIPELINES[name](timed(folder, follow=False)).collect(on="box"))
    assert got.num_rows > 3


@pytest.mark.parametrize("name", PIPELINES)
def test_other_shards_and_workers_on_the_box(tmp_path: Path, name: str) -> None:
    boxes = [(hr.Box(workers=w, debug=True), s) for w, s in ((2, None), (1, 5), (4, 1), (3, None))]
    moved(tmp_path, name, boxes)


def test_from_the_box_to_spark_and_back(
    box_engine: hr.Box, spark_engine: hr.Spark, tmp_path: Path
) -> None:
    turns = [(box_engine, None), (spark_engine, None), (box_engine, 3)]
    moved(tmp_path, "pairs, then windows", turns, spark_engine)


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_five_times_between_engines(
    box_engine: hr.Box, spark_engine: hr.Spark, tmp_path: Path, name: str
) -> None:
    rng = random.Random()
    both = itertools.cycle([box_engine, spark_engine])
    turns = [(next(both), rng.choice([None, 1, 2, 5])) for _ in range(6)]
    moved(tmp_path, name, turns, spark_engine)


@pytest.mark.slow
def test_five_times_between_engines_with_kills(spark_engine: hr.Spark, tmp_path: Path) -> None:
    rng = random.Random()
    found = records(6000, seed=8)
    size = 60
    for i in range(100):
        put(tmp_path / "in", f"{i:03d}.csv", found[i * size : (i + 1) * size])
    job = Killed(
        on="box", source="folder", where=str(tmp_path / "in"), sink="parquet",
        to=str(tmp_path / "out"), checkpoint=str(tmp_path / "0"), pause=0.02,
    )  # fmt: skip
    moves = 0
    while moves < 5:
        box = job.said["on"] == "box"
        job.run(rng.uniform(0.1, 0.5) if box else rng.uniform(3.0, 6.0))
        other = "spark" if box else "box"
        here, there = tmp_path / str(moves), tmp_path / str(moves + 1)
        try:
            shards = rng.choice([None, 1, 3])
            hr.move_state(here, there, on=other, shards=shards, spark=spark_engine)
        except hr.PlanError as error:
            if "start it" not in str(error) and "no checkpoint" not in str(error):
                raise
            continue  # in doubt, or not begun: it is started once more
        moves += 1
        job.said |= {"on": other, "checkpoint": str(there)}
    drop(tmp_path / "in", "_DONE", "")
    outlet = victim.outlet(victim.pipeline(job.said), job.said)
    engine: Any = spark_engine if job.said["on"] == "spark" else hr.Box(workers=2)
    assert outlet.start(on=engine, checkpoint=job.said["checkpoint"]).wait(PATIENCE)
    assert written(tmp_path / "out", "parquet") == windows(found)
    assert job.kills >= 5


@pytest.mark.parametrize("files", [1, 6])
@pytest.mark.parametrize(
    ("on", "point"), [("box", "before the sink"), ("spark", "after the batch")]
)
def test_a_job_killed_after_its_first_checkpoint_goes_on_elsewhere(
    box_engine: hr.Box, spark_engine: hr.Spark, tmp_path: Path, on: str, point: str, files: int
) -> None:
    """With results that the sink does not have yet, or without any."""
    found = records(1200, seed=9)
    put(tmp_path / "in", "0.csv", found[: 600 // files])
    job = Killed(
        on=on, source="folder", where=str(tmp_path / "in"), sink="parquet",
        to=str(tmp_path / "out"), checkpoint=str(tmp_path / "old"), mode="overwrite",
    )  # fmt: skip
    assert not job.run(None, crash=point, after=1)
    engine: Any = spark_engine if on == "box" else box_engine
    hr.move_state(tmp_path / "old", tmp_path / "new", on=engine.name, spark=spark_engine)
    put(tmp_path / "in", "1.csv", found[600 // files :])
    drop(tmp_path / "in", "_DONE", "")
    outlet = victim.outlet(victim.pipeline(job.said), job.said)
    assert outlet.start(on=engine, checkpoint=tmp_path / "new").wait(PATIENCE)
    assert written(tmp_path / "out", "parquet") == windows(found)


def test_a_session_in_more_shards_than_have_any(tmp_path: Path, box_engine: hr.Box) -> None:
    put(tmp_path / "in", "0.csv", [{"k": "a", "v": 1, "at": 1_600_000_000.0}])
    windows = timed(tmp_path / "in").key_by("k").window(hr.session("5s"))
    outlet = windows.agg(n=hr.count()).write_parquet(tmp_path / "out")
    job = outlet.start(on=box_engine, checkpoint=tmp_path / "old", trigger="available-now")
    assert job.wait(PATIENCE)
    hr.move_state(tmp_path / "old", tmp_path / "new", shards=6)
    put(tmp_path / "in", "1.csv", [{"k": "b", "v": 1, "at": 1_600_000_100.0}])
    drop(tmp_path / "in", "_DONE", "")
    assert outlet.start(on=box_engine, checkpoint=tmp_path / "new").wait(PATIENCE)
    assert hr.read_parquet(tmp_path / "out").collect(on="box")["n"].to_pylist() == [1, 1]


def test_what_was_moved_is_not_started_again(
    tmp_path: Path, box_engine: hr.Box, spark_engine: hr.Spark
) -> None:
    put(tmp_path / "in", "0.csv", records(200))
    outlet = PIPELINES["tumbling"](timed(tmp_path / "in")).write_parquet(tmp_path / "out")
    old, new = tmp_path / "old", tmp_path / "new"
    assert outlet.start(on=box_engine, checkpoint=old, trigger="available-now").wait(PATIENCE)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    with pytest.raises(hr.PlanError, match="is not empty"):
        hr.move_state(old, tmp_path / "there")
    with pytest.raises(hr.PlanError, match="neither 'box' nor 'spark'"):
        hr.move_state(old, new, on="flink")
    with pytest.raises(hr.PlanError, match="no checkpoint of a job"):
        hr.move_state(tmp_path / "nowhere", new)
    hr.move_state(old, new, shards=7)
    with pytest.raises(hr.PlanError, match=r"was moved to .*new.*start it from there"):
        outlet.start(on=box_engine, checkpoint=old)
    with pytest.raises(hr.PlanError, match="was moved to"):
        hr.move_state(old, tmp_path / "third")
    state = read_state(new)
    assert (state.shards, state.sources[0]["at"]) == (7, {"files": 1})
    assert outlet.start(on=box_engine, checkpoint=new, trigger="available-now").wait(PATIENCE)
    with pytest.raises(hr.PlanError, match=r"is of a job on box.*headrace state move"):
        outlet.start(on=spark_engine, checkpoint=new)


def test_a_transforms_own_tables_stay_in_their_shards(tmp_path: Path) -> None:
    class Kept(hr.Transform):
        def process(self, bundle: pa.RecordBatch, out: Any) -> None:
            self.store["all"] = bundle

    put(tmp_path / "in", "0.csv", records(50))
    box = hr.Box(workers=2)
    outlet = timed(tmp_path / "in").key_by("k").transform(Kept, schema=victim.SCHEMA)
    job = outlet.start(on=box, checkpoint=tmp_path / "old", trigger="available-now")
    assert job.wait(PATIENCE)
    with pytest.raises(hr.PlanError, match="of which only it knows the keys"):
        hr.move_state(tmp_path / "old", tmp_path / "new", shards=3)
    hr.move_state(tmp_path / "old", tmp_path / "new")


def test_state_is_shown(
    tmp_path: Path, box_engine: hr.Box, capsys: pytest.CaptureFixture[str]
) -> None:
    from headrace.cli import main

    put(tmp_path / "in", "0.csv", records(500))
    outlet = PIPELINES["tumbling"](timed(tmp_path / "in")).write_parquet(tmp_path / "out")
    job = outlet.start(on=box_engine, checkpoint=tmp_path / "old", trigger="available-now")
    assert job.wait(PATIENCE)
    assert main(["state", "show", str(tmp_path / "old")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "a job on box" in said
    assert "files at 1" in said
    assert main(["state", "move", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    assert "start the pipeline" in " ".join(capsys.readouterr().out.split())
    assert main(["state", "show", str(tmp_path / "old")]) == 1
