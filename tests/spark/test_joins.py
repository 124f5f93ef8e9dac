"""How Spark joins: in the Python workers, or by itself over files it reads; with one answer."""

from __future__ import annotations

import datetime
import decimal
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import col
from headrace.plan.stages import stages_of
from headrace.spark.parquet import reads_itself

ROWS = 400


def every_type(rows=ROWS, seed=0):
    """Columns of every plain type, a third of the values null."""

    def some(values):
        return [None if (i + seed) % 3 == 0 else values[i % len(values)] for i in range(rows)]

    days = [datetime.date(1582, 10, 4), datetime.date(1970, 1, 1), datetime.date(2024, 2, 29)]
    times = [datetime.datetime(1500, 3, 1, 1, 2, 3, 4), datetime.datetime(2024, 5, 1)]
    aware = [time.replace(tzinfo=datetime.UTC) for time in times]
    return pa.table(
        {
            "k": pa.array([(i * 7 + seed) % 97 for i in range(rows)], pa.int64()),
            "boolean": pa.array(some([True, False]), pa.bool_()),
            "byte": pa.array(some([-128, 127]), pa.int8()),
            "short": pa.array(some([-(2**15), 5]), pa.int16()),
            "int": pa.array(some([-(2**31), 3]), pa.int32()),
            "float": pa.array(some([0.0, -0.0, math.nan, 1.5]), pa.float32()),
            "double": pa.array(some([0.0, -0.0, math.nan, math.inf]), pa.float64()),
            "text": pa.array(some(["", "é", "a" * 40]), pa.string()),
            "words": pa.array(some(["x", "y"]), pa.string()).dictionary_encode(),
            "data": pa.array(some([b"", b"\xff\0"]), pa.binary()),
            "day": pa.array(some(days), pa.date32()),
            "time": pa.array(some(times), pa.timestamp("us")),
            "moment": pa.array(some(aware), pa.timestamp("us", "UTC")),
            "small": pa.array(some([decimal.Decimal("1.10"), decimal.Decimal("-9.99")]),
                              pa.decimal128(9, 2)),
            "large": pa.array(some([decimal.Decimal(10**30), decimal.Decimal(-1)]),
                              pa.decimal128(38, 0)),
        }
    )  # fmt: skip


@pytest.fixture
def files(tmp_path):
    left, right = tmp_path / "left.parquet", tmp_path / "right.parquet"
    pq.write_table(every_type(), left, row_group_size=150)
    pq.write_table(every_type(120, 1), right, compression="zstd")
    return hr.read_parquet(left), hr.read_parquet(right)


@pytest.fixture
def no_tables(monkeypatch):
    """No side is small enough to be sent to the workers."""
    monkeypatch.setattr("headrace.spark.lookups.SMALL", -1)


def plain(table):
    """Rows that compare: a NaN is itself, and 0.0 is not -0.0."""
    columns = [c.cast(pa.string()) if pa.types.is_floating(c.type) else c for c in table.columns]
    return sorted(zip(*(c.to_pylist() for c in columns), strict=True), key=repr)


def joins(left, right):
    """Joins by keys of several types, of columns of all of them."""
    some = right.filter(col("k") < 60).select("k", "double", "text", "large", "day", n=col("int"))
    yield left.join(right, on="k")
    yield left.join(some, on=["double", "text"], how="left")
    yield left.join(some, on=["large", "k"], how="outer")
    yield left.filter("day is not null").join(some, on="day", how="anti").sort("k", "text")


@pytest.mark.parametrize("number", range(4))
def test_what_spark_reads_and_joins_is_what_the_box_does(
    spark_engine, box_engine, files, no_tables, number
):
    stream = list(joins(*files))[number]
    assert "[read by Spark" in stream.explain(on=spark_engine)
    assert plain(stream.collect(on=spark_engine)) == plain(stream.collect(on=box_engine))


