"""The time zone is the pipeline's: the same on both engines, whatever a Spark session is set to."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from tests.conftest import Rows

AT = datetime.datetime(2026, 7, 1, 23, 30, tzinfo=datetime.UTC)
COLUMNS = (
    "hour(at) as hour",
    "cast(at as string) as text",
    "cast(date_trunc('day', at) as string) as day",
    "unix_seconds(cast('2026-07-01 00:00:00' as timestamp)) as read",
)
MIDNIGHT = 1_782_864_000
WANTED = {
    None: (23, "2026-07-01 23:30:00", "2026-07-01 00:00:00", MIDNIGHT),
    "Europe/Berlin": (1, "2026-07-02 01:30:00", "2026-07-02 00:00:00", MIDNIGHT - 7200),
}


@pytest.fixture
def tokyo(session: Any) -> Any:
    """The tests' session, set to a zone of its own for a while."""
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield session
    session.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize("zone", WANTED)
@pytest.mark.parametrize("place", ["kernel", "column"])
def test_the_zone_is_the_pipelines(
    rows: Callable[[hr.Stream], Rows], tokyo: Any, zone: str | None, place: str
) -> None:
    stream = hr.from_items([{"id": 1, "at": AT}])
    stream = stream if zone is None else stream.time_zone(zone)
    if place == "column":  # after a sort Spark has rows, and expressions are its own columns
        stream = stream.sort("id")
    assert rows(stream.select(*COLUMNS)) == [WANTED[zone]]
    assert tokyo.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"


def test_keys_and_orders_are_in_the_zone(rows: Callable[[hr.Stream], Rows]) -> None:
    stream = hr.from_items([{"at": AT}]).time_zone("Europe/Berlin")
    assert rows(stream.group_by(h="hour(at)").agg(n=hr.count())) == [(1, 1)]
    assert rows(stream.top_k(1, by="hour(at)")) == [(AT,)]


def test_a_stream_is_in_the_zone_too(engine: Any) -> None:
    from headrace.testing import records, script

    schema = {"at": "timestamp"}
    stream = script([records({"at": AT})], schema=schema, bounded=False, ends=True)
    job = stream.time_zone("Europe/Berlin").select("hour(at) as h").start(on=engine)
    assert job.wait(60)
    assert job.result() == pa.table({"h": pa.array([1], pa.int32())})
