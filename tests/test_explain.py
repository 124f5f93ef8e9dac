"""``explain``: the plan as it is, and where each step runs."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace import col

STREAM = (
    hr.from_items(range(10))
    .with_columns(twice="value * 2")
    .filter(col("twice") > 4)
    .map(t="twice")
    .map(lambda r: {"k": r.t % 3}, schema={"k": "bigint"})
    .group_by("k")
    .agg(n=hr.count())
    .sort("n", descending=True)
)


def test_the_plan_and_the_stages_are_shown():
    text = STREAM.explain()
    assert text.splitlines()[0] == "Logical plan"
    for line in (
        "sort n descending",
        "agg n = count() by k",
        "filter twice > 4",
        "with_columns twice = value * 2",
        "read a table of 10 records",
        "stage 0",
        "stage 2, after stage 1",
        "Columns: k: bigint, n: bigint",
    ):
        assert line in text
    assert text.index("stage 0") < text.index("stage 1, after stage 0")


def test_what_holds_the_interpreter_lock_is_told_and_why():
    stream = STREAM.map(lambda r: {"text": repr(r.n)}, schema={"text": "string"})
    lines = [line for line in stream.explain().splitlines() if "[" in line]
    locked = [line for line in lines if "holds the interpreter lock" in line]
    assert len(locked) == 1
    assert "a lambda at test_explain.py" in locked[0]
    assert locked[0].endswith("interpreter lock: it calls repr, which is not compiled]")
    assert any("a lambda" in line and "[native code]" in line for line in lines)
    assert any("filter twice > 4" in line and "[kernel]" in line for line in lines)
    assert any("sort n descending" in line and "[Spark SQL]" in line for line in lines)
    assert any(
        "agg n" in line and "state by shard after Spark's exchange" in line for line in lines
    )


def test_a_prompt_shows_it_as_it_is():
    text = hr.from_items([1]).explain()
    assert repr(text) == str(text)


def test_the_graph_is_a_mermaid_flowchart():
    joined = STREAM.join(hr.from_items([{"k": 1}]), on="k")
    graph = joined.explain("graph")
    assert graph.startswith("flowchart LR")
    assert graph.count("subgraph") == graph.count("  end") == 5
    assert "==>" in graph


def test_another_mode_is_refused():
    with pytest.raises(hr.PlanError, match=r"explain\('tree'\): use 'text' or 'graph'"):
        STREAM.explain("tree")


def test_a_stream_says_where_its_state_is_and_what_its_sink_promises(tmp_path):
    stream = hr.rate(10).event_time("at", delay="1s").window(hr.tumbling("5s")).count()
    outlet = stream.write_parquet(tmp_path / "out")
    on_spark, on_box = outlet.explain(on="spark"), outlet.explain(on="box")
    assert "state by shard of the keys in transformWithState" in on_spark
    assert "offsets in Spark's log" in on_spark
    assert on_spark.endswith(f"Output: parquet files in {tmp_path / 'out'}: exactly once")
    assert on_box.endswith(
        "exactly once with a checkpoint; without one a job that is killed begins anew"
    )
    kafka = stream.write_kafka("counts").explain(on="spark")
    assert kafka.endswith("Output: Kafka topic counts: at least once")
    table = stream.write_postgres("counts", "postgresql://host/db").explain(on="spark")
    assert table.endswith("Output: Postgres table counts: exactly once")
