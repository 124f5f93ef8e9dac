"""Ordered processing on the box: in parallel, and the very sequence that one at a time gives."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.box.ordered import REORDERS, WORKLISTS
from headrace.box.scheduler import SCHEDULERS
from headrace.errors import PlanError

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
Rows = list[tuple[int, int]]


def many(row: Any) -> list[tuple[int, int]]:
    """Any number of records of one, from none to fifty."""
    return [(row.k, row.v + i) for i in range(0 if row.v % 3 else row.v % 51)]


def slow(row: Any) -> tuple[int, int]:
    if row.v % 17 == 0:
        time.sleep(random.random() / 2000)
    return row.k, row.v + 1


def keyed(state: Any, row: Any) -> Any:
    """Compiled, and not commutative."""
    state = (state * 31 + row.v) % 1_000_003
    return state, (row.k, state) if state % 4 else None


def objects(state: list[int], row: Any) -> Any:
    return [*state[-3:], row.v], [(row.k, v) for v in state if v % 2]


def whole(state: int, row: Any) -> Any:
    state = (state * 7 + row.v + row.k) % 10_007
    return state, (row.k, state)


PAIRS = {"k": "bigint", "v": "bigint"}


class Row:
    def __init__(self, pair: tuple[int, int]) -> None:
        self.k, self.v = pair


def _scanned(function: Any, initial: Callable[[], Any], by_key: bool) -> Callable[[Rows], Rows]:
    def run(rows: Rows) -> Rows:
        states: dict[int, Any] = {}
        out: Rows = []
        for pair in rows:
            key = pair[0] if by_key else 0
            state = states[key] if key in states else initial()
            states[key], given = function(state, Row(pair))
            out += given if isinstance(given, list) else [] if given is None else [given]
        return out

    return run


def _distinct(rows: Rows) -> Rows:
    seen: set[int] = set()
    return [pair for pair in rows if not (pair[1] in seen or seen.add(pair[1]))]  # type: ignore[func-returns-value]


def _counted(rows: Rows) -> Rows:
    counts: dict[int, int] = {}
    out = []
    for k, _ in rows:
        counts[k] = counts.get(k, 0) + 1
        out.append((k, counts[k]))
    return out


def _windows(rows: Rows) -> Rows:
    seen: dict[int, list[int]] = {}
    out = []
    for k, v in rows:
        mine = seen.setdefault(k, [])
        mine.append(v)
        if len(mine) >= 5 and len(mine) % 2:
            out.append((k, sum(mine[-5:])))
    return out


APPLY: dict[str, Callable[[hr.Stream], hr.Stream]] = {
    "filter": lambda s: s.filter("v % 5 != 2"),
    "map": lambda s: s.map(slow, schema=PAIRS),
    "flat_map": lambda s: s.flat_map(many, schema=PAIRS).filter("v % 7 < 2"),
    "keyed": lambda s: s.key_by("k").scan(keyed, 1, schema=PAIRS, order="arrival"),
    "objects": lambda s: s.key_by("k").scan(objects, list, schema=PAIRS, order="arrival"),
    "whole": lambda s: s.scan(whole, 3, schema=PAIRS, order="arrival"),
    "deduplicate": lambda s: s.deduplicate("v"),
    "running": lambda s: s.key_by("k").running(n=hr.count()).select("k", v="n"),
    "count_window": lambda s: (
        s.key_by("k").window(hr.count_window(5, every=2)).agg(v=hr.sum("v")).select("k", "v")
    ),
}
REFERENCES: dict[str, Callable[[Rows], Rows]] = {
    "filter": lambda rows: [p for p in rows if p[1] % 5 != 2],
    "map": lambda rows: [(k, v + 1) for k, v in rows],
    "flat_map": lambda rows: [q for p in rows for q in many(Row(p)) if q[1] % 7 < 2],
    "keyed": _scanned(keyed, lambda: 1, True),
    "objects": _scanned(objects, list, True),
    "whole": _scanned(whole, lambda: 3, False),
    "deduplicate": _distinct,
    "running": _counted,
    "count_window": _windows,
}


def pairs(count: int, keys: int, skew: float, seed: int) -> Rows:
    """Records whose keys are even or, with skew, mostly one."""
    rng = random.Random(seed)
    return [
        (0 if rng.random() < skew else rng.randrange(keys), rng.randrange(1000))
        for _ in range(count)
    ]


def in_parallel(rows: Rows, names: list[str], box: hr.Box) -> Rows:
    table = pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]}, schema=SCHEMA)
    stream = hr.from_arrow(table)
    for name in names:
        stream = APPLY[name](stream)
    found = stream.collect(on=box)
    return list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))


def one_at_a_time(rows: Rows, names: list[str]) -> Rows:
    for name in names:
        rows = REFERENCES[name](rows)
    return rows


@settings(max_examples=40)
@given(
    names=st.lists(st.sampled_from(sorted(APPLY)), min_size=1, max_size=4),
    count=st.integers(0, 400),
    keys=st.sampled_from([1, 3, 50]),
    skew=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 5),
    workers=st.integers(1, 8),
    scheduler=st.sampled_from(sorted(SCHEDULERS)),
    reorder=st.sampled_from(sorted(REORDERS)),
    worklist=st.sampled_from(sorted(WORKLISTS)),
    bundle=st.sampled_from([1, 7, 40, None]),
)
def test_theorem_5_2_the_output_is_that_of_one_at_a_time(
    names: list[str], count: int, keys: int, skew: float, seed: int, workers: int, scheduler: str,
    reorder: str, worklist: str, bundle: int | None,
) -> None:  # fmt: skip
    rows = pairs(count, keys, skew, seed)
    ordering = hr.Ordering(reorder=reorder, worklist=worklist)
    box = hr.Box(workers=workers, scheduler=scheduler, bundle=bundle, ordered=ordering, debug=True)
    assert in_parallel(rows, names, box) == one_at_a_time(rows, names)


def test_order_is_seen_to_matter() -> None:
    """The same without numbers gives other sequences: the test above can fail."""
    rows = pairs(3000, 5, 0.0, 1)
    wanted = one_at_a_time(rows, ["map", "whole"])
    shuffled = rows[1500:] + rows[:1500]
    assert one_at_a_time(shuffled, ["map", "whole"]) != wanted
    assert in_parallel(rows, ["map", "whole"], hr.Box(workers=8, bundle=10, ordered=True)) == wanted


def test_windows_come_out_in_order_whatever_the_workers() -> None:
    rows = [{"k": i * 7 % 11, "at": i * 10_000} for i in range(3000)]
    stream = (
        hr.from_items(rows).with_columns(at="timestamp_micros(at)").event_time("at", delay="0s")
    )
    counted = stream.key_by("k").window(hr.tumbling("2s")).agg(n=hr.count())
    found = [counted.collect(on=hr.Box(workers=w, ordered=True)) for w in (1, 2, 5)]
    assert found[0].equals(found[1])
    assert found[0].equals(found[2])
    assert found[0].num_rows == 15 * 11


def test_arrival_order_without_an_ordered_box() -> None:
    """Each key's records are taken as they came, and reach a sink so, with any workers."""
    rows = pairs(4000, 20, 0.2, 2)
    wanted: dict[int, list[int]] = {}
    for k, v in one_at_a_time(rows, ["keyed"]):
        wanted.setdefault(k, []).append(v)
    for workers in (1, 4):
        got: dict[int, list[int]] = {}

        def take(batch: pa.RecordBatch, got: dict[int, list[int]] = got) -> None:
            for k, v in zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True):
                got.setdefault(k, []).append(v)

        table = pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]}, schema=SCHEMA)
        scanned = APPLY["keyed"](hr.from_arrow(table).map(slow, schema=PAIRS).with_columns(v="v-1"))
        job = scanned.start(to=take, on=hr.Box(workers=workers, bundle=50))
        assert job.wait(60)
        assert got == wanted


