"""What is left out of a plan before it runs, and that nobody can tell by its results."""

from __future__ import annotations

import random

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace import col
from headrace.plan.joins import Join
from headrace.plan.optimise import optimised
from headrace.plan.order import Limit, Sort
from headrace.plan.sources import Read
from headrace.plan.stages import in_order, stages_of
from headrace.plan.time import nodes_of
from tests.conftest import tuples

LEFT = pa.table({"k": [1, 2, 2, None, 3, 5], "a": list("xyzxyz"), "b": range(6), "c": [7.5] * 6})
RIGHT = pa.table({"k": [2, 3, 3, None, 4], "a": list("pqrst"), "d": range(5), "e": [True] * 5})


def left():
    return hr.from_arrow(LEFT)


def right():
    return hr.from_arrow(RIGHT)


def read_columns(stream):
    """The columns that are read of each source."""
    stages = in_order(stages_of(optimised([stream.node])[0]))
    return [list(s.schema.names) for s in stages if isinstance(s.head, Read)]


def test_a_join_is_given_the_columns_that_are_used_after_it():
    joined = left().join(right(), on="k").filter(col("e")).group_by("a").agg(n=hr.sum("d"))
    assert read_columns(joined) == [["k", "a"], ["k", "d", "e"]]
    assert read_columns(left().join(right(), on="k", how="anti")) == [["k", "a", "b", "c"], ["k"]]
    assert read_columns(left().join(right(), on="k").agg(n=hr.count())) == [["k"], ["k"]]
    assert read_columns(left().join(right(), on="k").select("a_right")) == [["k"], ["k", "a"]]


def test_so_are_a_sort_and_a_union_and_no_python_function_loses_any():
    assert read_columns(left().sort("b").select("a")) == [["a", "b"]]
    assert read_columns(left().union(left()).select("b")) == [["b"]] * 2
    mapped = left().sort("b").map(lambda r: {"n": 1}, schema={"n": "bigint"})
    assert read_columns(mapped) == [LEFT.column_names]


def test_a_sort_before_a_limit_keeps_no_more_than_that():
    def first(stream):
        return [n.first for n in nodes_of(optimised([stream.node])[0]) if isinstance(n, Sort)]

    ordered = left().sort("b")
    assert first(ordered.limit(3)) == [3]
    assert first(ordered) == [None]
    assert first(ordered.limit(3).union(ordered)) == [None]


def test_what_several_outputs_read_stays_one_step():
    shared = left().join(right(), on="k")
    outputs = [shared.select("a").node, shared.select("d").node]
    joins = {id(n) for each in optimised(outputs) for n in nodes_of(each) if isinstance(n, Join)}
    assert len(joins) == 1
    assert optimised([shared.node])[0] is shared.node


def test_plans_with_event_time_are_left_alone():
    timed = hr.from_arrow(LEFT).with_columns(at="timestamp_seconds(b)").event_time("at")
    node = timed.sort("b").limit(2).select("a").node
    assert optimised([node]) == [node]


SHAPES = [
    lambda s: s.filter("b > 1"),
    lambda s: s.filter(lambda r: r.b != 2),
    lambda s: s.with_columns(b="b + 1"),
    lambda s: s.join(right(), on="k", how="left").select("k", "a", "b", "c", d2="d"),
    lambda s: s.join(right().filter("d > 0"), on="k", suffix="_x").drop("e"),
    lambda s: s.join(right(), on=["k", "a"], how="outer"),
    lambda s: s.join(right(), left_on="b", right_on="d", how="right"),
    lambda s: s.join(s.select("k", z="b"), on="k"),
    lambda s: s.join(right(), on="k", how="semi"),
    lambda s: right().select("k", "a", b="d", c="1.5").join(s.select("k"), on="k", how="anti"),
    lambda s: s.union(s),
    lambda s: s.sort("a", "b", "k").limit(4),
    lambda s: s.limit(100),
    lambda s: s.flat_map("array(a, a)", name="a", keep=["k", "b", "c"]),
    lambda s: s.group_by("k", "a").agg(b=hr.max("b"), c=hr.min("c")),
]
ENDS = [
    lambda s: s,
    lambda s: s.select("a"),
    lambda s: s.select("b", "c"),
    lambda s: s.agg(n=hr.count()),
    lambda s: s.group_by("a").agg(n=hr.count(), m=hr.max("b")),
]


@hypothesis.settings(max_examples=150)
@given(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4), st.sampled_from(ENDS))
def test_results_are_those_of_the_plan_as_it_was(shapes, end):
    stream = left()
    for shape in shapes:
        try:
            stream = shape(stream)
        except hr.PlanError:  # a column is gone, or would be there twice
            continue
    try:
        stream = end(stream)
    except hr.PlanError:
        return
    box = hr.Box(workers=2, debug=True)
    got = tuples(stream.collect(on=box))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.box.run.optimised", list)
        want = tuples(stream.collect(on=box))
    assert sorted(got, key=repr) == sorted(want, key=repr)


@given(
    st.lists(st.sampled_from([1, 2, 3, None]), max_size=200), st.integers(0, 20), st.booleans(),
    st.sampled_from([1, 7, 64]),
)  # fmt: skip
def test_the_first_of_equal_records_are_those_that_came_first(keys, count, down, cut):
    random.Random(1).shuffle(keys)
    table = pa.table({"k": pa.array(keys, pa.int64()), "n": range(len(keys))})
    batches = table.to_batches(max_chunksize=cut)
    stream = hr.from_arrow(pa.Table.from_batches(batches, table.schema)).sort("k", descending=down)
    got = tuples(stream.limit(count).collect(on=hr.Box(workers=2)))
    assert got == tuples(stream.collect(on=hr.Box(workers=2)))[:count]
    assert isinstance(stream.limit(count).node, Limit)
