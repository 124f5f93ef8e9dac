"""Scans that stop and start again, and ones that nothing more comes for."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import testing
from headrace.checkpoints.state import holdings
from headrace.state import read_state
from tests.conftest import PATIENCE, for_all
from tests.streams.conftest import drop
from tests.streams.test_stream_kills import EPOCH
from tests.streams.test_stream_state import put, timed


def _count(n: int, row: Any) -> Any:
    return n + 1, n + 1


def test_records_that_waited_are_given_once_over_restarts(engine: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    leading = timed(folder).key_by("k").lead(1, after="v", within="10s")
    for i, at in enumerate((0, 5, 100, 200, 300)):
        put(folder, f"{i}.csv", [{"k": f"k{i}", "v": i, "at": float(EPOCH + at)}])
        job = leading.write_parquet(out).start(
            on=engine, checkpoint=tmp_path / "state", trigger="available-now"
        )
        assert job.wait(PATIENCE)
    found = hr.read_parquet(out).collect(on="box")
    assert sorted(found["v"].to_pylist()) == [0, 1, 2, 3]


def test_results_come_though_nothing_more_does(tmp_path: Path, box_engine: hr.Box) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [{"k": "a", "v": i, "at": float(EPOCH + i)} for i in range(20)]
    put(folder, "0.csv", [*rows, {"k": "a", "v": 99, "at": float(EPOCH + 1000)}])
    got: list[int] = []
    scanned = timed(folder).key_by("k").scan(_count, 0, schema={"n": "bigint"})
    job = scanned.start(on=box_engine, to=lambda batch: got.extend(batch["n"].to_pylist()))
    deadline = time.monotonic() + 30
    while len(got) < 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    job.stop(drain=False)
    assert got == list(range(1, 21))


def test_a_job_that_stops_gives_what_is_due(engine: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    scanned = timed(folder).key_by("k").scan(_count, 0, schema={"n": "bigint"})
    for i in range(3):
        rows = [{"k": "a", "v": j, "at": float(EPOCH + 100 * i + j)} for j in range(20)]
        put(folder, f"{i}.csv", rows)
        job = scanned.write_parquet(out).start(
            on=engine, checkpoint=tmp_path / "state", trigger="available-now"
        )
        assert job.wait(PATIENCE)
    found = hr.read_parquet(out).collect(on="box")["n"].to_pylist()
    assert sorted(found) == list(range(1, 40 + 17))


def _again(n: int, row: Any, timer: Any) -> Any:
    timer.after("3s")
    return n + 1, None


def _rings(n: int, time: Any, timer: Any) -> Any:
    timer.after("3s")
    return n, n


@pytest.mark.parametrize("marks", [(20,), (4, 11, 20), ()])
def test_a_timer_goes_off_until_its_key_is_forgotten(engine: Any, marks: tuple[int, ...]) -> None:
    """By watermarks; at the end it goes off once."""
    first, last = ({"k": k, "at": testing.seconds(t)} for k, t in (("a", 0), ("b", 30)))
    between = [testing.watermark(testing.seconds(t)) for t in marks]
    script = [testing.records(first), *between, testing.records(last)]
    schema = {"k": "string", "at": "timestamp"}
    live = testing.script(script, schema=schema, bounded=False, ends=True).event_time("at")
    keyed = live.key_by("k")
    job = keyed.scan(_again, 0, schema={"n": "bigint"}, on_timer=_rings, ttl="10s").start(on=engine)
    assert job.wait(PATIENCE)
    found = sorted(row["at"].timestamp() for row in job.result().to_pylist())
    assert found == ([3, 6, 9, 33] if marks else [3, 33])


def _firings(
    records: list[tuple[str, int]], last: int | None, ttl: int | None
) -> list[tuple[str, int]]:
    """When ``_again`` and ``_rings`` fire: up to the last watermark, and once at the end."""
    found = []
    for key in {k for k, _ in records}:
        timer = seen = None
        for at in [*sorted(t for k, t in records if k == key), None]:
            until = last if at is None else at
            if seen is not None and until is not None:
                limit = until if ttl is None else min(until, seen + ttl)
                while timer is not None and timer <= limit:
                    found.append((key, timer))
                    timer += 3
                if ttl is not None and until >= seen + ttl:
                    timer = None  # the key is forgotten
            if at is not None:
                seen, timer = at, at + 3
            elif timer is not None and (ttl is None or timer <= seen + ttl):
                found.append((key, timer))
    return sorted(found)


TIMED = {"k": "string", "at": "timestamp"}


def _timers(
    engine: Any, splits: list[list[tuple[str, int]]], delay: int | None, ttl: int | None,
    bounded: bool, at_once: int, bundle: int | None, union: bool,
) -> list[tuple[str, int]]:  # fmt: skip
    """When the timers fire over some splits; with a delay, or with the sources' own watermarks."""
    scripts: list[list[Any]] = []
    for records in splits:
        events: list[Any] = []
        for k, t in records:
            events.append(testing.records({"k": k, "at": testing.seconds(t)}))
            if delay is None:
                events.append(testing.watermark(testing.seconds(t)))
        scripts.append(events)
    options: dict[str, Any] = {"bounded": bounded, "ends": True, "at_once": at_once}
    sources = [[events] for events in scripts] if union else [scripts]
    made = [testing.script(*source, schema=TIMED, **options) for source in sources]
    said = None if delay is None else f"{delay}s"
    first, *others = (each.event_time("at", delay=said) for each in made)
    scanned = (
        first.union(*others)
        .key_by("k")
        .scan(
            _again,
            0,
            schema={"n": "bigint"},
            on_timer=_rings,
            ttl=None if ttl is None else f"{ttl}s",
        )
    )
    on = hr.Box(workers=2, bundle=bundle, debug=True) if engine.name == "box" else engine
    if bounded:
        table = scanned.collect(on=on)
    else:
        job = scanned.start(on=on)
        assert job.wait(PATIENCE)
        table = job.result()
    return sorted((row["k"], int(row["at"].timestamp())) for row in table.to_pylist())


