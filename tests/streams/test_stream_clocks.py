"""Windows of processing time: by a clock that the tests turn, on both engines."""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import TestClock, advance, records, same_answer, script, seconds
from headrace.watermarks import ClockSteps
from tests.conftest import PATIENCE, until
from tests.streams.conftest import drop

START = 1_000_000.0
"""The time of day when a test begins, in seconds; whole windows begin there."""
SCHEMA = {"k": "string", "v": "bigint"}


class Turned:
    """A job over files that appear, on an engine whose clock is turned."""

    def __init__(self, engine: Any, folder: Path) -> None:
        self.folder, self.clock = folder / "in", TestClock(START)
        self.folder.mkdir(exist_ok=True)
        box = engine.name == "box"
        self.engine: Any = (
            hr.Box(workers=2, debug=True, clock=self.clock, commit_every="50ms")
            if box
            else hr.Spark(master="local[2]", clock=self.clock)
        )
        self.stream = hr.read_csv(self.folder, schema=SCHEMA, follow=True, until="_DONE")
        self.files = itertools.count(len(list(self.folder.iterdir())))
        self.sent = 0

    def start(self, *outputs: Any, **said: Any) -> None:
        self.job = hr.start(list(outputs), on=self.engine, **said)
        self.sent = 0

    def send(self, *rows: tuple[str, int]) -> None:
        """Records that arrive now."""
        lines = [f"{k},{v}" for k, v in rows]
        drop(self.folder, f"{next(self.files)}.csv", "\n".join(["k,v", *lines, ""]))
        self.sent += len(rows)
        until(lambda: self._taken(self.sent))

    def _taken(self, count: int) -> bool:
        told = self.job.progress()
        assert told.error is None, told.error
        return told.records_in >= count

    def turn(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def given(self, count: int) -> None:
        """Wait for so many results; on the box small bundles wait for the clock as well."""

        def enough() -> bool:
            told = self.job.progress()
            assert told.error is None, told.error
            return told.records_out >= count

        until(enough)

    def end(self) -> None:
        drop(self.folder, "_DONE", "")
        assert self.job.wait(PATIENCE)


def at(second: float) -> Any:
    return seconds(START + second)


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_windows_close_by_the_clock_while_nothing_comes(engine: Any, tmp_path: Path) -> None:
    """Tumbling, sliding, sessions and windows of windows, by key and not, in one job."""
    turned = Turned(engine, tmp_path)
    timed = turned.stream.processing_time("at")
    keyed = timed.key_by("k")
    tens = keyed.window(hr.tumbling("10s", time="processing")).agg(n=hr.count(), t=hr.sum("v"))
    outputs = {
        "tumbling": tens,
        "sliding": timed.window(hr.sliding("10s", every="5s")).agg(t=hr.sum("v")),
        "session": keyed.window(hr.session("15s")).agg(t=hr.sum("v")),
        "nested": tens.window(hr.tumbling("20s", time="processing")).agg(t=hr.sum("t")),
        "late": timed.late,
        "records": timed.select("v", "at"),
    }
    turned.start(*outputs.values())
    turned.send(("a", 1), ("b", 2))
    turned.turn(6)
    turned.send(("a", 4))
    turned.turn(6)  # 12 seconds: one tumbling window is over, of which nothing more comes
    turned.given(3 + 2 + 2)
    turned.turn(20)
    turned.given(3 + 2 + 3 + 2 + 1)  # and the sliding ones, the sessions, the window of windows
    turned.send(("a", 8))
    turned.end()
    found = dict(zip(outputs, (turned.job.result(i) for i in range(len(outputs))), strict=True))
    assert rows(found["records"]) == [(1, at(0)), (2, at(0)), (4, at(6)), (8, at(32))]
    assert rows(found["tumbling"]) == [
        ("a", at(0), at(10), 2, 5),
        ("a", at(30), at(40), 1, 8),
        ("b", at(0), at(10), 1, 2),
    ]
    assert rows(found["sliding"]) == [
        (at(-5), at(5), 3), (at(0), at(10), 7), (at(5), at(15), 4), (at(25), at(35), 8),
        (at(30), at(40), 8),
    ]  # fmt: skip
    assert rows(found["session"]) == [
        ("a", at(0), at(21), 5),
        ("a", at(32), at(47), 8),
        ("b", at(0), at(15), 2),
    ]
    assert rows(found["nested"]) == [(at(0), at(20), 7), (at(20), at(40), 8)]
    assert found["late"].num_rows == 0
    assert turned.job.progress().late == 0


def test_a_clock_that_goes_back_makes_no_record_late(box_engine: hr.Box, tmp_path: Path) -> None:
    turned = Turned(box_engine, tmp_path)
    counts = turned.stream.window(hr.tumbling("10s", time="processing")).count()
    turned.start(counts)
    turned.send(("a", 1))
    turned.turn(25)
    turned.given(1)
    turned.turn(-20)
    turned.send(("a", 1), ("b", 2))
    turned.turn(30)
    turned.given(2)
    turned.end()
    assert rows(turned.job.result()) == [(at(0), at(10), 1), (at(20), at(30), 2)]
    assert turned.job.progress().late == 0


def _kept(state: Path, files: int) -> bool:
    """Whether a checkpoint of the box has taken in so many files."""
    manifest = state / "headrace" / "box" / "manifest.json"
    return manifest.exists() and f'"files": {files}' in manifest.read_text()


def restarted(turned: Turned, folder: Path, stop: Callable[[], Any]) -> None:
    """The clock goes on while the job does not run; each result comes once."""
    out, state = folder / "out", folder / "state"
    window = hr.sliding("20s", every="10s", time="processing")
    outlet = turned.stream.key_by("k").window(window).agg(t=hr.sum("v")).write_parquet(out)
    turned.start(outlet, checkpoint=state)
    turned.send(("a", 1), ("b", 2))
    turned.turn(12)
    turned.given(2)
    turned.send(("a", 4))
    stop()
    turned.turn(10)
    turned.start(outlet, checkpoint=state)
    turned.given(2)  # those that end after twenty seconds
    turned.send(("b", 8))
    turned.end()
    assert rows(hr.read_parquet(out).collect(on="box")) == [
        ("a", at(-10), at(10), 1), ("a", at(0), at(20), 5), ("a", at(10), at(30), 4),
        ("b", at(-10), at(10), 2), ("b", at(0), at(20), 2), ("b", at(10), at(30), 8),
        ("b", at(20), at(40), 8),
    ]  # fmt: skip


def test_windows_that_were_open_close_after_a_restart(engine: Any, tmp_path: Path) -> None:
    turned = Turned(engine, tmp_path)
    restarted(turned, tmp_path, lambda: turned.job.stop())


def test_windows_that_were_open_close_after_a_kill(box_engine: hr.Box, tmp_path: Path) -> None:
    """Of the box: nothing is written when it stops, and it goes on from its last checkpoint."""
    turned = Turned(box_engine, tmp_path)

    def killed() -> None:
        until(lambda: _kept(tmp_path / "state", 2))
        turned.job.stop(drain=False)

    restarted(turned, tmp_path, killed)


def test_what_is_available_now_closes_the_windows_of_before(engine: Any, tmp_path: Path) -> None:
    """A job that is started now and then: what it leaves open the next run sees the end of."""
    turned, out = Turned(engine, tmp_path), tmp_path / "out"
    counts = turned.stream.key_by("k").window(hr.tumbling("10s", time="processing")).count()
    drop(turned.folder, "0.csv", "k,v\na,1\nb,2\n")
    for _ in range(2):
        turned.start(
            counts.write_parquet(out), checkpoint=tmp_path / "state", trigger="available-now"
        )
        assert turned.job.wait(PATIENCE)
        turned.turn(15)
    found = hr.read_parquet(out).collect(on="box")
    assert rows(found) == [("a", at(0), at(10), 1), ("b", at(0), at(10), 1)]


def test_input_that_ends_closes_all_windows(engine: Any) -> None:
    stream = hr.from_items(range(1000)).filter("value % 2 = 0")
    before = seconds(time.time())
    keyed = stream.key_by(k="value % 3").window(hr.tumbling("1h", time="processing"))
    found = keyed.agg(n=hr.count(), first=hr.min("value")).collect(on=engine).to_pylist()
    assert sum(row["n"] for row in found) == 500
    assert {row["first"] for row in found} >= {0, 2, 4}
    hour = datetime.timedelta(hours=1)
    assert all(before - hour < row["window_start"] <= seconds(time.time()) for row in found)
    timed = stream.processing_time("at").window(hr.session("1h")).agg(n=hr.count(), at=hr.max("at"))
    (row,) = timed.collect(on=engine).to_pylist()
    assert row["n"] == 500
    assert row["window_end"] == row["at"] + hour


def test_a_script_turns_the_clock_of_bounded_input() -> None:
    clock = TestClock(START)
    events = [records({"k": "a"}), advance(4), records({"k": "b"}), advance(7), records({"k": "c"})]
    stream = script(events, schema={"k": "string"}, clock=clock)
    window = hr.tumbling("10s", time="processing")
    found = stream.window(window).agg(all=hr.collect("k")).collect(on=hr.Box(clock=clock))
    assert rows(found) == [(at(0), at(10), ["a", "b"]), (at(10), at(20), ["c"])]


def test_no_record_is_before_a_window_that_closed() -> None:
    """By the real clock, with small windows, several splits and the engine's invariants checked."""
    stream = hr.rate(40_000, splits=3, upto=30_000, limit=500)
    keyed = stream.key_by(k="value % 5").window(hr.tumbling("5ms", time="processing"))
    late = stream.processing_time("seen").late
    job = hr.start([keyed.agg(n=hr.count()), late], on=hr.Box(workers=2, debug=True))
    assert job.wait(PATIENCE)
    assert sum(job.result(0)["n"].to_pylist()) == 30_000
    assert job.result(1).num_rows == 0


# How Spark plans its batches


def _planning(clock: TestClock, steps: ClockSteps, folder: Path) -> Any:
    from headrace.spark.offsets import SourcePlan, _Planning

    events = [records({"k": "a"}), records({"k": "b"})]
    node: Any = script(events, schema={"k": "string"}, bounded=False).node
    return _Planning(SourcePlan(node.source, 0, None, 1, str(folder), by_clock=steps, clock=clock))


def test_a_batch_that_runs_again_has_the_same_times(tmp_path: Path) -> None:
    clock = TestClock(START)
    planning = _planning(clock, ClockSteps((hr.tumbling("10s"),), (), 10_000_000), tmp_path)
    start = planning.initial()
    first = planning.latest(start)
    second = planning.latest(first)
    clock.advance(100)
    moments = [
        [reading.moment for reading in _planning(clock, ClockSteps(), tmp_path).readings(a, b)]
        for a, b in ((start, first), (first, second))
    ]
    assert moments == [[int(START * 1e6)]] * 2


def test_a_silent_source_is_looked_at_when_a_window_may_close(tmp_path: Path) -> None:
    clock = TestClock(START)
    steps = ClockSteps((hr.tumbling("500ms"),), (), 500_000)
    planning = _planning(clock, steps, tmp_path)
    offset = planning.latest(planning.initial())
    while (after := planning.latest(offset)) != offset:
        offset = after
    looks = []
    for eighth in range(1, 160):
        clock.advance(0.125)
        after = planning.latest(offset)
        if after != offset:
            looks.append(eighth)
            offset = after
    assert looks[:2] == [4, 12]  # at the edge; then there is nothing open, so seldom
    assert len(looks) < 25
    clock.advance(-1000)
    assert planning.latest(offset) == offset
    more = planning.latest({**offset, "at": {"0": 0}})  # what comes then is not before the others
    assert more["moment"] == more["heard"] == offset["moment"]


@pytest.mark.parametrize("gap", [2, 60])
def test_sessions_are_looked_at_several_times_in_a_gap(gap: int) -> None:
    micros = gap * 10**6
    steps = ClockSteps((), (micros,), micros)
    assert not steps.is_due(0, micros // 100, 0)
    assert steps.is_due(0, max(10**5, micros // 16), 0)


# What people get wrong

TIMED = hr.from_items([{"k": 1, "at": seconds(0)}])
WINDOW = hr.tumbling("1s", time="processing")
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a word": (
        lambda: hr.tumbling("1s", time="proccessing"),
        "tumbling: time='proccessing' is no time; did you mean 'processing'",
    ),
    "another word": (lambda: hr.session("1s", time=1), "session: time=1 is no time"),
    "event time before": (
        lambda: TIMED.event_time("at").window(WINDOW),
        "step 2, event_time has said already where the event time is",
    ),
    "both": (lambda: TIMED.processing_time("t").event_time("at"), "processing_time has said"),
    "a wide step": (
        lambda: TIMED.union(TIMED).key_by("k").window(WINDOW),
        "call processing_time right after the source, before step 2, union",
    ),
    "results of a group": (
        lambda: TIMED.group_by("k").count().window(WINDOW),
        "right after the source, before step 2, agg",
    ),
    "a column that is there": (lambda: TIMED.processing_time("at"), "a column 'at' already"),
    "the column that is there": (
        lambda: TIMED.rename(at="processing_time").window(WINDOW),
        r"call processing_time\('at'\) before",
    ),
    "no name": (lambda: TIMED.processing_time(3), "the name of a new column"),
    "a time that was dropped": (
        lambda: TIMED.processing_time("t").select("k").window(WINDOW),
        "dropped or changed its column 't'",
    ),
    "a clock": (lambda: hr.Spark(clock=3), "clock=3 is not a clock"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_mistakes_are_refused(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(hr.PlanError, match=words):
        make()


def test_a_pipeline_by_the_clock_is_explained() -> None:
    text = TIMED.key_by("k").window(hr.session("5s", time="processing")).count().explain(on="box")
    assert "count() by k in session(5s)" in text
    assert "processing_time processing_time" in text
    assert repr(hr.sliding("30s", "1s", time="processing")) == (
        "sliding(30s, every=1s, time='processing')"
    )


@pytest.mark.parametrize("bounded", [True, False])
def test_spark_refuses_a_script_that_turns_a_clock(spark_engine: Any, bounded: bool) -> None:
    events = [records({"at": seconds(1)}), advance(5)]
    clock = TestClock()
    stream = script(events, clock=clock, bounded=bounded, ends=True).event_time("at")
    counts = stream.window(hr.tumbling("2s")).agg(n=hr.count())
    assert same_answer(counts, engines=["box"])["n"].to_pylist() == [1]
    with pytest.raises(hr.PlanError, match=r"the script turns a clock .* pass on='box'"):
        same_answer(counts, engines=[spark_engine])
