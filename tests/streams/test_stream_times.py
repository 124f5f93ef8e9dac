"""Event times that cannot be right, and sources that fall silent, on both engines."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import testing
from headrace.windows import LATEST
from tests.conftest import until
from tests.streams.conftest import drop

SCHEMA = {"k": "string", "at": "timestamp"}
NOW = datetime.datetime.now(datetime.UTC)
FAR = NOW + datetime.timedelta(days=400)


def stream(*times: datetime.datetime, **options: Any) -> hr.Stream:
    script = [testing.records({"k": "a", "at": t}) for t in times]
    source = testing.script(script, schema=SCHEMA, bounded=False, ends=True)
    return source.event_time("at", delay="1s", **options)


def test_a_record_from_the_far_future_makes_nothing_late(engine: Any) -> None:
    start = NOW.replace(microsecond=0) - datetime.timedelta(minutes=5)
    times = [start + datetime.timedelta(seconds=s) for s in range(4)]
    trips = stream(times[0], FAR, *times[1:])
    counts = trips.window(hr.tumbling("1 hour")).agg(n=hr.count())
    job = hr.start([counts, trips.late], on=engine)
    assert job.wait(60)
    assert sum(row["n"] for row in job.result(0).to_pylist()) == 4
    (late,) = job.result(1).to_pylist()
    assert late["at"] == FAR
    assert late["reason"] == "more than 1d ahead of the clock"
    assert late["late_by"] is None
    (source,) = job.progress().sources
    assert (source.late, source.ahead) == (1, 1)
    assert any("ahead of the clock" in note for note in job.progress().notes)


def test_how_far_ahead_is_an_option(engine: Any) -> None:
    trips = stream(NOW, FAR, ahead="500 days")
    job = trips.late.start(on=engine)
    assert job.wait(60)
    assert job.result().num_rows == 0


def test_a_late_record_says_why(engine: Any) -> None:
    job = stream(testing.seconds(50), testing.seconds(60), testing.seconds(3)).late.start(on=engine)
    assert job.wait(60)
    assert job.result().to_pylist()[0]["reason"] == "below the watermark"


def test_times_at_the_ends_of_what_can_be_counted_are_set_aside(engine: Any) -> None:
    import pyarrow as pa

    times = pa.array([2**63 - 1, 5_000_000, -LATEST - 1]).cast(pa.timestamp("us", tz="UTC"))
    batch = pa.record_batch({"k": ["a", "b", "c"], "at": times})
    source = testing.script([testing.records(batch)], bounded=False, ends=True)
    trips = source.event_time("at", delay="1s")
    counts = trips.window(hr.tumbling("1s")).agg(n=hr.count())
    job = hr.start([counts, trips.late.select("k", "reason")], on=engine)
    assert job.wait(60)
    assert job.result(0).column("n").to_pylist() == [1]
    assert sorted(job.result(1).column("k").to_pylist()) == ["a", "c"]


def test_such_times_are_refused_in_input_that_ends(engine: Any) -> None:
    import pyarrow as pa

    kind = pa.timestamp("us", tz="UTC")
    table = pa.table({"at": pa.array([1, 2**63 - 1]).cast(kind)})
    trips = hr.from_arrow(table).event_time("at", delay="1s")
    with pytest.raises(hr.StepError, match="further away than windows can count"):
        trips.window(hr.tumbling("1s")).agg(n=hr.count()).collect(on=engine)


def test_windows_near_the_largest_time_close(engine: Any) -> None:
    import pyarrow as pa

    kind = pa.timestamp("us", tz="UTC")
    table = pa.table({"at": pa.array([-LATEST, LATEST - 1, LATEST]).cast(kind)})
    trips = hr.from_arrow(table).event_time("at", delay="1d")
    for window in (hr.tumbling("1d"), hr.sliding("2d", every="1d"), hr.session("1d")):
        counts = trips.window(window).agg(n=hr.count()).agg(total=hr.sum("n"))
        (found,) = counts.collect(on=engine).column("total").to_pylist()
        assert found == (6 if window.__class__.__name__ == "Window" and window.panes > 1 else 3)


def test_a_silent_source_closes_its_windows_by_the_clock(engine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    drop(folder, "a.json", '{"k": "a", "at": "1970-01-01T00:00:01Z"}\n')
    trips = hr.read_json(folder, schema=SCHEMA, follow=True).event_time(
        "at", delay="0s", idle="300ms", when_idle="advance"
    )
    counts = trips.window(hr.tumbling("2s")).agg(n=hr.count())
    with counts.start(on=engine) as job:
        until(lambda: job.result().num_rows)
        assert job.result().column("n").to_pylist() == [1]


def test_what_a_silent_source_waits_for_is_told(engine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    drop(folder, "a.json", '{"k": "a", "at": "1970-01-01T00:00:01Z"}\n')
    trips = hr.read_json(folder, schema=SCHEMA, follow=True).event_time(
        "at", delay="0s", idle="300ms"
    )
    with trips.window(hr.tumbling("2s")).agg(n=hr.count()).start(on=engine) as job:
        until(lambda: "every split" in job.progress().sources[0].waits)
        waits = job.progress().sources[0].waits
        assert "every split has been silent for 300ms" in waits
        assert "stay open until a record comes" in waits
        assert waits in str(job.progress())
        assert not job.result().num_rows


def test_progress_names_the_silent_source_that_keeps_windows_open_at_once(
    engine: Any, tmp_path: Path
) -> None:
    drop(tmp_path / "busy", "a.json", '{"k": "a", "at": "1970-01-01T00:01:00Z"}\n')
    (tmp_path / "quiet").mkdir()
    busy, silent = (
        hr.read_json(tmp_path / name, schema=SCHEMA, follow=True).event_time("at", delay="0s")
        for name in ("busy", "quiet")
    )
    counts = busy.union(silent).window(hr.tumbling("2s")).agg(n=hr.count())
    with counts.start(on=engine) as job:
        assert "has sent nothing since the job started" in job.progress().sources[1].waits
        until(lambda: job.progress().sources[0].records)
        waits = {source.name: source.waits for source in job.progress().sources}
        (name,) = (each for each in waits if "/quiet" in each)
        assert re.match(r"split \w+ has sent nothing since the job started", waits[name])
        assert "until a record comes from there, or there was none for 30s (idle=)" in waits[name]
        assert waits[name] in str(job.progress())
        drop(tmp_path / "quiet", "b.json", '{"k": "a", "at": "1970-01-01T00:02:00Z"}\n')
        until(lambda: job.progress().sources[1].records)
        assert not job.progress().sources[1].waits
