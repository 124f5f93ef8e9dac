"""``flat_map``: any number of records for each record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headrace as hr
from headrace import col

LINES = ["To be, or not to be", "", "  -- that is\tthe Question!", None, "Ünïcode ΣΊΣΥΦΟΣ straße K"]


def test_elements_of_a_list_become_records(rows):
    stream = hr.from_items([{"id": 1, "xs": [1, 2]}, {"id": 2, "xs": []}, {"id": 3, "xs": None}])
    assert rows(stream.flat_map(col("xs"), name="x", keep="id")) == [(1, 1), (1, 2)]
    assert rows(stream.flat_map("xs", name="x")) == [(1,), (2,)]


PATTERNS = [r"\W+", "[^a-z]+", " ", ",", r"\s", "[aeiou]", "is|be"]


@pytest.fixture(scope="module")
def cut_by_spark(session):
    """The pieces that Spark SQL gives, for each pattern and of each case."""
    from pyspark.sql import functions as F

    frame = session.createDataFrame([(s,) for s in LINES], "line string")
    ways = [(p, lower) for p in PATTERNS for lower in (True, False)]
    lines = {True: F.lower("line"), False: F.col("line")}
    found = frame.select([F.split(lines[lower], p) for p, lower in ways]).collect()
    return {way: [piece for row in found for piece in row[i] or ()] for i, way in enumerate(ways)}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_split_cuts_as_spark_cuts(rows, cut_by_spark, pattern):
    lines = hr.from_items([{"line": s} for s in LINES])
    lowered = lines.flat_map(col("line").lower().split(pattern), name="w")
    as_it_is = lines.flat_map(col("line").split(pattern), name="w")
    assert [w for (w,) in rows(lowered)] == cut_by_spark[pattern, True]
    assert [w for (w,) in rows(as_it_is)] == cut_by_spark[pattern, False]


def test_empty_pieces_can_be_filtered_out(rows):
    words = hr.from_items([{"line": s} for s in LINES]).flat_map(
        col("line").split(r"\W+"), name="w"
    )
    kept = rows(words.filter(col("w") != ""))
    assert kept == [r for r in rows(words) if r != ("",)]


def test_a_function_may_yield(rows):
    def times(n: int) -> Iterator[int]:
        yield from (n, n * 2, n * 3)

    assert rows(hr.from_items([1, 2]).flat_map(times)) == [(1,), (2,), (3,), (2,), (4,), (6,)]


def test_a_lambda_may_return_a_list_of_records(rows):
    stream = hr.from_items(["a b", "c"]).flat_map(lambda s: [{"w": w} for w in s.split()])
    assert stream.columns == ["w"]
    assert rows(stream) == [("a",), ("b",), ("c",)]


def test_what_is_no_list_is_refused():
    with pytest.raises(hr.PlanError, match="step 2, flat_map: flat_map takes a list, not a bigint"):
        hr.from_items([1]).flat_map("value")


def test_keeping_an_unknown_column_is_refused():
    with pytest.raises(hr.PlanError, match="there is no column 'idd'; did you mean 'id'"):
        hr.from_items([{"id": 1, "xs": [1]}]).flat_map("xs", keep="idd")


def test_a_function_may_name_and_keep_columns(rows):
    stream = hr.from_items([{"id": 1, "text": "a b"}, {"id": 2, "text": "c"}])
    words = stream.flat_map(lambda r: r.text.split(), name="word", keep="id")
    assert words.columns == ["id", "word"]
    assert rows(words) == [(1, "a"), (1, "b"), (2, "c")]
