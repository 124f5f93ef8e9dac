"""Windows whose step does not divide their size, windows of few records, sums at the limit."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import records, script, seconds, watermark
from headrace.windows import Window
from tests.conftest import Rows, for_all


def expected(times: list[tuple[str, int]], window: Window) -> dict[tuple[str, int], int]:
    """How many records each window has, one by one."""
    found: Counter[tuple[str, int]] = Counter()
    for key, time in times:
        start = (time - window.offset) // window.every * window.every + window.offset
        while start > time - window.size:
            found[key, start] += 1
            start -= window.every
    return dict(found)


def micros(moment: Any) -> int:
    return round(moment.timestamp() * 1e6)


def counted(rows: Rows) -> dict[tuple[str, int], int]:
    return {(key, micros(start)): n for key, start, _, n in rows}


def stream(times: list[tuple[str, int]], bounded: bool, pieces: int = 3) -> hr.Stream:
    rows = [{"k": k, "at": seconds(t / 1e6)} for k, t in times]
    size = -(-len(rows) // pieces)
    acts = [records(*rows[i : i + size]) for i in range(0, len(rows), size)]
    schema = {"k": "string", "at": "timestamp"}
    source = script(acts, schema=schema, bounded=bounded, ends=True)
    return source.event_time("at", delay="1 day")


@pytest.mark.parametrize("bounded", [True, False])
def test_any_size_and_step(engine: Any, bounded: bool) -> None:
    spans = st.integers(1, 40)

    @for_all(
        engine, box=40, spark=2, every=spans, more=spans, offset=st.integers(0, 50),
        times=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 300)), min_size=1),
    )  # fmt: skip
    def check(every: int, more: int, offset: int, times: list[tuple[str, int]]) -> None:
        window = hr.sliding(f"{every + more}us", every=f"{every}us", offset=f"{offset}us")
        counts = stream(times, bounded).key_by("k").window(window).agg(n=hr.count())
        job = counts.start(on=engine)
        assert job.wait(60)
        rows = [tuple(row.values()) for row in job.result().to_pylist()]
        assert counted(rows) == expected(times, window)


def test_a_step_that_does_not_divide_costs_two_panes_a_step() -> None:
    window = hr.sliding("1s", every="333333us")
    assert window.panes == 7
    edges = [window.pane_end(pane) for pane in range(6)]
    assert edges == [1, 333333, 333334, 666666, 666667, 999999]
    for time in range(-400_000, 700_000, 777):
        pane = window.pane_at(time)
        assert window.pane_end(pane - 1) <= time < window.pane_end(pane)


WINDOWS = {
    "tumbling": hr.tumbling("1s"),
    "sliding": hr.sliding("3s", every="1s"),
    "odd": hr.sliding("3s", every="2s"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_many_windows_of_few_records(rows: Callable[[hr.Stream], Rows], name: str) -> None:
    """Some hundred windows with a record or two, then many records in a few, then few again."""
    draw = random.Random(7)
    sparse = [("a", 10_000_000 * i + draw.randrange(900_000)) for i in range(300)]
    dense = [("ab"[i % 2], 4_000_000_000 + draw.randrange(3_000_000)) for i in range(2000)]
    again = [("b", 5_000_000_000 + 10_000_000 * i) for i in range(300)]
    times = [*sparse, *dense, *again]
    source = stream(times, bounded=True, pieces=13)
    counts = source.key_by("k").window(WINDOWS[name]).agg(n=hr.count())
    assert counted(rows(counts)) == expected(times, WINDOWS[name])
    sums = (
        source.key_by("k")
        .window(WINDOWS[name])
        .agg(least=hr.min("at"), n=hr.count(), mean=hr.mean("unix_micros(at) % 7"))
    )
    assert {r[:2]: r[4] for r in rows(sums)} == {r[:2]: r[3] for r in rows(counts)}


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("name", WINDOWS)
def test_sparse_windows_on_any_number_of_evaluators(workers: int, name: str) -> None:
    draw = random.Random(workers)
    times = [("ab"[i % 2], 2_000_000 * i + draw.randrange(10**9)) for i in range(3000)]
    window = WINDOWS[name]
    found: dict[str, list[int]] = defaultdict(list)
    total: Counter[tuple[str, int]] = Counter()

    def see(batch: Any) -> None:
        for row in batch.to_pylist():
            found[row["k"]].append(micros(row["window_start"]))
            total[row["k"], micros(row["window_start"])] += row["n"]

    source = script(
        [records(*({"k": k, "at": seconds(t / 1e6)} for k, t in times[i : i + 200]))
         for i in range(0, 3000, 200)],
        schema={"k": "string", "at": "timestamp"}, bounded=False, ends=True,
    )  # fmt: skip
    counts = source.event_time("at", delay="1000s").key_by("k").window(window).agg(n=hr.count())
    assert counts.start(on=hr.Box(workers=workers, debug=True), to=see).wait(60)
    assert dict(total) == expected(times, window)
    assert all(starts == sorted(starts) for starts in found.values())


def test_sums_at_the_least_bigint(rows: Callable[[hr.Stream], Rows]) -> None:
    items = [{"at": seconds(t), "v": v} for t, v in ((1, -(2**62)), (1, -(2**62)), (9, 1))]
    sums = hr.from_items(items).event_time("at").window(hr.sliding("4s", every="2s"))
    assert sorted(r[2] for r in rows(sums.agg(s=hr.sum("v")))) == [-(2**63), -(2**63), 1, 1]


def test_a_sum_may_be_out_of_range_between_two_windows(rows: Callable[[hr.Stream], Rows]) -> None:
    values = {1: 2**62, 3: -(2**62), 5: -(2**62), 7: -(2**62)}
    items = [{"at": seconds(t), "v": v} for t, v in values.items()]
    windows = hr.from_items(items).event_time("at").window(hr.sliding("4s", every="2s"))
    found = sorted((micros(r[0]) // 10**6, r[2]) for r in rows(windows.agg(s=hr.sum("v"))))
    whole = 2**62
    assert found == [(-2, whole), (0, 0), (2, -2 * whole), (4, -2 * whole), (6, -whole)]
    wide = hr.from_items(items).event_time("at").window(hr.sliding("6s", every="2s"))
    sums = wide.agg(s=hr.sum("v"))
    with pytest.raises(hr.StepError, match="bigint overflow in 'sum'"):
        rows(sums)


def test_a_decimal_sum_of_several_panes_that_overflows_names_its_step(engine: Any) -> None:
    values = pa.array(["9" * 38] * 3).cast(pa.decimal128(38, 0))
    times = pa.array([seconds(t) for t in (1, 3, 5)], pa.timestamp("us", "UTC"))
    source = hr.from_arrow(pa.table({"at": times, "v": values})).event_time("at")
    sums = source.window(hr.sliding("4s", every="2s")).agg(s=hr.sum("v"))
    with pytest.raises(hr.StepError, match=r"step 3, agg: decimal\(38,0\) overflow in 'sum'"):
        sums.collect(on=engine)


def test_a_watermark_between_two_steps_of_adding_forgets_nothing() -> None:
    """Bundles of the next epoch are added while the last one's watermark closes windows."""
    from headrace.operators import operator_of
    from headrace.operators.operator import Input
    from headrace.operators.shards import Shards
    from headrace.operators.windows import WindowPartial
    from headrace.windows import FOREVER

    source = stream([("a", 1)], bounded=True)
    counts = source.key_by("k").window(hr.tumbling("1s")).agg(n=hr.count())
    node: Any = counts.node
    operator = operator_of(node, [Input((), node.input.schema)], "UTC")
    shards = Shards(operator, 2, 1)
    partial = shards.partials[0]
    assert isinstance(partial, WindowPartial)

    def add(first: int) -> None:
        rows = [{"k": "a", "at": seconds(first + i)} for i in range(100)]
        table = hr.from_items(rows, schema={"k": "string", "at": "timestamp"}).collect(on="box")
        (batch,) = table.to_batches()
        assert not list(shards.add(0, batch, (first,), 0))

    def close(watermark: int) -> int:
        shards.watermarks[0] = watermark
        rows: list[int] = []
        emit = lambda shard, result: rows.append(result[1].num_rows)  # noqa: E731
        for tasks in operator.advance(shards, 0, watermark, emit):
            for task in tasks:
                task()
        return sum(rows)

    add(0)
    closed: list[int] = []
    first_lock = partial.lock

    class Between:
        """The lock, with a watermark that comes when it is given back for the first time."""

        def __init__(self) -> None:
            self.given = 0

        def __enter__(self) -> None:
            first_lock.acquire()

        def __exit__(self, *_: Any) -> None:
            first_lock.release()
            self.given += 1
            if self.given == 1:
                partial.lock = first_lock
                closed.append(close(100_000_000))

    partial.lock = Between()  # type: ignore[assignment]
    add(400)
    assert closed == [100]
    assert partial.least < FOREVER
    assert close(FOREVER) == 100


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(
    ("aggregate", "first", "later"),
    [(hr.sum("n"), 1, 10), (hr.max("n"), 1, 10), (hr.collect("n"), [1], [10])],
)
def test_a_silence_empties_a_sliding_window(
    workers: int, aggregate: Any, first: Any, later: Any
) -> None:
    """Watermarks go on while nothing comes: what was in the window has left it when more does."""
    events = [
        records({"n": 1, "at": seconds(0.5)}),
        *(watermark(seconds(s)) for s in (3, 4, 6)),
        records({"n": 10, "at": seconds(10.5)}),
        *(watermark(seconds(s)) for s in (12, 30)),
    ]
    source = script(events, schema={"n": "bigint", "at": "timestamp"}).event_time("at")
    windows = source.window(hr.sliding("3s", every="1s")).agg(a=aggregate)
    table = windows.collect(on=hr.Box(workers=workers, debug=True)).sort_by("window_start")
    assert table["a"].to_pylist() == [first] * 3 + [later] * 3


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_many_keys_with_any_number_of_workers(workers: int) -> None:
    keys = list(range(40_000))
    table = pa.table({"k": keys, "at": pa.array([0] * len(keys), pa.timestamp("us", "UTC"))})
    stream, box = hr.from_arrow(table), hr.Box(workers=workers)
    assert sorted(stream.group_by("k").count().collect(on=box)["k"].to_pylist()) == keys
    timed = stream.event_time("at").key_by("k")
    for window in (hr.tumbling("1s"), hr.sliding("2s", every="2s")):
        counts = timed.window(window).count().collect(on=box)
        assert sorted(counts["k"].to_pylist()) == keys


