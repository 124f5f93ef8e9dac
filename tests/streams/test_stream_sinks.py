"""Where streams that do not end go, on both engines, and what each promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import testing
from headrace.io.files import epoch_file
from headrace.io.parquet import ParquetSink
from tests.conftest import tuples
from tests.streams.conftest import Kafka

RECORDS = [{"k": f"k{i % 3}", "v": i, "at": testing.seconds(i)} for i in range(40)]


def numbers(pieces: int = 2) -> hr.Stream:
    size = -(-len(RECORDS) // pieces)
    script = [testing.records(*RECORDS[i : i + size]) for i in range(0, len(RECORDS), size)]
    return testing.script(script, bounded=False, ends=True).event_time("at", delay="0s")


def counts() -> hr.Stream:
    return numbers().key_by("k").window(hr.tumbling("10s")).agg(n=hr.count(), total=hr.sum("v"))


def wanted() -> list[tuple[Any, ...]]:
    found = []
    for start in range(0, 40, 10):
        for k in range(3):
            mine = [i for i in range(start, start + 10) if i % 3 == k]
            found.append((f"k{k}", start, len(mine), sum(mine)))
    return found


def plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted((k, round(start.timestamp()), n, total) for k, start, _, n, total in rows)


def test_files(engine: Any, tmp_path: Path) -> None:
    results = counts()
    job = hr.start(
        [results.write_parquet(tmp_path / "parquet"), results.write_csv(tmp_path / "csv"),
         results.write_json(tmp_path / "json")],
        on=engine,
    )  # fmt: skip
    assert job.wait(60)
    assert job.progress().records_out == 3 * 12
    for read in (
        hr.read_parquet(tmp_path / "parquet"), hr.read_csv(tmp_path / "csv"),
        hr.read_json(tmp_path / "json", schema=results.schema),
    ):  # fmt: skip
        assert plain(tuples(read.collect(on="box"))) == sorted(wanted())
    assert not list(tmp_path.glob("*/_temporary*"))


def test_one_task_writes_to_one_sink_from_several_places(engine: Any, tmp_path: Path) -> None:
    stream = numbers()
    both = stream.filter("v < 10").union(stream.filter("v >= 30"), stream.filter("v = 20"))
    outlet = both.select("v").write_parquet(tmp_path / "out")
    assert outlet is not None
    assert outlet.start(on=engine).wait(60)
    got = hr.read_parquet(tmp_path / "out").collect(on="box")["v"].to_pylist()
    assert sorted(got) == [*range(10), 20, *range(30, 40)]


def test_two_outputs_to_one_place(engine: Any, tmp_path: Path, postgres_url: str) -> None:
    import psycopg

    table, stream = f"both_{engine.name}", numbers().select("v")
    low, high = stream.filter("v < 10"), stream.filter("v >= 35")
    job = hr.start(
        [s.write_postgres(table, postgres_url) for s in (low, high)]
        + [s.write_csv(tmp_path / "out") for s in (low, high)],
        on=engine,
    )
    assert job.wait(60)
    with psycopg.connect(postgres_url) as link:
        rows = [v for (v,) in link.execute(f"SELECT v FROM {table}").fetchall()]
    got = hr.read_csv(tmp_path / "out").collect(on="box")["v"].to_pylist()
    assert sorted(rows) == sorted(got) == [*range(10), *range(35, 40)]


def test_files_of_an_epoch_that_does_not_count_are_not_read(tmp_path: Path) -> None:
    batch = pa.record_batch({"n": [1, 2]})

    def write(sink: ParquetSink, epoch: int, *parts: pa.RecordBatch) -> None:
        sink.begin(batch.schema)
        messages = []
        for i, part in enumerate(parts or (batch,)):
            writer = sink.open(batch.schema, f"{epoch}-{i}")
            writer.write(part)
            messages.append(writer.close())
        sink.commit_epoch("0123456789abcdef", epoch, messages)

    sink = ParquetSink(str(tmp_path / "out"))
    sink.ready("0123456789abcdef")
    write(sink, 0)
    write(sink, 1, batch.slice(0, 1), batch.slice(1))
    # A run that was killed has moved a file of the next epoch, and not said that it counts.
    some = next((tmp_path / "out").glob("part-*"))
    left = tmp_path / "out" / epoch_file("0123456789abcdef", 2, 0, ".parquet")
    left.write_bytes(some.read_bytes())
    assert hr.read_parquet(tmp_path / "out").collect(on="box").num_rows == 4
    again = ParquetSink(str(tmp_path / "out"))
    again.ready("0123456789abcdef")
    # It was committed, so it counts once, however its records are cut this time.
    write(again, 1)
    assert not left.exists()
    assert hr.read_parquet(tmp_path / "out").collect(on="box").num_rows == 4
    write(again, 2)
    assert hr.read_parquet(tmp_path / "out").collect(on="box").num_rows == 6


def test_a_folder_with_files_of_others_is_refused(spark_engine: hr.Spark, tmp_path: Path) -> None:
    hr.from_items([1]).write_csv(tmp_path / "out", on="box").run()
    outlet = numbers().write_csv(tmp_path / "out")
    assert outlet is not None
    with pytest.raises(hr.PlanError, match="already has files"):
        outlet.start(on=spark_engine, checkpoint=tmp_path / "state")
    # Nothing was begun: not the checkpoint, and not another output's folder.
    assert not (tmp_path / "state").exists()
    hr.from_items([1]).write_csv(tmp_path / "old", on="box").run()
    other = numbers().write_csv(tmp_path / "old", mode="overwrite")
    with pytest.raises(hr.PlanError, match="already has files"):
        hr.start([other, outlet], on=spark_engine)
    assert hr.read_csv(tmp_path / "old").count(on="box") == 1


def test_kafka(engine: Any, kafka: Kafka) -> None:
    topic = f"out-{engine.name}"
    job = counts().write_kafka(topic, servers=kafka.servers, key="k").start(on=engine)
    assert job.wait(60)
    got = sorted((r["k"], r["n"], r["total"]) for r in kafka.read(topic))
    assert got == sorted((k, n, total) for k, _, n, total in wanted())


def test_redis_streams_and_hashes(engine: Any, redis_url: str) -> None:
    import redis

    name = f"out-{engine.name}"
    one = counts().select("k", "n", "total")
    job = hr.start(
        [
            one.write_redis(name, url=redis_url),
            one.write_redis(f"h-{name}", url=redis_url, key="k"),
        ],
        on=engine,
    )
    assert job.wait(60)
    with redis.Redis.from_url(redis_url) as link:
        rows = [e for _, e in link.xrange(name)]
        assert sorted((r[b"k"].decode(), int(r[b"n"]), int(r[b"total"])) for r in rows) == sorted(
            (k, n, total) for k, _, n, total in wanted()
        )
        assert set(link.hgetall(f"h-{name}:k1")) == {b"k", b"n", b"total"}


def test_a_postgres_table(engine: Any, postgres_url: str) -> None:
    import psycopg

    table = f"out_{engine.name}"
    latest = f"latest_{engine.name}"
    by_key = counts().select("k", "window_start", "n")
    job = hr.start(
        [counts().write_postgres(table, postgres_url),
         by_key.write_postgres(latest, postgres_url, key="k")],
        on=engine,
    )  # fmt: skip
    assert job.wait(60)
    with psycopg.connect(postgres_url) as link:
        rows = link.execute(f"SELECT * FROM {table}").fetchall()
        assert plain(rows) == sorted(wanted())
        keys = link.execute(f"SELECT k FROM {latest} ORDER BY k").fetchall()
        assert keys == [("k0",), ("k1",), ("k2",)]


def test_a_function_of_each_batch(engine: Any) -> None:
    seen: list[tuple[int, pa.Table]] = []
    job = counts().for_each_batch(lambda table, epoch: seen.append((epoch, table))).start(on=engine)
    assert job.wait(60)
    assert plain(tuples(pa.concat_tables(t for _, t in seen))) == sorted(wanted())
    epochs = [e for e, _ in seen]
    assert epochs == sorted(set(epochs))


def test_a_function_that_fails_is_named(engine: Any) -> None:
    def broken(table: pa.Table, epoch: int) -> None:
        raise ValueError("no room")

    job = counts().for_each_batch(broken).start(on=engine)
    with pytest.raises(hr.StepError, match=r"for_each_batch failed: ValueError: no room"):
        job.wait(60)


def test_the_console(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    job = counts().write_console().start(on=engine)
    assert job.wait(60)
    assert "window_start" in capsys.readouterr().out


def test_a_function_of_each_bundle(engine: Any) -> None:
    seen: list[pa.RecordBatch] = []
    job = counts().start(on=engine, to=seen.append)
    assert job.wait(60)
    assert plain(tuples(pa.Table.from_batches(seen))) == sorted(wanted())
    with pytest.raises(hr.EngineError, match="the results went where to= said"):
        job.result()


REFUSED: dict[str, tuple[Callable[[hr.Stream], Any], str]] = {
    "kafka": (lambda s: s.write_kafka("t", key="kk"), "there is no column 'kk'; did you mean 'k'"),
    "redis": (lambda s: s.write_redis("t", key="x"), "there is no column 'x'"),
    "postgres": (lambda s: s.write_postgres("t", "", key="x"), "there is no column 'x'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_sink_cannot_write_is_refused_at_once(name: str) -> None:
    write, message = REFUSED[name]
    with pytest.raises(hr.PlanError, match=message):
        write(counts())
