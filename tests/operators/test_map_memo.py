"""``map_memo``: a function whose results are remembered gives what ``map`` gives."""

from __future__ import annotations

import math
import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import col
from headrace.kernels.chain import compile_step
from tests.conftest import for_all, tuples

SCHEMA = {"k": "string", "x": "double", "n": "bigint"}


def shown(row: Any) -> dict[str, Any]:
    return {"text": repr(tuple(row)), "n": row.n}


GIVES = {"text": "string", "n": "bigint"}


def test_it_gives_what_map_gives(engine: Any) -> None:
    values = st.tuples(
        st.sampled_from([None, "", "a", "b"]),
        st.sampled_from([None, 0.0, -0.0, math.inf, 1.5]),
        st.one_of(st.none(), st.integers(0, 3)),
    )

    @for_all(
        engine, box=60, spark=3, data=st.lists(values, max_size=30), size=st.integers(1, 20),
        key=st.sampled_from([None, ["k", "x", "n"], lambda r: (r.k, repr(r.x), r.n)]),
    )  # fmt: skip
    def check(data: Any, size: int, key: Any) -> None:
        records = [dict(zip(SCHEMA, row, strict=True)) for row in data]
        stream = hr.from_items(records, schema=SCHEMA)
        got = stream.map_memo(shown, key, size=size, schema=GIVES).collect(on=engine)
        assert tuples(got) == [(repr(row), row[2]) for row in data]


class Counted:
    """A function that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.lock = threading.Lock()

    def __call__(self, row: Any) -> int:
        with self.lock:
            self.asked.append(row.n)
        return int(row.n) * 10


def run(step: hr.Stream, *batches: pa.RecordBatch) -> list[list[Any]]:
    """The step over bundles, one after the other."""
    compiled, _ = compile_step(step.node, batches[0].schema)  # type: ignore[arg-type]
    return [compiled(batch).column(0).to_pylist() for batch in batches]


def bundle(*numbers: Any) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


EMPTY = hr.from_items([], schema={"n": "bigint"})


def test_a_key_is_asked_for_once_and_the_oldest_are_forgotten() -> None:
    count = Counted()
    step = EMPTY.map_memo(count, size=2, schema=int)
    got = run(step, bundle(1, 2, 1), bundle(2, 1), bundle(1), bundle(3), bundle(1, 3), bundle(2))
    assert got == [[10, 20, 10], [20, 10], [10], [30], [10, 30], [20]]
    assert count.asked == [1, 2, 3, 2]


def test_more_keys_in_a_bundle_than_are_remembered() -> None:
    count = Counted()
    step = EMPTY.map_memo(count, size=1, schema=int)
    assert run(step, bundle(*range(5), *range(5)), bundle(4), bundle()) == [
        [0, 10, 20, 30, 40] * 2, [40], [],
    ]  # fmt: skip
    assert count.asked == [0, 1, 2, 3, 4]


def test_nulls_nan_and_both_zeros_are_keys_of_their_own() -> None:
    values = pa.array([math.nan, 0.0, -0.0, None, math.nan, -0.0])
    step = hr.from_items([], schema={"value": "double"}).map_memo(repr, schema=str)
    batch = pa.record_batch({"value": values})
    assert run(step, batch)[0] == ["nan", "0.0", "-0.0", "None", "nan", "-0.0"]
    assert run(step, batch.slice(2, 3))[0] == ["-0.0", "None", "nan"]


def test_a_key_may_be_an_expression(rows: Any) -> None:
    stream = hr.from_items(["Ada", "ada", "Bob"])
    assert rows(stream.map_memo(str.lower, key=col("value").lower())) == [
        ("ada",), ("ada",), ("bob",),
    ]  # fmt: skip
    assert rows(stream.map_memo(len, key="length(value)")) == [(3,), (3,), (3,)]


def test_workers_share_what_is_remembered(box_engine: hr.Box) -> None:
    count = Counted()
    data = [{"n": i % 7} for i in range(20_000)]
    stream = hr.from_items(data).map_memo(count, schema=int)
    table = stream.collect(on=hr.Box(workers=4, bundle=100))
    assert table["value"].to_pylist() == [10 * (i % 7) for i in range(20_000)]
    assert set(count.asked) == set(range(7))
    assert len(count.asked) <= 4 * 7  # all may begin with the same at once


def test_mistakes_are_told() -> None:
    stream = hr.from_items([{"k": "a", "tags": ["x"]}])
    with pytest.raises(hr.PlanError, match=r"step 2, map_memo: 'tags' is array<string>, which has"):
        stream.map_memo(len)
    with pytest.raises(hr.PlanError, match="size=0 is not a number of results to remember"):
        stream.map_memo(len, key="k", size=0)
    with pytest.raises(hr.PlanError, match="step 2, map_memo: there is no column 'kk'"):
        stream.map_memo(len, key="kk")
    with pytest.raises(hr.PlanError, match="key= is one function, or columns and expressions"):
        stream.map_memo(len, key=["k", len])
    with pytest.raises(hr.PlanError, match="a function was expected, not 'k'"):
        stream.map_memo("k")  # type: ignore[arg-type]
    assert "map_memo len by k, 100 results remembered" in stream.map_memo(
        len, key="k", size=100
    ).explain(on="box")


def test_a_key_without_a_hash_and_a_failure_name_the_record(engine: Any) -> None:
    stream = hr.from_items([{"k": "a"}, {"k": "b"}])
    listed = stream.map_memo(len, key=lambda r: [r.k], schema=int)
    with pytest.raises(hr.StepError, match=r"failed on record \{'k': 'a'\}: its key is a list"):
        listed.collect(on=engine)
    failing = stream.map_memo(lambda r: 1 // (r.k == "a"), schema=int)
    with pytest.raises(hr.StepError, match=r"failed on record \{'k': 'b'\}: ZeroDivisionError"):
        failing.collect(on=engine)