def test_timers_fire_up_to_the_last_watermark_and_once_at_the_end(engine: Any) -> None:
    """Whatever arrives together with the end, from any number of splits and sources."""
    times = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), min_size=1, max_size=8)

    @for_all(
        engine, box=60, spark=8, splits=st.lists(times, min_size=1, max_size=2),
        delay=st.sampled_from([None, 0, 5]), ttl=st.sampled_from([None, 7]), bounded=st.booleans(),
        at_once=st.sampled_from([1, 2, 50]), bundle=st.sampled_from([1, 3, None]),
        union=st.booleans(),
    )  # fmt: skip
    def _(splits: Any, **how: Any) -> None:
        splits = [sorted(records, key=lambda record: record[1]) for records in splits]
        last = max(t for records in splits for _, t in records) - (how["delay"] or 0)
        every = [record for records in splits for record in records]
        assert _timers(engine, splits, **how) == _firings(every, last, how["ttl"])


def test_timers_fire_once_at_the_end_after_restarts(engine: Any, tmp_path: Path) -> None:
    """The last watermark is from a run before the one in which the input ends."""
    folder, out, state = tmp_path / "in", tmp_path / "out", tmp_path / "state"
    folder.mkdir()
    scanned = (
        timed(folder)
        .key_by("k")
        .scan(_again, 0, schema={"n": "bigint"}, on_timer=_rings, ttl="10s")
    )
    records = [("a", 0), ("b", 1), ("b", 12), ("c", 14)]
    for i in range(0, len(records), 2):
        rows = [{"k": k, "v": 0, "at": float(EPOCH + t)} for k, t in records[i : i + 2]]
        put(folder, f"{i}.csv", rows)
        job = scanned.write_parquet(out).start(on=engine, checkpoint=state, trigger="available-now")
        assert job.wait(PATIENCE)
    drop(folder, "_DONE", "")
    assert scanned.write_parquet(out).start(on=engine, checkpoint=state).wait(PATIENCE)
    found = hr.read_parquet(out).collect(on="box").to_pylist()
    fired = sorted((row["k"], int(row["at"].timestamp() - EPOCH)) for row in found)
    assert fired == _firings(records, 14 - 3, 10)  # the watermark is three seconds behind


