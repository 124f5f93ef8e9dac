"""``split`` and ``route``: each record goes one way, by the first condition that holds for it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import col
from tests.conftest import for_all, tuples

DATA = [
    {"x": x, "s": s}
    for x, s in [(5.0, "a"), (150.0, None), (None, "b"), (20.0, "c"), (math.nan, "d"), (-1.0, "")]
]
SCHEMA = {"x": "double", "s": "string"}


@pytest.mark.parametrize(
    "condition", ["x > 10", col("x") > 10, lambda r: r.x is not None and not r.x <= 10]
)
def test_a_split_has_what_matches_and_all_others(rows: Any, condition: Any) -> None:
    matching, rest = hr.from_items(DATA, schema=SCHEMA).split(condition)
    found = rows(matching.select("s").union(rest.select(s=hr.concat(hr.lit("not "), "s"))))
    assert found == [(None,), ("c",), ("d",), ("not a",), ("not b",), ("not ",)]


def test_a_record_goes_the_first_way_that_takes_it(rows: Any) -> None:
    routes = hr.from_items(DATA, schema=SCHEMA).route(
        big="x > 100", named=lambda r: r.s in ("a", "b"), small="x > 10"
    )
    big, named, small, rest = routes
    assert (routes.big, routes.named, routes["small"], routes.rest) == (big, named, small, rest)
    assert (repr(routes), len(routes), dir(routes)[0]) == (
        "Routes(big, named, small, rest)", 4, "big",
    )  # fmt: skip
    told = [s.select("s", way=hr.lit(n)) for n, s in zip("bnsr", routes, strict=True)]
    assert rows(told[0].union(*told[1:])) == [
        (None, "b"), ("d", "b"), ("a", "n"), ("b", "n"), ("c", "s"), ("", "r"),
    ]  # fmt: skip


def test_the_ways_together_have_every_record_once(engine: Any) -> None:
    values = st.one_of(st.none(), st.integers(-5, 5))

    @for_all(engine, box=60, spark=3, data=st.lists(st.tuples(values, values), max_size=30))
    def check(data: list[tuple[Any, Any]]) -> None:
        records = [{"a": a, "b": b} for a, b in data]
        stream = hr.from_items(records, schema={"a": "bigint", "b": "bigint"})
        ways = stream.route(
            one="a > b", two=lambda r: r.a is None, three="a + b = 3 or b is null", four="null"
        )
        told = [way.with_columns(way=hr.lit(i)) for i, way in enumerate(ways)]
        got = tuples(told[0].union(*told[1:]).collect(on=engine))

        def way(a: Any, b: Any) -> int:
            if a is not None and b is not None and a > b:
                return 0
            if a is None:
                return 1
            return 2 if b is None or a + b == 3 else 4

        assert Counter(got) == Counter((a, b, way(a, b)) for a, b in data)
        one, other = stream.split("a < 2")
        joined = one.union(other).collect(on=engine)
        assert Counter(tuples(joined)) == Counter(data)


def test_a_condition_sees_only_what_those_before_it_left(rows: Any) -> None:
    routes = hr.from_items([0, 1, 4]).route(zero="value = 0", large="10 / value < 5")
    assert rows(routes.large) == [(4,)]
    shown = hr.from_items([0, 1, 4]).route(zero="value = 0", other=lambda v: 10 / v < 5)
    assert rows(shown.other.union(shown.rest)) == [(4,), (1,)]


def test_a_function_is_asked_once_for_all_ways_of_a_job(box_engine: hr.Box) -> None:
    asked: list[int] = []

    def is_even(value: int) -> bool:
        asked.append(value)
        return value % 2 == 0

    even, odd = hr.from_items(range(100)).split(is_even)
    job = hr.start([even, odd.map("value * 2")], on=box_engine)
    assert job.wait(60)
    assert sorted(asked) == list(range(100))
    assert (job.result(0).num_rows, job.result(1).num_rows) == (50, 50)


def test_event_time_goes_along_and_columns_stay(rows: Any) -> None:
    at = [{"at": hr_time, "__route": i} for i, hr_time in enumerate(_times(6))]
    first, _ = hr.from_items(at).event_time("at").split("__route < 4")
    assert first.columns == ["at", "__route"]
    counts = first.window(hr.tumbling("2s")).agg(n=hr.count())
    assert [row[-1] for row in sorted(rows(counts))] == [2, 2]


def _times(count: int) -> list[Any]:
    from headrace import testing

    return [testing.seconds(i) for i in range(count)]


def test_mistakes_are_told() -> None:
    stream = hr.from_items(DATA, schema=SCHEMA)
    with pytest.raises(hr.PlanError, match="step 2, route: route needs conditions, such as big="):
        stream.route()
    with pytest.raises(hr.PlanError, match="'rest' are the records that no other route takes"):
        stream.route(rest="x > 1")
    with pytest.raises(hr.PlanError, match="a route cannot be called '_x'"):
        stream.route(_x="x > 1")
    with pytest.raises(hr.PlanError, match="step 2, route: 'big' is a double; a condition is true"):
        stream.route(big="x + 1")
    with pytest.raises(hr.PlanError, match="step 2, split: there is no column 'y'"):
        stream.split("y > 1")
    routes = stream.route(big="x > 100")
    with pytest.raises(AttributeError, match="there is no route 'bigg'; did you mean 'big'"):
        _ = routes.bigg
    with pytest.raises(KeyError, match="there is no route 'other'; there are: big, rest"):
        _ = routes["other"]


def test_a_failing_condition_names_itself_and_the_record(engine: Any) -> None:
    def odd(row: Any) -> bool:
        raise ValueError("no")

    way = hr.from_items(DATA, schema=SCHEMA).route(big="x > 100", odd=odd).odd
    with pytest.raises(hr.StepError, match=r"step 2, route \(odd: odd\) failed on record .*'a'"):
        way.collect(on=engine)
