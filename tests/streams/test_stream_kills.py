"""Jobs killed at any moment, and started again until their input ends: nothing lost or doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from tests.conftest import PATIENCE
from tests.streams import victim
from tests.streams.conftest import Kafka, Lines, drop

ROOT = Path(__file__).parents[2]
EPOCH = 1_600_000_000


def records(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Records fifty a second, up to two seconds out of order."""
    rng = random.Random(seed)
    return [
        {
            "k": f"k{rng.randrange(7)}",
            "v": i,
            "at": round(EPOCH + i / 50 + rng.choice([0, 0, 1, 2]), 2),
        }
        for i in range(count)
    ]


def stamp(seconds: float) -> str:
    return (
        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
        + f".{round(seconds * 100) % 100:02d}Z"
    )


def windows(found: list[dict[str, Any]], size: int = 5, every: int = 5) -> Counter[Any]:
    """The result, computed plainly: a window's key, start, count and total, each once."""
    sums: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for record in found:
        start = int(record["at"]) // every * every
        while start > record["at"] - size:
            sums[record["k"], start][0] += 1
            sums[record["k"], start][1] += record["v"]
            start -= every
    return Counter((k, start, n, total) for (k, start), (n, total) in sums.items())


class Killed:
    """A job as a process, killed and started again."""

    def __init__(self, **said: Any) -> None:
        self.said = said
        self.kills = 0

    def run(self, kill_after: float | None, **more: Any) -> bool:
        """Run it, killed so many seconds after it started; whether it ended by itself."""
        command = [sys.executable, "-m", "tests.streams.victim", json.dumps({**self.said, **more})]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            # Without a buffer, in which what a quick job says next would be lost.
            first = process.stdout.readline()
            if first != b"started\n":
                process.wait(60)
                if process.returncode == -signal.SIGKILL:
                    self.kills += 1
                    return False
                assert process.stderr is not None
                pytest.fail(f"it did not start: {process.stderr.read().decode()[-3000:]}")
            if kill_after is None:
                rest, errors = process.communicate(timeout=180)
                if process.returncode == -signal.SIGKILL:
                    self.kills += 1
                    return False
                assert b"ended" in rest, f"exit {process.returncode}: {errors.decode()[-3000:]}"
                return True
            time.sleep(kill_after)
            return process.poll() is not None
        finally:
            if process.poll() is None:
                self.kills += 1
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def folder_of(tmp_path: Path, found: list[dict[str, Any]], files: int) -> str:
    size = -(-len(found) // files)
    for i in range(files):
        rows = [f"{r['k']},{r['v']},{stamp(r['at'])}" for r in found[i * size : (i + 1) * size]]
        drop(tmp_path / "in", f"{i:03d}.csv", "\n".join(["k,v,at", *rows, ""]))
    (tmp_path / "in" / "_DONE").touch()
    return str(tmp_path / "in")


def written(folder: Path, kind: str) -> Counter[Any]:
    """What a folder of results holds, as anyone would read it."""
    if kind == "json":
        schema = {"k": "string", "window_start": "timestamp", "n": "bigint", "total": "bigint"}
        table = hr.read_json(str(folder), schema=schema).collect(on="box")
    else:
        table = getattr(hr, f"read_{kind}")(str(folder)).collect(on="box")
    return as_counter(table)


def as_counter(table: pa.Table) -> Counter[Any]:
    return Counter(
        (row["k"], int(row["window_start"].timestamp()), row["n"], row["total"])
        for row in table.to_pylist()
    )


def test_a_job_killed_where_it_hurts_goes_on(engine: Any, tmp_path: Path) -> None:
    """In the sink's own commit, and between that and the engine's."""
    found = records(2000)
    said = {
        "on": engine.name, "source": "folder", "where": folder_of(tmp_path, found, 6),
        "sink": "parquet",
        "to": str(tmp_path / "out"), "checkpoint": str(tmp_path / "checkpoint"),
    }  # fmt: skip
    killed = Killed(**said)
    assert not killed.run(None, crash="in the sink")
    assert not killed.run(None, crash="after the sink", after=2)
    assert killed.kills == 2
    outlet = victim.outlet(victim.pipeline(said), said)
    assert outlet.start(on=engine, checkpoint=said["checkpoint"]).wait(PATIENCE)
    assert written(tmp_path / "out", "parquet") == windows(found)


def test_a_job_on_the_box_killed_at_any_moment_goes_on(tmp_path: Path) -> None:
    found = records(3000)
    killed = Killed(
        on="box", source="folder", where=folder_of(tmp_path, found, 20), sink="parquet",
        to=str(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), workers=4,
    )  # fmt: skip
    killed_often(killed, 3, random.Random())
    assert written(tmp_path / "out", "parquet") == windows(found)


FILES = ("parquet", "csv", "json")
POINTS = ["before the sink", "in the sink", "after the sink", "after the batch", None, None]
both_engines = pytest.mark.parametrize("on", ["spark", "box"])


def killed_often(killed: Killed, times: int, rng: random.Random, **last: Any) -> None:
    points = [p for p in POINTS if p != "in the sink" or killed.said["sink"] in FILES]
    box = killed.said["on"] == "box"
    if box:  # where a run takes half a second
        points.append("in the checkpoint")
        times *= 2
    while killed.kills < times:
        point = rng.choice(points)
        if point is not None:
            # It may have less to do than that, so it must be able to end.
            if killed.run(None, crash=point, after=rng.randrange(1, 4), **last):
                break
        elif killed.run(rng.uniform(0.05, 0.5 if box else 4.0)):
            break
    killed.run(None, **last)


@pytest.mark.slow
@both_engines
@pytest.mark.parametrize("kind", FILES)
def test_files_hold_every_result_once(tmp_path: Path, on: str, kind: str) -> None:
    found = records(6000, seed=2)
    killed = Killed(
        on=on, source="folder", where=folder_of(tmp_path, found, 30), sink=kind,
        to=str(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), sliding=True,
    )  # fmt: skip
    killed_often(killed, 4, random.Random())
    assert written(tmp_path / "out", kind) == windows(found, 6, 2)
    print(f"{killed.kills} kills")


@pytest.mark.slow
@both_engines
def test_pairs_of_a_join_are_written_once(tmp_path: Path, on: str) -> None:
    found = records(3000, seed=3)
    killed = Killed(
        on=on, source="folder", where=folder_of(tmp_path, found, 20), sink="parquet", pairs=True,
        to=str(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"),
    )  # fmt: skip
    killed_often(killed, 4, random.Random())
    table = hr.read_parquet(str(tmp_path / "out")).collect(on="box")
    got = Counter(zip(table["v"].to_pylist(), table["v_right"].to_pylist(), strict=True))
    wanted = Counter(
        (a["v"], b["v"])
        for a in found
        if a["v"] % 2
        for b in found
        if not b["v"] % 2 and a["k"] == b["k"] and abs(a["at"] - b["at"]) <= 0.501
    )
    assert got == wanted


@pytest.mark.slow
@both_engines
def test_scans_go_on_where_they_were(tmp_path: Path, on: str) -> None:
    """A running total, a timer, what is unique, and the record before."""
    found = records(3000, seed=5)
    killed = Killed(
        on=on, source="folder", where=folder_of(tmp_path, found, 20), sink="parquet", scan=True,
        to=str(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"),
    )  # fmt: skip
    killed_often(killed, 4, random.Random())
    got = hr.read_parquet(str(tmp_path / "out")).collect(on="box")
    said = {**killed.said, "source": "files"}
    wanted = victim.pipeline(said).collect(on=hr.Box(workers=1))
    assert Counter(map(str, got.to_pylist())) == Counter(map(str, wanted.to_pylist()))
    assert got.num_rows > 1000


@pytest.mark.slow
@both_engines
def test_a_postgres_table_holds_every_result_once(
    tmp_path: Path, on: str, postgres_url: str
) -> None:
    import psycopg

    with psycopg.connect(postgres_url) as link:  # the other engine's are there too
        link.execute("DROP TABLE IF EXISTS results")
    found = records(4000, seed=4)
    killed = Killed(
        on=on, source="folder", where=folder_of(tmp_path, found, 20), sink="postgres",
        to=postgres_url, checkpoint=str(tmp_path / "checkpoint"),
    )  # fmt: skip
    killed_often(killed, 3, random.Random())
    with psycopg.connect(postgres_url) as link:
        rows = link.execute("SELECT k, window_start, n, total FROM results").fetchall()
    assert Counter((k, int(s.timestamp()), n, t) for k, s, n, t in rows) == windows(found)


@pytest.mark.slow
@both_engines
def test_redis_to_redis_every_result_once(tmp_path: Path, on: str, redis_url: str) -> None:
    import redis

    found = records(3000, seed=5)
    with redis.Redis.from_url(redis_url) as link:
        link.flushall()
        for i, r in enumerate(found):
            link.xadd(f"in-{i % 2}", {**r, "at": stamp(r["at"])})
        for i in range(2):  # closes the windows before it
            link.xadd(f"in-{i}", {"k": "end", "v": 0, "at": stamp(EPOCH + 10_000)})
        killed = Killed(
            on=on, source="redis", where=redis_url, sink="redis", to=redis_url,
            checkpoint=str(tmp_path / "checkpoint"),
        )  # fmt: skip
        killed_often(killed, 3, random.Random(), trigger="available-now")
        rows = [{k.decode(): v.decode() for k, v in e.items()} for _, e in link.xrange("results")]
    got = Counter((r["k"], _seconds(r["window_start"]), int(r["n"]), int(r["total"])) for r in rows)
    assert got == windows(found)


def _seconds(text: str) -> int:
    import datetime

    return int(datetime.datetime.fromisoformat(text).timestamp())


@pytest.mark.slow
@both_engines
def test_kafka_to_files_once_and_to_kafka_at_least_once(
    tmp_path: Path, on: str, kafka: Kafka
) -> None:
    found = records(3000, seed=6)
    sent = [{**r, "at": stamp(r["at"])} for r in found]
    kafka.send("in", sent, partitions=4)
    kafka.send("in", [{"k": "end", "v": 0, "at": stamp(EPOCH + 10_000)}] * 4, partitions=4)
    killed = Killed(
        on=on, source="kafka", where=kafka.servers, sink="parquet", to=str(tmp_path / "out"),
        checkpoint=str(tmp_path / "checkpoint"),
    )  # fmt: skip
    killed_often(killed, 3, random.Random(), trigger="available-now")
    assert written(tmp_path / "out", "parquet") == windows(found)
    other = Killed(
        on=on, source="kafka", where=kafka.servers, sink="kafka", to=kafka.servers,
        checkpoint=str(tmp_path / "other"),
    )  # fmt: skip
    killed_often(other, 3, random.Random(), trigger="available-now")
    got = {(r["k"], _seconds(r["window_start"]), r["n"], r["total"]) for r in kafka.read("results")}
    assert got == set(windows(found))  # none missed, and none that is wrong


@pytest.mark.slow
@both_engines
def test_a_rate_and_a_socket_lose_nothing(tmp_path: Path, on: str, lines: Lines) -> None:
    killed = Killed(
        on=on, source="rate", where="", sink="parquet", to=str(tmp_path / "out"),
        checkpoint=str(tmp_path / "checkpoint"),
    )  # fmt: skip
    killed_often(killed, 2, random.Random())
    found = [{"k": f"k{i % 7}", "v": i, "at": i / 50} for i in range(6000)]
    assert written(tmp_path / "out", "parquet") == windows(found)
    # What a socket has sent before a kill is in the log beside the checkpoint.
    found = records(2000, seed=7)
    said = [f"{r['k']},{r['v']},{stamp(r['at'])}" for r in found]
    lines.send(*said, f"end,0,{stamp(EPOCH + 10_000)}")
    killed = Killed(
        on=on, source="socket", where=str(lines.port), sink="parquet", to=str(tmp_path / "lines"),
        checkpoint=str(tmp_path / "lines-checkpoint"),
    )  # fmt: skip
    assert not killed.run(4.0)
    assert not killed.run(1.0)
    killed.run(None, trigger="available-now")
    assert written(tmp_path / "lines", "parquet") == windows(found)
