"""``from_spark``: a DataFrame goes in, plain Spark columns come of expressions."""

from __future__ import annotations

import datetime

import pytest

import headrace as hr
from headrace import col


@pytest.fixture
def frame(session):
    return session.createDataFrame(
        [(1, "a", 1.5, datetime.date(2020, 1, 1)), (2, "b", None, None), (3, "a", 2.5, None)],
        "n int, s string, x double, d date",
    )


def plan_text(engine, stream):
    return engine.frame(stream.node)._jdf.queryExecution().toString()


def test_expressions_use_no_python(spark_engine, frame):
    stream = (
        hr.from_spark(frame)
        .filter(col("n") > 0)
        .with_columns(twice="n * 2", words=col("s").split("x"))
        .flat_map("words", name="w", keep=["s", "twice"])
        .group_by("s")
        .agg(n=hr.count(), t=hr.sum("twice"), d=hr.count_distinct("w"))
        .sort("s")
    )
    text = plan_text(spark_engine, stream)
    assert "Python" not in text
    assert "MapInArrow" not in text
    assert stream.collect(on=spark_engine).to_pylist() == [
        {"s": "a", "n": 2, "t": 8, "d": 1},
        {"s": "b", "n": 1, "t": 4, "d": 1},
    ]


def test_every_explanation_is_true(spark_engine, frame):
    stream = hr.from_spark(frame).filter("n > 1").map(lambda r: {"k": r.n}, schema={"k": "int"})
    text = stream.explain(on=spark_engine)
    assert "[Spark columns]" in text
    assert "native" in text
    held = hr.from_spark(frame).map(lambda r: {"k": repr(r)}, schema={"k": "string"})
    assert "holds the interpreter lock" in held.explain(on=spark_engine)


def test_functions_run_where_they_stand(spark_engine, frame):
    stream = (
        hr.from_spark(frame).filter("n > 1").map(lambda r: {"k": r.s * r.n}, schema={"k": "string"})
        .filter("length(k) > 2")
    )  # fmt: skip
    assert stream.collect(on=spark_engine).to_pylist() == [{"k": "aaa"}]


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.group_by("s").agg(c=hr.collect("n"), f=hr.top_k("x", 1)),
        lambda s: s.distinct("s"),
        lambda s: s.limit(2),
        lambda s: s.top_k(2, by="n"),
        lambda s: s.group_by("s").top_k(1, by="x"),
        lambda s: s.key_by("s").map_batches(lambda b: b, schema=s.schema),
        lambda s: s.shuffle(),
        lambda s: s.max_parallelism(1),
        lambda s: s.union(s),
        lambda s: s.join(s, on="n"),
        lambda s: s.agg(n=hr.count(), m=hr.mean("x"), v=hr.std("x")),
        lambda s: s.with_columns(p="year(d) + n", q="x is null"),
    ],
)
def test_a_frame_and_a_table_give_the_same(spark_engine, frame, build):
    table = hr.from_spark(frame).collect(on=spark_engine)
    mine = build(hr.from_arrow(table)).collect(on=spark_engine).to_pylist()
    theirs = build(hr.from_spark(frame)).collect(on=spark_engine).to_pylist()
    assert sorted(map(repr, mine)) == sorted(map(repr, theirs))


def test_a_result_goes_on_as_a_frame(spark_engine):
    frame = spark_engine.frame(hr.from_items([1, 2, 3]).filter("value > 1").node)
    assert sorted(r.value for r in frame.collect()) == [2, 3]


def test_a_session_is_an_engine_and_is_left_running(session):
    assert hr.from_items([1]).to_list(on=session) == [1]
    assert session.range(1).count() == 1


def test_the_sessions_time_zone_changes_nothing(session):
    at = datetime.datetime(2020, 7, 1, 3, tzinfo=datetime.UTC)
    stream = hr.from_items([{"t": at}])
    frame = session.createDataFrame([(at,)], "t timestamp")
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for source in (stream, hr.from_spark(frame)):
            assert source.map("hour(t)").to_list(on=session) == [3]
            wall = source.time_zone("America/New_York")
            assert wall.map("hour(t)").to_list(on=session) == [23]
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda f: hr.from_spark(f).select("m"), "there is no column 'm'"),
        (lambda f: hr.from_spark(f.select("n", "n")), "has the column 'n' twice"),
        (lambda f: hr.from_spark(f).map(lambda r: 1), "annotate what it returns"),
        (lambda f: hr.Spark(session=f.sparkSession, master="local"), "has its master"),
        (lambda f: hr.from_items([1]).collect(on="flink"), "there is no engine 'flink'"),
        (lambda f: hr.from_items([1]).collect(on=3), "on=3 is not an engine"),
    ],
)
def test_mistakes_are_refused_when_built(frame, build, message):
    with pytest.raises(hr.PlanError, match=message):
        build(frame)


def test_a_session_without_ansi_mode_gives_our_answers(session, frame):
    session.conf.set("spark.sql.ansi.enabled", "false")
    try:
        for stream in (
            hr.from_spark(frame),
            hr.from_arrow(hr.from_spark(frame).collect(on=session)),
        ):
            with pytest.raises(hr.HeadraceError, match=r"(?i)by.zero"):
                stream.map("10 / (n - 1)").collect(on=session)
        assert session.conf.get("spark.sql.ansi.enabled") == "false"
    finally:
        session.conf.set("spark.sql.ansi.enabled", "true")


def test_only_the_columns_a_kernel_needs_leave_spark(spark_engine, frame):
    stream = hr.from_spark(frame).agg(n=hr.approx_distinct("s"))
    assert stream.collect(on=spark_engine).to_pylist() == [{"n": 2}]
    text = plan_text(spark_engine, stream)
    physical = text[text.index("Physical Plan") :]
    reads = [line for line in physical.splitlines() if "Project [" in line]
    assert any("s#" in line for line in reads)
    assert not any("x#" in line for line in reads)
