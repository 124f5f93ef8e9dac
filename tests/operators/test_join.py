"""``join`` and ``union``."""

from __future__ import annotations

import datetime

import duckdb
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import testing
from tests.conftest import for_all

SIDE = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.none() | st.integers(0, 3),
            "j": st.none() | st.sampled_from("ab"),
            "v": st.integers(0, 9),
        }
    ),
    max_size=8,
)
SCHEMA = hr.types.to_schema({"k": "bigint", "j": "string", "v": "bigint"})
SQL = {
    "inner": "select a.k, a.j, a.v, b.v from a join b on a.k = b.k and a.j = b.j",
    "left": "select a.k, a.j, a.v, b.v from a left join b on a.k = b.k and a.j = b.j",
    "right": "select b.k, b.j, a.v, b.v from a right join b on a.k = b.k and a.j = b.j",
    "outer": "select coalesce(a.k, b.k), coalesce(a.j, b.j), a.v, b.v "
    "from a full join b on a.k = b.k and a.j = b.j",
    "semi": "select * from a where exists (select 1 from b where a.k = b.k and a.j = b.j)",
    "anti": "select * from a where not exists (select 1 from b where a.k = b.k and a.j = b.j)",
}


def test_every_kind_of_join(engine):
    @for_all(engine, box=10, spark=3, left=SIDE, right=SIDE)
    def _(left, right):
        a, b = (pa.Table.from_pylist(side, schema=SCHEMA) for side in (left, right))
        for how, query in SQL.items():
            stream = hr.from_arrow(a).join(hr.from_arrow(b), on=["k", "j"], how=how)
            got = stream.collect(on=engine)
            want = duckdb.sql(query).fetchall()
            mine = list(zip(*(c.to_pylist() for c in got.columns), strict=True))
            assert sorted(mine, key=repr) == sorted(want, key=repr), how


def test_keys_of_other_names_and_clashing_columns(rows):
    a = hr.from_items([{"id": 1, "name": "x"}, {"id": 2, "name": "y"}])
    b = hr.from_items([{"ref": 1, "name": "z", "id": 7}])
    stream = a.join(b, left_on="id", right_on="ref")
    assert stream.columns == ["id", "name", "name_right", "id_right"]
    assert rows(stream) == [(1, "x", "z", 7)]


def test_a_stream_joins_itself_and_goes_on(rows):
    words = hr.from_items([{"w": w} for w in "abcab"])
    counts = words.group_by("w").agg(n=hr.count())
    assert sorted(rows(words.join(counts, on="w").filter("n > 1").select("w"))) == [
        ("a",), ("a",), ("b",), ("b",),
    ]  # fmt: skip
    twice = counts.join(counts, on="w", suffix="_2")
    assert sorted(rows(twice.group_by("n").agg(s=hr.sum("n_2")))) == [(1, 1), (2, 4)]


def test_python_functions_around_a_join(rows):
    def tag(row) -> dict:
        return {"k": row.k, "tag": f"t{row.k}"}

    a = hr.from_items([{"k": n} for n in range(4)])
    joined = a.map(tag).join(a.filter(lambda r: r.k % 2 == 0), on="k")
    assert sorted(rows(joined.map(lambda r: {"out": r.tag + "!"}, schema={"out": "string"}))) == [
        ("t0!",), ("t2!",),
    ]  # fmt: skip


def test_union_keeps_all_records_in_order(rows):
    a, b = hr.from_items([1, 2]), hr.from_items([2, 3])
    assert rows(a.union(b, a)) == [(1,), (2,), (2,), (3,), (1,), (2,)]
    assert rows(a.union(b).map("value * 10").filter("value > 10")) == [(20,), (20,), (30,)]
    assert rows(a.union(b).union(a).agg(s=hr.sum("value"))) == [(11,)]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda a, b: a.join(b, on="kk"),
            "step 2, join: there is no column 'kk'; did you mean 'k'",
        ),
        (
            lambda a, b: a.join(b, on="k", how="iner"),
            "how='iner' is not a join; did you mean 'inner'",
        ),
        (lambda a, b: a.join(b), "give on=, or both left_on= and right_on="),
        (
            lambda a, b: a.join(b.with_columns(k="cast(k as int)"), on="k"),
            "'k' is bigint on the left",
        ),
        (lambda a, b: a.join(3, on="k"), "3 is not a stream"),
        (lambda a, b: a.union(b.drop("v")), "step 2, union: the other stream has no column 'v'"),
        (
            lambda a, b: a.union(b.with_columns(v="cast(v as string)")),
            "'v' is bigint here and string",
        ),
        (lambda a, b: a.union(b.select("v", "k")), "the columns come in another order"),
    ],
)
def test_mistakes_are_refused_when_built(build, message):
    a = hr.from_items([{"k": 1, "v": 2}])
    with pytest.raises(hr.PlanError, match=message):
        build(a, hr.from_items([{"k": 1, "v": 2}]))


NOON = datetime.datetime(2026, 7, 1, 12)
TWO_INPUTS = {
    "union": lambda a, b: a.union(b),
    "join": lambda a, b: a.join(b, on="at"),
    "join, other names": lambda a, b: a.join(b, left_on="at", right_on="at", how="anti"),
    "join_within": lambda a, b: a.join_within(b, on="k", before="1h"),
    "zip": lambda a, b: a.zip(b),
    "join_within of pairs": lambda a, b: a.zip(a).join_within(b, on="k"),
    "zip of windows": lambda a, b: a.window(hr.tumbling("1h")).count("n").zip(b),
}


@pytest.mark.parametrize("step", TWO_INPUTS)
@pytest.mark.parametrize("bounded", [True, False])
def test_times_with_and_without_a_time_zone_do_not_mix(step, bounded):
    def timed(at):
        script = [testing.records({"k": 1, "at": at})]
        return testing.script(script, bounded=bounded, ends=True).event_time("at", delay="1s")

    naive, aware = timed(NOON), timed(NOON.replace(tzinfo=datetime.UTC))
    for one, other in ((naive, aware), (aware, naive)):
        with pytest.raises(hr.PlanError, match=r"timestamp\b.* timestamp_ntz\b|_ntz.* timestamp\b"):
            TWO_INPUTS[step](one, other)


@pytest.mark.parametrize("step", ["join", "join_within", "zip"])
def test_times_mix_after_a_cast(step, engine):
    naive = hr.from_items([{"k": 1, "at": NOON}]).with_columns(at="cast(at as timestamp)")
    aware = hr.from_items([{"k": 1, "at": NOON.replace(tzinfo=datetime.UTC)}])
    pairs = TWO_INPUTS[step](naive.event_time("at"), aware.event_time("at"))
    assert pairs.collect(on=engine).num_rows == 1
