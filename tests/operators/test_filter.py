"""``filter``: the records for which a condition is true."""

from __future__ import annotations

import math

import pytest

import headrace as hr
from headrace import col

DATA = [
    {"n": n, "zone": z} for n, z in [(5, "A1"), (15, "A2"), (25, None), (None, "A3"), (35, "B")]
]


@pytest.mark.parametrize(
    "condition",
    [
        "n > 10 and zone like 'A%'",
        (col("n") > 10) & col("zone").starts_with("A"),
        lambda r: r.n is not None and r.n > 10 and (r.zone or "").startswith("A"),
    ],
)
def test_text_expressions_and_functions_agree(rows, condition):
    assert rows(hr.from_items(DATA).filter(condition)) == [(15, "A2")]


def test_a_null_condition_is_not_true(rows):
    assert rows(hr.from_items(DATA).filter("n > 20")) == [(25, None), (35, "B")]
    assert rows(hr.from_items(DATA).filter("not (n > 20)")) == [(5, "A1"), (15, "A2")]


def test_nan_is_above_every_number(rows):
    stream = hr.from_items([1.0, math.nan, math.inf])
    assert len(rows(stream.filter("value > 2"))) == 2


def test_a_guard_protects_what_follows_it(rows):
    stream = hr.from_items([0, 1, 2])
    assert rows(stream.filter("value <> 0 and 10 / value > 6")) == [(1,)]


def test_an_overflow_names_the_record(engine):
    stream = hr.from_items([1, 2**62, 3]).filter("value * 4 > 0")
    with pytest.raises(
        hr.StepError, match=rf"step 2, filter failed on record {2**62}: bigint overfl"
    ):
        stream.collect(on=engine)


def test_nothing_left_is_an_empty_table(engine):
    table = hr.from_items(DATA).filter("n > 1000").collect(on=engine)
    assert table.num_rows == 0
    assert table.schema.names == ["n", "zone"]


def test_what_is_no_condition_is_refused():
    with pytest.raises(
        hr.PlanError, match="step 2, filter: a filter takes a condition, not a bigint"
    ):
        hr.from_items(DATA).filter("n + 1")
