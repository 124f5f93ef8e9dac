"""``group_by`` and ``agg`` against an independent engine, DuckDB."""

from __future__ import annotations

import math
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import col
from tests.conftest import for_all

KEYS = {
    "int": st.none() | st.integers(-3, 3),
    "big": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2),
    "text": st.none() | st.sampled_from(["", "a", "b", "a" * 16, "a" * 17, "a" * 40, "é😀", "\0"]),
    "flag": st.none() | st.booleans(),
    "real": st.sampled_from([0.5, 1.0, 2.0]) | st.none(),
}
RECORD = st.fixed_dictionaries(
    {
        **KEYS,
        "v": st.none() | st.integers(-1000, 1000),
        "x": st.none() | st.integers(-800, 800).map(lambda n: n / 8),
        "s": st.none() | st.text("abcé", max_size=20),
    }
)
SCHEMA = hr.types.to_schema(
    {"int": "int", "big": "bigint", "text": "string", "flag": "boolean", "real": "double",
     "v": "bigint", "x": "double", "s": "string"}
)  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    return bool(a == b)


def assert_same_groups(mine: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> None:
    def order(row: tuple[Any, ...]) -> str:
        return repr(tuple(round(v, 6) if isinstance(v, float) else v for v in row))

    mine, theirs = sorted(mine, key=order), sorted(theirs, key=order)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert all(map(same, a, b)), f"{a} is not {b}"


def test_aggregates_of_any_keys(engine):
    some = st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=4, unique=True)

    @for_all(engine, box=40, spark=12, records=st.lists(RECORD, max_size=60), keys=some)
    def _(records, keys):
        input = pa.Table.from_pylist(records, schema=SCHEMA)
        stream = hr.from_arrow(input).group_by(*keys).agg(
            n=hr.count(), nv=hr.count("v"), total=hr.sum("v"), sx=hr.sum("x"), lo=hr.min("x"),
            hi=hr.max("v"), first=hr.min("s"), last=hr.max("s"), mean=hr.mean("v"),
            var=hr.var("x"), std=hr.std("v"), kinds=hr.count_distinct("s"),
        )  # fmt: skip
        names = ", ".join(f'"{k}"' for k in keys)
        expected = duckdb.sql(
            f"select {names}, count(*), count(v), sum(v)::bigint, sum(x), min(x), max(v), min(s), "
            f"max(s), avg(v), var_samp(x), stddev_samp(v), count(distinct s) "
            f"from input group by {names}"
        ).fetchall()
        got = stream.collect(on=engine)
        assert_same_groups(list(zip(*(c.to_pylist() for c in got.columns), strict=True)), expected)


def test_many_skewed_groups(rows):
    numbers = [int(n**1.5) % 4001 if n % 3 else 0 for n in range(60_000)]
    input = pa.table({"k": numbers, "t": [f"key number {n}" for n in numbers], "v": range(60_000)})
    got = rows(hr.from_arrow(input).group_by("t", "k").agg(n=hr.count(), v=hr.sum("v")))
    want = duckdb.sql("select t, k, count(*), sum(v)::bigint from input group by t, k").fetchall()
    assert sorted(got) == sorted(want)


def test_wide_records(rows):
    wide = {f"c{i}": [i, i + 1, None] for i in range(120)}
    stream = hr.from_arrow(pa.table({"k": ["a", "b", "a"], **wide}))
    got = rows(stream.group_by("k").agg(**{f"s{i}": hr.sum(f"c{i}") for i in range(120)}))
    assert sorted(got) == [("a", *range(120)), ("b", *range(1, 121))]


def test_keys_may_be_expressions_and_functions(rows):
    stream = hr.from_items(range(10))

    def parity(n: int) -> str:
        return "odd" if n % 2 else "even"

    assert sorted(rows(stream.group_by(low=col("value") < 3).agg(n=hr.count()))) == [
        (False, 7), (True, 3),
    ]  # fmt: skip
    assert sorted(rows(stream.group_by(parity).agg(t=hr.sum("value")))) == [
        ("even", 20),
        ("odd", 25),
    ]


