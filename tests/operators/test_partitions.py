"""``key_by``, ``shuffle``, ``max_parallelism``, ``distinct``, ``map_batches``, ``inspect``."""

from __future__ import annotations

import itertools
import math
import threading
import time

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace import col

NUMBERS = hr.from_items(range(20_000))


BUNDLES = itertools.count()


def worker(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with a name for the partition they are in; on the box that is a bundle."""
    from pyspark import TaskContext

    part = TaskContext.get().partitionId() if TaskContext.get() else next(BUNDLES)
    return batch.append_column("part", pa.array([part] * batch.num_rows, pa.int64()))


WITH_PART = {"value": "bigint", "part": "bigint"}


def test_key_by_brings_a_key_together_in_order(engine):
    keyed = NUMBERS.key_by(k=col("value") % 13)
    table = keyed.map_batches(worker, schema={"value": "bigint", "k": "bigint", "part": "bigint"})
    got = table.collect(on=engine).to_pylist()
    assert len(got) == 20_000
    for k in range(13):
        mine = [r for r in got if r["k"] == k]
        assert len({r["part"] for r in mine}) == 1
        assert [r["value"] for r in mine] == list(range(k, 20_000, 13))
    assert len({r["part"] for r in got}) > 1


def test_a_keyed_stream_aggregates_too(rows):
    assert sorted(rows(NUMBERS.key_by(k=col("value") % 2).agg(n=hr.count()))) == [
        (0, 10_000), (1, 10_000),
    ]  # fmt: skip
    assert sorted(rows(NUMBERS.key_by(k=col("value") % 2).count("n"))) == [(0, 10_000), (1, 10_000)]
    assert sorted(rows(NUMBERS.key_by(k=col("value") % 3).distinct())) == [(0,), (1,), (2,)]


def test_shuffle_spreads_evenly(engine):
    skewed = NUMBERS.filter("value < 9000").max_parallelism(1).shuffle()
    got = skewed.map_batches(worker, schema=WITH_PART).collect(on=engine)
    sizes = [d["counts"] for d in pc.value_counts(got["part"]).to_pylist()]
    assert sum(sizes) == 9000
    if engine.name == "spark":  # the box's evaluators share all bundles as it is
        assert len(sizes) == 2
        assert max(sizes) - min(sizes) <= 100
    assert sorted(got["value"].to_pylist()) == list(range(9000))


def test_max_parallelism_bounds_what_runs_at_once():
    running, most, lock = [0], [0], threading.Lock()

    def watched(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.002)
        with lock:
            running[0] -= 1
        return batch

    box = hr.Box(workers=4, bundle=500)
    for bound in (1, 2):
        most[0] = 0
        stream = NUMBERS.max_parallelism(bound).map_batches(watched, schema={"value": "bigint"})
        assert stream.count(on=box) == 20_000
        assert most[0] <= bound


def test_max_parallelism_bounds_the_partitions(spark_engine):
    for stream in (NUMBERS, NUMBERS.filter("value >= 0"), NUMBERS.shuffle()):
        got = stream.max_parallelism(1).map_batches(worker, schema=WITH_PART)
        got = got.collect(on=spark_engine)
        assert set(got["part"].to_pylist()) == {0}
        assert sorted(got["value"].to_pylist()) == list(range(20_000))


def test_distinct_records_and_columns(rows):
    data = [{"a": 1, "b": "x"}, {"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": None, "b": None}]
    stream = hr.from_items([*data, *data])
    assert set(rows(stream.distinct())) == {(1, "x"), (1, None), (None, None)}
    assert len(rows(stream.distinct())) == 3
    assert set(rows(stream.distinct("a"))) == {(1,), (None,)}


def test_distinct_has_one_nan_and_one_zero(rows):
    got = rows(hr.from_items([math.nan, 0.0, -0.0, float("nan")]).distinct())
    assert sorted(str(v) for (v,) in got) == ["0.0", "nan"]


def test_map_batches_gets_and_gives_arrow(rows):
    def double(batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"v": pc.multiply(batch.column("value"), 2)})

    stream = hr.from_items([1, 2, 3]).map_batches(double)
    assert stream.columns == ["v"]
    assert rows(stream) == [(2,), (4,), (6,)]


def test_a_failing_batch_function_is_told(engine):
    def bad(batch):
        raise ValueError("no good")

    stream = hr.from_items([1]).map_batches(bad, schema={"v": "bigint"})
    with pytest.raises(
        hr.StepError, match=r"step 2, map_batches \(bad\) failed on a bundle of 1 re"
    ):
        stream.collect(on=engine)


def test_a_batch_function_must_give_the_columns_it_promised(engine):
    stream = hr.from_items([1]).map_batches(lambda b: b, schema={"other": "bigint"})
    with pytest.raises(hr.StepError, match="has no column 'other'"):
        stream.collect(on=engine)


def test_inspect_sees_every_record_and_changes_nothing(engine, tmp_path):
    folder = str(tmp_path)

    def note(value):
        open(f"{folder}/{value}", "w").close()

    assert hr.from_items([1, 2, 3]).inspect(note).to_list(on=engine) == [1, 2, 3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2", "3"]


def test_one_call_sees_all_records_of_its_keys(engine):
    """Many bundles in, and keys spread over all of them."""
    numbers = hr.from_items([{"k": i % 7, "v": i} for i in range(200_000)])

    def counted(batch):
        keys = batch.column("k").value_counts()
        return pa.table({"k": keys.field("values"), "n": keys.field("counts")})

    found = numbers.key_by("k").map_batches(counted, schema={"k": "bigint", "n": "bigint"})
    rows = sorted(map(tuple, found.to_list(on=engine)))
    assert [k for k, _ in rows] == list(range(7))
    assert sum(n for _, n in rows) == 200_000
