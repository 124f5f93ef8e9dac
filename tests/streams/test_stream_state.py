"""A job on Spark whose state moves to another checkpoint, and goes on there."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.io.sealed import sealed, unsealed
from headrace.spark.state import SparkState, read_state, write_initial
from headrace.spark.wire import labels_of
from tests.conftest import PATIENCE
from tests.streams import victim
from tests.streams.conftest import drop
from tests.streams.test_stream_kills import Killed, as_counter, records, stamp, windows, written

SHARDS = 2


def put(folder: Path, name: str, found: list[dict[str, Any]]) -> None:
    rows = [f"{r['k']},{r['v']},{stamp(r['at'])}" for r in found]
    drop(folder, name, "\n".join(["k,v,at", *rows, ""]))


def timed(folder: Path, follow: bool = True) -> hr.Stream:
    how: dict[str, Any] = {"follow": True, "limit": 1, "until": "_DONE"} if follow else {}
    stream = hr.read_csv(folder, schema=victim.SCHEMA, **how)
    return stream.event_time("at", delay="3s")


def state_of(engine: hr.Spark, checkpoint: Path, levels: int = 1) -> SparkState:
    return read_state(engine.session, str(checkpoint), levels, labels_of(SHARDS))


def moved(engine: hr.Spark, old: Path, new: Path, levels: int = 1) -> SparkState:
    state = state_of(engine, old, levels)
    write_initial(str(new), state)
    return state


def run(outlet: Any, engine: hr.Spark, checkpoint: Path) -> None:
    """Take in what is there, and stop; windows stay open in the checkpoint."""
    assert outlet.start(on=engine, checkpoint=checkpoint, trigger="available-now").wait(PATIENCE)


def finish(outlet: Any, engine: hr.Spark, checkpoint: Path, *folders: Path) -> None:
    """Take in the rest; every window closes."""
    for folder in folders:
        drop(folder, "_DONE", "")
    assert outlet.start(on=engine, checkpoint=checkpoint).wait(PATIENCE)


@pytest.mark.slow
def test_a_windowed_job_goes_on_in_another_checkpoint_and_in_a_third(
    spark_engine: hr.Spark, tmp_path: Path
) -> None:
    found = records(1200)
    folder, (a, b, c) = tmp_path / "in", (tmp_path / name for name in "abc")
    folder.mkdir()
    outlet = (
        timed(folder)
        .key_by("k")
        .window(hr.tumbling("5s"))
        .agg(n=hr.count(), total=hr.sum("v"))
        .write_parquet(tmp_path / "out")
    )
    put(folder, "0.csv", found[:300])
    put(folder, "1.csv", found[300:600])
    run(outlet, spark_engine, a)
    first = moved(spark_engine, a, b)
    assert first.epoch == 1
    assert [source["at"] for source in first.sources] == [{"files": 2}]
    again = state_of(spark_engine, b)  # not begun yet: what was given
    assert (again.epoch, again.sources, again.levels) == (1, first.sources, first.levels)
    put(folder, "2.csv", found[600:900])
    run(outlet, spark_engine, b)
    second = moved(spark_engine, b, c)
    assert second.epoch == 2
    put(folder, "3.csv", found[900:])
    finish(outlet, spark_engine, c, folder)
    assert written(tmp_path / "out", "parquet") == windows(found)


def test_a_join_of_two_sources_and_what_follows_it_goes_on(
    spark_engine: hr.Spark, tmp_path: Path
) -> None:
    left, right = records(700, seed=2), records(500, seed=3)
    here, there = tmp_path / "left", tmp_path / "right"
    for folder in (here, there):
        folder.mkdir()

    def counted(follow: bool) -> hr.Stream:
        sides = [timed(folder, follow) for folder in (here, there)]
        pairs = sides[0].join_within(sides[1], on="k", before="500ms", after="500ms")
        window = pairs.key_by("k").window(hr.tumbling("5s"))
        return window.agg(n=hr.count(), total=hr.sum("v_right"))

    outlet = counted(follow=True).write_parquet(tmp_path / "out")
    put(here, "0.csv", left[:200])
    put(here, "1.csv", left[200:400])
    put(there, "0.csv", right[:300])
    run(outlet, spark_engine, tmp_path / "old")
    state = moved(spark_engine, tmp_path / "old", tmp_path / "new", levels=2)
    assert [source["at"]["files"] for source in state.sources] == [2, 1]
    assert state.operators == [[0], [1]]
    put(here, "2.csv", left[400:])
    put(there, "1.csv", right[300:])
    finish(outlet, spark_engine, tmp_path / "new", here, there)
    bounded = counted(follow=False).collect(on="box")
    assert bounded.num_rows > 10
    assert written(tmp_path / "out", "parquet") == as_counter(bounded)


def killed(tmp_path: Path, found: list[dict[str, Any]], files: int = 6) -> Killed:
    """A job to kill, from a folder of files to one of results."""
    size = -(-len(found) // files)
    for i in range(files):
        put(tmp_path / "in", f"{i:02d}.csv", found[i * size : (i + 1) * size])
    drop(tmp_path / "in", "_DONE", "")
    return Killed(
        source="folder", where=str(tmp_path / "in"), sink="parquet", to=str(tmp_path / "out"),
        checkpoint=str(tmp_path / "0"),
    )  # fmt: skip


def outlet_of(job: Killed) -> Any:
    return victim.outlet(victim.pipeline(job.said), job.said)


@pytest.mark.slow
def test_a_batch_that_was_killed_before_any_output_had_it_is_read_again(
    spark_engine: hr.Spark, tmp_path: Path
) -> None:
    """Spark has the state after it, and that does not count."""
    job = killed(tmp_path, found := records(2000, seed=4))
    assert not job.run(None, crash="before delivery", after=3)
    assert (tmp_path / "0" / "offsets" / "2").exists()
    state = moved(spark_engine, tmp_path / "0", tmp_path / "1")
    assert (state.epoch, state.sources[0]["at"]) == (1, {"files": 2})
    finish(outlet_of(job), spark_engine, tmp_path / "1")
    assert written(tmp_path / "out", "parquet") == windows(found)


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 4])
def test_a_batch_that_the_outputs_have_counts(
    spark_engine: hr.Spark, tmp_path: Path, after: int
) -> None:
    """Though Spark had not committed it when the job was killed."""
    job = killed(tmp_path, found := records(2000, seed=5))
    assert not job.run(None, crash="after the batch", after=after)
    state = moved(spark_engine, tmp_path / "0", tmp_path / "1")
    assert (state.epoch, state.sources[0]["at"]) == (after - 1, {"files": after})
    finish(outlet_of(job), spark_engine, tmp_path / "1")
    assert written(tmp_path / "out", "parquet") == windows(found)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before the sink", "in the sink", "after the sink"])
def test_a_batch_in_doubt_is_settled_by_one_more_start(
    spark_engine: hr.Spark, tmp_path: Path, point: str
) -> None:
    job = killed(tmp_path, found := records(2000, seed=6))
    assert not job.run(None, crash=point, after=2)
    with pytest.raises(hr.PlanError, match=r"may have it or not; start it once more on Spark"):
        state_of(spark_engine, tmp_path / "0")
    (tmp_path / "in" / "_DONE").unlink()
    run(outlet_of(job), spark_engine, tmp_path / "0")
    moved(spark_engine, tmp_path / "0", tmp_path / "1")
    finish(outlet_of(job), spark_engine, tmp_path / "1", tmp_path / "in")
    assert written(tmp_path / "out", "parquet") == windows(found)


@pytest.mark.slow
def test_killed_at_any_moment_and_moved_each_time(spark_engine: hr.Spark, tmp_path: Path) -> None:
    rng = random.Random()
    job = killed(tmp_path, found := records(4000, seed=7), files=60)
    at, ended = 0, False
    while at < 4 and not ended:
        ended = job.run(rng.uniform(2.0, 6.0))
        try:
            moved(spark_engine, tmp_path / str(at), tmp_path / str(at + 1))
        except hr.PlanError as error:
            if "start it" not in str(error):
                raise
            continue  # in doubt, or not begun: it is started once more
        at += 1
        job.said["checkpoint"] = str(tmp_path / str(at))
    finish(outlet_of(job), spark_engine, tmp_path / str(at))
    assert written(tmp_path / "out", "parquet") == windows(found)
    print(f"{at} moves, {job.kills} kills")


@pytest.fixture
def begun(spark_engine: hr.Spark, tmp_path: Path) -> Path:
    """A job that was stopped after two batches."""
    (tmp_path / "in").mkdir()
    found = records(400)
    put(tmp_path / "in", "0.csv", found[:200])
    put(tmp_path / "in", "1.csv", found[200:])
    run(counts(tmp_path), spark_engine, tmp_path / "old")
    return tmp_path


def counts(folder: Path) -> Any:
    windowed = timed(folder / "in").key_by("k").window(hr.tumbling("5s"))
    return windowed.agg(n=hr.count(), total=hr.sum("v")).write_parquet(folder / "out")


def test_what_a_kill_may_leave(spark_engine: hr.Spark, begun: Path) -> None:
    """Two batches are done: the second without Spark's commit, in doubt, and not delivered."""
    old = begun / "old"
    whole = state_of(spark_engine, old)
    control = unsealed((old / "headrace" / "control.json").read_bytes())
    assert (control["batch"], control["delivering"]) == (1, 1)
    (old / "commits" / "1").unlink()
    (old / "commits" / ".1.crc").unlink(missing_ok=True)
    assert state_of(spark_engine, old) == whole
    (old / "headrace" / "control.json").write_bytes(sealed({**control, "batch": 0}))
    with pytest.raises(hr.EngineError, match="does not fit together"):
        state_of(spark_engine, old)
    (old / "commits" / "1").unlink()
    with pytest.raises(hr.PlanError, match=r"may have it or not; start it once more on Spark"):
        state_of(spark_engine, old)
    said = {**control, "batch": 0, "delivering": 0}
    (old / "headrace" / "control.json").write_bytes(sealed(said))
    before = state_of(spark_engine, old)
    assert (before.epoch, before.sources[0]["at"]) == (0, {"files": 1})
    assert [shard.note["turn"] for shard in before.levels[0]] == [1, 1]


