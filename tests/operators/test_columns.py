"""``select``, ``with_columns``, ``drop``, ``rename``."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace import col

STREAM = hr.from_items([{"a": 1, "b": 2.5, "c": "x"}, {"a": 2, "b": None, "c": "y"}])


def test_select_takes_names_text_expressions_and_values(rows):
    stream = STREAM.select("c", "a * 2 as twice", col("b").alias("bb"), one=1, d="a + 1")
    assert stream.columns == ["c", "twice", "bb", "one", "d"]
    assert rows(stream) == [("x", 2, 2.5, 1, 2), ("y", 4, None, 1, 3)]


def test_with_columns_replaces_and_adds(rows):
    stream = STREAM.with_columns(a=col("a") * 10, e=hr.lit("k"))
    assert stream.columns == ["a", "b", "c", "e"]
    assert rows(stream) == [(10, 2.5, "x", "k"), (20, None, "y", "k")]


def test_with_columns_takes_a_function_of_a_row(rows):
    def label(row) -> str:
        return f"{row.c}{row.a}"

    assert rows(STREAM.with_columns(label=label).select("label")) == [("x1",), ("y2",)]


def test_drop_and_rename(rows):
    assert rows(STREAM.drop("b", "c")) == [(1,), (2,)]
    assert STREAM.rename(a="z").columns == ["z", "b", "c"]


def test_names_need_not_be_words(rows):
    stream = hr.from_items([{"NUMBER OF PERSONS": 3, "a.b": 1, "tick`": 2}])
    picked = stream.select(n=col("NUMBER OF PERSONS") + 1, dotted=col("a.b"), tick=col("tick`"))
    assert rows(picked) == [(4, 1, 2)]
    assert rows(stream.select("`NUMBER OF PERSONS` * 2 as m")) == [(6,)]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: STREAM.select("aa"), "step 2, select: there is no column 'aa'; did you mean 'a'"),
        (lambda: STREAM.select("a + d"), "step 2, select: there is no column 'd'"),
        (lambda: STREAM.select("a", "a"), "step 2, select: the column 'a' is named twice"),
        (lambda: STREAM.select(), "step 2, select: select needs at least one column"),
        (lambda: STREAM.drop("z"), "step 2, drop: there is no column 'z'"),
        (lambda: STREAM.drop("a", "b", "c"), "would drop every column"),
        (lambda: STREAM.rename(q="r"), "step 2, rename: there is no column 'q'"),
        (lambda: STREAM.with_columns(x="c + 1"), "'\\+' takes numbers, not string \\+ int"),
        (
            lambda: STREAM.select("lenght(c)"),
            "there is no function 'lenght'; did you mean 'length'",
        ),
        (lambda: STREAM.select("a +"), "step 2, select: cannot read the expression 'a \\+'"),
        (lambda: STREAM.select("sum(a)"), r"sum\(\) is an aggregate; use it in group_by"),
        (lambda: STREAM.select("substring(c)"), "substring takes"),
    ],
)
def test_mistakes_are_refused_when_built(build, message):
    with pytest.raises(hr.PlanError, match=message):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda: STREAM.rename(a="b"),
        lambda: STREAM.map("a as x", x="b"),
        lambda: STREAM.distinct("a", "a"),
        lambda: STREAM.group_by("a").fold(0, lambda s, r: s, name="a"),
        lambda: STREAM.flat_map("array(a)", name="e", keep=["b", "b"]),
    ],
)
def test_a_name_stands_for_one_column(build):
    with pytest.raises(hr.PlanError, match=r"would be there twice|named twice"):
        build()


@pytest.mark.parametrize("name", ["A", "e f", "a.b", "tick`", "_right_0", "__headrace"])
def test_any_name_goes_through_sort_join_and_aggregate(rows, name):
    stream = hr.from_items([{"a": 1, name: 2}, {"a": 3, name: 4}])
    sorted_stream = stream.sort(col(name), descending=True)
    assert rows(sorted_stream) == [(3, 4), (1, 2)]
    assert rows(sorted_stream.join(stream, on="a").group_by("a").agg(s=hr.sum(name)).sort("a")) == [
        (1, 2), (3, 4),
    ]  # fmt: skip


def test_functions_replace_order_and_map_columns(rows):
    assert rows(STREAM.with_columns(a=lambda r: -r.a).select("a", "c")) == [(-1, "x"), (-2, "y")]
    assert rows(STREAM.map(x=lambda r: r.a + 1, y="a")) == [(1, 2), (2, 3)]
    assert rows(STREAM.sort(lambda r: -r.a).select("a")) == [(2,), (1,)]
    assert rows(STREAM.top_k(1, by=lambda r: -r.a).select("a")) == [(1,)]
    assert STREAM.sort(lambda r: -r.a).columns == STREAM.columns
