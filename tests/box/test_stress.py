"""Many small epochs, delays and failures at random, slow sinks, stops at any moment."""

from __future__ import annotations

import random
import threading
import time

import pyarrow as pa
import pytest

import headrace as hr
from headrace.box.scheduler import SCHEDULERS
from headrace.testing import rows
from tests.reference import moment

SCHEMA = pa.schema([("n", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])


SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 10))]


class Jittery:
    """Splits that send small batches with watermarks of their own, at random moments."""

    schema, watermarks = SCHEMA, True

    def __init__(self, seed, splits, batches, bounded):
        self.seed, self.count, self.batches, self.bounded = seed, splits, batches, bounded

    def splits(self, parallelism):
        return [JitterySplit(self, i) for i in range(self.count)]


class JitterySplit:
    def __init__(self, of, number):
        self.of, self.number = of, number

    def read(self, columns):
        rng = random.Random(self.of.seed * 31 + self.number)
        n = 0
        for batch in range(self.of.batches if self.of.bounded else 10**9):
            size = rng.randint(1, 20)
            base = batch * 100_000
            times = [moment(base + rng.randint(0, 250_000)) for _ in range(size)]
            numbers = [self.number * 10**9 + n + i for i in range(size)]
            n += size
            keys = [rng.choice("abc") for _ in range(size)]
            yield pa.record_batch(
                [pa.array(numbers), pa.array(keys), pa.array(times, SCHEMA.field("at").type)],
                schema=SCHEMA,
            )
            if rng.random() < 0.7:
                yield hr.Watermark(base + 100_000)
            if rng.random() < 0.2:
                time.sleep(rng.random() * 0.002)
            if rng.random() < 0.1:
                yield None


def delayed(seed, odds=0.3):
    """A function of a bundle that takes its time now and then."""
    rng = random.Random(seed)

    def run(batch):
        if rng.random() < odds:
            time.sleep(rng.random() * 0.003)
        return batch

    return run


def left_behind(before, seconds=60):
    """Threads that were not there before; waits a little for them to end."""
    deadline = time.time() + seconds
    while time.time() < deadline:
        mine = [t for t in threading.enumerate() if t.name.startswith("headrace-")]
        if len(mine) <= before:
            return []
        time.sleep(0.01)
    return mine


def build(seed, source):
    """A pipeline with stages of every kind: a shared step, a window, a join, a union."""
    stream = hr.from_source(source).event_time("at")
    slow = stream.map_batches(delayed(seed), schema=SCHEMA)
    counts = slow.key_by("k").window(hr.tumbling("300ms")).agg(c=hr.count(), ns=hr.collect("n"))
    both = slow.join_within(slow.filter("k = 'a'"), on="n", before="0s", after="0s")
    merged = (
        slow.union(slow.filter("k = 'b'")).window(hr.sliding("400ms", every="200ms")).count("c")
    )
    return slow, counts, both, merged


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_doubled(seed):
    rng = random.Random(seed)
    box = hr.Box(
        workers=rng.randint(1, 6), bundle=rng.choice([None, 1, 5]), debug=True,
        scheduler=rng.choice(sorted(SCHEDULERS)), memory=rng.choice([None, 2000, "1MB"]),
    )  # fmt: skip
    slow, counts, both, merged = build(seed, Jittery(seed, rng.randint(1, 3), 60, True))
    before = sum(t.name.startswith("headrace-") for t in threading.enumerate())
    job = hr.start([slow, counts, both, merged, slow.late], on=box)
    assert job.wait(120)
    seen = job.result(0)["n"].to_pylist()
    assert len(seen) == len(set(seen))
    late = job.result(4).num_rows
    assert len(seen) + late == job.progress().records_in
    assert sum(job.result(1)["c"].to_pylist()) == len(seen) > 0
    counted = [n for ns in job.result(1)["ns"].to_pylist() for n in ns]
    assert sorted(counted) == sorted(seen)
    keys = job.result(0)["k"].to_pylist()
    assert job.result(2).num_rows == keys.count("a")
    assert sum(job.result(3)["c"].to_pylist()) == 2 * (len(seen) + keys.count("b"))
    assert left_behind(before) == []
    assert job.progress().bytes_in_flight == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_at_any_moment_drains(seed):
    rng = random.Random(100 + seed)
    before = sum(t.name.startswith("headrace-") for t in threading.enumerate())
    box = hr.Box(workers=rng.randint(1, 6), bundle=rng.choice([None, 1, 7]), debug=True)
    source = Jittery(seed, rng.randint(1, 3), 0, False)
    taken, lock = [], threading.Lock()

    def slow_sink(batch):
        if rng.random() < 0.3:
            time.sleep(0.002)
        with lock:
            taken.append(batch)

    slow, counts, _, _ = build(seed, source)
    job = hr.start([(slow, slow_sink), counts, slow.late], on=box)
    time.sleep(rng.random() * 0.6)
    assert job.stop(timeout=60)
    told = job.progress()
    out = sum(b.num_rows for b in taken)
    assert out + job.result(2).num_rows == told.records_in
    assert sum(job.result(1)["c"].to_pylist()) == out
    assert left_behind(before) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failure_at_any_moment_ends_the_job(seed):
    rng = random.Random(200 + seed)
    before = sum(t.name.startswith("headrace-") for t in threading.enumerate())
    fuse = [rng.randint(1, 80)]

    def breaks(batch):
        fuse[0] -= 1
        if fuse[0] == 0:
            raise ValueError("boom")
        return batch

    stream = hr.from_source(Jittery(seed, 2, 0, False)).event_time("at")
    broken = stream.map_batches(breaks, schema=SCHEMA).window(hr.tumbling("300ms")).count()
    job = broken.start(on=hr.Box(workers=rng.randint(1, 4), bundle=1))
    with pytest.raises(hr.StepError, match="boom"):
        job.wait(60)
    assert not job.running
    assert "boom" in str(job.progress())
    assert left_behind(before) == []


def test_memory_is_given_back():
    import gc

    source = Jittery(1, 2, 20, True)
    pa_before = None
    for turn in range(4):
        _, counts, both, merged = build(turn, source)
        job = hr.start([counts, both, merged], on=hr.Box(workers=3, bundle=3))
        job.wait(60)
        del job, counts, both, merged
        gc.collect()
        if turn == 1:
            pa_before = pa.total_allocated_bytes()
    assert pa.total_allocated_bytes() <= pa_before + 100_000


def test_many_jobs_at_once_agree():
    table = pa.table(
        {"n": range(20_000), "at": pa.array([moment(i * 1000) for i in range(20_000)])}
    )
    stream = hr.from_arrow(table).event_time("at").window(hr.tumbling("1s")).agg(s=hr.sum("n"))
    jobs = [stream.start(on=hr.Box(workers=2, bundle=100)) for _ in range(4)]
    for job in jobs:
        job.wait(60)
    assert len({frozenset(rows(job.result())) for job in jobs}) == 1
