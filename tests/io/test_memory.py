"""Tables, lists, iterators, generators, and sources and sinks a person writes."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headrace as hr

DATA = pa.table({"n": [1, 2, None], "s": ["a", None, "c"]})


def test_arrow_pandas_and_polars(rows):
    want = [(1, "a"), (2, None), (None, "c")]
    assert rows(hr.from_arrow(DATA)) == want
    assert rows(hr.from_arrow(DATA.to_batches()[0])) == want
    assert rows(hr.from_polars(pl.from_arrow(DATA))) == want
    assert rows(hr.from_polars(pl.from_arrow(DATA).lazy())) == want
    frame = pd.DataFrame({"n": [1, 2], "s": ["a", None]})
    assert rows(hr.from_pandas(frame)) == [(1, "a"), (2, None)]


def test_arrow_types_become_ours(rows):
    table = pa.table(
        {
            "u": pa.array([1], pa.uint32()),
            "big": pa.array(["x"], pa.large_string()),
            "code": pa.array(["y"]).dictionary_encode(),
            "ns": pa.array([datetime.datetime(2020, 1, 1)], pa.timestamp("ns")),
            "zone": pa.array([datetime.datetime(2020, 1, 1)], pa.timestamp("ms", tz="Asia/Tokyo")),
        }
    )
    stream = hr.from_arrow(table)
    assert repr(stream) == (
        "Stream(u: bigint, big: string, code: string, ns: timestamp_ntz, zone: timestamp)"
    )
    ((u, big, code, ns, zone),) = rows(stream)
    assert (u, big, code, ns) == (1, "x", "y", datetime.datetime(2020, 1, 1))
    assert zone == datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def test_items_of_all_kinds(rows):
    @dataclass
    class Trip:
        zone: str
        fare: float

    assert rows(hr.from_items([Trip("a", 1.5), Trip("b", 2.0)])) == [("a", 1.5), ("b", 2.0)]
    assert rows(hr.from_items([{"a": 1}, {"b": 2}])) == [(1, None), (None, 2)]
    assert rows(hr.from_items(n * n for n in range(4))) == [(0,), (1,), (4,), (9,)]
    assert rows(hr.from_items([(1, "x")], schema={"n": "int", "s": "string"})) == [(1, "x")]


def test_a_large_table_travels_once(engine):
    rng = np.random.default_rng(1)
    table = pa.table({"x": rng.random(400_000)})
    total = hr.from_arrow(table).agg(n=hr.count(), s=hr.sum("x")).collect(on=engine).to_pylist()[0]
    assert total["n"] == 400_000
    assert total["s"] == pytest.approx(float(np.sum(table["x"].to_numpy())))


def test_generate_runs_every_rank(rows):
    def numbers(rank: int, size: int) -> Iterator[int]:
        yield from range(10 * rank, 10 * (rank + 1))

    assert rows(hr.generate(numbers, splits=5)) == [(n,) for n in range(50)]


def test_generate_may_yield_batches(rows):
    def batches(rank, size):
        yield pa.record_batch({"rank": [rank] * 3, "x": [1.0, 2.0, 3.0]})

    stream = hr.generate(batches, splits=3)
    assert sorted(rows(stream.group_by("rank").agg(s=hr.sum("x")))) == [
        (0, 6.0),
        (1, 6.0),
        (2, 6.0),
    ]


def test_a_failing_generator_is_told(engine):
    def bad(rank: int, size: int) -> Iterator[int]:
        yield 1
        raise RuntimeError("broke")

    with pytest.raises(
        hr.StepError, match=r"step 1, generate \(split 0 of 1\).*RuntimeError: broke"
    ):
        hr.generate(bad, splits=1).collect(on=engine)


class Squares:
    """The source of the documentation."""

    schema = pa.schema([("n", pa.int64()), ("square", pa.int64())])

    def __init__(self, upto):
        self.upto = upto

    def splits(self, parallelism):
        edges = [self.upto * i // parallelism for i in range(parallelism + 1)]
        return [SquaresSplit(a, b) for a, b in itertools.pairwise(edges)]


@dataclass
class SquaresSplit:
    start: int
    end: int

    def read(self, columns):
        n = np.arange(self.start, self.end)
        yield pa.record_batch({"n": n, "square": n * n})


class Kept:
    """The sink of the documentation, with a place to look at."""

    def __init__(self):
        self.kept = []
        self.aborted = False

    def check(self, schema): ...

    def open(self, schema, task):
        return KeptWriter()

    def commit(self, messages):
        self.kept.extend(b for m in messages for b in m)

    def abort(self):
        self.aborted = True


class KeptWriter:
    def __init__(self):
        self.batches = []

    def write(self, batch):
        self.batches.append(batch)

    def close(self):
        return self.batches


def test_a_persons_own_source_and_sink(engine):
    sink = Kept()
    hr.from_source(Squares(100)).select("square").write_to(sink, on=engine).run()
    got = pa.Table.from_batches(sink.kept)["square"].to_pylist()
    # The box writes bundles as they are done: which of two splits comes first is not promised.
    assert sorted(got) == [n * n for n in range(100)]


def test_a_sink_is_told_that_the_job_failed(engine):
    sink = Kept()
    with pytest.raises(hr.StepError):
        hr.from_items([0]).map("1 / value").write_to(sink, on=engine).run()
    assert sink.aborted
    assert sink.kept == []


def test_sources_are_found_by_name(rows, tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    assert rows(hr.read("csv", tmp_path / "a.csv")) == [(1,)]
    hr.from_items(["x"]).write("text", tmp_path / "out").run(on="box")
    assert rows(hr.read("text", tmp_path / "out")) == [("x",)]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: hr.from_arrow([1, 2]), "a list is not Arrow data"),
        (lambda: hr.from_items([]), "there is no record to learn the columns from"),
        (lambda: hr.from_items([None]), "there is no record to learn the columns from"),
        (lambda: hr.from_items([(1, 2)]), "a plain tuple has no names"),
        (lambda: hr.from_items([1, "x"]), "are of several types"),
        (lambda: hr.from_items(["x"], schema="bigint"), "a record does not fit the columns"),
        (lambda: hr.from_source(3), "3 is not a source"),
        (lambda: hr.generate(print, splits=0), "splits is a positive number"),
        (lambda: hr.generate(3, splits=1), "a function was expected"),
        (lambda: hr.from_spark(3), "from_spark takes a Spark DataFrame, not int"),
        (lambda: hr.from_items([1], schema={"a": "time"}), "'time' is not a type"),
    ],
)
def test_mistakes_are_refused_when_built(build, message):
    with pytest.raises(hr.PlanError, match=message):
        build()
