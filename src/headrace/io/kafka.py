"""Kafka: topics as streams, and streams to topics."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.errors import EngineError, PlanError, StepError, nearest
from headrace.io.messages import Decoding, Message, encoded
from headrace.io.offsets import ANSWER, Positions, ServerSource, at_most_at_once, most_at_once
from headrace.io.sink import Sink
from headrace.io.source import BUNDLE_ROWS, Source, Split
from headrace.secrets import hiding, revealed, without

log = logging.getLogger("headrace")
_PATIENCE = 120.0
"""How long a task waits for a broker that has gone away, in seconds."""
_SMALL_STEP = 100_000
_NEW_PARTITIONS = 30.0


def client() -> Any:
    """The Kafka client library."""
    try:
        import confluent_kafka
    except ImportError:
        raise PlanError("Kafka needs its client: pip install 'headrace[kafka]'") from None
    return confluent_kafka


def _made(kind: Any, servers: str, settings: Mapping[str, Any]) -> Any:
    """A client, whose own log is ours, and whose settings are shown to nobody."""
    plain = {"bootstrap.servers": servers, **revealed(settings), "logger": _client_log(servers)}
    try:
        return kind(plain)
    except (client().KafkaException, TypeError, ValueError) as error:
        reason = without(error, settings.values())
        raise PlanError(f"Kafka's client does not take its config=: {reason}") from None


def _client_log(servers: str) -> logging.Logger:
    """Where a client says what it sees: a broker that is away is told once, not ten times a second.

    It tells of it again when it has been quiet about it for a minute.
    """
    told = logging.Logger("headrace.kafka")
    told.parent = log
    told.addFilter(_OnceAMinute(servers))
    return told


class _OnceAMinute(logging.Filter):
    def __init__(self, servers: str) -> None:
        super().__init__()
        self.servers = servers
        self.last = -_QUIET

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "FAIL" not in text and "ALL_BROKERS_DOWN" not in text:
            return record.levelno >= logging.ERROR
        now = time.monotonic()
        if now - self.last < _QUIET:
            return False
        self.last = now
        reason = text.rpartition("]: ")[2] or text
        record.msg, record.args = (
            "a Kafka broker at %s cannot be reached, and is waited for (%s); is it up, and is "
            "servers= right?", (self.servers, reason),
        )  # fmt: skip
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


_QUIET = 60.0


def _unreachable(what: KafkaSource | KafkaSink, error: Exception) -> EngineError:
    reason = getattr(error.args[0], "str", lambda: error)() if error.args else error
    return EngineError(
        f"{what} at {what.servers} cannot be reached: {reason}; is Kafka running there, and is "
        "servers= right?"
    )


@dataclass(frozen=True, eq=False)
class KafkaSource(ServerSource):
    """The messages of a topic; a position is the offset of the next one in a partition."""

    topic: str
    servers: str
    decoding: Decoding
    start: str = "earliest"
    limit: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    partition: int | None = None
    """The one partition to read, if not all."""

    @staticmethod
    def open(
        topic: str,
        *,
        servers: str = "localhost:9092",
        schema: Any = None,
        format: str = "json",
        start: str = "earliest",
        limit: int | None = None,
        on_error: str = "raise",
        config: Mapping[str, Any] | None = None,
    ) -> KafkaSource:
        client()
        if start not in ("earliest", "latest"):
            raise PlanError(f"read_kafka: start={start!r}: use 'earliest' or 'latest'")
        decoding = Decoding.of("read_kafka", format, schema, on_error)
        most = most_at_once(limit, "read_kafka")
        return KafkaSource(topic, servers, decoding, start, most, hiding(config or {}))

    @property
    def schema(self) -> pa.Schema:
        return self.decoding.columns

    def __str__(self) -> str:
        bad = "bad messages of " if self.decoding.bad else ""
        return f"{bad}Kafka topic {self.topic}"

    def identity(self) -> str:
        try:
            cluster = self._own.list_topics(self.topic, timeout=ANSWER).cluster_id
        except client().KafkaException as error:
            raise _unreachable(self, error) from None
        return f"{self} of cluster {cluster}"

    def errors(self) -> Source | None:
        """The bad messages, where they are kept."""
        if self.decoding.on_error != "keep":
            return None
        return replace(self, decoding=replace(self.decoding, bad=True))

    def unreachable(self) -> type[Exception]:
        error: type[Exception] = client().KafkaException
        return error

    def consumer(self) -> Any:
        """A consumer that belongs to no one else and commits nothing."""
        return _made(
            client().Consumer,
            self.servers,
            {
                "group.id": f"headrace-{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                **self.config,
            },
        )

    @property
    def _own(self) -> Any:
        if "_consumer" not in self.__dict__:
            object.__setattr__(self, "_consumer", self.consumer())
        return self.__dict__["_consumer"]

    def only(self, split: str) -> KafkaSource:
        return replace(self, partition=int(split))

    def in_small_steps(self) -> KafkaSource:
        return replace(self, limit=at_most_at_once(self.limit, _SMALL_STEP))

    def _partitions(self) -> list[int]:
        if self.partition is not None:
            return [self.partition]
        known, asked = self.__dict__.get("_known", ([], 0.0))
        if not known or time.monotonic() - asked > _NEW_PARTITIONS:
            told = self._own.list_topics(self.topic, timeout=ANSWER).topics[self.topic]
            if told.error is not None:
                raise EngineError(f"{self}: {told.error.str()}")
            known = sorted(told.partitions)
            object.__setattr__(self, "_known", (known, time.monotonic()))
        return list(known)

    def _edges(self, partition: int) -> tuple[int, int]:
        kafka = client()
        low, high = self._own.get_watermark_offsets(
            kafka.TopicPartition(self.topic, partition), timeout=ANSWER
        )
        return low, high

    def initial(self) -> Positions:
        try:
            edges = {p: self._edges(p) for p in self._partitions()}
        except client().KafkaException as error:
            raise _unreachable(self, error) from None
        return {str(p): high if self.start == "latest" else low for p, (low, high) in edges.items()}

    def step(self, since: Positions, end: Positions) -> Positions:
        if self.limit is None or not end:
            return end
        share = max(1, self.limit // len(end))
        found = {}
        for name, upto in end.items():
            at = since.get(name)
            if at is None:  # a new partition is read from its beginning
                at = self._edges(int(name))[0]
            found[name] = min(upto, at + share)
        return found

    def available(self, since: Positions) -> Positions:
        return self.asked(since, lambda: {**since, **self._ends(since)})

    def _ends(self, since: Positions) -> Positions:
        found = {}
        for partition in self._partitions():
            _, high = self._edges(partition)
            at = since.get(str(partition), 0)
            if high < at:
                raise EngineError(
                    f"{self}[{partition}] ends at {high}, but {at} have been read: it was cut "
                    "or made anew; begin anew with another checkpoint"
                )
            found[str(partition)] = high
        return found

    def between(
        self, start: Positions, end: Positions, parallelism: int
    ) -> Sequence[tuple[str, Split]]:
        parts = []
        for name, upto in end.items():
            begin = start.get(name)
            if begin is None:
                begin = self._edges(int(name))[0]
            if upto > begin:
                parts.append((name, KafkaSplit(self, int(name), begin, upto)))
        return parts


@dataclass(frozen=True, eq=False)
class KafkaSplit(Split):
    """The messages of a partition between two offsets."""

    of: KafkaSource
    partition: int
    start: int
    end: int

    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        kafka = client()
        consumer = self.of.consumer()
        where = f"{self.of.topic}[{self.partition}]"
        try:
            consumer.assign([kafka.TopicPartition(self.of.topic, self.partition, self.start)])
            at, heard = self.start, time.monotonic()
            while at < self.end:
                got: list[Message] = []
                # It comes back before the time is over only with as many as were asked for.
                for message in consumer.consume(min(BUNDLE_ROWS, self.end - at), timeout=0.2):
                    fault = message.error()
                    if fault is None:
                        at, heard = message.offset() + 1, time.monotonic()
                        if message.offset() < self.end and message.value() is not None:
                            got.append((where, message.offset(), message.value()))
                    elif fault.code() == kafka.KafkaError._PARTITION_EOF:
                        at = max(at, message.offset())  # nothing visible up to there
                    elif fault.code() in (
                        kafka.KafkaError.OFFSET_OUT_OF_RANGE,
                        kafka.KafkaError._AUTO_OFFSET_RESET,
                    ):
                        raise EngineError(
                            f"{where}: messages from {at} on are gone from the broker before they "
                            "were read; keep them longer, or begin anew with another checkpoint"
                        )
                    elif not fault.retriable() and fault.code() != kafka.KafkaError._TRANSPORT:
                        log.warning("%s: %s", where, fault.str())
                if got:
                    yield from self.of.decoding.records(got, columns)
                elif time.monotonic() - heard > _PATIENCE:
                    raise EngineError(
                        f"{where}: no message for {_PATIENCE:.0f} s although there are some; the "
                        f"broker at {self.of.servers} may be away"
                    )
        finally:
            consumer.close()


@dataclass
class KafkaSink(Sink):
    """Messages to a topic: a column as it is, or all columns as a JSON object."""

    topic: str
    servers: str = "localhost:9092"
    key: str | None = None
    value: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config = hiding(self.config)

    def __str__(self) -> str:
        return f"Kafka topic {self.topic}"

    def identity(self, schema: pa.Schema) -> str:
        """What a checkpoint remembers it by."""
        return str(self)

    def check(self, schema: pa.Schema) -> None:
        client()
        for name in (self.key, self.value):
            if name is not None and name not in schema.names:
                raise PlanError(f"there is no column '{name}'{nearest(name, schema.names)}")

    def ready(self, job: str | None = None) -> None:
        try:
            self.producer.list_topics(timeout=ANSWER)
        except client().KafkaException as error:
            raise _unreachable(self, error) from None

    def open(self, schema: pa.Schema, task: str) -> KafkaWriter:
        return KafkaWriter(self)

    @property
    def producer(self) -> Any:
        """One for all writers here: it is safe to share, and slow to connect."""
        if "_producer" not in self.__dict__:
            settings = {"enable.idempotence": True, "linger.ms": 5, **self.config}
            self.__dict__["_producer"] = _made(client().Producer, self.servers, settings)
        return self.__dict__["_producer"]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_producer"}

    def __copy__(self) -> KafkaSink:
        return replace(self)

    def commit(self, messages: list[Any]) -> None:
        """The broker has acknowledged every message when a writer closes."""


class KafkaWriter:
    """Sends messages, and waits for the broker's word at the end."""

    def __init__(self, sink: KafkaSink) -> None:
        self.sink = sink
        self.sent = 0
        self.fault: Any = None
        self.producer = sink.producer

    def write(self, batch: pa.RecordBatch) -> None:
        keys = None if self.sink.key is None else encoded(batch, self.sink.key)
        for i, text in enumerate(encoded(batch, self.sink.value)):
            self._send(text, None if keys is None else keys[i])
            self.sent += 1

    def _send(self, text: bytes, key: bytes | None) -> None:
        while True:
            with contextlib.suppress(BufferError):
                self.producer.produce(self.sink.topic, text, key, on_delivery=self._delivered)
                self.producer.poll(0)
                return
            self.producer.poll(0.1)  # its queue is full

    def _delivered(self, fault: Any, message: Any) -> None:
        if fault is not None:
            self.fault = fault

    def close(self) -> Any:
        left = self.producer.flush(_PATIENCE)
        if self.fault is not None or left:
            what = self.fault.str() if self.fault is not None else f"{left} messages not taken"
            raise StepError(f"writing to {self.sink} at {self.sink.servers} failed: {what}")
        return self.sent
