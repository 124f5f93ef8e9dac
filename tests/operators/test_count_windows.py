"""Windows of so many records, against windows that plain Python counts off."""

from __future__ import annotations

import datetime
import decimal
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import col
from headrace.testing import rows as counted
from headrace.testing import seconds
from tests.conftest import for_all, tuples

SCHEMA = pa.schema(
    [
        ("k", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("f", pa.float32()),
        ("d", pa.decimal128(9, 2)), ("b", pa.bool_()), ("day", pa.date32()), ("s", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
ALL = {
    "c": hr.count(), "cn": hr.count("n"), "cs": hr.count("s"), "total": hr.sum("n"),
    "twice": hr.sum("n * 2"), "tx": hr.sum("x"), "tf": hr.sum("f"), "td": hr.sum("d"),
    "mean": hr.mean("n"), "mx": hr.mean("x"), "low": hr.min("n"), "high": hr.max("x"),
    "lx": hr.min("x"), "hf": hr.max("f"), "lb": hr.min("b"), "hday": hr.max("day"),
    "ls": hr.min("s"), "ld": hr.min("d"), "var": hr.var("n"), "sd": hr.std("x"),
    "first": hr.first("s"), "last": hr.last("n"), "by": hr.first("s", by="x"),
    "kinds": hr.count_distinct("s", "b"), "about": hr.approx_distinct("n"),
    "best": hr.top_k("n", 2), "all": hr.collect("n"), "late": hr.max("at"),
}  # fmt: skip
Rows = list[dict[str, Any]]
Written = list[tuple[Any, int, Rows]]


@st.composite
def records(draw: Any, most: int = 50) -> Rows:
    count = draw(st.integers(0, most))
    maybe = lambda values: st.none() | st.sampled_from(values)  # noqa: E731
    return [
        {
            "k": draw(maybe(["a", "b"])),
            "n": draw(maybe([-3, 0, 1, 7])),
            "x": draw(maybe([0.5, -1.25, float("nan"), 8.0])),
            "f": draw(maybe([0.25, -2.0])),
            "d": draw(maybe([decimal.Decimal("1.25"), decimal.Decimal("-7.00")])),
            "b": draw(maybe([True, False])),
            "day": draw(maybe([datetime.date(2024, 1, 1), datetime.date(1969, 5, 5)])),
            "s": draw(maybe(["", "up", "é"])),
            "at": seconds(draw(st.integers(-5, 30))),
        }
        for _ in range(count)
    ]


WINDOWS = st.builds(
    lambda every, more, partial: hr.count_window(every + more, every, partial=partial),
    st.integers(1, 5), st.integers(0, 7), st.booleans(),
)  # fmt: skip


def windows(rows: Rows, window: Any, key: str | None = "k") -> Written:
    """Each window of each key: its number, and its records."""
    by_key: dict[Any, Rows] = defaultdict(list)
    for row in rows:
        by_key[None if key is None else row[key]].append(row)
    found = []
    for k, mine in by_key.items():
        for number, start in enumerate(range(0, len(mine), window.every)):
            inside = mine[start : start + window.size]
            if len(inside) == window.size or window.partial:
                found.append((k, number, inside))
    return found


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: row["at"])


def table_of(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def grouped(written: Written, **aggregates: Any) -> pa.Table:
    """The aggregates of windows that are written out, as those of groups."""
    rows = [{**row, "k": k, "window": w} for k, w, inside in written for row in inside]
    out = pa.Table.from_pylist(rows, SCHEMA.append(pa.field("window", pa.int64())))
    return hr.from_arrow(out).group_by("k", "window").agg(**aggregates).collect(on="box")


def test_aggregates_are_those_of_any_other_window(engine: Any) -> None:
    @for_all(engine, spark=5, rows=records(), window=WINDOWS, timed=st.booleans())
    def _(rows: Rows, window: Any, timed: bool) -> None:
        stream = hr.from_arrow(table_of(rows))
        stream = stream.event_time("at", delay="60s") if timed else stream
        found = stream.key_by("k").window(window).agg(**ALL).collect(on=engine)
        written = windows(in_order(rows) if timed else rows, window)
        assert counted(found.drop("at") if timed else found) == counted(grouped(written, **ALL))
        if timed:
            assert found.column_names[:3] == ["k", "at", "window"]
            ends = {(k, w): inside[-1]["at"] for k, w, inside in written}
            for row in found.select(["k", "window", "at"]).to_pylist():
                assert ends.pop((row["k"], row["window"])) == row["at"]
            assert not ends


def test_records_without_a_key_by_arrival(engine: Any) -> None:
    @for_all(engine, spark=3, rows=records(), window=WINDOWS)
    def _(rows: Rows, window: Any) -> None:
        window = hr.count_window(window.size, window.every, partial=window.partial, order="arrival")
        stream = hr.from_arrow(table_of(rows)).event_time("at", delay="60s")
        found = stream.window(window).agg(all=hr.collect("s"), c=hr.count()).collect(on=engine)
        want = [
            (inside[-1]["at"], w, [r["s"] for r in inside if r["s"] is not None], len(inside))
            for _, w, inside in windows(rows, window, None)
        ]
        assert sorted(tuples(found), key=lambda row: row[1]) == want


def test_counts_alone_keep_no_records(engine: Any) -> None:
    values = [i % 7 for i in range(1000)]
    keyed = hr.from_items(values).key_by("value")
    full = keyed.window(hr.count_window(10, every=4))
    assert counted(full.count("n").collect(on=engine)) == {
        (k, w, 10): 1 for k in range(7) for w in range((values.count(k) - 10) // 4 + 1)
    }
    rest = keyed.window(hr.count_window(10, partial=True)).agg(n=hr.count())
    assert sum(rest.collect(on=engine)["n"].to_pylist()) == 1000


def _letters(a: Any, b: Any) -> Any:
    return {**a.asdict(), "s": a.s + b.s}


def test_records_of_a_window(engine: Any) -> None:
    """``reduce``, ``fold``, ``top_k`` and ``distinct``, over event time and without."""
    rows = [
        {"k": "ab"[i % 2], "n": i * 7 % 10, "s": "xyz"[i % 3], "at": seconds(i)} for i in range(21)
    ]
    plain = hr.from_items(
        rows, schema={"k": "string", "n": "bigint", "s": "string", "at": "timestamp"}
    )
    window = hr.count_window(4, every=3)
    written = windows(rows, window)
    for stream, time in ((plain, ["at"]), (plain.event_time("at"), ["at"])):
        timed = stream is not plain
        by_key = stream.key_by("k").window(window)
        reduced = by_key.reduce(_letters).collect(on=engine)
        assert counted(reduced.select(["k", "window", "s", "n"])) == {
            (k, w, "".join(r["s"] for r in inside), inside[0]["n"]): 1 for k, w, inside in written
        }
        assert set(reduced["at"].to_pylist()) == {
            inside[-1 if timed else 0]["at"] for _, _, inside in written
        }
        folded = by_key.fold(0, lambda n, row: n + row.n, name="t").collect(on=engine)
        assert counted(folded.select(["k", "window", "t"])) == {
            (k, w, sum(r["n"] for r in inside)): 1 for k, w, inside in written
        }
        top = by_key.top_k(2, by="n").collect(on=engine)
        assert counted(top.select(["k", "window", "n"])) == {
            (k, w, n): 1
            for k, w, inside in written
            for n in sorted((r["n"] for r in inside), reverse=True)[:2]
        }
        kinds = by_key.distinct("s").collect(on=engine)
        assert kinds.column_names == ["k", "s", *(time if timed else []), "window"]
        assert counted(kinds.select(["k", "window", "s"])) == {
            (k, w, s): 1 for k, w, inside in written for s in {r["s"] for r in inside}
        }


def test_a_computed_key_hides_no_column(engine: Any) -> None:
    stream = hr.from_items([{"n": i, "m": 1} for i in range(20)])
    found = stream.key_by(n="n % 2").window(hr.count_window(5)).agg(total=hr.sum("n"))
    assert found.columns == ["n", "window", "total"]
    assert counted(found.collect(on=engine)) == {
        (k, w, sum(range(k + 10 * w, k + 10 * w + 10, 2))): 1 for k in range(2) for w in range(2)
    }


def test_functions_in_keys_and_aggregates(engine: Any) -> None:
    def parity(n: int) -> int:
        return n % 2

    spread = hr.aggregate(
        lambda a: (min(a.to_pylist()), max(a.to_pylist())),
        lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
        lambda s: s[1] - s[0],
        returns="bigint",
        name="spread",
    )
    found = hr.from_items(range(40)).key_by(parity).window(hr.count_window(10, every=5))
    stream = found.agg(spread("value"), half=hr.sum(lambda row: row.value / 2))
    assert counted(stream.collect(on=engine)) == {
        (k, w, 18, f"{sum(range(k + 10 * w, k + 10 * w + 20, 2)) / 2:.9g}"): 1
        for k in range(2)
        for w in range(3)
    }
    assert "holds the interpreter lock" in stream.explain(on=engine)


def test_windows_follow_windows(engine: Any) -> None:
    rows = [{"k": "ab"[i % 2], "n": i, "at": seconds(i)} for i in range(40)]
    stream = hr.from_items(rows).event_time("at", delay="2s")
    fives = stream.key_by("k").window(hr.count_window(5)).agg(total=hr.sum("n"))
    by_time = fives.window(hr.tumbling("20s")).agg(n=hr.count(), total=hr.sum("total"))
    assert [row[2:] for row in sorted(tuples(by_time.collect(on=engine)))] == [
        (4, sum(range(20))),
        (4, sum(range(20, 40))),
    ]
    by_count = fives.key_by("k").window(hr.count_window(2)).agg(totals=hr.collect("total"))
    assert counted(by_count.collect(on=engine)) == counted(
        pa.Table.from_pylist(
            [
                {
                    "k": "ab"[k],
                    "at": seconds(20 * w + 18 + k),
                    "window": w,
                    "totals": [sum(range(s, s + 10, 2)) for s in (20 * w + k, 20 * w + k + 10)],
                }
                for k in range(2)
                for w in range(2)
            ]
        )
    )
    times = stream.window(hr.tumbling("1s")).agg(n=hr.sum("n")).window(hr.count_window(10))
    assert times.reduce(lambda a, b: b).columns == ["window", "window_start", "window_end", "n"]
    assert times.agg(n=hr.sum("n")).columns == ["window_end", "window", "n"]
    assert times.agg(n=hr.sum("n")).collect(on=engine)["n"].to_pylist() == [45, 145, 245, 345]


def test_a_sum_that_leaves_its_range_is_told(engine: Any) -> None:
    keyed = hr.from_items([2**62] * 4, schema="bigint").map(k=1, v=col("value")).key_by("k")
    assert keyed.window(hr.count_window(1)).agg(t=hr.sum("v")).collect(on=engine).num_rows == 4
    with pytest.raises(hr.HeadraceError, match="step 3, agg: bigint overflow in 'sum'"):
        keyed.window(hr.count_window(2)).agg(t=hr.sum("v")).collect(on=engine)
    with pytest.raises(hr.HeadraceError, match=r"step 3, agg failed on record .*zero"):
        keyed.window(hr.count_window(2)).agg(t=hr.sum("v / (k - 1)")).collect(on=engine)


KEYED = hr.from_items([{"k": 1, "at": seconds(0), "window": 1}]).key_by("k")
TIMED = KEYED.stream.event_time("at").key_by("k")
REFUSED = {
    "no records": (lambda: hr.count_window(0), "size=0 is not a number of records, from 1"),
    "a span of time": (lambda: hr.count_window("10s"), r"hr.tumbling\('10s'\)"),
    "a number as time": (lambda: hr.tumbling(10), r"hr.count_window\(10\)"),
    "true": (lambda: hr.count_window(True), "not a number of records"),
    "gaps": (lambda: hr.count_window(5, every=6), "fall between; make it at most the size"),
    "slide": (lambda: hr.count_window(5, slide=1), "use every="),
    "too many": (lambda: hr.count_window(10**9), "use a window of time, or scan"),
    "an order": (lambda: hr.count_window(5, order="time"), "'event' or 'arrival'"),
    "no event time": (
        lambda: KEYED.window(hr.count_window(5, order="event")),
        "order='event' needs event time",
    ),
    "the number's name": (
        lambda: KEYED.window(hr.count_window(5)).agg(window=hr.count()),
        "'window' is the window's",
    ),
    "the time's name": (
        lambda: TIMED.window(hr.count_window(5)).agg(at=hr.max("at")),
        "'at' is the event time; name the aggregate otherwise",
    ),
    "a key with the time's name": (
        lambda: TIMED.stream.key_by(at="k + 1").window(hr.count_window(5)).count(),
        "the key 'at' has the name of the event time",
    ),
    "distinct times": (lambda: TIMED.window(hr.count_window(5)).distinct("at"), "the window's"),
    "a sum of text": (
        lambda: hr.from_items(["a"]).window(hr.count_window(2)).agg(t=hr.sum("value")),
        "takes numbers, not string",
    ),
    "not a window": (lambda: KEYED.window(5), r"hr.session or hr.count_window\(10\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_mistakes_are_refused(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(hr.PlanError, match=words):
        make()


@pytest.mark.parametrize("name", ["count_window", "countWindow"])
def test_the_names_of_others_are_answered(name: str) -> None:
    for what in (KEYED, KEYED.stream):
        with pytest.raises(AttributeError, match=r"window\(hr.count_window\(10, every=5\)\)"):
            getattr(what, name)
