"""``map_memo``: columns added by a function of a key, whose results are cached."""

from __future__ import annotations

import datetime
import math
import threading
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import col, testing
from headrace.kernels.chain import compile_step
from headrace.kernels.memo import _MISSING, Memo
from tests.conftest import PATIENCE, for_all, tuples

SCHEMA = {"id": "bigint", "k": "string", "x": "double", "n": "bigint"}
KEY = ["k", "x", "n"]


def shown(row: Any) -> dict[str, Any]:
    return {"text": repr(tuple(row)), "double": None if row.n is None else 2 * row.n}


GIVES = {"text": "string", "double": "bigint"}


def test_each_record_gets_the_result_of_its_key(engine: Any) -> None:
    """With any cache and bundle size, bounded and not, as if nothing were cached."""
    values = st.tuples(
        st.sampled_from([None, "", "a", "b"]),
        st.sampled_from([None, 0.0, -0.0, math.inf, 1.5]),
        st.one_of(st.none(), st.integers(0, 3)),
    )

    @for_all(
        engine, box=60, spark=4, data=st.lists(values, max_size=30), max_size=st.integers(1, 20),
        bundle=st.sampled_from([1, 7, None]), bounded=st.booleans(),
        ttl=st.sampled_from([None, "1us", "1h"]),
    )  # fmt: skip
    def check(data: Any, max_size: int, bundle: int | None, bounded: bool, ttl: Any) -> None:
        rows = [(i, *row) for i, row in enumerate(data)]
        records = [dict(zip(SCHEMA, row, strict=True)) for row in rows]
        script = [testing.records(*records[i : i + 4]) for i in range(0, len(records), 4)]
        stream = (
            hr.from_items(records, schema=SCHEMA)
            if bounded
            else testing.script(script, schema=SCHEMA, bounded=False, ends=True, at_once=3)
        )
        added = stream.map_memo(shown, KEY, max_size=max_size, ttl=ttl, schema=GIVES)
        on = hr.Box(workers=2, bundle=bundle) if engine.name == "box" else engine
        if bounded:
            got = added.collect(on=on)
        else:
            job = added.start(on=on)
            assert job.wait(PATIENCE)
            got = job.result()
        assert sorted(tuples(got), key=lambda row: row[0]) == [
            (*row, repr(row[1:]), None if row[3] is None else 2 * row[3]) for row in rows
        ]


def test_the_function_sees_only_the_columns_of_the_key(engine: Any) -> None:
    stream = hr.from_items([{"id": 1, "z": "a"}, {"id": 2, "z": "a"}])
    names = stream.map_memo(lambda row: {"fields": list(row.asdict())}, key="z")
    assert names.to_list(on=engine) == [(1, "a", ["z"]), (2, "a", ["z"])]
    wrong = stream.map_memo(lambda row: {"n": row.id}, key="z", schema={"n": "bigint"})
    with pytest.raises(hr.StepError, match="AttributeError: 'Row' object has no attribute 'id'"):
        wrong.collect(on=engine)
    with pytest.raises(hr.PlanError, match="AttributeError: 'Row' object has no attribute 'id'"):
        stream.map_memo(lambda row: {"n": row.id}, key="z")


@dataclass
class Zone:
    zone: str
    name: str


def zone_of(row: Any) -> Zone:
    return Zone(row.zone.upper(), f"zone {row.zone}")


def test_results_are_new_columns_or_replace_columns(rows: Any) -> None:
    stream = hr.from_items([{"zone": "a", "id": 1}, {"zone": "b", "id": 2}])
    found = stream.map_memo(zone_of, key="zone")
    assert found.columns == ["zone", "id", "name"]
    assert rows(found) == [("A", 1, "zone a"), ("B", 2, "zone b")]
    assert rows(found.select("name")) == [("zone a",), ("zone b",)]
    assert rows(found.select("id")) == [(1,), (2,)]
    length = stream.map_memo(lambda row: len(row.zone), key="zone", name="length")
    assert length.columns == ["zone", "id", "length"]
    assert rows(length) == [("a", 1, 1), ("b", 2, 1)]
    assert stream.map_memo(len, key="zone", schema=int).columns == ["zone", "id", "value"]


def test_event_time_goes_on_behind_it(rows: Any) -> None:
    records = [{"k": k, "at": testing.seconds(t)} for k, t in (("a", 0), ("b", 1), ("a", 61))]
    timed = hr.from_items(records).event_time("at", delay="10s")
    named = timed.map_memo(lambda row: row.k.upper(), key="k", name="name")
    counted = named.key_by("name").window(hr.tumbling("1 min")).count()
    assert sorted(rows(counted.select("name", "count"))) == [("A", 1), ("A", 1), ("B", 1)]


