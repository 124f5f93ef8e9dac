"""``scan`` and what is made with it: what plain Python gives, record by record, on both engines."""

from __future__ import annotations

import datetime
import functools
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import testing
from headrace.errors import PlanError, StepError
from headrace.kernels.scans import not_compiled
from tests.conftest import for_all

SCHEMA = pa.schema(
    [("k", pa.string()), ("v", pa.int64()), ("x", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
)
Rows = list[dict[str, Any]]


def seconds(value: float) -> datetime.datetime:
    return testing.seconds(value)


def stream(rows: Rows) -> hr.Stream:
    return hr.from_arrow(pa.Table.from_pylist(rows, SCHEMA)).event_time("at", delay="1000s")


def some(seed: int, count: int = 200, keys: str = "abcde") -> Rows:
    rng = random.Random(seed)
    return [
        {
            "k": rng.choice([*keys, None]),
            "v": rng.choice([None, *range(-9, 9)]),
            "x": rng.choice([0.5, -2.0, 3.25, 1e9]),
            "at": seconds(rng.randrange(60)),
        }
        for _ in range(count)
    ]


def in_order(rows: Rows) -> dict[Any, Rows]:
    """The records of each key by event time, those of one time as they came."""
    found: dict[Any, Rows] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["at"]):
        found[row["k"]].append(row)
    return found


def by_key(table: pa.Table) -> dict[Any, list[tuple[Any, ...]]]:
    """What came out for each key, in its order."""
    found: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for row in table.to_pylist():
        found[row.pop("k")].append(tuple(row.values()))
    return dict(found)


def scanned(rows: Rows, step: Callable[..., Any], initial: Any) -> dict[Any, list[Any]]:
    """The plain scan: for each key the time and each output."""
    found: dict[Any, list[Any]] = {}
    for key, mine in in_order(rows).items():
        state: Any = initial() if callable(initial) else initial
        for row in mine:
            state, outputs = step(state, Record(row))
            for output in outputs if isinstance(outputs, list) else [outputs]:
                if output is not None:
                    values = output if isinstance(output, tuple) else (output,)
                    found.setdefault(key, []).append((row["at"], *values))
    return found


class Record:
    """A row of a reference, as functions see one."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row

    def __getattr__(self, name: str) -> Any:
        return self.row[name]

    __getitem__ = __getattr__


# Functions of a state and a record


def balance(total: float, row: Any) -> Any:
    total += row.x
    return total, total


def ups(state: Any, row: Any) -> Any:
    """How often a value was larger than the one before, told when it was."""
    last, count = state
    if row["x"] > last:
        return (row.x, count + 1), (row.x, count + 1)
    return (row.x, count), None


def words(seen: dict[Any, int], row: Any) -> Any:
    """Python objects as state; any number of outputs."""
    seen[row.v] = seen.get(row.v, 0) + 1
    return seen, [(str(row.v), n) for n in range(seen[row.v] % 3)]


def ring(state: Any, row: Any) -> Any:
    n = state["n"]
    state["last"][n % 3] = row.x
    state["n"] = n + 1
    if n < 2:
        return state, None
    return state, (state["last"].sum(), n)


RING = np.zeros(1, [("last", "f8", (3,)), ("n", "i8")])[0]


def test_a_running_balance(engine: Any) -> None:
    rows = some(1)
    found = stream(rows).key_by("k").scan(balance, 0, schema={"total": "double"})
    assert found.columns == ["k", "at", "total"]
    assert by_key(found.collect(on=engine)) == scanned(rows, balance, 0)
    assert not_compiled(found.node) is None  # type: ignore[arg-type]


def test_states_of_several_numbers_and_records_without_output(engine: Any) -> None:
    rows = some(2)
    schema = {"x": "double", "n": "bigint"}
    found = stream(rows).key_by("k").scan(ups, (0.0, 0), schema=schema)
    assert "compiled by Numba" in found.explain(on=engine)
    assert by_key(found.collect(on=engine)) == scanned(rows, ups, (0.0, 0))


def test_a_state_that_is_any_object(engine: Any) -> None:
    rows = some(3)
    found = stream(rows).key_by("k").scan(words, dict, schema={"v": "string", "n": "bigint"})
    assert "its state is a type" in found.explain(on=engine)
    assert by_key(found.collect(on=engine)) == scanned(rows, words, dict)


def test_a_numpy_record_changed_in_place(engine: Any) -> None:
    rows = some(4)
    found = stream(rows).key_by("k").scan(ring, RING, schema={"sum": "double", "n": "bigint"})
    assert "compiled by Numba" in found.explain(on=engine)
    assert by_key(found.collect(on=engine)) == scanned(rows, ring, RING.copy)
    assert RING["n"] == 0


def test_nulls_go_through_python_with_the_same_states(engine: Any) -> None:
    def largest(best: int, row: Any) -> Any:
        if row.v is None:
            return best, -1
        return max(best, row.v), max(best, row.v)

    rows = some(5)
    found = stream(rows).key_by("k").scan(largest, -100, schema={"v": "bigint"})
    assert by_key(found.collect(on=engine)) == scanned(rows, largest, -100)


def test_without_a_key(engine: Any) -> None:
    rows = some(6, count=50)
    found = stream(rows).scan(balance, 0.0, schema={"total": "double"}).collect(on=engine)
    wanted = scanned([{**row, "k": None} for row in rows], balance, 0.0)[None]
    assert [tuple(row.values()) for row in found.to_pylist()] == wanted


@dataclass
class Total:
    user: str | None
    total: float


def test_columns_from_an_annotation_and_columns_kept(engine: Any) -> None:
    def total(state: float, row: Any) -> tuple[float, Total | None]:
        state += row.x
        return state, Total(row.k, state) if row.x > 0 else None

    rows = some(7, count=40)
    found = stream(rows).key_by("k").scan(total, 0.0, keep="v")
    assert found.columns == ["k", "at", "v", "user", "total"]
    table = found.collect(on=engine)
    assert table["user"].to_pylist() == table["k"].to_pylist()
    assert table.num_rows == sum(row["x"] > 0 for row in rows)


def test_columns_from_an_example(engine: Any) -> None:
    found = stream(some(8)).key_by("k").scan(lambda n, row: (n + 1, {"n": n}), 0)
    assert found.schema.field("n").type == pa.int64()
    assert max(found.collect(on=engine)["n"].to_pylist()) > 10


def test_batches_of_a_key(engine: Any) -> None:
    def step(total: float, batch: pa.RecordBatch) -> Any:
        sums = np.cumsum(batch["x"].to_numpy()) + total
        return sums[-1], pa.table({"at": batch["at"], "total": sums})

    rows = some(9)
    schema = {"at": "timestamp", "total": "double"}
    found = stream(rows).key_by("k").scan_batches(step, 0.0, schema=schema)
    assert by_key(found.collect(on=engine)) == scanned(rows, balance, 0.0)


def test_the_clock_goes_on_to_windows(engine: Any) -> None:
    rows = some(10)
    found = stream(rows).key_by("k").scan(balance, 0.0, schema={"total": "double"})
    counts = found.window(hr.tumbling("20s")).agg(n=hr.count()).collect(on=engine)
    assert sum(counts["n"].to_pylist()) == len(rows)


def test_a_state_that_is_forgotten(engine: Any) -> None:
    def count(n: int, row: Any) -> Any:
        return n + 1, n + 1

    times = [0, 1, 4, 14, 15, 25, 40]
    rows = [{"k": "a", "v": 1, "x": 1.0, "at": seconds(t)} for t in times]
    found = stream(rows).key_by("k").scan(count, 0, schema={"n": "bigint"}, ttl="10s")
    assert found.collect(on=engine)["n"].to_pylist() == [1, 2, 3, 1, 2, 1, 1]


def test_a_numpy_record_that_is_forgotten(engine: Any) -> None:
    def step(state: Any, row: Any) -> Any:
        state["grid"][1, 0] += row.x
        state["n"] += 1
        return state, (state["grid"][1, 0], state["n"])

    first = np.zeros(1, [("grid", "f8", (2, 3)), ("n", "i8")])[0]
    rows = [
        {"k": "a", "v": 1, "x": 1.5, "at": seconds(t)} for t in [0, 1, 4, 14, 15, 25, 40, 41, 42]
    ]
    schema = {"x": "double", "n": "bigint"}
    found = stream(rows).key_by("k").scan(step, first, schema=schema, ttl="10s")
    assert "compiled by Numba" in found.explain(on=engine)
    assert found.collect(on=engine)["n"].to_pylist() == [1, 2, 3, 1, 2, 1, 1, 2, 3]
    assert found.collect(on=engine)["x"].to_pylist()[-1] == 4.5


def test_timers(engine: Any) -> None:
    def step(n: int, row: Any, timer: Any) -> Any:
        timer.after("5s")
        return n + 1, None

    def quiet(n: int, time: datetime.datetime, timer: Any) -> Any:
        if n > 10:
            return n, {"n": n}
        timer.at(time + datetime.timedelta(seconds=1))
        return n + 10, {"n": n}

    times = [("a", 0), ("a", 3), ("b", 4), ("a", 20), ("b", 9)]
    rows = [{"k": k, "v": 1, "x": 1.0, "at": seconds(t)} for k, t in times]
    found = stream(rows).key_by("k").scan(step, 0, schema={"n": "bigint"}, on_timer=quiet)
    assert by_key(found.collect(on=engine)) == {
        "a": [(seconds(8), 2), (seconds(9), 12), (seconds(25), 13)],
        "b": [(seconds(9), 1), (seconds(14), 12)],  # a timer goes off before a record of its time
    }


def test_timers_that_go_by_the_clock(engine: Any) -> None:
    """Without event time a timer goes off when its time has come, or when the input ends."""

    def step(n: int, row: Any, timer: Any) -> Any:
        if n == 0 or n > 10:
            timer.after("300ms" if n == 0 else "1 hour")
        return n + 1, None

    def rung(n: int, time: datetime.datetime, timer: Any) -> Any:
        return n + 10, {"n": n}

    ticks = hr.rate(20, upto=40).with_columns(k="concat('k', value % 2)")
    found = ticks.key_by("k").scan(step, 0, schema={"n": "bigint"}, on_timer=rung)
    assert found.columns == ["k", "n"]
    job = found.start(on=engine)
    assert job.wait(120)
    got = by_key(job.result())
    assert set(got) == {"k0", "k1"}
    for outputs in got.values():  # one for the first span, one when the input ends
        *early, (last,) = outputs
        assert last == (30 if early else 20)
        assert all(1 <= n <= 20 for (n,) in early)
        assert early or engine.name == "spark"  # where all may come in one micro-batch


# Ready made


def test_running_aggregates(engine: Any) -> None:
    rows = some(11)
    found = (
        stream(rows)
        .key_by("k")
        .running(
            n=hr.count(), there=hr.count("v"), total=hr.sum("v"), mean=hr.mean("v"),
            least=hr.min("v"), most=hr.max("x"), first=hr.min("at"), text=hr.max("k"),
        )
    )  # fmt: skip
    wanted: dict[Any, list[Any]] = {}
    for key, mine in in_order(rows).items():
        for i, row in enumerate(mine, 1):
            there = [r["v"] for r in mine[:i] if r["v"] is not None]
            wanted.setdefault(key, []).append(
                (row["v"], row["x"], row["at"], i, len(there), sum(there) if there else None,
                 sum(there) / len(there) if there else None, min(there, default=None),
                 max(r["x"] for r in mine[:i]), mine[0]["at"], key)
            )  # fmt: skip
    assert by_key(found.collect(on=engine)) == wanted


def test_running_of_odd_numbers(engine: Any) -> None:
    values = [math.nan, 1.0, -math.inf, math.nan, 5.0]
    rows = [{"k": "a", "v": 2**62, "x": x, "at": seconds(i)} for i, x in enumerate(values)]
    found = stream(rows[:1] + rows[1:2]).key_by("k").running(m=hr.min("x"), n=hr.max("x"))
    assert str(found.collect(on=engine)["m"].to_pylist()) == "[nan, 1.0]"
    assert str(found.collect(on=engine)["n"].to_pylist()) == "[nan, nan]"
    with pytest.raises(StepError, match="bigint overflow in 'sum'"):
        stream(rows).key_by("k").running(t=hr.sum("v")).collect(on=engine)


@pytest.mark.parametrize("by", [1, 3])
def test_lag_and_lead(engine: Any, by: int) -> None:
    rows = some(12)
    before = by_key(stream(rows).key_by("k").lag(by, b="v", t="at").collect(on=engine))
    after = by_key(stream(rows).key_by("k").lead(by, b="v").collect(on=engine))
    for key, mine in in_order(rows).items():
        none: list[Any] = [{"v": None, "at": None}] * by
        pairs = itertools.zip_longest(mine, [*none, *mine][: len(mine)])
        assert before[key] == [
            (row["v"], row["x"], row["at"], old["v"], old["at"]) for row, old in pairs
        ]
        later = [*mine[by:], *none][: len(mine)]
        assert Counter(after[key]) == Counter(
            (row["v"], row["x"], row["at"], new["v"]) for row, new in zip(mine, later, strict=True)
        )


def test_lead_within_some_time(engine: Any) -> None:
    rows = [{"k": "a", "v": i, "x": 1.0, "at": seconds(t)} for i, t in enumerate([0, 1, 9, 30])]
    found = stream(rows).key_by("k").lead(1, within="10s", after="v").collect(on=engine)
    assert found.sort_by("v")["after"].to_pylist() == [1, 2, None, None]


def test_rank(engine: Any) -> None:
    rows = some(13)
    found = by_key(stream(rows).key_by("k").rank("place").collect(on=engine))
    for key, mine in in_order(rows).items():
        times = [row["at"] for row in mine]
        assert [row[-1] for row in found[key]] == [times.index(t) + 1 for t in times]


def test_deduplicate(engine: Any) -> None:
    times = [("a", 0), ("b", 1), ("a", 2), ("a", 9), ("a", 11), ("b", 12), ("a", 21)]
    rows = [{"k": k, "v": i, "x": 1.0, "at": seconds(t)} for i, (k, t) in enumerate(times)]
    within = stream(rows).deduplicate("k", within="10s").collect(on=engine)
    assert sorted(within["v"].to_pylist()) == [0, 1, 4, 5, 6]
    ever = stream(rows).deduplicate("k").collect(on=engine)
    assert sorted(ever["v"].to_pylist()) == [0, 1]
    keyed = hr.from_arrow(pa.Table.from_pylist(rows, SCHEMA)).key_by("k").deduplicate()
    assert sorted(keyed.collect(on=engine)["v"].to_pylist()) == [0, 1]


def test_any_records(engine: Any) -> None:
    times = st.integers(0, 12)
    record = st.tuples(st.sampled_from(["a", "b", None]), st.integers(-3, 3), times)

    @for_all(engine, box=8, spark=2, found=st.lists(record, max_size=30))
    def check(found: list[Any]) -> None:
        rows = [{"k": k, "v": v, "x": v / 2, "at": seconds(t)} for k, v, t in found]
        steps: list[tuple[Any, Any, Any]] = [
            (balance, 0, {"t": "double"}),
            (ups, (0.0, 0), {"x": "double", "n": "bigint"}),
            (words, dict, {"v": "string", "n": "bigint"}),
        ]
        for step, initial, schema in steps:
            table = stream(rows).key_by("k").scan(step, initial, schema=schema).collect(on=engine)
            assert by_key(table) == scanned(rows, step, initial)


# Mistakes


def test_what_goes_wrong_is_told_with_its_record(engine: Any) -> None:
    rows = some(14, count=20)
    keyed = stream(rows).key_by("k")

    def fails(n: int, row: Any) -> Any:
        return n + 1, 1 // (n - 2)

    with pytest.raises(StepError, match=r"step 3, scan \(fails by k\) failed on record"):
        keyed.scan(fails, 0, schema={"n": "bigint"}).collect(on=engine)
    with pytest.raises(StepError, match=r"returns \(state, output\)"):
        keyed.scan(lambda n, row: n + 1, 0, schema={"n": "bigint"}).collect(on=engine)
    with pytest.raises(StepError, match="not a bigint"):
        keyed.scan(lambda n, row: (n, row.k or "x"), 0, schema={"n": "bigint"}).collect(on=engine)


def test_mistakes_found_when_the_pipeline_is_written() -> None:
    keyed = stream(some(15, count=3)).key_by("k")
    plain = hr.from_items([{"k": 1, "v": 2}]).key_by("k")
    step = lambda n, row: (n, n)  # noqa: E731
    for call, text in [
        (lambda: plain.scan(step, 0, schema={"n": "bigint"}, ttl="1s"), "ttl counts event time"),
        (lambda: plain.scan(step, 0, schema={"n": "bigint"}, order="event"), "needs event time"),
        (lambda: keyed.scan(step, 0, schema={"n": "bigint"}, order="time"), "'event' or 'arrival'"),
        (lambda: keyed.scan(lambda n, row: (n, None), 0), "pass schema="),
        (lambda: keyed.running(n=hr.collect("v")), "running has count, sum, mean"),
        (lambda: keyed.running(v=hr.sum("v")), "there is a column 'v' already"),
        (lambda: keyed.lag(0, b="v"), "how many records away"),
        (lambda: keyed.lag(1, b="w"), "there is no column 'w'"),
        (lambda: keyed.lag(1), "needs columns"),
        (lambda: plain.rank(), "needs event time"),
        (lambda: stream([]).deduplicate(), "deduplicate needs the columns"),
        (lambda: plain.deduplicate(within="1s"), "needs event time"),
    ]:
        with pytest.raises(PlanError, match=text):
            call()


def test_why_a_step_is_not_compiled() -> None:
    keyed = stream(some(16, count=3)).key_by("k")

    def reads_text(n: int, row: Any) -> Any:
        return n + len(row.k), n

    def many(n: int, row: Any) -> Any:
        return n + 1, [n]

    def turns(n: Any, row: Any) -> Any:
        return (n if n else "a"), 1

    for step, text in [
        (reads_text, "it reads 'k', which is string"), (many, "it gives a"), (turns, "compile"),
    ]:  # fmt: skip
        node: Any = keyed.scan(step, 0, schema={"n": "bigint"}).node
        assert text in (not_compiled(node) or ""), step


def test_progress_tells_how_many_keys_there_are(engine: Any) -> None:
    batches = [testing.records(*some(i, keys="abcdefgh")) for i in range(3)]
    live = testing.script(batches, schema=SCHEMA, bounded=False, ends=True)
    keyed = live.event_time("at", delay="1000s").key_by("k")
    job = keyed.scan(balance, 0.0, schema={"total": "double"}).start(on=engine)
    assert job.wait(60)
    assert [stage.keys for stage in job.progress().stages if stage.keys] == [9]


def test_records_as_they_come(engine: Any) -> None:
    """In the order of the input, whatever their times."""
    rows = some(17, count=3000)
    found = stream(rows).key_by("k").scan(balance, 0.0, schema={"t": "double"}, order="arrival")
    wanted: dict[Any, list[Any]] = defaultdict(list)
    totals: dict[Any, float] = defaultdict(float)
    for row in rows:
        totals[row["k"]] += row["x"]
        wanted[row["k"]].append((row["at"], totals[row["k"]]))
    assert by_key(found.collect(on=engine)) == wanted


@pytest.mark.parametrize("order", ["event", "arrival"])
def test_records_of_a_key_reach_a_sink_in_order(engine: Any, tmp_path: Any, order: str) -> None:
    rows = sorted(some(18, count=2000), key=lambda row: row["at"])
    batches = [testing.records(*rows[i : i + 100]) for i in range(0, len(rows), 100)]
    live = testing.script(batches, schema=SCHEMA, bounded=False, ends=True, at_once=4)
    keyed = live.event_time("at", delay="10s").key_by("k")
    counted = keyed.scan(lambda n, row: (n + 1, n), 0, schema={"n": "bigint"}, order=order)
    got: dict[Any, list[int]] = defaultdict(list)

    def take(table: Any) -> None:
        for k, n in zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True):
            got[k].append(n)

    job = counted.start(to=take, on=engine)
    assert job.wait(120)
    assert sum(map(len, got.values())) == len(rows)
    assert all(numbers == list(range(len(numbers))) for numbers in got.values())


# Found by a reader


def test_duplicates_out_of_order(engine: Any) -> None:
    rows = [{"k": "a", "v": 1, "x": 1.0, "at": seconds(t)} for t in (100, 0, 0, 100, 0)]
    found = stream(rows).deduplicate("k", within="50s").collect(on=engine)
    assert sorted(t.timestamp() for t in found["at"].to_pylist()) == [0, 100]


def test_every_record_that_passed_counts(engine: Any) -> None:
    """However many of a key there are, in any order, bundle size and kind of input."""
    times = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=80)

    @for_all(
        engine, box=60, spark=4, times=times, within=st.integers(1, 8), bounded=st.booleans(),
        bundle=st.sampled_from([1, 5, None]), marks=st.booleans(),
    )  # fmt: skip
    def _(times: Any, within: int, bounded: bool, bundle: int | None, marks: bool) -> None:
        rows = [{"k": k, "i": i, "at": seconds(t)} for i, (k, t) in enumerate(times)]
        script: list[Any] = []
        for i in range(0, len(rows), 7):
            script.append(testing.records(*rows[i : i + 7]))
            if marks and i + 7 < len(rows):
                script.append(testing.watermark(min(row["at"] for row in rows[i + 7 :])))
        schema = {"k": "string", "i": "bigint", "at": "timestamp"}
        source = testing.script(script, schema=schema, bounded=bounded, ends=True, at_once=3)
        once = source.event_time("at").deduplicate("k", within=f"{within}s")
        on = hr.Box(workers=2, bundle=bundle) if engine.name == "box" else engine
        if bounded:
            found = once.collect(on=on)
        else:
            job = once.start(on=on)
            assert job.wait(120)
            found = job.result()
        passed: dict[str, list[int]] = defaultdict(list)
        wanted = []
        for i, (k, t) in enumerate(times):
            if all(abs(t - other) >= within for other in passed[k]):
                passed[k].append(t)
                wanted.append(i)
        assert sorted(found["i"].to_pylist()) == wanted


def test_time_to_live_of_records_out_of_order() -> None:
    rows = [{"k": "a", "v": 1, "x": 1.0, "at": seconds(t)} for t in (0, 100, 10, 105)]
    for bundle in (1, 2, None):
        counted = (
            stream(rows)
            .key_by("k")
            .scan(
                lambda n, row: (n + 1, n + 1), 0, schema={"n": "bigint"}, ttl="50s", order="arrival"
            )
        )
        found = counted.collect(on=hr.Box(workers=2, bundle=bundle))
        assert found["n"].to_pylist() == [1, 1, 2, 3]


def test_a_timer_goes_off_before_its_key_is_forgotten(engine: Any) -> None:
    def step(n: int, row: Any, timer: Any) -> Any:
        timer.after("5s" if row.v else "20s")
        return n + 1, None

    def silent(n: int, time: Any, timer: Any) -> Any:
        timer.after("1h")
        return n, n

    times = [("a", 1, 0), ("a", 1, 20), ("b", 0, 0), ("b", 0, 30)]
    rows = [{"k": k, "v": v, "x": 1.0, "at": seconds(t)} for k, v, t in times]
    scanned = (
        stream(rows).key_by("k").scan(step, 0, schema={"n": "bigint"}, on_timer=silent, ttl="10s")
    )
    assert by_key(scanned.collect(on=engine)) == {"a": [(seconds(5), 1), (seconds(25), 1)]}


def test_columns_by_their_place_and_narrow_numbers(engine: Any) -> None:
    def place(n: int, row: Any) -> Any:
        return n + 1, row[1] + row.x

    rows = [{"k": "a", "v": 7, "x": 2.0, "at": seconds(0)}]
    assert stream(rows).scan(place, 0, schema={"n": "double"}).collect(on=engine)[
        "n"
    ].to_pylist() == [9.0]
    with pytest.raises(StepError, match=r"tinyint|out of bounds|not in range"):
        stream(rows).scan(lambda n, row: (n, 200), 0, schema={"n": "tinyint"}).collect(on=engine)


def test_a_decorated_step_and_one_that_may_not_return(engine: Any) -> None:
    def positive(function: Any) -> Any:
        @functools.wraps(function)
        def called(state: Any, row: Any) -> Any:
            return function(state, row) if row.v > 1 else (state, None)

        return called

    @positive
    def step(state: Any, row: Any) -> Any:
        state["n"] += row.v
        return state, state["n"]

    def falls(state: Any, row: Any) -> Any:  # noqa: RET503
        state["n"] += row.v
        if row.v > 1:
            return state, state["n"]

    first = np.zeros(1, [("n", "i8")])[0]
    rows = [{"k": "a", "v": v, "x": 1.0, "at": seconds(v)} for v in (1, 2, 3)]
    keyed = stream(rows).key_by("k")
    found = keyed.scan(step, first, schema={"n": "bigint"}).collect(on=engine)
    assert found["n"].to_pylist() == [2, 5]
    with pytest.raises(StepError, match=r"returns \(state, output\)"):
        keyed.scan(falls, first, schema={"n": "bigint"}).collect(on=engine)


def test_a_record_by_attributes_with_nulls(engine: Any) -> None:
    def step(state: Any, row: Any) -> Any:
        state.n += 1 if row.v is None else row.v
        return state, state.n

    first = np.zeros(1, [("n", "i8")])[0]
    rows = [{"k": "a", "v": v, "x": 1.0, "at": seconds(i)} for i, v in enumerate((1, None, 3))]
    found = stream(rows).key_by("k").scan(step, first, schema={"n": "bigint"})
    assert found.collect(on=engine)["n"].to_pylist() == [1, 2, 5]
