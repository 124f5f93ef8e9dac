"""One expression has one answer: as a kernel in Spark's workers, as a Spark column, on the box."""

from __future__ import annotations

import functools
import math
import operator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr

TABLE = pa.table(
    {
        "id": [1, 2, 3],
        "s": ["É é", "naïve", "abc"],
        "z": [-0.0, 0.0, 1.0],
        "n": [math.nan, 1.5, math.inf],
        "b": pa.array([b"\xff\xfe", b"ab", None], pa.binary()),
        "ntz": pa.array([0, 1_721_830_123_456_789, -5], pa.timestamp("us")),
        "d": pa.array([Decimal("12.34"), Decimal("-0.01"), None], pa.decimal128(10, 2)),
        "l": pa.array([[0.0, -0.0], [math.nan, math.nan], None]),
        "w": ["10:00", "2020-01-02 03:04:05 PST", "epoch"],
        "e": ["12020-01-02", "２０２０-01-02", "x😀é y"],
    }
)
EXPRESSIONS = [
    "s rlike '(?i)É'",
    "s rlike '(?i)K'",
    r"s rlike '\\bna'",
    r"s rlike 'na\\b'",
    r"s rlike '\\bé'",
    r"regexp_replace(s, '\\b', '|')",
    r"split(s, '\\b')",
    "regexp_extract(s, '(?i)(é)', 1)",
    "atan2(z, z)",
    "atan2(-0.0, z)",
    "sign(z)",
    "timestamp_seconds(n)",
    "concat(b, b)",
    "try_cast(b as string)",
    "length(try_cast(b as string))",
    "try_cast('10:00' as timestamp)",
    "try_cast('T10:00:00' as timestamp)",
    "try_cast(w as timestamp)",
    "try_cast(w as timestamp_ntz)",
    "try_cast(w as date)",
    "datediff(try_cast(e as date), date '2020-01-01')",
    "cast('epoch' as date)",
    "cast('epoch' as timestamp)",
    "cast('2020-01-02 03:04:05 PST' as timestamp)",
    "date '2020-01-02' > 'epoch'",
    "year('epoch')",
    r"e rlike '\\bé\\b'",
    "regexp_replace(e, 'x*', '-')",
    "regexp_replace(e, '(?<=.)', '-')",
    "regexp_extract_all(e, 'x*', 0)",
    "split(e, 'x*')",
    "-9223372036854775808",
    "id > -9223372036854775808",
    "date_trunc('day', ntz)",
    "date_trunc('hour', ntz)",
    "d + d",
    "d * d",
    "d * 2",
    "d + 1000",
    "array_distinct(l)",
    "substring(s, -2147483648)",
    "substring(s, -2147483648, 3)",
    "substring(s, 2147483647)",
    "round(z, 1000)",
    "cast(z as string)",
    "case when null then 1 else id end",
    "case when if(null, null, null) then 1 when id = 2 then 3 end",
    "if(null, 1, id)",
]


def found(stream: hr.Stream, on: Any) -> dict[str, tuple[Any, ...]]:
    """What each expression gives, all of them in one job."""
    named = {f"v{i}": expression for i, expression in enumerate(EXPRESSIONS)}
    table = stream.select("id", **named).collect(on=on).sort_by("id")
    return {
        expression: (table.schema.field(name).type, repr(table.column(name).to_pylist()))
        for name, expression in named.items()
    }


@pytest.fixture(scope="module")
def answers(spark_engine: hr.Spark) -> list[dict[str, tuple[Any, ...]]]:
    """As kernels in Spark's workers, as columns of Spark, and on the box."""
    source = hr.from_arrow(TABLE)
    return [found(source, spark_engine), found(source.sort("id"), spark_engine),
            found(source, "box")]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_has_one_answer(answers: Any, expression: str) -> None:
    kernel, column, box = (found[expression] for found in answers)
    assert column == kernel
    assert box == kernel


