"""Every operator on a stream that does not end until told: both engines give the bounded answer.

All pipelines of an engine run as one job over the same scripted input, which is out of order within
the delay and comes in several batches; the reference is the same pipeline over the same records as
bounded input.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import col, testing
from tests.conftest import tuples

Pipeline = Callable[[hr.Stream, hr.Stream], hr.Stream]


def _records(seed: int, count: int = 60) -> list[dict[str, Any]]:
    """Records whose times go forward, each at most four seconds behind the newest before it."""
    rng, at, found = random.Random(seed), 0.0, []
    for i in range(count):
        at += rng.choice([0, 0.5, 1, 3])
        late = rng.choice([0, 0, 1, 2.5, 4])
        found.append(
            {
                "k": rng.choice("abcd"),
                "v": rng.randrange(-20, 20) if i % 7 else None,
                "line": " ".join(rng.choices(["up", "down", "", "left"], k=4)),
                "at": testing.seconds(max(0.0, at - late)),
            }
        )
    return found


SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.int64()),
        ("line", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


def _scripted(seed: int, *, bounded: bool, pieces: int = 3) -> hr.Stream:
    scripts = []
    for split in range(2):
        records = _records(10 * seed + split)
        size = -(-len(records) // pieces)
        parts = [records[i : i + size] for i in range(0, len(records), size)]
        scripts.append([testing.records(*part) for part in parts])
    stream = testing.script(*scripts, schema=SCHEMA, bounded=bounded, ends=True)
    return stream.event_time("at", delay="5s")


def _double(row: Any) -> dict[str, Any]:
    return {"k": row.k.upper(), "twice": None if row.v is None else 2 * row.v, "at": row.at}


def _balance(state: Any, row: Any) -> Any:
    total, count = state
    total, count = total + (row.v or 0), count + 1
    return (total, count), (total, count)


BALANCE = {"total": "bigint", "n": "bigint"}


def _seen(state: list[Any], row: Any) -> Any:
    return [*state[-2:], row.line], {"last": "|".join(state)} if state else None


def _waits(n: int, row: Any, timer: Any) -> Any:
    timer.after("1500ms")
    return n + 1, None


def _silent(n: int, time: Any, timer: Any) -> Any:
    return 0, n


DOUBLED = pa.schema([("k", pa.string()), ("twice", pa.int64()), ("at", SCHEMA.field("at").type)])

PIPELINES: dict[str, Pipeline] = {
    "select": lambda s, _: s.select("k", twice=col("v") * 2),
    "filter": lambda s, _: s.filter("v > 0"),
    "flat_map": lambda s, _: s.flat_map(col("line").split(" "), name="word"),
    "row function": lambda s, _: s.map(_double, schema=DOUBLED),
    "map_memo": lambda s, _: s.map_memo(
        _double, ["k", "v", "at"], schema=DOUBLED, max_size=9
    ),
    "split": lambda s, _: s.split("v > 0")[1].union(s.split(lambda row: row.k == "a")[0]),
    "route": lambda s, _: s.route(up="v > 0", down="v < -3").rest.select("v", "at"),
    "buffer": lambda s, _: s.filter("v > 0").buffer(hr.fixed(7)).key_by("k")
    .window(hr.tumbling("4s")).agg(every=hr.collect("v")),
    "batch function": lambda s, _: s.map_batches(lambda b: b.slice(0, b.num_rows), schema=SCHEMA),
    "tumbling": lambda s, _: s.key_by("k").window(hr.tumbling("4s")).agg(
        n=hr.count(), total=hr.sum("v"), mean=hr.mean("v"), low=hr.min("v"), sd=hr.std("v")
    ),
    "tumbling, an expression of aggregates": lambda s, _: s.key_by("k").window(
        hr.tumbling("4s")
    ).agg(spread=hr.max("v") - hr.min("v"), share=hr.sum("v") / (hr.count() + 1)),
    "sliding, an expression of aggregates": lambda s, _: s.key_by("k").window(
        hr.sliding("9s", every="3s")
    ).agg(spread=(hr.max("v") - hr.min("v")).fill_null(-1)),
    "tumbling, one number": lambda s, _: s.key_by("v").window(hr.tumbling("4s")).count(),
    "tumbling, no key": lambda s, _: s.window(hr.tumbling("4s", offset="1s")).agg(n=hr.count("v")),
    "sliding": lambda s, _: s.key_by("k").window(hr.sliding("9s", every="3s")).agg(n=hr.count()),
    "sliding, no way back": lambda s, _: s.key_by("k").window(hr.sliding("9s", every="3s")).agg(
        high=hr.max("v"), mean=hr.mean("v")
    ),
    "session": lambda s, _: s.key_by("k").window(hr.session("3s")).agg(
        n=hr.count(), total=hr.sum("v")
    ),
    "session, no key": lambda s, _: s.window(hr.session("2s")).agg(n=hr.count()),
    "words": lambda s, _: s.flat_map(col("line").split(" "), name="word").filter("word != ''")
    .key_by("word").window(hr.tumbling("5s")).agg(n=hr.count()),
    "top_k": lambda s, _: s.key_by("k").window(hr.tumbling("10s")).top_k(2, by="v"),
    "distinct": lambda s, _: s.window(hr.tumbling("10s")).distinct("k"),
    "count_distinct": lambda s, _: s.window(hr.tumbling("10s")).agg(n=hr.count_distinct("k")),
    "first and last": lambda s, _: s.key_by("k").window(hr.tumbling("10s")).agg(
        a=hr.first("v"), z=hr.last("v"), every=hr.collect("v")
    ),
    "first and last, sliding": lambda s, _: s.key_by("k").window(hr.sliding("9s", every="3s"))
    .agg(a=hr.first("v"), z=hr.last("v")),
    "first and last, session": lambda s, _: s.key_by("k").window(hr.session("3s")).agg(
        a=hr.first("v"), z=hr.last("v")
    ),
    "reduce": lambda s, _: s.select("k", "at").key_by("k").window(hr.tumbling("10s")).reduce(
        lambda a, b: a
    ),
    "own aggregate": lambda s, _: s.key_by("k").window(hr.tumbling("10s")).fold(
        0, lambda total, row: total + (row.v or 0), lambda a, b: a + b, returns=int
    ),
    "union": lambda s, o: s.union(o).key_by("k").window(hr.tumbling("6s")).agg(n=hr.count()),
    "union, in order": lambda s, o: s.filter("v > 0").union(o, s).key_by("k")
    .window(hr.tumbling("10s")).agg(every=hr.collect("v")),
    "union, in order, sliding": lambda s, o: o.union(s.union(o)).key_by("k")
    .window(hr.sliding("9s", every="3s")).agg(every=hr.collect("v")),
    "union, in order, session": lambda s, o: o.union(s, o).key_by("k")
    .window(hr.session("3s")).agg(every=hr.collect("v")),
    "join_within": lambda s, o: s.select("k", "v", "at").join_within(
        o.select("k", "v", "at"), on="k", before="2s", after="1s"
    ),
    "zip": lambda s, o: s.select("k", "v", "at").zip(o.select("k", "v", "at")),
    "zip of a union, in order": lambda s, o: s.filter("v > 0").union(o, s).select("k", "v", "at")
    .zip(o.union(s)),
    "window over a zip": lambda s, o: s.zip(o.filter("v > -5"))
    .window(hr.tumbling("6s")).agg(n=hr.count(), total=hr.sum("v_right")),
    "zip of a window": lambda s, o: s.window(hr.tumbling("4s")).agg(n=hr.count()).zip(
        o.window(hr.tumbling("3s")).agg(m=hr.count())
    ),
    "window over a window": lambda s, _: s.key_by("k").window(hr.tumbling("4s"))
    .agg(n=hr.count()).window(hr.tumbling("8s")).agg(most=hr.max("n"), n=hr.sum("n")),
    "window over a join": lambda s, o: s.select("k", "at").join_within(
        o.select("k", "at"), on="k", before="2s", after="2s"
    ).key_by("k").window(hr.tumbling("10s")).agg(n=hr.count()),
    "join over a window": lambda s, o: s.key_by("k").window(hr.tumbling("4s")).agg(n=hr.count())
    .join_within(
        o.key_by("k").window(hr.tumbling("4s")).agg(m=hr.count()), on="k", before="4s", after="4s"
    ),
    "scan": lambda s, _: s.key_by("k").scan(_balance, (0, 0), schema=BALANCE),
    "scan, any state": lambda s, _: s.key_by("k").scan(_seen, list, schema={"last": "string"}),
    "scan, no key": lambda s, _: s.scan(lambda n, row: (n + 1, n), 0, schema={"n": "bigint"}),
    "scan, forgotten": lambda s, _: s.key_by("k").scan(
        lambda n, row: (n + 1, n), 0, schema={"n": "bigint"}, ttl="3s"
    ),
    "scan with timers": lambda s, _: s.key_by("k").scan(
        _waits, 0, schema={"n": "bigint"}, on_timer=_silent
    ),
    "scan over a window": lambda s, _: s.key_by("k").window(hr.tumbling("4s")).agg(n=hr.count())
    .key_by("k").scan(lambda n, row: (n + row.n, n + row.n), 0, schema={"n": "bigint"}),
    "window over a scan": lambda s, _: s.key_by("k").scan(_balance, (0, 0), schema=BALANCE)
    .key_by("k").window(hr.tumbling("8s")).agg(most=hr.max("total"), n=hr.count()),
    "running": lambda s, _: s.key_by("k").running(n=hr.count(), total=hr.sum("v"), m=hr.mean("v")),
    "lag": lambda s, _: s.key_by("k").lag(2, before="v"),
    "lead": lambda s, _: s.key_by("k").lead(1, after="v"),
    "count_window": lambda s, _: s.key_by("k").window(hr.count_window(5, every=2)).agg(
        n=hr.count(), total=hr.sum("v"), all=hr.collect("line"), sd=hr.std("v")
    ),
    "count_window, no key": lambda s, _: s.window(hr.count_window(7)).agg(n=hr.sum("v")),
    "count_window, then windows": lambda s, _: s.key_by("k").window(hr.count_window(3))
    .agg(total=hr.sum("v")).window(hr.tumbling("10s")).agg(n=hr.count(), total=hr.sum("total")),
    "count_window, partial": lambda s, _: s.key_by("k").window(hr.count_window(5, 2, partial=True))
    .agg(n=hr.count(), total=hr.sum("v")).window(hr.tumbling("10s")).agg(n=hr.sum("n")),
    "count_window, records": lambda s, _: s.key_by("k").window(hr.count_window(4)).top_k(2, by="v"),
    "lead, then windows": lambda s, _: s.key_by("k").lead(1, within="4s", after="v")
    .window(hr.tumbling("5s")).agg(n=hr.count("after")),
    "rank": lambda s, _: s.key_by("k").rank(),
    "deduplicate": lambda s, o: s.union(o, s).select("k", "v", "at").deduplicate("k", "v", "at"),
    "deduplicate, within": lambda s, _: s.union(s).select("k", "v", "at").deduplicate(
        "k", "v", "at", within="1ms"
    ),
    "shuffle": lambda s, _: s.select("k", "at").shuffle().key_by("k").window(hr.tumbling("4s"))
    .count(),
    "max_parallelism": lambda s, _: s.select("k", "v").max_parallelism(1),
    "late": lambda s, _: s.late,
}  # fmt: skip


@pytest.fixture(scope="module")
def results(engine: Any) -> dict[str, pa.Table]:
    """What each pipeline gave; all of them are one job, that reads its two sources once."""
    one, two = _scripted(1, bounded=False), _scripted(2, bounded=False)
    job = hr.start([make(one, two) for make in PIPELINES.values()], on=engine)
    assert job.wait(120)
    told = job.progress()
    assert told.records_in == 240
    assert told.late == 0
    assert not told.running
    return {name: job.result(i) for i, name in enumerate(PIPELINES)}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_stream_gives_the_bounded_answer(
    name: str, results: dict[str, pa.Table], box_engine: hr.Box
) -> None:
    one, two = _scripted(1, bounded=True), _scripted(2, bounded=True)
    wanted = PIPELINES[name](one, two).collect(on=box_engine)
    got = results[name]
    assert got.schema.equals(wanted.schema)
    assert sorted(map(_order, tuples(got))) == sorted(map(_order, tuples(wanted)))
    assert got.num_rows > 0 or name == "late"


def _order(row: tuple[Any, ...]) -> tuple[str, ...]:
    """A row to be sorted, whatever its columns; floats to what summing in any order leaves."""
    return tuple(f"{v:.9g}" if isinstance(v, float) else repr(v) for v in row)