def test_what_has_no_order_is_refused() -> None:
    one = hr.from_items([{"k": 1, "v": 2}])
    box = hr.Box(ordered=True)
    for stream in (one.union(one), one.join(one, on="k")):
        with pytest.raises(PlanError, match=r"Box\(ordered=True\) takes steps one after the other"):
            stream.collect(on=box)
    with pytest.raises(PlanError, match="there is no 'hybird'"):
        hr.Ordering(worklist="hybird")
    with pytest.raises(PlanError, match="ordered='yes'"):
        hr.Box(ordered="yes")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="there is no scheduler 'cx'"):
        hr.Box(scheduler="cx")


def test_more_bundles_ahead_than_the_buffers_hold() -> None:
    """One bundle is late, and all others come before it."""

    def slow_first(row: Any) -> tuple[int, int]:
        if row.v == 0:
            time.sleep(1)
        return row.k, row.v

    table = pa.table({"k": [i % 3 for i in range(3000)], "v": list(range(3000))}, schema=SCHEMA)
    mapped = hr.from_arrow(table).map(slow_first, schema=PAIRS)
    scanned = mapped.key_by("k").scan(keyed, 1, schema=PAIRS, order="arrival")
    job = scanned.start(on=hr.Box(workers=2, bundle=1))
    assert job.wait(60)
    rows = [(i % 3, i) for i in range(3000)]
    got = job.result()
    pairs_of = list(zip(got["k"].to_pylist(), got["v"].to_pylist(), strict=True))
    assert pairs_of == one_at_a_time(rows, ["keyed"])


@pytest.mark.parametrize("partial", ["value", "value % 3"])
def test_windows_that_the_end_leaves_part_filled_have_one_order(partial: str) -> None:
    window = hr.count_window(5, every=2, partial=True)
    stream = hr.from_items(range(2000)).key_by(k=f"hash({partial}) % 50").window(window)
    found = [
        stream.agg(v=hr.sum("value")).collect(on=hr.Box(workers=workers, ordered=True)).to_pylist()
        for workers in (1, 2, 5)
    ]
    assert found[0] == found[1] == found[2]
