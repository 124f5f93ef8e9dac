"""``zip``: the n-th record of one stream with the n-th of another, until one of them ends."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import testing
from tests.conftest import PATIENCE, for_all, tuples

SCHEMA = pa.schema([("v", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
Rows = list[tuple[int, int]]


def table(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist([{"v": v, "at": testing.seconds(at)} for v, at in rows], SCHEMA)


def plain(rows: Rows, pieces: int = 1) -> hr.Stream:
    """Records of one split that come in some pieces."""
    size = max(1, -(-len(rows) // pieces))
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    script = [testing.records(table(part)) for part in parts]
    return testing.script(script, schema=SCHEMA)


def timed(rows: Rows, pieces: int = 1) -> hr.Stream:
    return plain(rows, pieces).event_time("at", delay="1000s")


def values(result: pa.Table) -> list[tuple[Any, Any]]:
    return list(zip(result["v"].to_pylist(), result["v_right"].to_pylist(), strict=True))


def by_time(rows: Rows) -> list[int]:
    return [v for v, _ in sorted(rows, key=lambda row: row[1])]


RECORDS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 6)), max_size=25)


def test_the_nth_comes_with_the_nth_of_any_two_streams(engine: Any) -> None:
    @for_all(engine, box=80, spark=2, one=RECORDS, two=RECORDS, pieces=st.integers(1, 5))
    def check(one: Rows, two: Rows, pieces: int) -> None:
        got = timed(one, pieces).zip(timed(two)).collect(on=engine)
        assert values(got) == list(zip(by_time(one), by_time(two), strict=False))
        got = plain(one).zip(plain(two, pieces)).collect(on=engine)
        assert values(got) == list(zip((v for v, _ in one), (v for v, _ in two), strict=False))


def test_a_stream_with_itself_is_every_record_twice(engine: Any) -> None:
    rows = [(v, v * 7 % 5) for v in range(40)]
    for stream, wanted in ((timed(rows, 3), by_time(rows)), (plain(rows, 3), [*range(40)])):
        assert values(stream.zip(stream).collect(on=engine)) == [(v, v) for v in wanted]
        shifted = stream.zip(stream.select(w="v + 1", at="at"))
        assert [(v, w) for v, _, w, _ in tuples(shifted.collect(on=engine))] == [
            (v, v + 1) for v in wanted
        ]


def test_many_splits_and_steps_before_and_after(rows: Any) -> None:
    left = hr.from_items(range(1000)).filter("value % 2 = 0")
    right = hr.from_items(range(300)).flat_map(lambda v: [v, v], name="w", schema=int)
    pairs = left.zip(right).filter("w % 3 = 0").select("value", "w")
    wanted = zip(range(0, 1000, 2), (w for w in range(300) for _ in "ab"), strict=False)
    assert rows(pairs) == [(v, w) for v, w in wanted if w % 3 == 0]
    top = hr.from_items([3, 1, 2]).sort("value", descending=True)
    assert rows(top.zip(hr.from_items("abcd"))) == [(3, "a"), (2, "b"), (1, "c")]


def test_pairs_happen_when_their_later_record_does(rows: Any) -> None:
    one, two = timed([(i, i) for i in range(8)]), timed([(i, 2 * i) for i in range(8)])
    counts = one.zip(two).window(hr.tumbling("4s")).agg(n=hr.count(), last=hr.max("v"))
    assert [row[2:] for row in sorted(rows(counts))] == [(2, 1), (2, 3), (2, 5), (2, 7)]


def test_it_does_not_depend_on_workers_bundles_or_who_is_ahead() -> None:
    rng = random.Random(5)
    one = [(v, v // 3 + rng.randrange(4)) for v in range(3000)]
    two = [(v, v // 5 + rng.randrange(4)) for v in range(2000)]
    wanted = list(zip(by_time(one), by_time(two), strict=False))
    for workers, bundle in ((1, 7), (3, 64), (2, None)):
        box = hr.Box(workers=workers, bundle=bundle, debug=True)
        left, right = (plain(r, 40).event_time("at", delay="5s") for r in (one, two))
        assert values(left.zip(right).collect(on=box)) == wanted


def test_streams_that_do_not_end_are_paired_as_their_watermarks_go_on(box_engine: Any) -> None:
    def script(rows: Rows, pieces: int) -> hr.Stream:
        size = -(-len(rows) // pieces)
        parts = [testing.records(table(rows[i : i + size])) for i in range(0, len(rows), size)]
        stream = testing.script(parts, schema=SCHEMA, bounded=False, ends=True)
        return stream.event_time("at", delay="4s")

    rng = random.Random(2)
    one = [(v, v + rng.randrange(4)) for v in range(60)]
    two = [(v, 3 * v + rng.randrange(4)) for v in range(25)]
    left, right = script(one, 4), script(two, 3)
    pairs = left.zip(right)
    counts = pairs.window(hr.tumbling("10s")).agg(n=hr.count())
    job = hr.start([pairs, counts], on=box_engine)
    assert job.wait(PATIENCE)
    wanted = list(zip(by_time(one), by_time(two), strict=False))
    assert sorted(values(job.result(0))) == sorted(wanted)
    ends = [max(dict(one)[v], dict(two)[w]) // 10 for v, w in wanted]
    assert sorted(job.result(1)["n"].to_pylist()) == sorted(
        len(list(group)) for _, group in itertools.groupby(ends)
    )


def test_names_that_clash_get_a_suffix() -> None:
    one, two = hr.from_items([{"a": 1, "b": 2}]), hr.from_items([{"a": 3, "c": 4}])
    assert one.zip(two).columns == ["a", "b", "a_right", "c"]
    assert one.zip(two, suffix="_2").columns == ["a", "b", "a_2", "c"]
    assert "zip in input order" in one.zip(two).explain(on="box")
    assert "zip by event time" in timed([(1, 1)]).zip(timed([(1, 1)])).explain(on="spark")


def test_mistakes_are_told() -> None:
    endless, ends = hr.rate(10), hr.from_items([1])
    with pytest.raises(
        hr.PlanError, match="step 2, zip: zip of a stream that does not end needs event time; call"
    ):
        endless.zip(ends)
    with pytest.raises(hr.PlanError, match="zip of a stream that does not end needs event time"):
        endless.event_time("at").zip(ends)
    with pytest.raises(hr.PlanError, match="needs event time, but step 3, select dropped"):
        endless.event_time("at").select("value").zip(endless.event_time("at"))
    with pytest.raises(hr.PlanError, match=r"step 2, zip: \[1\] is not a stream"):
        ends.zip([1])  # type: ignore[arg-type]
    with pytest.raises(hr.PlanError, match="the column 'value_right' would come out twice"):
        ends.zip(ends).zip(ends)
