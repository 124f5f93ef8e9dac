"""Results of one key reach a sink in the order of their windows, on both engines."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import testing
from tests.conftest import PATIENCE, tuples, until

KEYS, WINDOWS = 4, 40


def readings() -> hr.Stream:
    """A few keys over many windows, out of order within half a minute."""
    spread = random.Random(3)
    order = sorted(range(10 * WINDOWS), key=lambda i: i + spread.uniform(0, 30))
    rows = [{"u": f"u{i % KEYS}", "at": testing.seconds(i)} for i in order]
    script = [testing.records(*rows[i : i + 50]) for i in range(0, len(rows), 50)]
    stream = testing.script(script, bounded=False, ends=True, at_once=3)
    return stream.event_time("at", delay="40s")


WINDOWINGS = {
    "tumbling": lambda s: s.key_by("u").window(hr.tumbling("10s")).agg(n=hr.count()),
    "sliding": lambda s: s.key_by("u").window(hr.sliding("20s", every="10s")).agg(n=hr.count()),
    "ordered": lambda s: s.key_by("u").window(hr.tumbling("10s")).agg(first=hr.first("at")),
    "sessions": lambda s: s.key_by("u").window(hr.session("2s")).agg(n=hr.count()),
    "then_steps": lambda s: WINDOWINGS["tumbling"](s).with_columns(m="n * 2").filter("m > 0"),
}


@pytest.fixture(scope="module")
def seen(engine: Any) -> dict[str, dict[str, list[Any]]]:
    """The windows of each key as they came, of all kinds of windows, which are one job."""
    found: dict[str, dict[str, list[Any]]] = {kind: {} for kind in WINDOWINGS}

    def outlet(stream: hr.Stream, kind: str) -> Any:
        def see(table: pa.Table, epoch: int) -> None:
            for row in table.to_pylist():
                found[kind].setdefault(row["u"], []).append(row["window_start"])

        return WINDOWINGS[kind](stream).for_each_batch(see)

    stream = readings()
    assert hr.start([outlet(stream, kind) for kind in WINDOWINGS], on=engine).wait(PATIENCE)
    return found


@pytest.mark.parametrize("kind", WINDOWINGS)
def test_windows_of_a_key_come_in_order(seen: dict[str, Any], kind: str) -> None:
    assert len(seen[kind]) == KEYS
    for starts in seen[kind].values():
        assert len(starts) >= WINDOWS
        assert starts == sorted(starts)


def test_an_upsert_keeps_the_newest_window(engine: Any, redis_url: str) -> None:
    import redis

    counts = readings().key_by("u").window(hr.tumbling("10s")).agg(n=hr.count())
    name = f"newest-{engine.name}"
    outlet = counts.write_redis(name, url=redis_url, key="u")
    assert outlet is not None
    assert outlet.start(on=engine).wait(60)
    link = redis.Redis.from_url(redis_url)
    newest = {link.hget(f"{name}:u{i}", "window_start").decode() for i in range(KEYS)}
    assert newest == {str(testing.seconds(10 * (WINDOWS - 1)))}


def test_many_evaluators_keep_the_order() -> None:
    starts: list[Any] = []

    def see(batch: pa.RecordBatch) -> None:
        starts.extend(r[1] for r in tuples(pa.table(batch)) if r[0] == "u1")

    counts = readings().key_by("u").window(hr.tumbling("10s")).agg(n=hr.count())
    job = counts.select("u", "window_start").start(
        on=hr.Box(workers=8, bundle=3, debug=True), to=see
    )
    assert job.wait(60)
    assert len(starts) == WINDOWS
    assert starts == sorted(starts)


def test_a_union_after_windows_waits_for_nobody() -> None:
    """A side without event time never has a watermark; the results do not wait for one."""
    raw = hr.rate(200).select(u="cast(value as string)")
    windows = readings().key_by("u").window(hr.tumbling("10s")).agg(n=hr.count()).select("u")
    seen: list[str] = []
    job = windows.union(raw).start(
        on=hr.Box(workers=2), to=lambda batch: seen.extend(batch.column("u").to_pylist())
    )
    until(lambda: {"u1", "1"} <= set(seen))
    job.stop(drain=False)