def test_damaged_positions_of_spark_are_not_moved(spark_engine: hr.Spark, begun: Path) -> None:
    path = begun / "old" / "offsets" / "1"
    path.write_text(path.read_text().replace('"files": 2', '"files": 3'))
    with pytest.raises(hr.EngineError, match=r"offsets/1 cannot be read.*\.1\.crc"):
        hr.move_state(begun / "old", begun / "new", spark=spark_engine)


def test_half_a_move_and_a_folder_in_use_are_refused(spark_engine: hr.Spark, begun: Path) -> None:
    state = moved(spark_engine, begun / "old", begun / "new")
    with pytest.raises(hr.PlanError, match="is not empty"):
        write_initial(str(begun / "old"), state)
    aside = (begun / "new" / "headrace" / "initial").rename(begun / "aside")
    with pytest.raises(hr.PlanError, match=r"'headrace/initial/initial.json' is gone"):
        run(counts(begun), spark_engine, begun / "new")
    aside.rename(begun / "new" / "headrace" / "initial")
    (begun / "new" / "headrace" / "job.json").unlink()
    with pytest.raises(hr.PlanError, match="not all of it has come"):
        run(counts(begun), spark_engine, begun / "new")
    with pytest.raises(hr.PlanError, match="are 1 there, and 2 here"):
        state_of(spark_engine, begun / "old", levels=2)
    assert Counter(len(shards) for shards in state.levels) == {SHARDS: 1}
