"""Which records are late depends on their order in their split, and on nothing else."""

from __future__ import annotations

import random
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.testing import TestClock, idle, records, script, seconds, watermark
from tests.conftest import until
from tests.reference import moment

SCHEMA = {"k": "string", "at": "timestamp"}


def shuffled(count=3000, spread=3_000_000, seed=1):
    rng = random.Random(seed)
    times = [moment(i * 1000 + rng.randint(0, spread)) for i in range(count)]
    return pa.table({"n": range(count), "at": pa.array(times, pa.timestamp("us", tz="UTC"))})


def expected(table, delay):
    """One record at a time: below the newest so far less the delay is late."""
    newest, late = None, []
    for n, at in zip(table["n"].to_pylist(), table["at"].to_pylist(), strict=True):
        if newest is not None and (newest - at).total_seconds() > delay:
            late.append(n)
        else:
            newest = at if newest is None else max(newest, at)
    return late


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("bundle", [None, 1, 50])
def test_neither_workers_nor_bundles_nor_other_windows_matter(workers, bundle):
    table = shuffled()
    replayed = script([records(table)], bounded=False, ends=True)
    stream = replayed.event_time("at", delay="1s")
    box = hr.Box(workers=workers, bundle=bundle, debug=True)
    want = expected(table, 1)
    assert len(want) > 100
    job = hr.start(
        [stream.window(hr.tumbling("1h")).count("c"), stream.window(hr.tumbling("10ms")).count("c"),
         stream.late], on=box,
    )  # fmt: skip
    job.wait()
    for output in (0, 1):
        assert sum(job.result(output)["c"].to_pylist()) == table.num_rows - len(want)
    assert sorted(job.result(2)["n"].to_pylist()) == want


@pytest.mark.parametrize("workers", [1, 3])
def test_every_split_has_its_own_watermark(workers):
    tables = [shuffled(1000, seed=i) for i in range(4)]
    replayed = script(*([records(table)] for table in tables), bounded=False, ends=True)
    job = replayed.event_time("at", delay="1s").late.start(on=hr.Box(workers=workers))
    job.wait()
    assert job.result().num_rows == sum(len(expected(table, 1)) for table in tables)


def test_a_stream_and_its_late_side_can_meet():
    stream = script(
        [records({"k": "a", "at": seconds(5)}), watermark(seconds(5)),
         records({"k": "b", "at": seconds(1)}, {"k": "c", "at": seconds(6)})], schema=SCHEMA,
    ).event_time("at")  # fmt: skip
    late = stream.late.drop("late_by", "watermark", "reason")
    assert sorted(r.k for r in stream.union(late).to_list(on=hr.Box(debug=True))) == ["a", "b", "c"]


def test_a_split_that_says_nothing_is_idle_even_if_it_is_asked():
    clock = TestClock()
    stream = script(
        [records({"k": "a", "at": seconds(t)}) for t in (1, 11, 21)], [idle()] * 3,
        schema=SCHEMA, clock=clock, bounded=False,
    ).event_time("at", delay="0s", idle="5s")  # fmt: skip
    job = stream.window(hr.tumbling("10s")).count("c").start(on=hr.Box(clock=clock))
    until(lambda: job.progress().records_out >= 2, lambda: clock.advance(1))
    job.stop()


class _Gate:
    """Two splits: one goes on for ever, the other sends one old record when it is let."""

    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    bounded = False

    def __init__(self):
        self.open = threading.Event()

    def splits(self, parallelism):
        return [_GateSplit(self, False), _GateSplit(self, True)]


class _GateSplit:
    def __init__(self, of, old):
        self.of, self.old = of, old

    def read(self, columns):
        if not self.old:
            yield from _Busy().read(columns)
        self.of.open.wait()
        times = pa.array([moment(500_000)], self.of.schema.field("at").type)
        yield pa.record_batch([pa.array(["old"]), times], schema=self.of.schema)
        while True:
            yield None