def test_a_small_side_is_looked_up_where_the_other_is_read(spark_engine, box_engine, files):
    left, right = files
    once = right.select("k", "moment").group_by("k").agg(last=hr.max("moment"))
    stream = (
        left.join(once, on="k")
        .join(right.filter("k < 50"), on="k", how="semi")
        .with_columns(odd=col("k") % 2)
        .group_by("odd")
        .agg(n=hr.count(), last=hr.max("last"), most=hr.max("large"))
    )
    text = stream.explain(on=spark_engine)
    assert text.count("[looked up in the Python worker: the right side is small]") == 2
    assert "[Spark SQL]" not in text
    assert plain(stream.collect(on=spark_engine)) == plain(stream.collect(on=box_engine))


def test_a_side_of_unknown_size_is_not_sent_to_every_task(spark_engine, no_tables):
    left, right = (hr.from_items([{"k": i, n: i} for i in range(50)]) for n in "ab")
    for other, strategy in ((right, "broadcast"), (hr.from_source(Own()), "merge")):
        frame = spark_engine.frame(left.join(other, on="k").node)
        assert f"rightHint=(strategy={strategy})" in frame._jdf.queryExecution().toString()


class Own:
    """A source that does not say how much there is."""

    schema = pa.schema([("k", pa.int64())])

    def splits(self, parallelism):
        return [self]

    def read(self, columns):
        yield pa.record_batch({"k": [1]})


def stage(table, tmp_path, name="t.parquet", build=lambda s: s, **options):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return stages_of(build(hr.read_parquet(path)).node)


TABLE = pa.table({"a": [1, 2], "b": ["x", "y"]})


@pytest.mark.parametrize(
    ("table", "options"),
    [
        (pa.table({"a": [[1]]}), {}),
        (pa.table({"a": [{"b": 1}]}), {}),
        (pa.table({"a": pa.array([1], pa.uint8())}), {}),
        (pa.table({"a": pa.array([1], pa.timestamp("ms"))}), {}),
        (pa.table({"a": pa.array([1], pa.timestamp("ns"))}),
         {"use_deprecated_int96_timestamps": True}),
        (pa.table({"a": pa.array([1.0], pa.float16())}), {}),
        (pa.table({"a": [1], "A": [2]}), {}),
        (pa.table({"a.b": [1]}), {}),
        (TABLE, {"compression": "brotli"}),
        (TABLE, {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED",
                 "columns": ["a"]}),
        (TABLE, {"name": "_hidden.parquet"}),
        (TABLE, {"name": ".hidden.parquet"}),
        (TABLE, {"name": "a[b].parquet"}),
        (TABLE, {"name": "day=1/t.parquet"}),
        (TABLE, {"name": "with space.parquet"}),
        (TABLE, {"build": lambda s: s.filter("a / 2 > 1")}),
        (TABLE, {"build": lambda s: s.filter(lambda r: r.a > 1)}),
        (TABLE, {"build": lambda s: s.select(c="cast(b as int)")}),
        (pa.table({"a": [datetime.date(2024, 1, 1)]}).replace_schema_metadata(
            {"org.apache.spark.version": "2.4.0"}), {}),
    ],
    ids=map(str, range(19)),
)  # fmt: skip
def test_what_spark_may_read_otherwise_is_read_by_us(tmp_path, table, options):
    table = table.select(options.pop("columns", table.column_names))
    assert not reads_itself(stage(table, tmp_path, **options))


def test_what_is_read_alike_is_left_to_spark(tmp_path):
    build = {"build": lambda s: s.filter((col("a") > 1) & col("b").is_in(["x"])).select("a")}
    assert reads_itself(stage(TABLE, tmp_path, **build))
    odd = TABLE.append_column("odd", pa.array([[1], [2]]))
    assert reads_itself(stage(odd, tmp_path, "odd.parquet", **build))
    assert not reads_itself(stage(odd, tmp_path, "odd.parquet"))
