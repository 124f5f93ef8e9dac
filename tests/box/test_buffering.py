"""Buffering on the box: how many records go on together, when, and that none is lost or held."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import testing
from tests.conftest import PATIENCE, until
from tests.streams.conftest import drop
from tests.streams.test_box_checkpoints import Numbers

PLAIN = {"n": "bigint"}
TIMED = {"n": "bigint", "at": "timestamp"}


class Sizes:
    """A step that writes down how many records each bundle has."""

    def __init__(self) -> None:
        self.all: list[int] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.all.append(batch.num_rows)
        return batch


def numbers(*sizes: int) -> list[Any]:
    """Records that come so many at a time."""
    found, first = [], 0
    for size in sizes:
        rows = [{"n": n, "at": testing.seconds(n)} for n in range(first, first + size)]
        found.append(testing.records(*rows))
        first += size
    return found


def counted(stream: hr.Stream) -> tuple[hr.Stream, list[int]]:
    sizes = Sizes()
    return stream.map_batches(sizes, schema=stream.schema), sizes.all


# How many


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (hr.fixed(4), [4, 4, 4, 1]),
        (hr.adaptive(5, "1h"), [5, 5, 3]),
        (hr.immediate, [1] * 13),
    ],
)
def test_bundles_have_the_size_of_the_policy(policy: Any, wanted: list[int]) -> None:
    source = testing.script(numbers(1, 3, 2, 7), schema=TIMED)
    stream, sizes = counted(source)
    assert stream.collect(on=hr.Box(workers=1, buffer=policy, debug=True)).num_rows == 13
    assert sizes == wanted
    stream, sizes = counted(source.filter("n >= 0").buffer(policy))
    assert stream.collect(on=hr.Box(workers=2, debug=True)).num_rows == 13
    assert sorted(sizes, reverse=True) == wanted


def test_small_bundles_of_a_filter_are_put_together() -> None:
    few, before = counted(hr.from_items(range(10_000)).filter("value % 100 = 7"))
    stream, after = counted(few.buffer(hr.fixed(40)))
    values = stream.to_list(on=hr.Box(workers=1, bundle=200, debug=True))
    assert values == list(range(7, 10_000, 100))
    assert max(before) <= 3
    assert sorted(after) == [10, 10, 40, 40]  # of two splits


def test_splits_are_not_mixed() -> None:
    """A record has its place in its split, which results that follow the input are sorted by."""
    source = testing.script(numbers(*[1] * 5), numbers(*[1] * 5), schema=TIMED)
    stream, sizes = counted(source.buffer(hr.fixed(3)))
    table = stream.collect(on=hr.Box(workers=2, debug=True))
    assert table["n"].to_pylist() == [*range(5), *range(5)]
    assert sorted(sizes) == [2, 2, 3, 3]


# When


def waiting(
    policy: Any, events: list[Any], *, stage: bool, clock: testing.TestClock | None = None,
    event_time: bool = False, **box: Any,
) -> tuple[Any, list[int]]:  # fmt: skip
    """A job whose records wait at the ingress, or after a step, and the records that came."""
    came: list[int] = []
    lock = threading.Lock()

    def take(batch: pa.RecordBatch) -> None:
        with lock:
            came.extend(batch["n"].to_pylist())

    source = testing.script(events, schema=TIMED, bounded=False, clock=clock)
    source = source.event_time("at", idle="10s") if event_time else source
    stream = source.filter("n >= 0")
    engine = hr.Box(workers=2, clock=clock, debug=True, buffer=None if stage else policy, **box)
    job = (stream.buffer(policy) if stage else stream).start(on=engine, to=take)
    return job, came


@pytest.fixture(params=["at the ingress", "after a step"])
def stage(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "after a step")


def all_read(job: Any, count: int) -> Callable[[], bool]:
    return lambda: job.progress().records_in == count and job.progress().bundles_in_flight == 0


def test_adaptive_waits_for_its_time_by_the_boxs_clock(stage: bool) -> None:
    clock = testing.TestClock()
    job, came = waiting(hr.adaptive(100, "50ms"), numbers(3), stage=stage, clock=clock)
    until(all_read(job, 3))
    clock.advance(0.049)
    until(all_read(job, 3))
    assert came == []
    clock.advance(0.002)
    until(lambda: came == [0, 1, 2])
    job.stop()


def test_fixed_waits_for_a_full_buffer_and_a_stop_sends_the_rest(stage: bool) -> None:
    clock = testing.TestClock()
    job, came = waiting(hr.fixed(4), numbers(3, 2), stage=stage, clock=clock)
    until(lambda: came == [0, 1, 2, 3])
    for _ in range(5):
        clock.advance(3600.0)
    assert came == [0, 1, 2, 3]
    assert job.stop()
    assert came == [0, 1, 2, 3, 4]


def test_immediate_waits_for_nothing(stage: bool) -> None:
    job, came = waiting(hr.immediate, numbers(3), stage=stage, clock=testing.TestClock())
    until(lambda: came == [0, 1, 2])
    job.stop()


def test_a_watermark_sends_on_what_is_before_it(stage: bool) -> None:
    events = [*numbers(3), testing.watermark(testing.seconds(3))]
    job, came = waiting(hr.fixed(100), events, stage=stage, event_time=True)
    until(lambda: came == [0, 1, 2])
    job.stop()


def test_a_watermark_waits_with_the_records_it_comes_of() -> None:
    source = testing.script(numbers(3, 3, 1), schema=TIMED, bounded=False).event_time(
        "at", delay="0s"
    )
    counts = source.window(hr.tumbling("1s")).agg(n=hr.count())
    job = counts.start(on=hr.Box(workers=2, buffer=hr.fixed(4), debug=True))
    until(lambda: job.result().num_rows == 2)  # 0 and 1 to 2: the batch of 3 is not gone on whole
    watermark = job.progress().sources[0].watermark
    assert watermark == 2_000_000
    assert job.stop()
    assert sum(job.result()["n"].to_pylist()) == 7


def test_a_split_that_is_silent_sends_on_what_it_has() -> None:
    clock = testing.TestClock()
    events = [*numbers(3), testing.advance(11.0)]
    job, came = waiting(hr.fixed(100), events, stage=False, clock=clock, event_time=True)
    until(lambda: came == [0, 1, 2])
    job.stop()


def test_punctuation_sends_on_what_is_before_it() -> None:
    source = testing.script(numbers(5), schema=TIMED, bounded=False)
    timed = source.event_time("at", punctuation="case when n = 2 then at end")
    stream, sizes = counted(timed)
    job = stream.start(on=hr.Box(workers=1, buffer=hr.fixed(4), debug=True))
    until(lambda: sizes == [3])
    job.stop()
    assert sizes == [3, 2]


# Checkpoints


@pytest.mark.parametrize("policy", [hr.fixed(1000), hr.adaptive(1000, "1h"), hr.immediate])
def test_a_checkpoint_has_what_waited(stage: bool, policy: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    source = hr.read_csv(folder, schema=PLAIN, follow=True, until="_DONE").filter("n >= 0")
    stream = source.buffer(policy) if stage else source
    engine = hr.Box(
        workers=2, commit_every="20ms", debug=True, buffer=None if stage else policy
    )  # fmt: skip
    outlet = stream.write_parquet(tmp_path / "out")

    def written() -> list[int]:
        try:
            stream = hr.read_parquet(tmp_path / "out")
        except hr.PlanError:  # there is no file yet
            return []
        return sorted(stream.collect(on="box")["n"].to_pylist())

    drop(folder, "1.csv", "n\n1\n2\n3\n")
    job = outlet.start(on=engine, checkpoint=tmp_path / "state")
    until(lambda: written() == [1, 2, 3])  # it does not wait for a thousand
    job.stop(drain=False)  # as good as a kill
    drop(folder, "2.csv", "n\n4\n5\n")
    drop(folder, "_DONE", "")
    job = outlet.start(on=engine, checkpoint=tmp_path / "state")
    assert job.wait(PATIENCE)
    assert written() == [1, 2, 3, 4, 5]


def test_every_record_comes_once_however_often_a_job_is_cut_off(tmp_path: Path) -> None:
    outlet = (
        hr.from_source(Numbers("kept", upto=2000))
        .filter("n % 3 > 0")
        .buffer(hr.adaptive(32, "5ms"))
        .map("n + 1 as n")
        .buffer(hr.fixed(7))
        .write_parquet(tmp_path / "out")
    )
    engine = hr.Box(workers=2, commit_every="5ms", buffer=hr.fixed(9), debug=True)
    for _ in range(5):
        job = outlet.start(on=engine, checkpoint=tmp_path / "state")
        until(lambda job=job: not job.running or job.progress().records_out > 150)
        job.stop(drain=False)
    assert outlet.start(on=engine, checkpoint=tmp_path / "state").wait(PATIENCE)
    got = hr.read_parquet(tmp_path / "out").collect(on="box")["n"].to_pylist()
    assert sorted(got) == [n + 1 for n in range(2000) if n % 3]
