"""Sources of streams that do not end, on both engines."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.io.offsets import OffsetSource
from tests.conftest import PATIENCE, tuples
from tests.streams.conftest import Between, Kafka, Lines, PausedKafka, drop

NUMBERS = pa.schema([("n", pa.int64())])


def until(job: Any, enough: Callable[[], bool]) -> None:
    """Wait for something that a job does."""
    deadline = time.monotonic() + PATIENCE
    while not enough():
        assert time.monotonic() < deadline, f"not in time: {job.progress()}"
        assert job.running or enough(), job.progress()
        time.sleep(0.02)


def test_a_folder_is_read_as_it_grows(engine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    drop(folder, "a.txt", "one\ntwo\n")
    job = hr.read_text(folder, follow=True).start(on=engine)
    until(job, lambda: job.result().num_rows == 2)
    drop(folder, "c.txt", "three\n")
    drop(folder, "b.txt", "four\n")
    (folder / "_not_data.txt").write_text("no\n")
    until(job, lambda: job.result().num_rows == 4)
    job.stop()
    assert sorted(job.result()["line"].to_pylist()) == ["four", "one", "three", "two"]


def test_a_damaged_parquet_file_in_a_folder_fails_the_job_and_is_named(
    engine: Any, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "in" / "a.parquet", compression="snappy")
    job = hr.read_parquet(tmp_path / "in", follow=True).start(on=engine)
    until(job, lambda: job.result().num_rows == 2)
    data = (tmp_path / "in" / "a.parquet").read_bytes()
    codec = b"\x19\x18\x01n\x15"  # after the path of the column in the footer
    assert codec + b"\x02" in data
    (tmp_path / "b").write_bytes(data.replace(codec + b"\x02", codec + b"\x7e"))
    (tmp_path / "b").rename(tmp_path / "in" / "b.parquet")
    with pytest.raises(hr.BadRecord, match=r"b\.parquet"):
        job.wait(PATIENCE)


def test_a_folder_ends_where_told(engine: Any, tmp_path: Path) -> None:
    for i in range(3):
        drop(tmp_path / "csv", f"{i}.csv", f"n\n{i}\n{i + 10}\n")
        drop(tmp_path / "json", f"{i}.json", f'{{"n": {i}}}\n{{"n": {i + 10}}}\n')
        (tmp_path / "parquet").mkdir(exist_ok=True)
        table = pa.table({"n": [i, i + 10]}, schema=NUMBERS)
        pq.write_table(table, tmp_path / "parquet" / f"{i}.parquet")
    job = hr.start(
        [hr.read_csv(tmp_path / "csv", follow=True, limit=2, until="_DONE", schema=NUMBERS),
         hr.read_json(tmp_path / "json", follow=True, limit=2, until="_DONE"),
         hr.read_parquet(tmp_path / "parquet", follow=True, limit=2, until="_DONE")],
        on=engine,
    )  # fmt: skip
    until(job, lambda: all(job.result(i).num_rows == 6 for i in range(3)))
    assert job.running
    for form in ("csv", "json", "parquet"):
        (tmp_path / form / "_DONE").touch()
    assert job.wait(PATIENCE)
    for i in range(3):
        assert sorted(job.result(i)["n"].to_pylist()) == [0, 1, 2, 10, 11, 12]


def test_bad_records_of_a_folder_are_kept(engine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    drop(folder, "a.csv", "n\n1\nx\n3\n")
    (folder / "_DONE").touch()
    stream = hr.read_csv(
        folder, follow=True, until="_DONE", schema={"n": "bigint"}, on_error="keep"
    )
    job = hr.start([stream, stream.errors], on=engine)
    assert job.wait(60)
    assert sorted(job.result(0)["n"].to_pylist()) == [1, 3]
    assert job.result(1).select(["line", "record"]).to_pylist() == [{"line": 3, "record": "x"}]
    assert job.progress().bad == 1


def test_a_bad_record_stops_the_job_and_is_named(engine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    drop(folder, "a.csv", "n\n1\nx\n3\n")
    job = hr.read_csv(folder, follow=True, schema={"n": "bigint"}).start(on=engine)
    with pytest.raises(hr.BadRecord, match=r"a\.csv, line 3: .*the record is 'x'"):
        job.wait(60)
    assert not job.running


def test_a_file_that_vanishes_is_told(engine: Any, tmp_path: Path) -> None:
    class Careless(type(hr.read_text(tmp_path, follow=True).node.source)):  # type: ignore[misc]
        def between(self, start: Any, end: Any, parallelism: int) -> Any:
            for path in folder.glob("*.txt"):
                path.unlink()
            return super().between(start, end, parallelism)

    folder = tmp_path / "in"
    drop(folder, "a.txt", "one\n")
    source = hr.read_text(folder, follow=True).node.source  # type: ignore[attr-defined]
    careless = Careless(source.path, "text", source.schema, source.options)
    job = hr.from_source(careless).start(on=engine)
    with pytest.raises(hr.HeadraceError, match=r"a\.txt .*is gone before it was read"):
        job.wait(60)


def test_an_empty_folder_needs_a_schema(tmp_path: Path) -> None:
    with pytest.raises(hr.PlanError, match=r"no file in .* yet to learn the columns from"):
        hr.read_csv(tmp_path, follow=True)
    with pytest.raises(hr.PlanError, match="limit= is for a folder that grows"):
        hr.read_csv(tmp_path, limit=3)
    with pytest.raises(hr.PlanError, match="begin it with '_'"):
        hr.read_text(tmp_path, follow=True, until="done")


def test_a_rate_gives_every_number_once(engine: Any) -> None:
    job = hr.rate(20_000, splits=2, upto=3000).start(on=engine)
    assert job.wait(60)
    got = job.result()
    assert sorted(got["value"].to_pylist()) == list(range(3000))
    first, last = min(got["at"].to_pylist()), max(got["at"].to_pylist())
    assert 0.14 < (last - first).total_seconds() < 0.16  # by their own times


def test_lines_of_a_socket(engine: Any, lines: Lines) -> None:
    lines.send("one", "two")
    job = hr.read_socket("127.0.0.1", lines.port).start(on=engine)
    until(job, lambda: job.result().num_rows == 2)
    lines.send("three")
    until(job, lambda: job.result().num_rows == 3)
    job.stop()
    assert job.result()["line"].to_pylist() == ["one", "two", "three"]


def test_messages_of_kafka(engine: Any, kafka: Kafka) -> None:
    topic = f"numbers-{engine.name}"
    kafka.send(topic, [{"n": i} for i in range(50)], partitions=3)
    stream = hr.read_kafka(topic, servers=kafka.servers, schema=NUMBERS, limit=20)
    job = stream.start(on=engine)
    until(job, lambda: job.result().num_rows == 50)
    kafka.send(topic, [{"n": i} for i in range(50, 60)], partitions=3)
    until(job, lambda: job.result().num_rows == 60)
    job.stop()
    assert sorted(job.result()["n"].to_pylist()) == list(range(60))


def test_bad_messages_of_kafka(engine: Any, kafka: Kafka) -> None:
    topic = f"bad-{engine.name}"
    kafka.send(topic, [{"n": 1}, b"nonsense", {"n": 3}])
    stream = hr.read_kafka(topic, servers=kafka.servers, schema=NUMBERS, on_error="keep")
    job = hr.start([stream, stream.errors], on=engine)
    until(job, lambda: job.result(0).num_rows == 2 and job.result(1).num_rows == 1)
    job.stop()
    assert job.progress().bad == 1
    assert job.result(1)["record"].to_pylist() == ["nonsense"]
    job = hr.read_kafka(topic, servers=kafka.servers, schema=NUMBERS).start(on=engine)
    with pytest.raises(hr.BadRecord, match=r"message 1: .*the message is 'nonsense'"):
        job.wait(60)


def test_entries_of_redis(engine: Any, redis_url: str) -> None:
    import redis

    names = [f"in-{engine.name}-{i}" for i in range(2)]
    with redis.Redis.from_url(redis_url) as link:
        for i in range(40):
            link.xadd(names[i % 2], {"n": i, "name": f"x{i}"})
        schema = {"n": "bigint", "name": "string", "more": "double"}
        job = hr.read_redis(names, url=redis_url, schema=schema, limit=10).start(on=engine)
        until(job, lambda: job.result().num_rows == 40)
        link.xadd(names[0], {"n": 40, "name": "last", "more": "1.5"})
        until(job, lambda: job.result().num_rows == 41)
    job.stop()
    wanted = [*((i, f"x{i}", None) for i in range(40)), (40, "last", 1.5)]
    assert sorted(tuples(job.result())) == wanted


def test_a_server_that_goes_away_and_comes_back(engine: Any, redis_url: str) -> None:
    import redis

    name = f"away-{engine.name}"
    with (
        redis.Redis.from_url(redis_url) as link,
        Between(int(redis_url.rpartition(":")[2])) as road,
    ):
        for i in range(5):
            link.xadd(name, {"n": i})
        url = f"redis://127.0.0.1:{road.port}"
        job = hr.read_redis(name, url=url, schema=NUMBERS).start(on=engine)
        until(job, lambda: job.result().num_rows == 5)
        road.cut()
        link.xadd(name, {"n": 5})
        until(job, lambda: road.refused > 2)
        until(job, lambda: "cannot be reached" in job.progress().sources[0].waits)
        road.mend()
        until(job, lambda: job.result().num_rows == 6)
        assert not job.progress().sources[0].waits
        job.stop()
    assert sorted(job.result()["n"].to_pylist()) == list(range(6))


@pytest.mark.slow
def test_a_broker_that_stands_still_and_goes_on(engine: Any) -> None:
    pytest.importorskip("confluent_kafka")
    with PausedKafka() as broker:
        for i in range(5):
            broker.send("away", {"n": i})
        job = hr.read_kafka("away", servers=broker.servers, schema=NUMBERS).start(on=engine)
        until(job, lambda: job.result().num_rows == 5)
        broker.pause()
        time.sleep(25)  # twice as long as a request waits for its answer
        assert job.running
        broker.go_on()
        broker.send("away", {"n": 5})
        until(job, lambda: job.result().num_rows == 6)
        job.stop()
    assert sorted(job.result()["n"].to_pylist()) == list(range(6))


class Count(OffsetSource):
    """The source of the documentation, with an end."""

    schema = NUMBERS

    def initial(self) -> dict[str, Any]:
        return {"all": 0}

    def latest(self, since: dict[str, Any]) -> dict[str, Any]:
        return {"all": min(30, since["all"] + 10)}

    def between(self, start: Any, end: Any, parallelism: int) -> Any:
        return [("all", _Numbers(start["all"], end["all"]))]

    def ended(self, at: dict[str, Any]) -> bool:
        return bool(at["all"] == 30)


class _Numbers:
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def read(self, columns: Any) -> Any:
        yield pa.record_batch({"n": list(range(self.start, self.end))})


def test_a_persons_own_source_with_positions(engine: Any) -> None:
    job = hr.from_source(Count()).filter("n % 2 = 0").start(on=engine)
    assert job.wait(60)
    assert sorted(job.result()["n"].to_pylist()) == list(range(0, 30, 2))


def test_a_source_without_positions_is_refused_on_spark(spark_engine: hr.Spark) -> None:
    class Endless:
        schema = NUMBERS
        bounded = False

        def splits(self, parallelism: int) -> list[Any]:
            return []

    with pytest.raises(hr.PlanError, match="no positions to come back to"):
        hr.from_source(Endless()).start(on=spark_engine)


def test_a_bounded_stream_beside_one_that_does_not_end(engine: Any) -> None:
    stream = hr.from_source(Count()).union(hr.from_arrow(pa.table({"n": [100, 200]})))
    job = stream.start(on=engine)
    assert job.wait(60)
    assert sorted(job.result()["n"].to_pylist()) == [*range(30), 100, 200]