class Counted:
    """A function that counts how often it is called."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.lock = threading.Lock()

    def __call__(self, row: Any) -> int:
        with self.lock:
            self.asked.append(row.n)
        return int(row.n) * 10


def run(step: hr.Stream, *batches: pa.RecordBatch) -> list[list[Any]]:
    """What the step adds to bundles, one after the other."""
    compiled, _ = compile_step(step.node, batches[0].schema)  # type: ignore[arg-type]
    return [compiled(batch).column(batch.num_columns).to_pylist() for batch in batches]


def bundle(*numbers: Any) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


EMPTY = hr.from_items([], schema={"n": "bigint"})


def test_a_key_is_computed_once_and_the_least_recently_used_are_dropped() -> None:
    count = Counted()
    step = EMPTY.map_memo(count, max_size=2, schema=int)
    got = run(step, bundle(1, 2, 1), bundle(2, 1), bundle(1), bundle(3), bundle(1, 3), bundle(2))
    assert got == [[10, 20, 10], [20, 10], [10], [30], [10, 30], [20]]
    assert count.asked == [1, 2, 3, 2]


def test_more_keys_in_a_bundle_than_are_kept() -> None:
    count = Counted()
    step = EMPTY.map_memo(count, max_size=1, schema=int)
    assert run(step, bundle(*range(5), *range(5)), bundle(4), bundle()) == [
        [0, 10, 20, 30, 40] * 2, [40], [],
    ]  # fmt: skip
    assert count.asked == [0, 1, 2, 3, 4]


def test_results_expire() -> None:
    now = [0.0]
    memo = Memo(10, ttl=5.0, clock=lambda: now[0])
    memo.put(["a"], [1], now[0])
    now[0] = 4.0
    memo.put(["b"], [2], now[0])
    assert memo.get(["a", "b", "c"]) == [1, 2, _MISSING]
    now[0] = 5.0
    assert memo.get(["a", "b"]) == [_MISSING, 2]  # being used does not keep a result
    memo.put(["a"], [3], now[0])
    assert memo.get(["a"]) == [3]


def test_an_expired_result_is_computed_again() -> None:
    count = Counted()
    assert run(EMPTY.map_memo(count, ttl="1us", schema=int), bundle(1), bundle(1)) == [[10], [10]]
    assert run(EMPTY.map_memo(count, ttl="1h", schema=int), bundle(2), bundle(2)) == [[20], [20]]
    assert count.asked == [1, 1, 2]


@pytest.mark.parametrize(
    "values",
    [
        [math.nan, 0.0, -0.0, None, math.nan, -0.0],
        [True, None, False, True],
        [Decimal("1.50"), None, Decimal("1.50"), Decimal("-2.00")],
        [datetime.date(2024, 1, 1), None, datetime.date(1, 1, 1)],
        [testing.seconds(0), None, testing.seconds(0), testing.seconds(0.5)],
        [b"a", b"", None, b"a"],
        [datetime.timedelta(1), None, datetime.timedelta(1)],
    ],
)
def test_keys_of_any_type(values: list[Any]) -> None:
    batch = pa.record_batch({"value": pa.array(values)})
    stream = hr.from_arrow(pa.Table.from_batches([batch]))
    step = stream.map_memo(str, name="text", schema=str)
    whole = list(map(str, values))
    assert run(step, batch, batch.slice(1, 2)) == [whole, whole[1:3]]
    two = stream.with_columns(other=col("value")).map_memo(
        lambda row: str(row.value), name="text", schema=str
    )
    both = batch.append_column("other", batch.column(0))
    assert run(two, both, both.slice(1, 2)) == [whole, whole[1:3]]


def test_a_key_may_be_an_expression(rows: Any) -> None:
    stream = hr.from_items(["Ada", "ada", "Bob"])
    by_name = stream.map_memo(lambda row: row.low, key=col("value").lower().alias("low"), name="k")
    assert rows(by_name) == [("Ada", "ada"), ("ada", "ada"), ("Bob", "bob")]
    assert rows(stream.map_memo(lambda row: row[0] + 1, key="length(value)", name="n")) == [
        ("Ada", 4), ("ada", 4), ("Bob", 4),
    ]  # fmt: skip


def test_workers_share_the_cache(box_engine: hr.Box) -> None:
    count = Counted()
    data = [{"n": i % 7} for i in range(20_000)]
    stream = hr.from_items(data).map_memo(count, schema=int)
    table = stream.collect(on=hr.Box(workers=4, bundle=100))
    assert table["value"].to_pylist() == [10 * (i % 7) for i in range(20_000)]
    assert set(count.asked) == set(range(7))
    assert len(count.asked) <= 4 * 7  # all may begin with the same at once


def test_mistakes_are_refused() -> None:
    stream = hr.from_items([{"k": "a", "tags": ["x"]}])
    with pytest.raises(hr.PlanError, match=r"step 2, map_memo: 'tags' is array<string>, which can"):
        stream.map_memo(len)
    with pytest.raises(hr.PlanError, match="max_size=0 is not a number of results to keep"):
        stream.map_memo(len, key="k", max_size=0)
    with pytest.raises(hr.PlanError, match="ttl='0s': a span of time here must be positive"):
        stream.map_memo(len, key="k", ttl="0s")
    with pytest.raises(hr.PlanError, match="name='' is not the name of a column"):
        stream.map_memo(len, key="k", name="")
    with pytest.raises(hr.PlanError, match="step 2, map_memo: there is no column 'kk'"):
        stream.map_memo(len, key="kk")
    with pytest.raises(hr.PlanError, match="key= takes columns and expressions, not functions"):
        stream.map_memo(len, key=["k", len])
    with pytest.raises(hr.PlanError, match="a function was expected, not 'k'"):
        stream.map_memo("k")  # type: ignore[arg-type]
    shown = stream.map_memo(len, key="k", max_size=100, ttl="5 min").explain(on="box")
    assert "map_memo len by k, keeps 100 results for 5min" in shown


def test_a_failure_names_the_key(engine: Any) -> None:
    stream = hr.from_items([{"k": "a"}, {"k": "b"}])
    failing = stream.map_memo(lambda r: 1 // (r.k == "a"), schema=int)
    with pytest.raises(hr.StepError, match=r"failed on record \{'k': 'b'\}: ZeroDivisionError"):
        failing.collect(on=engine)
