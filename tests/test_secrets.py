"""A password that is planted is found in no message, plan, progress, log, checkpoint or file."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.secrets import Secret, hiding, without
from tests.conftest import until
from tests.streams import conftest as servers
from tests.streams.conftest import Kafka

redis_url = servers.redis_url

PLANTED = "hunter2-planted"
SCHEMA = {"v": "bigint"}


def test_a_secret_hides_itself_and_travels() -> None:
    secret = hr.Secret(PLANTED)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>20}", f"{[secret]!r}"]
    assert not any(PLANTED in text for text in shown)
    assert pickle.loads(pickle.dumps(secret)).reveal() == PLANTED
    assert secret == Secret(PLANTED)
    assert secret != Secret("other")


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{PLANTED}@host:6379/0",
        f"redis://:{PLANTED}@host",
        f"postgresql://user:{PLANTED}@host/db",
        f"host=h user=u password={PLANTED} dbname=d",
        f"host=h password='{PLANTED}'",
        f"rediss://host?password={PLANTED}",
        "postgresql://user:hunter2%2Dplanted@host/db",
    ],
)
def test_the_password_of_a_url_is_taken_out_of_a_text(url: str) -> None:
    said = f"cannot reach {url}: {PLANTED} is refused"
    assert PLANTED not in without(said, [Secret(url)])
    assert "hunter2%2Dplanted" not in without(said, [Secret(url)])


def test_settings_that_sound_like_a_password_are_hidden() -> None:
    names = (
        "sasl.password",
        "ssl.key.password",
        "sasl.jaas.config",
        "oauth.token",
        "client.secret",
    )
    settings = hiding(dict.fromkeys(names, PLANTED) | {"linger.ms": 5, "group.id": "g"})
    assert PLANTED not in repr(settings)
    assert settings["linger.ms"] == 5
    assert settings["group.id"] == "g"


def everything(build: Callable[[], Any], folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """All that is said of a stream that is built, shown, started and fails."""
    said: list[str] = []
    with caplog.at_level(logging.DEBUG):
        try:
            outlet = build()
            stream = getattr(outlet, "stream", outlet)
            said += [repr(outlet), str(outlet), repr(stream.node), str(stream.node)]
            said += [outlet.explain(on="box"), outlet.explain(on="spark"), stream._repr_html_()]
            said += [repr(getattr(stream.node, "source", "")), repr(getattr(outlet, "sink", ""))]
            job = outlet.start(on="box")
            said += [repr(job), str(job.progress())]
            for _ in range(30):  # until it ends, or says that it cannot reach the server
                if job.wait(0.1) or caplog.records:
                    break
            job.stop(drain=False)
            said.append(str(job.progress()))
        except Exception as error:
            seen: BaseException | None = error
            while seen is not None:
                said += [str(seen), repr(seen)]
                seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    said += [record.getMessage() for record in caplog.records]
    said += [p.read_bytes().decode("utf-8", "replace") for p in folder.rglob("*") if p.is_file()]
    return "\n".join(said)


def table() -> hr.Stream:
    from headrace.testing import records, script

    return script([records({"v": 1})], schema=SCHEMA, bounded=False, ends=True)


PLACES: dict[str, Callable[[], Any]] = {
    "read_redis": lambda: hr.read_redis(
        "in", schema=SCHEMA, url=f"redis://:{PLANTED}@127.0.0.1:1/0"
    ),
    "read_redis of nonsense": lambda: hr.read_redis(
        "in", schema=SCHEMA, url=f"redis://u:{PLANTED}@127.0.0.1:x{PLANTED}"
    ),
    "write_redis": lambda: table().write_redis("out", url=f"redis://:{PLANTED}@127.0.0.1:1"),
    "write_postgres": lambda: table().write_postgres(
        "t", f"postgresql://u:{PLANTED}@127.0.0.1:1/d"
    ),
    "write_postgres of nonsense": lambda: table().write_postgres("t", f"nonsense {PLANTED}"),
    "read_kafka": lambda: hr.read_kafka(
        "t", servers="127.0.0.1:1", schema=SCHEMA,
        config={"sasl.password": PLANTED, "sasl.username": "u", "sasl.mechanism": "PLAIN",
                "security.protocol": "SASL_PLAINTEXT", "socket.timeout.ms": 100},
    ),
    "read_kafka of nonsense": lambda: hr.read_kafka(
        "t", servers="127.0.0.1:1", schema=SCHEMA,
        config={"sasl.password": PLANTED, "sasl.mechanism": "NONSENSE"},
    ),
    "write_kafka": lambda: table().write_kafka(
        "t", servers="127.0.0.1:1",
        config={"sasl.password": PLANTED, "message.timeout.ms": 200, "ssl.key.password": PLANTED},
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_planted_password_is_seen_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("headrace.io.kafka.ANSWER", 0.5)
    monkeypatch.setattr("headrace.io.kafka._PATIENCE", 0.5)
    said = everything(PLACES[place], tmp_path, caplog)
    assert PLANTED not in said


def test_a_checkpoint_does_not_hold_one(
    spark_engine: hr.Spark,
    tmp_path: Path,
    redis_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import redis

    link = redis.Redis.from_url(redis_url)
    link.execute_command("ACL", "SETUSER", "planted", "on", f">{PLANTED}", "~*", "+@all")
    link.xadd("planted-in", {"v": "1"})
    url = redis_url.replace("redis://", f"redis://planted:{PLANTED}@")
    stream = hr.read_redis("planted-in", schema=SCHEMA, url=url)
    outlet = stream.write_redis("planted-out", url=url)
    assert outlet is not None
    with caplog.at_level(logging.DEBUG, logger="headrace"):
        job = outlet.start(on=spark_engine, checkpoint=tmp_path / "state", trigger="available-now")
        assert job.wait(60)
    assert link.xlen("planted-out") == 1
    said = [str(job.progress()), job.explain(), *(r.getMessage() for r in caplog.records)]
    files = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()]
    assert files
    assert not any(PLANTED in text for text in said)
    assert not any(PLANTED.encode() in data for data in files)


def test_a_mock_cluster_is_read_with_hidden_settings(kafka_again: Kafka) -> None:
    kafka_again.send("hidden", [{"v": 1}])
    stream = hr.read_kafka(
        "hidden", servers=kafka_again.servers, schema=SCHEMA, config={"client.id": "x"}
    )
    with stream.start(on="box") as job:
        until(lambda: job.result().num_rows == 1)


@pytest.fixture
def kafka_again() -> Kafka:
    pytest.importorskip("confluent_kafka")
    return Kafka()