def test_nan_is_one_key_and_so_are_both_zeros(rows):
    stream = hr.from_items([math.nan, -0.0, 0.0, float("nan"), 1.0])
    got = {str(k): n for k, n in rows(stream.group_by("value").agg(n=hr.count()))}
    assert got == {"nan": 2, "0.0": 2, "1.0": 1}


def test_without_keys_there_is_one_record_even_of_nothing(rows):
    empty = hr.from_items([], schema="bigint")
    aggregates = {
        "n": hr.count(),
        "s": hr.sum("value"),
        "m": hr.mean("value"),
        "c": hr.collect("value"),
    }
    assert rows(empty.agg(**aggregates)) == [(0, None, None, [])]
    assert rows(hr.from_items([1, 2]).filter("value > 5").agg(**aggregates)) == [
        (0, None, None, [])
    ]
    assert rows(empty.group_by("value").agg(n=hr.count())) == []


def test_a_sum_that_overflows_is_refused(engine):
    stream = hr.from_items([2**62, 2**62]).agg(s=hr.sum("value"))
    with pytest.raises(hr.HeadraceError, match="bigint overflow in 'sum'"):
        stream.collect(on=engine)


def test_decimals_are_summed_exactly(rows):
    cents = pa.array(["0.10", "0.20", None, "999999.70"]).cast(pa.decimal128(8, 2))
    got = rows(hr.from_arrow(pa.table({"x": cents})).agg(s=hr.sum("x"), lo=hr.min("x")))
    assert [str(v) for v in got[0]] == ["1000000.00", "0.10"]


def test_a_pipeline_goes_on_after_an_aggregate(rows):
    stream = (
        hr.from_items(range(1000))
        .group_by(k=col("value") % 10).agg(s=hr.sum("value"))
        .filter("s > 49500").map(half="s / 2")
        .agg(n=hr.count(), top=hr.max("half"))
    )  # fmt: skip
    sums = [sum(range(k, 1000, 10)) for k in range(10)]
    big = [s / 2 for s in sums if s > 49500]
    assert rows(stream) == [(len(big), max(big))]


def test_the_same_key_from_two_sources_meets(rows):
    a = hr.from_items([{"k": "x", "v": 1}, {"k": "y", "v": 2}])
    b = hr.from_items([{"k": "x", "v": 10}])
    assert sorted(rows(a.union(b).group_by("k").agg(v=hr.sum("v")))) == [("x", 11), ("y", 2)]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.group_by("kk"), "step 2, group_by: there is no column 'kk'; did you mean 'k'"),
        (lambda s: s.group_by("k").agg(), "agg needs at least one aggregate"),
        (lambda s: s.group_by("k").agg(n=3), "n=3 is not an aggregate"),
        (
            lambda s: s.group_by("k").agg(x=hr.sum("k")),
            r"step 2, agg: sum\(k\) takes numbers, not st",
        ),
        (lambda s: s.group_by("k").agg(k=hr.count()), "'k' is a key"),
        (lambda s: s.group_by("xs").agg(n=hr.count()), "a array<bigint> cannot be a key"),
        (lambda s: s.agg(x=hr.mean("xs")), "takes numbers"),
        (lambda s: s.agg(x=hr.min("vv")), "did you mean 'v'"),
    ],
)
def test_mistakes_are_refused_when_built(build, message):
    stream = hr.from_items([{"k": "a", "v": 1, "xs": [1]}])
    with pytest.raises(hr.PlanError, match=message):
        build(stream)


def test_the_shard_of_a_key_does_not_depend_on_the_split(rows):
    words = pa.table({"w": [f"word{n % 977}" for n in range(30_000)]})
    got = rows(hr.from_arrow(words).group_by("w").agg(n=hr.count()))
    counts = {d["values"]: d["counts"] for d in pc.value_counts(words["w"]).to_pylist()}
    assert dict(got) == counts
    assert len(got) == 977