def test_joins_and_groups_have_it_too(spark_engine: hr.Spark) -> None:
    source = hr.from_arrow(TABLE.select(["id", "b", "z"]))
    joined = source.join(source.select("id"), on="id")
    for engine in (spark_engine, "box"):
        grouped = joined.group_by(k="try_cast(b as string)").agg(n=hr.count())
        keys = grouped.collect(on=engine).column("k").to_pylist()
        assert sorted(keys, key=str) == sorted([None, "ab"], key=str)
        ordered = joined.sort("try_cast(b as string)", "id", descending=[True, False]).select("id")
        assert ordered.to_list(on=engine)[0].id == 2
        assert joined.filter("concat(b, b) = cast('abab' as binary)").count(on=engine) == 1


@pytest.mark.parametrize("after_a_sort", [False, True])
@pytest.mark.parametrize(
    "expression",
    ["cast(b as string)", "concat(s, b)", "cast(w as timestamp)", "cast('T10:00:00' as timestamp)"],
)
def test_a_value_that_cannot_be_cast_stops_the_job_in_both_places(
    engine: Any, expression: str, after_a_sort: bool
) -> None:
    source = hr.from_arrow(TABLE.select(["id", "b", "s", "w"]))
    source = source.sort("id") if after_a_sort else source
    with pytest.raises(hr.HeadraceError, match="use try_cast to get null instead"):
        source.select(v=expression).collect(on=engine)


@pytest.mark.parametrize("word", ["today", "now", "Tomorrow", " yesterday ", "today UTC"])
def test_text_that_asks_the_clock_is_refused(word: str) -> None:
    for text in (f"cast('{word}' as timestamp)", f"try_cast('{word}' as timestamp) is null"):
        with pytest.raises(hr.PlanError, match=r"step 2, select: .*depends on the clock"):
            hr.from_arrow(TABLE).select(v=text)


def test_a_chain_of_thousands_of_conditions_has_one_answer(engine: Any) -> None:
    source = hr.from_arrow(TABLE.select(["id"])).sort("id")
    either = functools.reduce(operator.or_, [hr.col("id") == n for n in range(2, 3_000)])
    both = functools.reduce(operator.and_, [hr.col("id") != n for n in range(2, 3_000)])
    text = " or ".join(f"id = {n}" for n in range(2, 3_000))
    table = source.select("id", a=either, b=both, c=text).collect(on=engine).sort_by("id")
    assert table.to_pydict() == {
        "id": [1, 2, 3], "a": [False, True, True], "b": [True, False, False],
        "c": [False, True, True],
    }  # fmt: skip


def test_a_sum_of_many_terms_takes_time_in_proportion(engine: Any) -> None:
    source = hr.from_arrow(TABLE.select(["id"])).sort("id")
    total = source.select(v=" + ".join(["id"] * 200)).collect(on=engine)
    assert sorted(total.column("v").to_pylist()) == [200, 400, 600]


@pytest.mark.parametrize("pattern", ["(?iu)É", "(?x)a b", r"\Ga", "(?d)a", "a{1,2", "[a"])
def test_a_pattern_that_cannot_be_had_is_refused_when_it_is_written(pattern: str) -> None:
    with pytest.raises(hr.PlanError, match="step 2, filter"):
        hr.from_arrow(TABLE).filter(hr.col("s").matches(pattern))


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(a*)*c", "(?:a+)+b"])
def test_a_pattern_that_re2_can_run_takes_no_time(pattern: str) -> None:
    """With a library that tries all ways these would take longer than anyone waits."""
    texts = hr.from_items([{"s": "a" * 5000 + "!"}])
    assert texts.filter(hr.col("s").matches(pattern)).count(on="box") == 0


@pytest.mark.parametrize("pattern", [r"(a+)+(?=b)", r"(a|ab?)*\1x", r"(?<=x)(a*)*c"])
def test_one_that_it_cannot_and_that_could_take_for_ever_is_refused(pattern: str) -> None:
    with pytest.raises(hr.PlanError, match="time without bound"):
        hr.from_items([{"s": "a"}]).filter(hr.col("s").matches(pattern))


@pytest.mark.parametrize("name", ["mid", "starts_with", "ends_with"])
def test_functions_that_spark_does_not_have_are_not_there(name: str) -> None:
    with pytest.raises(hr.PlanError, match=f"there is no function '{name}'"):
        hr.from_arrow(TABLE).select(v=f"{name}(s, 'a', 1)")
