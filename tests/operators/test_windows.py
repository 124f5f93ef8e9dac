"""Event time, windows, and what is computed in them, against the plain reference."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import col
from headrace.testing import seconds
from tests.conftest import for_all, tuples
from tests.reference import moment, pairs_within, windowed

SCHEMA = hr.types.to_schema({"k": "string", "n": "bigint", "x": "double", "at": "timestamp"})
WINDOWS = st.one_of(
    st.builds(
        lambda size, offset: hr.tumbling(f"{size}s", offset=f"{offset}s"),
        st.integers(1, 5), st.integers(0, 6),
    ),
    st.builds(
        lambda every, more, offset: hr.sliding(
            f"{every + more}s", every=f"{every}s", offset=f"{offset}s"
        ),
        st.integers(1, 4), st.integers(0, 9), st.integers(0, 3),
    ),
    st.builds(lambda gap: hr.session(f"{gap}s"), st.integers(1, 4)),
)  # fmt: skip


@st.composite
def events(draw, most: int = 40):
    """Records whose times are out of order by less than five seconds, some before 1970."""
    count = draw(st.integers(0, most))
    start = draw(st.integers(-20, 100))
    rows, clock = [], start * 1_000_000
    for _ in range(count):
        clock += draw(st.sampled_from([0, 1, 300_000, 1_000_000, 2_500_000]))
        early = draw(st.sampled_from([0, 0, 0, 999_999, 3_000_000, 4_900_000]))
        rows.append(
            {
                "k": draw(st.sampled_from(["a", "b", None])),
                "n": draw(st.none() | st.integers(-5, 5)),
                "x": draw(st.none() | st.sampled_from([0.5, -1.25, 8.0])),
                "at": moment(clock - early),
            }
        )
    return rows


def stream_of(rows, delay="5s"):
    return hr.from_arrow(pa.Table.from_pylist(rows, SCHEMA)).event_time("at", delay=delay)


def unique(table):
    found = tuples(table)
    assert len(found) == len(set(found))
    return set(found)


def total(values):
    there = [v for v in values if v is not None]
    return sum(there) if there else None


def test_counts_and_sums_by_key(engine):
    @for_all(engine, rows=events(), window=WINDOWS)
    def _(rows, window):
        got = stream_of(rows).key_by("k").window(window).agg(c=hr.count(), s=hr.sum("n"))
        want = windowed(
            rows, window, lambda r: (r["k"],), lambda rs: (len(rs), total(r["n"] for r in rs))
        )
        assert unique(got.collect(on=engine)) == want


def test_many_aggregates_at_once_without_a_key(engine):
    @for_all(engine, rows=events(), window=WINDOWS)
    def _(rows, window):
        got = stream_of(rows).window(window).agg(
            c=hr.count("n"), low=hr.min("x"), high=hr.max("n"), kinds=hr.count_distinct("k"),
            all=hr.collect("n"), first=hr.first("k"),
        )  # fmt: skip

        def result(rs):
            xs = [r["x"] for r in rs if r["x"] is not None]
            ns = [r["n"] for r in rs if r["n"] is not None]
            kinds = {r["k"] for r in rs if r["k"] is not None}
            return (
                len(ns), min(xs, default=None), max(ns, default=None), len(kinds), tuple(ns),
                rs[0]["k"],
            )  # fmt: skip

        table = got.collect(on=engine)
        mine = {tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in tuples(table)}
        assert mine == windowed(rows, window, lambda r: (), result)


def test_numbers_by_a_key_of_two_columns(engine):
    @for_all(engine, rows=events(), window=WINDOWS)
    def _(rows, window):
        keyed = stream_of(rows).key_by("n", half="n > 0")
        got = keyed.window(window).agg(m=hr.mean("x"), low=hr.min("x"), c=hr.count())

        def result(rs):
            xs = [r["x"] for r in rs if r["x"] is not None]
            return (sum(xs) / len(xs) if xs else None, min(xs, default=None), len(rs))

        want = windowed(
            rows, window, lambda r: (r["n"], None if r["n"] is None else r["n"] > 0), result
        )
        assert unique(got.collect(on=engine)) == want


def test_the_top_records_of_a_window(engine):
    @for_all(engine, rows=events(), window=WINDOWS, k=st.integers(1, 3))
    def _(rows, window, k):
        rows = [dict(r, n=i) for i, r in enumerate(rows)]
        got = stream_of(rows).key_by("k").window(window).top_k(k, by="n % 7").collect(on=engine)
        best = windowed(
            rows, window, lambda r: (r["k"],),
            lambda rs: tuple(sorted((-(r["n"] % 7), r["n"]) for r in rs)[:k]),
        )  # fmt: skip
        want = {(key, start, end, n) for key, start, end, *top in best for _, n in top}
        assert unique(got.select(["k", "window_start", "window_end", "n"])) == want


def test_distinct_in_a_window(engine):
    @for_all(engine, rows=events(), window=WINDOWS)
    def _(rows, window):
        got = stream_of(rows).window(window).distinct("k", "n").collect(on=engine)
        keys = windowed(
            rows, window, lambda r: (), lambda rs: (tuple((r["k"], r["n"]) for r in rs),)
        )
        want = {(*pair, start, end) for start, end, pairs in keys for pair in pairs}
        assert unique(got) == want


def test_reduce_and_fold_follow_the_input(engine):
    @for_all(engine, rows=events(), window=WINDOWS)
    def _(rows, window):
        stream = stream_of(rows).with_columns(t=hr.coalesce("cast(n as string)", hr.lit("-")))
        got = stream.key_by("k").window(window).fold("", lambda s, r: s + r.t, returns="string")
        want = windowed(
            rows, window, lambda r: (r["k"],),
            lambda rs: ("".join("-" if r["n"] is None else str(r["n"]) for r in rs),),
        )  # fmt: skip
        assert unique(got.collect(on=engine)) == want


def test_words_of_a_window(engine):
    rows = [
        {"k": "to be or not to be", "n": 1, "x": 1.0, "at": seconds(0.5)},
        {"k": "that is the question", "n": 1, "x": 1.0, "at": seconds(1.5)},
        {"k": "to be", "n": 1, "x": 1.0, "at": seconds(0.9)},
    ]
    words = stream_of(rows, "1s").flat_map(col("k").lower().split(r"\W+"), name="word")
    assert words.columns == ["at", "word"]
    got = words.key_by("word").window(hr.tumbling("1s")).count("c").collect(on=engine)
    found = {(w, c) for w, s, _, c in tuples(got) if s == moment(0)}
    assert found == {("to", 3), ("be", 3), ("or", 1), ("not", 1)}
    assert got.num_rows == 8
    sliding = words.key_by("word").window(hr.sliding("2s", every="1s")).count("c")
    assert ("to", 3, moment(0)) in {(w, c, s) for w, s, _, c in tuples(sliding.collect(on=engine))}


def test_join_within(engine):
    @for_all(
        engine, left=events(20), right=events(20), before=st.integers(0, 3), after=st.integers(0, 3)
    )
    def _(left, right, before, after):
        a = stream_of(left).select("k", "n", "at")
        b = stream_of(right).select("k", "x", "at")
        got = a.join_within(b, on="k", before=f"{before}s", after=f"{after}s")
        assert got.columns == ["k", "n", "at", "x", "at_right"]
        lefts = [{n: r[n] for n in ("k", "n", "at")} for r in left]
        rights = [{n: r[n] for n in ("k", "x", "at")} for r in right]
        want = pairs_within(lefts, rights, before * 1_000_000, after * 1_000_000)
        assert sorted(tuples(got.collect(on=engine)), key=repr) == sorted(want, key=repr)


def test_join_within_on_keys_of_several_types(engine):
    a = hr.from_items([{"s": "x", "f": float("nan"), "at": seconds(1)},
                       {"s": "x", "f": -0.0, "at": seconds(1)},
                       {"s": None, "f": 1.0, "at": seconds(1)}]).event_time("at")  # fmt: skip
    b = a.join_within(a, on=["s", "f"], after="1s")
    assert b.collect(on=engine).num_rows == 2


def test_a_window_over_a_window_and_over_a_join(engine):
    rows = [{"k": "ab"[i % 2], "n": i, "x": 1.0, "at": seconds(i / 4)} for i in range(48)]
    stream = stream_of(rows, "1s")
    counts = stream.key_by("k").window(hr.tumbling("2s")).agg(c=hr.count())
    twice = counts.window(hr.tumbling("4s")).agg(total=hr.sum("c"), keys=hr.count())
    assert unique(twice.collect(on=engine)) == {
        (moment(i * 4_000_000), moment((i + 1) * 4_000_000), 16, 4) for i in range(3)
    }
    joined = stream.join_within(stream, on="k", before="0s", after="500ms")
    pairs = joined.window(hr.tumbling("12s")).agg(c=hr.count()).collect(on=engine)
    assert unique(pairs) == {(moment(0), moment(12_000_000), 48 + 46)}


def test_the_time_of_a_pair_whose_key_is_a_time(engine):
    left = hr.from_items([{"ref": seconds(9), "at": seconds(5)}]).event_time("at")
    right = hr.from_items([{"at": seconds(9), "v": 1}]).event_time("at")
    pairs = left.join_within(right, left_on="ref", right_on="at", after="5s")
    got = pairs.window(hr.tumbling("1s")).count("c").collect(on=engine)
    assert tuples(got) == [(moment(9_000_000), moment(10_000_000), 1)]  # that of its later record


def test_a_union_of_streams_with_event_time(engine):
    a = stream_of([{"k": "a", "n": 1, "x": 1.0, "at": seconds(i)} for i in range(10)])
    b = stream_of([{"k": "b", "n": 1, "x": 1.0, "at": seconds(i)} for i in range(5, 15)])
    got = a.union(b).window(hr.tumbling("5s")).agg(c=hr.count()).collect(on=engine)
    assert [c for _, _, c in sorted(tuples(got))] == [5, 10, 5]


def test_a_very_long_silence_costs_nothing(engine):
    rows = [{"k": "a", "n": 1, "x": 1.0, "at": seconds(t)} for t in (0, 3_000_000_000)]
    window = hr.sliding("3s", every="1s")
    if engine.name == "spark":  # Spark sees no time between them
        assert stream_of(rows).window(window).count().collect(on=engine).num_rows == 6
    got = stream_of(rows).window(window).count().collect(on=engine)
    assert got.num_rows == 6


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.event_time("att"), "step 2, event_time: there is no column 'att'"),
        (lambda s: s.event_time("n"), "'n' is bigint; event time is a timestamp"),
        (lambda s: s.event_time("at", delay="10 parsecs"), "'parsecs' is not a unit"),
        (lambda s: s.event_time("at", delay=10), "delay=10 is not a span of time"),
        (lambda s: s.event_time("at").event_time("at"), "has said already"),
        (lambda s: s.window(hr.tumbling("1s")), "a window needs event time; call event_time"),
        (
            lambda s: s.event_time("at").select("n").window(hr.tumbling("1s")),
            "step 3, select dropped or changed its column 'at'; keep it",
        ),
        (lambda s: s.event_time("at").window("1s"), "'1s' is not a window; use hr.tumbling"),
        (lambda s: hr.sliding("1s", every="2s"), "records would fall between"),
        (lambda s: hr.tumbling("0s"), "must be positive"),
        (
            lambda s: s.group_by("n").agg(n2=hr.count()).event_time("n2"),
            "right after the source, before step 2, agg",
        ),
        (lambda s: s.join_within(s, on="n"), "join_within needs event time"),
        (
            lambda s: s.event_time("at").window(hr.tumbling("1s")).agg(window_end=hr.count()),
            "'window_end' is the window's",
        ),
        (lambda s: s.late, "call event_time"),
    ],
)
def test_mistakes_are_refused_when_built(build, message):
    stream = hr.from_items([{"n": 1, "at": datetime.datetime(2024, 1, 1)}])
    with pytest.raises(hr.PlanError, match=message):
        build(stream)


def test_a_record_without_event_time_is_told(engine):
    stream = hr.from_items([{"k": 1, "at": seconds(1)}, {"k": 2, "at": None}]).event_time("at")
    with pytest.raises(hr.StepError, match=r"step 2, event_time.*'at' is null"):
        stream.window(hr.tumbling("1s")).count().collect(on=engine)
