"""An aggregate of no records is one record, whatever came before it."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.testing import seconds

NONE = hr.from_items([{"a": 1, "at": seconds(1)}]).filter("a > 5")

AFTER = {
    "filter": NONE,
    "distinct": NONE.distinct(),
    "group_by": NONE.group_by("a").agg(m=hr.count()),
    "top_k": NONE.top_k(3, by="a"),
    "top_k of a key": NONE.key_by("a").top_k(3, by="a"),
    "limit": NONE.limit(3),
    "shuffle": NONE.shuffle(),
    "key_by": NONE.key_by("a").together(),
    "sort": NONE.sort("a"),
    "join": NONE.join(NONE, on="a"),
    "union": NONE.distinct().union(NONE.limit(2)),
    "window": NONE.event_time("at").key_by("a").window(hr.tumbling("1s")).agg(m=hr.count()),
    "sliding": NONE.event_time("at").key_by("a").window(hr.sliding("2s", "1s")).agg(m=hr.count()),
    "session": NONE.event_time("at").key_by("a").window(hr.session("1s")).agg(m=hr.count()),
}


@pytest.mark.parametrize("name", AFTER)
def test_an_aggregate_of_nothing_is_one_record(engine: Any, name: str) -> None:
    found = AFTER[name].agg(n=hr.count(), total=hr.sum("a"), first=hr.first("a"))
    assert found.collect(on=engine).to_pylist() == [{"n": 0, "total": None, "first": None}]


def test_the_count_of_nothing_is_nought(engine: Any) -> None:
    assert AFTER["distinct"].count(on=engine) == 0