@pytest.mark.parametrize("window", [hr.tumbling("1d"), hr.sliding("1d", every="12h")])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_long_window_is_few_bundles(window: Window, ordered: bool) -> None:
    """However many batches it lasts, and from however many splits: what is kept is put together."""
    from headrace.operators import operator_of
    from headrace.operators.operator import Hosting, Input, Part
    from headrace.operators.stores import MemoryStore
    from headrace.windows import FOREVER

    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    source = script([], schema=schema).event_time("at").key_by("k").window(window)
    aggregate = hr.collect("n") if ordered else hr.sum("n")
    node: Any = source.agg(a=aggregate).node
    operator = operator_of(node, [Input((), schema)], "UTC")
    store, note, results = MemoryStore(), {}, []
    for turn in range(300):
        parts = []
        for split in range(3):
            partial = operator.partial(0, Hosting(1))
            values = [[f"k{i % 2}" for i in range(4)], [1000 * split + turn] * 4, [turn] * 4]
            partial.add(pa.record_batch(values, schema=schema), (), 0)
            for task in partial.seal(None):
                task()
            parts += [Part(p.slice, p.batch, (split, turn, split)) for p in partial.sealed(0)]
        results += operator.state(store, note).take(parts, [0])
        note = json.loads(json.dumps(note))  # as a checkpoint keeps it
    assert results == []
    assert len(store.batches) < 100
    last = list(operator.state(store, note).take([], [FOREVER]))
    whole = [r["a"] for _, batch in last for r in batch.to_pylist() if r["k"] == "k0"]
    want = [1000 * split + turn for split in range(3) for turn in range(300) for _ in range(2)]
    assert whole == [want if ordered else sum(want)] * (window.size // window.every)
    assert not store.batches
