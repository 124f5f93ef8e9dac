"""Aggregates that depend on order or keep records, and a person's own."""

from __future__ import annotations

import statistics

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr

# Enough records for several splits, so that partials are really merged.
NUMBERS = [(n * 7919) % 10_007 for n in range(20_000)]
TABLE = pa.table(
    {"k": [n % 3 for n in range(20_000)], "v": NUMBERS, "t": [-n for n in range(20_000)]}
)


def by_key(key: int) -> list[int]:
    return NUMBERS[key::3]


def results(rows, **aggregates):
    return {r[0]: r[1:] for r in rows(hr.from_arrow(TABLE).group_by("k").agg(**aggregates))}


def test_first_and_last_follow_the_input_order(rows):
    got = results(rows, a=hr.first("v"), b=hr.last("v"))
    assert got == {k: (by_key(k)[0], by_key(k)[-1]) for k in range(3)}


def test_first_and_last_by_a_column(rows):
    got = results(rows, a=hr.first("v", by="t"), b=hr.last("v", by="t"))
    assert got == {k: (by_key(k)[-1], by_key(k)[0]) for k in range(3)}


def test_collect_keeps_the_input_order(rows):
    got = results(rows, c=hr.collect("v"))
    assert {k: v[0] for k, v in got.items()} == {k: by_key(k) for k in range(3)}


def test_top_k_is_a_list_of_the_largest(rows):
    got = results(rows, t=hr.top_k("v", 4), u=hr.top_k("v", 2, by="t"))
    for k in range(3):
        assert got[k][0] == sorted(by_key(k), reverse=True)[:4]
        assert got[k][1] == by_key(k)[:2]


def test_exact_and_approximate_distinct_counts(rows):
    got = results(rows, exact=hr.count_distinct("v"), about=hr.approx_distinct("v"))
    for k in range(3):
        exact = len(set(by_key(k)))
        assert got[k][0] == exact
        assert abs(got[k][1] - exact) < 0.12 * exact


def test_an_approximate_count_of_few_values_is_exact(rows):
    stream = hr.from_items([n % 500 for n in range(5000)] + [None], schema="bigint")
    assert rows(stream.agg(n=hr.approx_distinct("value"))) == [(500,)]


def test_distinct_pairs(rows):
    stream = hr.from_items(
        [{"a": 1, "b": "x"}, {"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": 2, "b": "x"}]
    )
    assert rows(stream.agg(n=hr.count_distinct("a", "b"))) == [(2,)]


median = hr.aggregate(
    partial=lambda values: values.drop_null().to_pylist(),
    merge=lambda a, b: a + b,
    finish=lambda values: statistics.median(values) if values else None,
    returns="double",
    name="median",
)


def test_a_persons_own_aggregate(rows):
    got = results(rows, m=median("v"), n=hr.count())
    assert {k: v[0] for k, v in got.items()} == {k: statistics.median(by_key(k)) for k in range(3)}


def test_an_own_aggregate_of_two_columns(rows):
    weighted = hr.aggregate(
        partial=lambda x, w: (pc.sum(pc.multiply(x, w)).as_py(), pc.sum(w).as_py()),
        merge=lambda a, b: (a[0] + b[0], a[1] + b[1]),
        finish=lambda s: s[0] / s[1],
        returns=float,
    )
    stream = hr.from_items([{"x": 1, "w": 1}, {"x": 4, "w": 3}])
    assert rows(stream.agg(m=weighted("x", "w"))) == [(13 / 4,)]


def test_aggregates_name_themselves():
    stream = hr.from_arrow(TABLE).group_by("k").agg(hr.sum("v"), hr.count(), median("v"))
    assert stream.columns == ["k", "sum_v", "count", "median_v"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: hr.top_k("v", 0), "positive number"),
        (lambda: hr.count_distinct(), "needs a column"),
        (lambda: hr.sum(3), "give a column's name"),
        (lambda: hr.aggregate(1, 2, returns="int"), "partial must be a function"),
        (lambda: hr.aggregate(max, max, returns="integr"), "'integr' is not a type"),
    ],
)
def test_mistakes_are_refused_when_built(build, message):
    with pytest.raises(hr.PlanError, match=message):
        build()


def test_functions_of_a_row_are_aggregated(rows):
    stream = hr.from_items([{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    got = stream.agg(
        s=hr.sum(lambda r: r.a * r.b), m=hr.max("a"), f=hr.last("a", by=lambda r: -r.a)
    )
    assert rows(got) == [(14, 3, 1)]


def test_a_decimal_sum_does_not_wrap(engine):
    values = pa.array(["9" * 38, "9" * 38]).cast(pa.decimal128(38, 0))
    with pytest.raises(hr.StepError, match=r"step 2, agg: decimal\(38,0\) overflow in 'sum'"):
        hr.from_arrow(pa.table({"x": values})).agg(s=hr.sum("x")).collect(on=engine)


def test_a_failing_aggregate_is_told(engine):
    def bad(values):
        raise ValueError("no good")

    broken = hr.aggregate(bad, lambda a, b: a, returns="bigint", name="broken")
    with pytest.raises(
        hr.StepError,
        match=r"(?s)broken\(v\) failed on 5000 records of a group.*ValueError: no good",
    ):
        hr.from_arrow(TABLE).agg(x=broken("v")).collect(on=engine)
    with pytest.raises(hr.StepError, match=r"step 2, agg failed on record .*division by zero"):
        hr.from_arrow(TABLE).agg(x=hr.sum("1 / (v - 7919)")).collect(on=engine)


def test_null_is_a_key(rows):
    stream = hr.from_items([1, 2]).group_by(k=hr.lit(None)).agg(n=hr.count())
    assert rows(stream) == [(None, 2)]


def test_a_result_may_be_an_expression_of_several_aggregates(rows):
    got = results(
        rows,
        spread=hr.max("v") - hr.min("v"),
        n=hr.count(),
        mean=(hr.sum("v") / hr.count()).round(3),
        label=hr.when(hr.count() > 6666).then("many"),
        scaled=hr.coalesce(hr.max("v"), 0) * 2 + hr.col("k"),
    )
    for k in range(3):
        values = by_key(k)
        assert got[k] == (
            max(values) - min(values),
            len(values),
            round(sum(values) / len(values), 3),
            "many" if len(values) > 6666 else None,
            max(values) * 2 + k,
        )


def test_expressions_of_aggregates_without_a_key_and_by_position(rows):
    stream = hr.from_arrow(TABLE)
    spread = (hr.max("v") - hr.min("v")).alias("spread")
    assert rows(stream.agg(spread, hr.count().alias("n"))) == [
        (max(NUMBERS) - min(NUMBERS), len(NUMBERS))
    ]


def test_expressions_of_aggregates_in_count_windows_and_running(rows):
    stream = hr.from_items([{"k": "a", "v": v} for v in (3, 1, 4, 1, 5, 9)])
    spread = {"spread": hr.max("v") - hr.min("v")}
    assert rows(stream.key_by("k").window(hr.count_window(3)).agg(**spread)) == [
        ("a", 0, 3),
        ("a", 1, 8),
    ]
    running = rows(stream.key_by("k").running(**spread))
    assert sorted(running) == sorted(
        [("a", 3, 0), ("a", 1, 2), ("a", 4, 3), ("a", 1, 3), ("a", 5, 4), ("a", 9, 8)]
    )
