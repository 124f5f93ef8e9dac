"""``sort``, ``limit`` and ``top_k``: order, the same on every engine."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

import headrace as hr
from tests.conftest import for_all

VALUES = st.none() | st.sampled_from([0.0, 1.5, -2.0, math.nan, math.inf, -math.inf])


def rank(value, descending=False):
    """Nulls first, NaN above all; turned around for descending."""
    if value is None:
        place = (0, 0.0)
    else:
        place = (2, 0.0) if math.isnan(value) else (1, value)
    return tuple(-p for p in place) if descending else place


def test_sort_places_nulls_and_nan(engine):
    @for_all(engine, spark=8, values=st.lists(VALUES, max_size=12), descending=st.booleans())
    def _(values, descending):
        stream = hr.from_items(values, schema="double").sort("value", descending=descending)
        got = stream.to_list(on=engine)
        want = sorted(values, key=lambda v: rank(v, descending))
        assert [rank(v) for v in got] == [rank(v) for v in want]


def test_sort_by_several_columns(rows):
    data = [{"a": a, "b": b} for a in "xyz" for b in (3, 1, None, 2)]
    stream = hr.from_items(data).sort("a", "b", descending=[True, False])
    want = sorted(((d["a"], d["b"]) for d in data), key=lambda r: (-ord(r[0]), r[1] or 0))
    assert rows(stream) == want


def test_steps_after_a_sort_keep_its_order(engine, rows):
    stream = hr.from_items(range(5000)).shuffle().sort("value", descending=True)
    assert rows(stream.filter("value % 1000 = 0").map("value + 1")) == [
        (4001,), (3001,), (2001,), (1001,), (1,),
    ]  # fmt: skip

    def same(n: int) -> int:
        return n

    assert stream.map(same).limit(3).to_list(on=engine) == [4999, 4998, 4997]


def test_a_task_reads_no_further_than_a_limit_asks(spark_engine, tmp_path):
    def fails_late(batch):
        assert batch["n"][0].as_py() < 500_000, "read on"
        return batch

    pq.write_table(pa.table({"n": range(1_000_000)}), tmp_path / "n.parquet", row_group_size=10_000)
    stream = hr.read_parquet(tmp_path / "n.parquet").max_parallelism(1)
    stream = stream.map_batches(fails_late, schema={"n": "bigint"})
    first = stream.limit(5).collect(on=spark_engine)
    assert first["n"].to_pylist() == [0, 1, 2, 3, 4]


def test_limit_takes_the_first_records(rows):
    stream = hr.from_items(range(10_000))
    assert rows(stream.limit(3)) == [(0,), (1,), (2,)]
    assert rows(stream.limit(0)) == []
    assert len(rows(stream.limit(20_000))) == 10_000
    assert rows(stream.filter("value >= 9000").limit(2).map("value * 2")) == [(18000,), (18002,)]
    assert rows(stream.limit(100).agg(s=hr.sum("value"))) == [(4950,)]


def test_top_k_breaks_ties_by_the_other_columns(rows):
    data = [{"n": n % 4, "w": w} for n, w in enumerate("hgfedcba")]
    assert rows(hr.from_items(data).top_k(3, by="n")) == [(3, "a"), (3, "e"), (2, "b")]


def test_top_k_of_each_key(engine):
    record = st.tuples(st.sampled_from("ab"), VALUES, st.integers(0, 5))

    @for_all(engine, spark=8, records=st.lists(record, max_size=30), k=st.integers(1, 4))
    def _(records, k):
        data = [{"key": a, "x": x, "i": i} for a, x, i in records]
        stream = hr.from_items(data, schema={"key": "string", "x": "double", "i": "bigint"})
        got = stream.group_by("key").top_k(k, by="x").collect(on=engine).to_pylist()
        for key in "ab":
            mine = [(rank(r["x"], True), r["i"]) for r in got if r["key"] == key]
            want = sorted((rank(d["x"], True), d["i"]) for d in data if d["key"] == key)[:k]
            assert mine == want


def test_top_k_of_many_records(rows):
    numbers = [(n * 7919) % 100_003 for n in range(100_000)]
    stream = hr.from_arrow(pa.table({"v": numbers, "k": [n % 7 for n in numbers]}))
    assert [r[0] for r in rows(stream.top_k(5, by="v"))] == sorted(numbers, reverse=True)[:5]
    got = rows(stream.group_by("k").top_k(2, by="v"))
    for k in range(7):
        best = sorted((n for n in numbers if n % 7 == k), reverse=True)[:2]
        assert [v for v, key in got if key == k] == best


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.sort(), "step 2, sort: sort needs a column"),
        (lambda s: s.sort("b"), "there is no column 'b'"),
        (lambda s: s.sort("xs"), "sort: a array<bigint> has no order"),
        (lambda s: s.sort("a", descending=[True, False]), "descending= has 2"),
        (lambda s: s.limit(-1), r"a limit is a number of records below 2\*\*31, not -1"),
        (lambda s: s.limit("3"), "a limit is a number of records"),
        (lambda s: s.top_k(0, by="a"), "positive number of records"),
        (lambda s: s.top_k(3, by="zz"), "there is no column 'zz'"),
    ],
)
def test_mistakes_are_refused_when_built(build, message):
    with pytest.raises(hr.PlanError, match=message):
        build(hr.from_items([{"a": 1, "xs": [1]}]))