def test_a_split_that_wakes_up_keeps_to_what_was_promised_without_it():
    clock, gate = TestClock(), _Gate()
    stream = hr.from_source(gate).event_time("at", delay="0s", idle="5s")
    counts = stream.window(hr.tumbling("1s")).count("c")
    job = hr.start([counts, stream.late], on=hr.Box(clock=clock, debug=True))
    until(lambda: job.progress().records_out >= 3, lambda: clock.advance(1))
    gate.open.set()
    until(lambda: job.progress().late, lambda: clock.advance(0.06))
    job.stop()
    assert job.result(1)["k"].to_pylist() == ["old"]


def test_an_idle_source_does_not_hold_back_what_it_joins():
    clock = TestClock()

    def source(times):
        events = [records({"k": "a", "at": seconds(t)}) for t in times]
        made = script(events, schema=SCHEMA, clock=clock, bounded=False)
        return made.event_time("at", delay="0s", idle="5s")

    busy = [hr.from_source(_Busy()).event_time("at", delay="0s", idle="1h"), source([1])]
    union = busy[0].union(busy[1]).window(hr.tumbling("1s")).count("c")
    job = union.start(on=hr.Box(clock=clock))
    until(lambda: job.progress().records_out >= 3, lambda: clock.advance(0.1))
    job.stop()


class _Busy:
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    bounded = False

    def splits(self, parallelism):
        return [self]

    def read(self, columns):
        for second in range(10**6):
            times = pa.array([moment(second * 1_000_000)], self.schema.field("at").type)
            yield pa.record_batch([pa.array(["b"]), times], schema=self.schema)
            time.sleep(0.005)


def test_a_shared_step_runs_once():
    calls = []
    shared = hr.from_items(range(10)).map(lambda v: calls.append(v) or v, schema="bigint")
    assert sorted(shared.union(shared).to_list(on="box")) == sorted([*range(10)] * 2)
    assert len(calls) == 10


def test_a_sliding_sum_does_not_wrap_around():
    big = [{"k": 1, "n": 2**62, "at": seconds(t)} for t in (0.5, 1.5, 2.5)]
    stream = hr.from_items(big).event_time("at")
    with pytest.raises(hr.StepError, match="overflow"):
        stream.key_by("k").window(hr.sliding("3s", every="1s")).agg(s=hr.sum("n")).collect(on="box")


def test_a_stream_without_event_time_is_committed_too(tmp_path):
    box = hr.Box(commit_every="100ms")
    job = hr.from_source(_Busy()).write_parquet(str(tmp_path / "out")).start(on=box)
    until(lambda: list((tmp_path / "out").glob("part-*")))
    job.stop()
    kept = pq.read_table([str(p) for p in (tmp_path / "out").glob("part-*")])
    assert kept.num_rows == job.progress().records_in


def test_an_outlet_can_be_started_again(tmp_path):
    outlet = hr.from_source(_Busy()).write_parquet(str(tmp_path / "out"), mode="append")
    total = 0
    for _ in range(2):
        job = outlet.start(on="box")
        until(lambda job=job: job.progress().records_in > 0)
        job.stop()
        total += job.progress().records_in
    kept = pq.read_table([str(p) for p in (tmp_path / "out").glob("part-*")])
    assert kept.num_rows == total


def test_leaving_a_bounded_job_waits_for_it():
    with hr.from_items(range(100_000)).start(on="box") as job:
        pass
    assert job.result().num_rows == 100_000


def test_a_job_stopped_by_its_own_sink_ends():
    started, jobs = threading.Event(), []

    def stop(batch):
        assert started.wait(60)  # a record may come before start() has come back
        jobs[0].stop()

    jobs.append(hr.from_source(_Busy()).start(on="box", to=stop))
    started.set()
    assert jobs[0].wait(60)


@pytest.mark.parametrize("window", [hr.tumbling("1s"), hr.sliding("2s", "1s"), hr.session("1s")])
def test_a_function_that_turns_time_back_is_told(window):
    events = []
    for s in range(1, 30):
        events += [records({"k": "a", "at": seconds(s)}), watermark(seconds(s))]
    stream = script(events, schema=SCHEMA).event_time("at")
    turned = stream.map(lambda r: {"k": r.k, "at": seconds(0)}, schema=SCHEMA)
    with pytest.raises(hr.StepError, match="another event time"):
        turned.window(window).count().collect(on=hr.Box(workers=1))