def test_the_last_watermark_of_a_source_that_ended_before_a_restart(
    engine: Any, tmp_path: Path
) -> None:
    out, state = tmp_path / "out", tmp_path / "state"
    folders = [tmp_path / name for name in ("ends first", "ends last")]
    records = [("a", 0), ("a", 40)], [("b", 1)]
    for folder, mine in zip(folders, records, strict=True):
        folder.mkdir()
        put(folder, "0.csv", [{"k": k, "v": 0, "at": float(EPOCH + t)} for k, t in mine])
    drop(folders[0], "_DONE", "")
    first, last = map(timed, folders)
    scanned = first.union(last).key_by("k").scan(_again, 0, schema={"n": "bigint"}, on_timer=_rings)
    said: dict[str, Any] = {"on": engine, "checkpoint": state}
    assert scanned.write_parquet(out).start(**said, trigger="available-now").wait(PATIENCE)
    drop(folders[1], "_DONE", "")
    assert scanned.write_parquet(out).start(**said).wait(PATIENCE)
    found = hr.read_parquet(out).collect(on="box").to_pylist()
    fired = sorted((row["k"], int(row["at"].timestamp() - EPOCH)) for row in found)
    assert fired == _firings([*records[0], *records[1]], 40 - 3, None)


@pytest.mark.parametrize("bounded", [True, False])
def test_the_last_watermark_goes_through_other_steps(engine: Any, bounded: bool) -> None:
    records = [("a", 0), ("b", 1), ("a", 2), ("c", 38)]
    events = [testing.records({"k": k, "at": testing.seconds(t)}) for k, t in records]
    source = testing.script(events, schema=TIMED, bounded=bounded, ends=True)
    live = source.event_time("at", delay="4s")
    counts = live.key_by("k").window(hr.tumbling("5s")).count()
    ended = counts.with_columns(at="window_end").select("k", "window_end")
    steps = {
        "window": (ended.key_by("k"), [("a", 5), ("b", 5), ("c", 40)], 1e-6),
        "rank": (live.key_by("k").rank().key_by("k"), records, 0),
    }
    for name, (stream, arrived, before) in steps.items():
        scanned = stream.scan(_again, 0, schema={"n": "bigint"}, on_timer=_rings)
        if bounded:
            table = scanned.collect(on=engine)
        else:
            job = scanned.start(on=engine)
            assert job.wait(PATIENCE)
            table = job.result()
        time = table.column_names[1]
        fired = [(row["k"], row[time].timestamp()) for row in table.to_pylist()]
        assert sorted(fired) == _firings(arrived, 34 - before, None), name


