"""Jobs: start, wait, stop, progress; idle splits, punctuation, late records, failures."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.testing import TestClock, advance, fail, idle, records, script, seconds, watermark
from tests.conftest import PATIENCE, until
from tests.reference import moment

SCHEMA = {"k": "string", "at": "timestamp"}


def at(*times, k="a"):
    return records(*({"k": k, "at": seconds(t)} for t in times))


class Ticker:
    """An unbounded source: a record every hundredth of a second of event time."""

    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    bounded = False

    def __init__(self, pause=0.0, size=100):
        self.pause, self.size = pause, size

    def splits(self, parallelism):
        return [self]

    def read(self, columns):
        n = 0
        while True:
            rows = range(n, n + self.size)
            times = pa.array([moment(i * 10_000) for i in rows], self.schema.field("at").type)
            yield pa.record_batch({"n": pa.array(rows, pa.int64()), "at": times})
            n += self.size
            time.sleep(self.pause)


def headrace_threads():
    return [t for t in threading.enumerate() if t.name.startswith("headrace-")]


def test_an_unbounded_stream_runs_until_stopped():
    stream = hr.from_source(Ticker(0.001)).event_time("at")
    assert not stream.bounded
    job = stream.window(hr.tumbling("1s")).agg(c=hr.count()).start(on="box")
    until(lambda: job.progress().records_out >= 3)
    assert job.running
    assert not job.wait(0.01)
    assert job.stop()
    table, told = job.result(), job.progress()
    assert not told.running
    assert sum(table["c"].to_pylist()) == told.records_in  # drained: nothing read is lost
    assert told.delay_p50 is not None
    assert told.sources[0].watermark is not None
    assert "records" in str(told)
    until(lambda: not headrace_threads())


def test_stop_without_draining_is_quick_and_quiet():
    job = hr.from_source(Ticker()).event_time("at").start(on="box", to=lambda b: time.sleep(0.01))
    time.sleep(0.05)
    assert job.stop(drain=False)
    assert not job.running


def test_a_job_is_a_context():
    with hr.from_source(Ticker(0.001)).event_time("at").start(on="box") as job:
        time.sleep(0.05)
    assert not job.running


def test_several_outputs_read_their_source_once():
    stream = script(
        [at(1, 2), watermark(seconds(3)), at(1, 4)], schema=SCHEMA
    ).event_time("at")  # fmt: skip
    seen = []
    job = hr.start(
        [stream.window(hr.tumbling("1s")).count("c"), (stream.late, seen.append)], on="box"
    )
    job.wait()
    assert job.result()["c"].to_pylist() == [1, 1, 1]
    assert [b.num_rows for b in seen] == [1]
    assert job.progress().records_in == 4
    assert job.late().select(["k", "late_by"]).to_pylist()[0]["late_by"].total_seconds() == 2


def test_an_idle_split_stops_holding_back_and_says_so(caplog):
    clock = TestClock()
    busy = [at(1), at(11), at(21), advance(3601), at(22), idle(), at(30)]
    stream = script(busy, [idle()], schema=SCHEMA, clock=clock, bounded=False)
    stream = stream.event_time("at", delay="0s", idle="1h")
    with caplog.at_level(logging.WARNING, "headrace"):
        job = stream.window(hr.tumbling("10s")).count("c").start(on=hr.Box(clock=clock, workers=1))
        until(lambda: job.progress().records_out >= 3, lambda: clock.advance(0.06))
    told = job.progress()
    assert told.sources[0].idle == (1,)
    assert any("silent for 1h" in note for note in told.notes)
    assert "silent for 1h" in caplog.text
    job.stop()
    assert sum(job.result()["c"].to_pylist()) == 5


def test_a_silent_split_holds_the_watermark_back_until_then():
    clock = TestClock()
    stream = script([at(1), at(50)], [idle()], schema=SCHEMA, clock=clock, bounded=False)
    stream = stream.event_time("at", delay="0s", idle="1h")
    job = stream.window(hr.tumbling("10s")).count("c").start(on=hr.Box(clock=clock, workers=1))
    until(lambda: job.progress().records_in == 2, lambda: clock.advance(0.06))
    time.sleep(0.1)
    assert job.progress().records_out == 0
    job.stop()


@pytest.mark.parametrize(
    "said",
    [
        "case when k = 'end' then at end",
        lambda r: r.at if r.k == "end" else None,
    ],
)
def test_punctuation_cuts_where_the_record_stands(said):
    rows = [("a", 1), ("end", 3), ("a", 2), ("a", 5), ("end", 6), ("a", 6)]
    events = records(*({"k": k, "at": seconds(t)} for k, t in rows))
    source = script([events], schema=SCHEMA, bounded=False, ends=True)
    stream = source.event_time("at", punctuation=said)
    job = hr.start([stream.late, stream.window(hr.tumbling("10s")).count("c")], on="box")
    job.wait()
    assert [r["at"] for r in job.result(0).to_pylist()] == [seconds(2)]
    assert job.result(1)["c"].to_pylist() == [5]


def test_a_source_that_fails_fails_the_job():
    stream = script([at(1), fail("the disk is gone")], schema=SCHEMA).event_time("at")
    job = stream.window(hr.tumbling("1s")).count().start(on="box")
    with pytest.raises(hr.EngineError, match="the disk is gone"):
        job.wait()
    assert not job.running


def test_an_unbounded_source_that_fails_fails_the_job():
    stream = script([at(1), fail("the line is cut")], schema=SCHEMA, bounded=False)
    job = stream.event_time("at").start(on="box")
    with pytest.raises(hr.EngineError, match="the line is cut"):
        job.wait(20)


def test_a_function_that_fails_is_told_with_its_step():
    stream = script([at(1)], schema=SCHEMA).map(lambda r: {"x": 1 / 0}, schema={"x": "double"})
    with pytest.raises(hr.StepError, match="step 2, map"):
        stream.collect(on="box")


def test_results_go_to_files_that_appear_whole(tmp_path):
    folder = str(tmp_path / "out")
    outlet = hr.from_source(Ticker(0.0005)).event_time("at").window(hr.tumbling("1s")).count("c")
    job = outlet.write_parquet(folder).start(on=hr.Box(commit_every="100ms"))
    until(
        lambda: len(list((tmp_path / "out").glob("part-*"))) >= 2,
        lambda: [pq.read_table(file) for file in (tmp_path / "out").glob("part-*")],
    )
    job.stop()
    table = pq.read_table([str(p) for p in (tmp_path / "out").glob("part-*")])
    assert sum(table["c"].to_pylist()) == job.progress().records_in
    assert not list((tmp_path / "out").glob("_temporary*"))


def test_bad_records_are_counted_as_they_are_read(tmp_path):
    (tmp_path / "a.csv").write_text("n,at\n1,2024-01-01 00:00:00\nx,2024-01-01 00:00:01\n3,4\n")
    stream = hr.read_csv(
        str(tmp_path / "a.csv"), schema={"n": "bigint", "at": "timestamp"}, on_error="keep"
    )
    job = stream.event_time("at").start(on="box")
    job.wait()
    assert (job.progress().records_in, job.progress().bad) == (1, 2)
    assert stream.errors.count(on="box") == 2


class Largest(hr.Transform):
    """The largest so far, at every watermark."""

    def __init__(self):
        self.lock, self.best = threading.Lock(), None

    def process(self, bundle, out):
        found = pc.max(bundle["n"]).as_py()
        with self.lock:
            self.best = found if self.best is None else max(self.best, found)

    def on_watermark(self, time, out):
        out.emit(pa.record_batch({"best": pa.array([self.best], pa.int64())}))


def test_a_transform_of_ones_own():
    events = []
    for s in range(5):
        events += [records({"n": 10 * s, "at": seconds(s)}), watermark(seconds(s + 1))]
    stream = script(events, schema={"n": "bigint", "at": "timestamp"}).event_time("at")
    for workers in (1, 4):
        box = hr.Box(workers=workers, debug=True)
        got = stream.transform(Largest, schema={"best": "bigint"}).to_list(on=box)
        # A later epoch's records may have been processed already, an earlier one's always have.
        assert all(r.best >= 10 * min(i, 4) for i, r in enumerate(got))
        assert len(got) == 6
        assert got[-1].best == 40
    bad = stream.transform(object, schema={"best": "bigint"})
    with pytest.raises(hr.StepError, match=r"is not a headrace\.Transform"):
        bad.collect(on="box")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.start(on="box", to=3), "to=3 is neither a sink nor a function"),
        (lambda s: s.collect(on="box"), "the input never ends; use start"),
        (lambda s: s.sort("n").start(on="box"), "step 3, sort: it needs the whole input"),
        (lambda s: s.group_by("n").count().start(on="box"), "use a window before it"),
        (lambda s: s.join(s, on="n").start(on="box"), "use join_within"),
        (lambda s: hr.start([], on="box"), "nothing to start"),
        (lambda s: hr.start([3], on="box"), "3 is not a stream"),
        (lambda s: hr.Box(workers=0), "workers=0 is not a number"),
        (lambda s: hr.Box(memory="lots"), "memory='lots' is not a number of bytes"),
        (lambda s: hr.Box(scheduler="fifo"), "there is no scheduler 'fifo'"),
        (lambda s: hr.Box(bundle=0), "bundle=0 is not a number of records"),
    ],
)
def test_mistakes_are_refused(build, message):
    stream = hr.from_source(Ticker()).event_time("at")
    with pytest.raises(hr.PlanError, match=message):
        build(stream)


def test_memory_bounds_what_is_in_flight():
    most, jobs = [0], []

    def slow(batch):
        for job in jobs:  # none before start() has come back
            most[0] = max(most[0], job.progress().bytes_in_flight)
        time.sleep(0.01)

    stream = hr.from_source(Ticker(0, 1000)).event_time("at")
    job = stream.start(on=hr.Box(memory="200kB", workers=2), to=slow)
    jobs.append(job)
    until(lambda: job.progress().records_in > 20_000)
    job.stop(drain=False)
    assert most[0] < 600_000


class Slow(hr.Transform):
    """Takes its time over every watermark."""

    def process(self, bundle, out):
        out.emit(bundle)

    def on_watermark(self, when, out):
        time.sleep(0.002)


class Hasty:
    """A watermark after every record, as fast as they are taken."""

    schema, bounded, watermarks = Ticker.schema, False, True

    def splits(self, parallelism):
        return [self]

    def read(self, columns):
        for n in range(10**9):
            at = pa.array([moment(n)], self.schema.field("at").type)
            yield pa.record_batch({"n": pa.array([n]), "at": at})
            yield hr.Watermark(n)


def test_epochs_do_not_pile_up_before_a_slow_watermark():
    stream = hr.from_source(Hasty()).event_time("at").transform(Slow)
    job = stream.start(on=hr.Box(workers=4))
    until(lambda: job.progress().records_in >= 400)
    told = job.progress()
    job.stop(drain=False)
    assert told.records_in - told.watermark < 300  # a time here is a number of epochs


def test_pinned_evaluators_give_the_same():
    table = pa.table({"n": range(10_000)})
    assert hr.from_arrow(table).count(on=hr.Box(pin=True)) == 10_000


WAITING = """
import signal, threading, time
import headrace as hr
from tests.box.test_jobs import Ticker

