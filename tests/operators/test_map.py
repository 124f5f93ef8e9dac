"""``map``: one record for each record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import pytest

import headrace as hr
from headrace import col


def test_an_expression_maps_values(rows):
    assert rows(hr.from_items([1, 2, 3]).map("value * 10")) == [(10,), (20,), (30,)]


def test_named_expressions_make_columns(rows):
    stream = hr.from_items([{"a": 1, "b": 2}]).map(total=col("a") + col("b"), twice="a * 2")
    assert stream.columns == ["total", "twice"]
    assert rows(stream) == [(3, 2)]


def test_a_function_of_a_plain_value_gets_the_value(rows):
    def double(x: int) -> int:
        return x * 2

    assert rows(hr.from_items(range(5)).map(double)) == [(0,), (2,), (4,), (6,), (8,)]


def test_a_function_of_a_row_sees_its_fields(rows):
    stream = hr.from_items([{"first name": "Ada", "born": 1815}])
    mapped = stream.map(lambda r: {"text": f"{r['first name']} {r.born} {r[1]}"})
    assert rows(mapped) == [("Ada 1815 1815",)]


@dataclass
class Point:
    x: int
    y: float


class Pair(NamedTuple):
    x: int
    y: float


class Fields(TypedDict):
    x: int
    y: float


@pytest.mark.parametrize("kind", [Point, Pair, Fields])
def test_columns_come_from_the_annotation(rows, kind):
    def make(n):
        return kind(x=n, y=n / 2)

    make.__annotations__["return"] = kind
    stream = hr.from_items([1, 2]).map(make)
    assert stream.schema.equals(hr.types.to_schema({"x": "bigint", "y": "double"}))
    assert rows(stream) == [(1, 0.5), (2, 1.0)]


def test_columns_come_from_an_example_run(rows):
    stream = hr.from_items([1, 2]).map(lambda n: {"n": n, "text": str(n)})
    assert stream.columns == ["n", "text"]
    assert rows(stream) == [(1, "1"), (2, "2")]


def test_columns_come_from_schema(rows):
    stream = hr.from_items([1, 2]).map(lambda n: None, schema="string")
    assert rows(stream) == [(None,), (None,)]


def test_without_records_the_columns_must_be_told():
    empty = hr.from_items([], schema="bigint")
    with pytest.raises(hr.PlanError, match=r"step 2, map: .*annotate what it returns"):
        empty.map(lambda n: n + 1)
    assert empty.map(lambda n: n + 1, schema="bigint").columns == ["value"]


def test_a_failing_function_shows_the_record_the_step_and_the_line(engine):
    def reciprocal(n: int) -> float:
        return 1 / (n - 700)

    stream = hr.from_items(range(1000)).filter("value >= 0").map(reciprocal)
    with pytest.raises(hr.StepError) as caught:
        stream.collect(on=engine)
    text = str(caught.value)
    assert "step 3, map (reciprocal) failed on record 700: ZeroDivisionError" in text
    assert "test_map.py" in text
    assert "return 1 / (n - 700)" in text


def test_a_result_that_does_not_fit_is_told(engine):
    def wrong(n: int) -> int:
        return n if n < 3 else "three"

    with pytest.raises(hr.StepError, match=r"step 2, map \(wrong\) failed on result 'three'"):
        hr.from_items(range(5)).map(wrong).collect(on=engine)


def test_map_over_nulls(rows):
    stream = hr.from_items([1, None, 3], schema="bigint").map("coalesce(value, 0) + 1")
    assert rows(stream) == [(2,), (1,), (4,)]


def test_a_fraction_is_never_cut_to_fit(engine):
    stream = hr.from_items(range(100)).map(lambda n: n if n < 50 else n + 0.5)
    with pytest.raises(hr.StepError, match=r"failed on result 50.5: .*50.5 is not a bigint"):
        stream.collect(on=engine)


@dataclass
class Value:
    value: int


@dataclass
class Line:
    start: Point
    tags: list[str]


def test_records_of_one_field_and_nested_records(rows):
    assert rows(hr.from_items([Value(1)]).map(lambda n: Value(n + 1))) == [(2,)]
    lines = hr.from_items([1]).map(lambda n: Line(Point(n, 0.5), ["a"]))
    assert rows(lines) == [({"x": 1, "y": 0.5}, ["a"])]

    def maybe(n: int) -> Point | None:
        return Point(n, 1.0)

    def counts(n: int) -> dict[str, int]:
        return {"a": n}

    assert rows(hr.from_items([3]).map(maybe)) == [(3, 1.0)]
    assert rows(hr.from_items([3]).map(counts)) == [([("a", 3)],)]