def test_a_timer_by_the_clock_goes_off_after_a_restart(tmp_path: Path, box_engine: hr.Box) -> None:
    """Of a key that nothing more comes for."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()

    def step(n: int, row: Any, timer: Any) -> Any:
        timer.after("2s")
        return n + 1, None

    rows = hr.read_csv(
        folder, schema={"k": "string", "v": "bigint", "at": "timestamp"}, follow=True
    )
    scanned = rows.key_by("k").scan(
        step, 0, schema={"n": "bigint"}, on_timer=lambda n, time, timer: (0, n)
    )
    put(folder, "0.csv", [{"k": "a", "v": 1, "at": float(EPOCH)}])
    said: dict[str, Any] = {"on": box_engine, "checkpoint": tmp_path / "state"}
    job = scanned.write_parquet(out).start(**said, trigger="available-now")
    assert job.wait(PATIENCE)
    assert hr.read_parquet(out).collect(on="box").num_rows == 0
    job = scanned.write_parquet(out).start(**said)
    deadline = time.monotonic() + 30
    while not job.progress().records_out and time.monotonic() < deadline:
        time.sleep(0.05)
    job.stop()
    job.wait(PATIENCE)
    assert hr.read_parquet(out).collect(on="box").to_pylist() == [{"k": "a", "n": 1}]


def test_a_state_of_another_type_is_refused(tmp_path: Path, box_engine: hr.Box) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    put(folder, "0.csv", [{"k": "a", "v": 5, "at": float(EPOCH)}])

    def add(total: Any, row: Any) -> Any:
        return total + row.v, total

    for initial in (0, 0.0):
        scanned = timed(folder).key_by("k").scan(add, initial, schema={"n": "double"})
        outlet = scanned.write_parquet(out)
        said: dict[str, Any] = {"checkpoint": tmp_path / "state", "trigger": "available-now"}
        if initial == 0 and isinstance(initial, int):
            assert outlet.start(on=box_engine, **said).wait(PATIENCE)
        else:
            with pytest.raises(hr.PlanError, match="scan"):
                outlet.start(on=box_engine, **said)


def test_a_count_window_goes_on_after_a_restart_and_another_is_refused(
    engine: Any, tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()

    def windows(size: int, every: int, **more: Any) -> hr.Stream:
        window = hr.count_window(size, every, **more)
        return timed(folder).key_by("k").window(window).agg(all=hr.collect("v"), n=hr.sum("v"))

    said: dict[str, Any] = {"on": engine, "checkpoint": tmp_path / "state"}
    for i in range(3):
        rows = [
            {"k": "ab"[j % 2], "v": j, "at": float(EPOCH + j)} for j in range(20 * i, 20 * i + 20)
        ]
        put(folder, f"{i}.csv", rows)
        job = windows(8, 3).write_parquet(out).start(**said, trigger="available-now")
        assert job.wait(PATIENCE)
    found = (
        hr.read_parquet(out)
        .collect(on="box")
        .sort_by([("k", "ascending"), ("window", "ascending")])
    )
    due = {k: list(range(i, 56, 2)) for i, k in enumerate("ab")}  # the watermark is three behind
    assert found.select(["k", "window", "all"]).to_pylist() == [
        {"k": k, "window": w, "all": values[3 * w : 3 * w + 8]}
        for k, values in due.items()
        for w in range((len(values) - 8) // 3 + 1)
    ]
    for other in (windows(8, 4), windows(9, 3), windows(8, 3, order="arrival")):
        with pytest.raises(hr.PlanError, match=r"count_window\(8, every=3\)"):
            other.write_parquet(out).start(**said)


def test_records_that_sleep_in_the_store_are_not_forgotten(engine: Any, tmp_path: Path) -> None:
    """What is due comes, while what was there before it waits."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    scanned = timed(folder).key_by("k").scan(_count, 0, schema={"n": "bigint"}, keep="v")
    times = [(0, 50), (52, 49.5, 49.2), (51, 53, 54), (60, 58), (59, 61, 62, 90)]
    number = 0
    for i, each in enumerate(times):
        rows = [{"k": "a", "v": number + j, "at": float(EPOCH + t)} for j, t in enumerate(each)]
        number += len(each)
        put(folder, f"{i}.csv", rows)
        job = scanned.write_parquet(out).start(
            on=engine, checkpoint=tmp_path / "state", trigger="available-now"
        )
        assert job.wait(PATIENCE)
    found = hr.read_parquet(out).collect(on="box").sort_by("n")
    flat = [(t, v) for v, t in enumerate(t for each in times for t in each)]
    assert found["v"].to_pylist() == [v for t, v in sorted(flat) if t < 87]


def _fat(state: tuple[int, bytes], row: Any) -> Any:
    return (state[0] + row.v, random.Random(row.v).randbytes(40_000)), state[0] + row.v


def test_a_state_that_grows_large_goes_on(engine: Any, tmp_path: Path) -> None:
    """First it fits in a note of Spark's, then it does not; then it is moved."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    scanned = timed(folder).key_by("k").scan(_fat, (0, b""), schema={"n": "bigint"}, keep="v")
    counts = [2, 40, 40]
    state = tmp_path / "state"
    for i, keys in enumerate(counts):
        rows = [{"k": f"k{j}", "v": j + 1, "at": float(EPOCH + 10 * i)} for j in range(keys)]
        put(folder, f"{i}.csv", [*rows, {"k": "k0", "v": 1, "at": float(EPOCH + 10 * i + 4)}])
        job = scanned.write_parquet(out).start(on=engine, checkpoint=state, trigger="available-now")
        assert job.wait(PATIENCE)
        (waiting, kept) = holdings(read_state(state))
        assert (waiting.records, kept.records) == (1, keys)
        assert kept.nbytes > keys * 40_000
    hr.move_state(state, tmp_path / "moved", on=engine.name)
    drop(folder, "_DONE", "")
    assert scanned.write_parquet(out).start(on=engine, checkpoint=tmp_path / "moved").wait(PATIENCE)
    found = hr.read_parquet(out).collect(on="box")
    totals = [(j + 1) * n for j in range(1, 40) for n in range(1, 1 + sum(j < c for c in counts))]
    assert sorted(found["n"].to_pylist()) == sorted([*totals, *range(1, 7)])