windows = hr.from_source(Ticker(0.001)).event_time("at").window(hr.tumbling("1s"))
job = windows.agg(c=hr.count()).start(on="box")
before = signal.getsignal(signal.SIGINT)

def tell():
    while signal.getsignal(signal.SIGINT) is before or not job.progress().records_in:
        time.sleep(0.01)
    print("ready", flush=True)

threading.Thread(target=tell, daemon=True).start()
job.wait()
assert sum(job.result()["c"].to_pylist()) == job.progress().records_in > 0
print("drained", flush=True)
"""


def test_ctrl_c_drains():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE)
    assert "drained" in out
    assert process.returncode == 0


class Burst:
    """An unbounded source: a batch, and once it is being processed many more at once."""

    schema = pa.schema([("n", pa.int64())])
    bounded = False

    def __init__(self, batches, size):
        self.batches, self.size = batches, size
        self.begun = threading.Event()

    def splits(self, parallelism):
        return [self]

    def read(self, columns):
        for batch in range(self.batches):
            if batch == 1:
                assert self.begun.wait(PATIENCE)
            yield pa.record_batch(
                {"n": pa.array(range(batch * self.size, (batch + 1) * self.size))}
            )


def test_what_comes_while_all_are_busy_is_put_together():
    """So that a box which small batches keep from catching up has fewer of them to process."""
    source, sizes, go_on = Burst(21, 2000), [], threading.Event()
    found: list[int] = []

    def seen(batch):
        sizes.append(batch.num_rows)
        source.begun.set()
        if len(sizes) == 1:
            assert go_on.wait(PATIENCE)
        return batch

    stream = hr.from_source(source).map_batches(seen, schema={"n": "bigint"})
    box = hr.Box(workers=1, processes=0)
    job = stream.start(on=box, to=lambda batch: found.extend(batch.column("n").to_pylist()))
    until(lambda: job.progress().records_in >= 40_000)
    go_on.set()
    until(lambda: len(found) == 42_000)
    job.stop()
    assert found == list(range(42_000))
    assert sizes[0] == 2000
    assert max(sizes) > 4000
    assert len(sizes) < 15
