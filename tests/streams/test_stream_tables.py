"""A stream joined with a table."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import testing
from headrace.io import tables
from headrace.io.held import HeldSource, Piece
from headrace.io.memory import TableSplit
from headrace.io.tables import Published
from headrace.plan.table_join import TableJoin
from headrace.tables import Table
from tests.conftest import for_all, tuples, until

ZONES = pa.table({"zone": [1, 2, 2, None, 4], "name": ["a", "b", "c", "none", None]})
TRIPS = {"at": "timestamp", "zone": "bigint", "fare": "double"}


def trips(rows: list[tuple[Any, ...]], size: int = 3) -> hr.Stream:
    """A stream of some records, a few at a time, that ends by itself."""
    events = []
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        events.append(
            testing.records(*({"at": testing.seconds(t), "zone": z, "fare": f} for t, z, f in some))
        )
        events.append(testing.watermark(testing.seconds(some[-1][0])))
    return testing.script(events, schema=TRIPS, bounded=False, ends=True, at_once=20)


def expected(rows: list[tuple[Any, ...]], how: str) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    table = ZONES.to_pylist()
    for t, zone, fare in rows:
        names = [r["name"] for r in table if zone is not None and r["zone"] == zone]
        record = (testing.seconds(t), zone, fare)
        if how == "inner":
            found.update((*record, name) for name in names)
        elif how == "left":
            found.update((*record, name) for name in names or [None])
        elif bool(names) == (how == "semi"):
            found[record] += 1
    return found


def result(stream: hr.Stream, engine: Any) -> pa.Table:
    job = stream.start(on=engine)
    assert job.wait(120)
    return job.result()


def test_each_record_is_looked_up(engine: Any) -> None:
    records = st.lists(
        st.tuples(st.integers(0, 20), st.none() | st.integers(0, 5), st.sampled_from([1.5, 2.5])),
        min_size=1, max_size=15,
    )  # fmt: skip

    @for_all(engine, box=15, spark=1, rows=records, size=st.integers(1, 5))
    def check(rows: list[tuple[Any, ...]], size: int) -> None:
        rows = sorted(rows, key=lambda row: row[0])
        for how in ("inner", "left", "semi", "anti"):
            stream = trips(rows, size).event_time("at")
            joined = stream.join(hr.from_arrow(ZONES), on="zone", how=how)
            assert Counter(tuples(result(joined, engine))) == expected(rows, how)


def test_windows_may_follow_and_tables_be_computed(engine: Any, tmp_path: Path) -> None:
    """Two tables one after the other, one an aggregate of files, and a window of the pairs."""
    sales = pa.table({"zone": [1, 1, 2], "amount": [5, 6, 7]})
    pq.write_table(sales, tmp_path / "sales.parquet")
    best = hr.read_parquet(tmp_path / "sales.parquet").group_by("zone").agg(most=hr.max("amount"))
    rows = [(t, t % 3, 1.0) for t in range(30)]
    joined = (
        trips(rows, 4)
        .event_time("at")
        .join(best, on="zone")
        .filter("most > 6")
        .join(hr.from_arrow(ZONES), left_on="zone", right_on="zone", how="left")
        .key_by("name")
        .window(hr.tumbling("10s"))
        .agg(n=hr.count(), most=hr.max("most"))
    )
    got = {(r[0], r[1], r[3], r[4]) for r in tuples(result(joined, engine))}
    twos = Counter(t // 10 for t in range(30) if t % 3 == 2)
    assert got == {
        (name, testing.seconds(10 * w), n, 7) for w, n in twos.items() for name in ("b", "c")
    }
    assert "with a table on zone" in joined.explain(on=engine)


def test_columns_nobody_wants_are_not_brought(engine: Any) -> None:
    rows = [(t, 2, 1.0) for t in range(5)]
    counted = trips(rows).event_time("at").join(hr.from_arrow(ZONES), on="zone")
    windows = counted.window(hr.tumbling("1h")).agg(n=hr.count())
    assert [r[2] for r in tuples(result(windows, engine))] == [10]
    named = counted.select(called="name").filter("called = 'c'")
    assert tuples(result(named, engine)) == [("c",)] * 5


def _left() -> set[str]:
    mark = f"-{os.getpid()}-"
    return {n for n in os.listdir(tempfile.gettempdir()) if mark in n and "table" in n}


@pytest.mark.parametrize("refresh", ["200ms", "on change"])
def test_a_table_is_read_again(engine: Any, tmp_path: Path, refresh: str) -> None:
    folder = tmp_path / "zones"
    folder.mkdir()
    pq.write_table(pa.table({"value": [0], "name": ["old"]}), folder / "a.parquet")
    # One kind of number for every record, so that all match the one row.
    stream = hr.rate(100).select(value="value * 0").join(
        hr.read_parquet(folder), on="value", refresh=refresh
    )  # fmt: skip
    before = _left()
    seen: list[str] = []
    job = stream.start(on=engine, to=lambda batch: seen.extend(batch.column("name").to_pylist()))
    until(lambda: "old" in seen)
    time.sleep(0.02)  # a file system may keep times no finer than this
    pq.write_table(pa.table({"value": [0], "name": ["new"]}), folder / ".b.parquet")
    (folder / ".b.parquet").rename(folder / "b.parquet")
    until(lambda: "new" in seen)
    (folder / "a.parquet").unlink()
    until(lambda: set(seen[-20:]) == {"new"})
    # What cannot be read leaves the table as it was, and the job tells.
    (folder / "b.parquet").write_bytes(b"not Parquet")
    until(lambda: any("could not be read again" in note for note in job.progress().notes))
    count = len(seen)
    until(lambda: len(seen) > count)
    assert seen[-1] == "new"
    assert job.stop(drain=False, timeout=60)
    assert _left() == before


def test_an_iteration_may_be_the_table(engine: Any) -> None:
    powers = hr.from_items([{"zone": 1}]).iterate(
        lambda s: s.union(s.select(zone="zone * 2")).distinct(), at_most=2
    )
    rows = [(t, t, 1.0) for t in range(6)]
    joined = trips(rows).event_time("at").join(powers, on="zone", how="semi")
    assert sorted(r[1] for r in tuples(result(joined, engine))) == [1, 2, 4]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s, t: s.join(t, on="zone", how="right"), "how='right' waits for the stream to end"),
        (lambda s, t: s.join(t, on="zone", refresh="often"), "'5 minutes', or 'on change'"),
        (
            lambda s, t: s.join(t, on="zone", refresh="on change"),
            "the table is not read from files; say how often",
        ),
        (
            lambda s, t: t.join(t, on="zone", refresh="1s"),
            "refresh= is for a stream that never ends",
        ),
        (
            lambda s, t: t.join(s, on="zone").start(on="box"),
            r"the other way round: stream.join\(table\)",
        ),
    ],
)
def test_mistakes_are_refused(build: Any, message: str) -> None:
    stream = trips([(1, 1, 1.0)]).event_time("at")
    with pytest.raises(hr.PlanError, match=message):
        build(stream, hr.from_arrow(ZONES))


def test_a_start_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "zones").mkdir()
    pq.write_table(pa.table({"value": [0]}), tmp_path / "zones" / "a.parquet")
    table = hr.read_parquet(tmp_path / "zones")
    stream = hr.rate(100, upto=10).join(table, on="value", refresh="50ms")
    stream.start(on="box", checkpoint=tmp_path / "state").wait(60)
    other = hr.rate(100, upto=10).key_by("value").running(n=hr.count())
    with pytest.raises(hr.HeadraceError):
        other.join(table, on="value", refresh="50ms").start(on="box", checkpoint=tmp_path / "state")
    until(lambda: not [t for t in threading.enumerate() if t.name == "headrace-tables"])
    (tmp_path / "zones" / "a.parquet").unlink()
    with pytest.raises(hr.HeadraceError, match=r"step \d, join: the table: "):
        stream.start(on="box")


def test_each_table_tells_of_itself(box_engine: hr.Box, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"value": [0]}), tmp_path / name / "t.parquet")
    one, two = (hr.read_parquet(tmp_path / name) for name in ("a", "b"))
    stream = (
        hr.rate(100)
        .join(one, on="value", how="left", refresh="20ms")
        .join(two, on="value", how="left", refresh="20ms")
    )
    job = stream.start(on=box_engine, to=lambda batch: None)
    (tmp_path / "a" / "t.parquet").unlink()
    until(lambda: job.progress().notes)
    assert all(job.progress().notes for _ in range(200))
    pq.write_table(pa.table({"value": [0]}), tmp_path / "a" / "t.parquet")
    until(lambda: not job.progress().notes)
    assert job.stop(drain=False, timeout=60)


def test_the_table_is_in_the_time_zone_of_the_stream(engine: Any) -> None:
    noon = testing.seconds(12 * 3600)
    table = hr.from_items([{"zone": 1, "at": noon}]).select("zone", h="hour(at)")
    stream = trips([(0, 1, 1.0)]).time_zone("Asia/Tokyo").event_time("at")
    assert [r[-1] for r in tuples(result(stream.join(table, on="zone"), engine))] == [21]


def _kept(*names: str) -> HeldSource:
    table = pa.table({"name": list(names)})
    return HeldSource(table.schema, (Piece(table.num_rows, table.nbytes, TableSplit(table)),))


def test_what_is_read_while_a_job_ends_is_given_back() -> None:
    released: list[int] = []
    published: list[Any] = []
    step = trips([(1, 1, 1.0)]).event_time("at").join(hr.from_arrow(ZONES), on="zone").node
    assert isinstance(step, TableJoin)

    class Late:
        node, rows = hr.from_arrow(ZONES).node, 5
        release = staticmethod(lambda: released.append(1))

    class Engine:
        name = "slow"

        def hold(self, node: Any) -> Late:
            table.close()  # as it would be by another thread
            return Late()

    table = Table(step, step.other, SimpleNamespace(publish=published.append))
    table.load(Engine())
    assert (released, published) == ([1], [])


def test_a_worker_finds_the_version_that_is_there(tmp_path: Path, monkeypatch: Any) -> None:
    place = Published(str(tmp_path / "tables" / "0"))
    gone = HeldSource(pa.schema([("name", pa.string())]), (Piece(1, 8, None, "/gone", (0,)),))
    place.publish(gone)
    monkeypatch.setattr("headrace.io.tables.time.sleep", lambda _: place.publish(_kept("new")))
    assert place.current()[1]["name"].to_pylist() == ["new"]
    monkeypatch.setattr("headrace.io.tables._FORGET", -1.0)
    other = Published(str(tmp_path / "tables" / "1"))
    other.publish(_kept("other"))
    assert other.current()[1].num_rows == 1
    assert place.path not in tables._KNOWN
