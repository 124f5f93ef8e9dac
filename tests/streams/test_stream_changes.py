"""Pipelines that have changed since their checkpoint was begun: what is taken, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.state import changes_since
from tests.conftest import PATIENCE
from tests.streams.conftest import drop
from tests.streams.test_stream_kills import records
from tests.streams.test_stream_moves import rows
from tests.streams.test_stream_state import put, timed

WINDOWS = {"tumbling": hr.tumbling("10s"), "sliding": hr.sliding("9s", every="3s")}
MORE: dict[str, Any] = {
    "total": hr.sum("v"), "low": hr.min("v"), "mean": hr.mean("v"), "kinds": hr.count_distinct("k"),
    "spread": hr.std("v"), "about": hr.approx_distinct("v"), "n": hr.count(),
}  # fmt: skip


def pipeline(folder: Path, window: str, follow: bool = True, **more: Any) -> hr.Stream:
    return timed(folder, follow).key_by("k").window(WINDOWS[window]).agg(n=hr.count(), **more)


def run(outlets: Any, checkpoint: Path, engine: Any, end: bool = False) -> None:
    job = hr.start(outlets, engine, checkpoint=checkpoint, trigger=None if end else "available-now")
    assert job.wait(PATIENCE)


def rounded(row: dict[str, Any]) -> str:
    """A record as text, but for the last digits, which follow the order of sums."""
    return str({n: round(v, 6) if isinstance(v, float) else v for n, v in row.items()})


@pytest.mark.parametrize("window", WINDOWS)
def test_more_aggregates_begin_with_the_next_window(
    tmp_path: Path, box_engine: hr.Box, window: str
) -> None:
    found, folder, state = records(1500), tmp_path / "in", tmp_path / "state"
    put(folder, "0.csv", found[:600])
    first = pipeline(folder, window).write_parquet(tmp_path / "first")
    run([first], state, box_engine)
    more = {name: aggregate for name, aggregate in MORE.items() if name != "n"}
    second = pipeline(folder, window, **more).write_parquet(tmp_path / "second")
    assert all(change.is_taken for change in changes_since(state, [second]).found)
    put(folder, "1.csv", found[600:900])
    run([second], state, box_engine)
    put(folder, "2.csv", found[900:])
    drop(folder, "_DONE", "")
    run([second], state, box_engine, end=True)  # and again, from a checkpoint that has taken it
    old = hr.read_parquet(tmp_path / "first").collect(on="box")
    new = hr.read_parquet(tmp_path / "second").collect(on="box")
    whole = pipeline(folder, window, follow=False, **more).collect(on="box")
    plain = whole.select(old.schema.names)
    assert rows(old) + rows(new.select(old.schema.names)) != []
    assert sorted(rows(old) + rows(new.select(old.schema.names))) == rows(plain)
    filled = [row for row in new.to_pylist() if row["total"] is not None]
    known = {rounded(row) for row in whole.to_pylist()}
    assert filled
    assert {rounded(row) for row in filled} <= known
    open_then = [row for row in new.to_pylist() if row["total"] is None]
    assert open_then
    assert all(row[name] is None for row in open_then for name in more)
    assert max(r["window_start"] for r in open_then) < max(r["window_start"] for r in filled)


def test_another_output_begins_with_what_comes(engine: Any, tmp_path: Path) -> None:
    found, folder, state = records(1500), tmp_path / "in", tmp_path / "state"
    put(folder, "0.csv", found[:1000])
    counts = pipeline(folder, "tumbling")
    run([counts.write_parquet(tmp_path / "a")], state, engine)
    put(folder, "1.csv", found[1000:])
    drop(folder, "_DONE", "")
    counts = pipeline(folder, "tumbling")
    both = [counts.write_parquet(tmp_path / "a"), counts.write_parquet(tmp_path / "b")]
    (change,) = changes_since(state, both).found
    assert "output 2" in change.text
    assert change.is_taken
    run(both, state, engine, end=True)
    whole = pipeline(folder, "tumbling", follow=False).collect(on="box")
    assert rows(hr.read_parquet(tmp_path / "a").collect(on="box")) == rows(whole)
    later = hr.read_parquet(tmp_path / "b").collect(on="box")
    assert 0 < later.num_rows < whole.num_rows
    assert set(rows(later)) < set(rows(whole))


def test_another_step_and_source_on_the_box(tmp_path: Path, box_engine: hr.Box) -> None:
    found, folder, other = records(600), tmp_path / "in", tmp_path / "other"
    put(folder, "0.csv", found[:300])
    run([pipeline(folder, "tumbling").write_parquet(tmp_path / "a")], tmp_path / "s", box_engine)
    put(other, "0.csv", found)
    drop(other, "_DONE", "")
    put(folder, "1.csv", found[300:])
    drop(folder, "_DONE", "")
    both = [
        pipeline(folder, "tumbling").write_parquet(tmp_path / "a"),
        pipeline(other, "sliding").write_parquet(tmp_path / "b"),
    ]
    run(both, tmp_path / "s", box_engine, end=True)
    for name, where, window in (("a", folder, "tumbling"), ("b", other, "sliding")):
        got = hr.read_parquet(tmp_path / name).collect(on="box")
        assert rows(got) == rows(pipeline(where, window, follow=False).collect(on="box"))


REFUSED: dict[str, Callable[[Path], Any]] = {
    "another source for a step with state": lambda p: timed(p / "in").union(timed(p / "more"))
    .key_by("k").window(WINDOWS["tumbling"]).agg(n=hr.count()).write_parquet(p / "out"),
    "an aggregate that is gone": lambda p: timed(p / "in").key_by("k").window(WINDOWS["tumbling"])
    .agg(total=hr.sum("v")).write_parquet(p / "other"),
    "an aggregate that is another": lambda p: timed(p / "in").key_by("k")
    .window(WINDOWS["tumbling"]).agg(n=hr.sum("v"), m=hr.count()).write_parquet(p / "other"),
    "another window": lambda p: pipeline(p / "in", "sliding").write_parquet(p / "out"),
    "more columns in the same place": lambda p: pipeline(p / "in", "tumbling", m=hr.max("v"))
    .write_parquet(p / "out"),
    "an aggregate that follows the order": lambda p: pipeline(
        p / "in", "tumbling", m=hr.first("v")
    ).write_parquet(p / "other"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_taken_is_refused(tmp_path: Path, box_engine: hr.Box, what: str) -> None:
    put(tmp_path / "in", "0.csv", records(300))
    put(tmp_path / "more", "0.csv", records(300))
    outlet = pipeline(tmp_path / "in", "tumbling").write_parquet(tmp_path / "out")
    run([outlet], tmp_path / "state", box_engine)
    changed = REFUSED[what](tmp_path)
    assert changes_since(tmp_path / "state", [changed]).refused
    with pytest.raises(hr.PlanError, match="is of another pipeline"):
        run([changed], tmp_path / "state", box_engine)
    run([outlet], tmp_path / "state", box_engine)  # nothing has been changed


def test_spark_says_where_it_can_be_taken(spark_engine: hr.Spark, tmp_path: Path) -> None:
    put(tmp_path / "in", "0.csv", records(300))
    outlet = pipeline(tmp_path / "in", "tumbling").write_parquet(tmp_path / "out")
    run([outlet], tmp_path / "state", spark_engine)
    more = pipeline(tmp_path / "in", "tumbling", m=hr.max("v")).write_parquet(tmp_path / "other")
    with pytest.raises(hr.PlanError, match=r"the box can: headrace state move"):
        run([more], tmp_path / "state", spark_engine)


def test_the_command_tells_each_change(
    tmp_path: Path, box_engine: hr.Box, capsys: pytest.CaptureFixture[str]
) -> None:
    from headrace.cli import main

    put(tmp_path / "in", "0.csv", records(300))
    text = (
        "import headrace as hr\n"
        f"trips = hr.read_csv({str(tmp_path / 'in')!r}, follow=True, schema="
        "{'k': 'string', 'v': 'bigint', 'at': 'timestamp'}).event_time('at', delay='3s')\n"
        "counts = trips.key_by('k').window(hr.tumbling('10s')).agg(n=hr.count()MORE)\n"
        f"pipeline = counts.write_parquet({str(tmp_path / 'out')!r} + 'ELSE')\n"
    )
    file = tmp_path / "job.py"
    file.write_text(text.replace("MORE", "").replace("ELSE", ""))
    said = ["--checkpoint", str(tmp_path / "state"), "--trigger", "available-now"]
    assert main(["run", str(file), "--on", "box", "--workers", "2", *said]) == 0
    capsys.readouterr()
    assert main(["state", "diff", str(tmp_path / "state"), str(file)]) == 0
    assert "nothing has changed" in capsys.readouterr().out
    file.write_text(text.replace("MORE", ", m=hr.max('v')").replace("ELSE", "2"))
    assert main(["state", "diff", str(tmp_path / "state"), str(file)]) == 0
    assert "taken step 1 has 'm' besides" in " ".join(capsys.readouterr().out.split())
    file.write_text(text.replace("MORE", ", m=hr.max('v')").replace("ELSE", ""))
    assert main(["state", "diff", str(tmp_path / "state"), str(file)]) == 1
    assert "refused output 1" in " ".join(capsys.readouterr().out.split())


def test_a_change_that_was_cut_off_before_its_first_checkpoint_is_taken_once(
    tmp_path: Path,
) -> None:
    """The pipeline's new shape may be there before the state that has its columns."""
    found, folder, state = records(1500), tmp_path / "in", tmp_path / "state"
    box, seldom = hr.Box(workers=2), hr.Box(workers=2, commit_every="1h")
    put(folder, "0.csv", found[:600])
    run([pipeline(folder, "tumbling").write_parquet(tmp_path / "first")], state, box)

    def changed() -> list[Any]:
        counts = pipeline(folder, "tumbling", total=hr.sum("v"))
        return [counts.write_parquet(tmp_path / "a"), counts.write_parquet(tmp_path / "b")]

    hr.start(changed(), seldom, checkpoint=state).stop(drain=False)
    put(folder, "1.csv", found[600:])
    drop(folder, "_DONE", "")
    run(changed(), state, box, end=True)
    first = hr.read_parquet(tmp_path / "first").collect(on="box")
    whole = pipeline(folder, "tumbling", follow=False).collect(on="box")
    for name in "ab":
        later = hr.read_parquet(tmp_path / name).collect(on="box").select(first.schema.names)
        assert sorted(rows(first) + rows(later)) == rows(whole)


def test_an_output_that_was_cut_off_before_it_began_begins_again(
    engine: Any, tmp_path: Path
) -> None:
    found, folder, state = records(1500), tmp_path / "in", tmp_path / "state"
    put(folder, "0.csv", found[:1000])
    run([pipeline(folder, "tumbling").write_parquet(tmp_path / "a")], state, engine)

    def both() -> list[Any]:
        counts = pipeline(folder, "tumbling")
        return [counts.write_parquet(tmp_path / "a"), counts.write_parquet(tmp_path / "b")]

    hr.start(both(), engine, checkpoint=state).stop(drain=False)
    put(folder, "1.csv", found[1000:])
    drop(folder, "_DONE", "")
    run(both(), state, engine, end=True)
    whole = pipeline(folder, "tumbling", follow=False).collect(on="box")
    assert rows(hr.read_parquet(tmp_path / "a").collect(on="box")) == rows(whole)
    assert set(rows(hr.read_parquet(tmp_path / "b").collect(on="box"))) < set(rows(whole))
