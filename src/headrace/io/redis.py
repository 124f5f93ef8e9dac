"""Redis: streams of entries, in and out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.errors import BadRecord, EngineError, PlanError, nearest
from headrace.io.gathering import GatheringSink
from headrace.io.messages import encoded
from headrace.io.offsets import ANSWER, Positions, ServerSource, at_most_at_once, most_at_once
from headrace.io.records import typed
from headrace.io.source import BUNDLE_ROWS, Split
from headrace.secrets import Secret, server_of, without
from headrace.types import chosen, to_schema, type_name

_BEFORE_ALL = "0-0"
_TRIES = 24
_SMALL_STEP = 50_000
"""How often a task tries to reach a server that has gone away: about a minute and a half."""


def client() -> Any:
    """The Redis client library."""
    try:
        import redis
    except ImportError:
        raise PlanError("Redis needs its client: pip install 'headrace[redis]'") from None
    return redis


def connected(url: Secret, tries: int = 0) -> Any:
    """A connection, made when it is first used; ``tries`` if the server may be away for a while."""
    redis = client()
    from redis.backoff import ExponentialBackoff
    from redis.retry import Retry

    again = Retry(ExponentialBackoff(cap=5, base=0.1), tries)
    try:
        return redis.Redis.from_url(
            url.reveal(), socket_connect_timeout=ANSWER, retry=again,
            retry_on_error=[redis.ConnectionError, redis.TimeoutError],
        )  # fmt: skip
    except ValueError as error:
        reason = without(error, [url])
        raise PlanError(f"the URL of Redis cannot be read: {reason}") from None


def reach(link: Any, what: Any, url: Secret) -> None:
    """Refuse a server that does not answer within 10 s, as Kafka's clients do."""
    try:
        link.ping()
    except client().RedisError as error:
        reason = str(without(error, [url])).rstrip(".")
        raise EngineError(
            f"{what} at {server_of(url, 6379)} cannot be reached: {reason}; is Redis running "
            "there, and is url= right?"
        ) from None


def _place(entry: str) -> tuple[int, int]:
    """An entry's id, to be compared."""
    moment, _, number = entry.partition("-")
    return int(moment), int(number)


@dataclass(frozen=True, eq=False)
class RedisSource(ServerSource):
    """The entries of Redis streams, a field a column; a position is the last entry's id.

    Redis does not tell which entries were trimmed: those that are trimmed before they are read are
    missing, so trim by age, and generously.
    """

    keys: tuple[str, ...]
    url: Secret
    schema: pa.Schema
    limit: int | None = None

    @staticmethod
    def open(
        keys: str | Sequence[str],
        *,
        schema: Any,
        url: str | Secret = "redis://localhost:6379",
        limit: int | None = None,
    ) -> RedisSource:
        client()
        names = (keys,) if isinstance(keys, str) else tuple(keys)
        if not names or not all(isinstance(n, str) for n in names):
            raise PlanError(f"read_redis: {keys!r} is not the name of a stream, nor a list of some")
        known = to_schema(schema)
        for each in known:
            if pa.types.is_nested(each.type):
                raise PlanError(
                    f"read_redis: '{each.name}' is {type_name(each.type)}; a field is plain text"
                )
        return RedisSource(names, Secret.of(url), known, most_at_once(limit, "read_redis"))

    def __str__(self) -> str:
        return f"Redis streams {', '.join(self.keys)}"

    def identity(self) -> str:
        return f"{self} at {server_of(self.url, 6379)}"

    def unreachable(self) -> type[Exception]:
        error: type[Exception] = client().ConnectionError
        return error

    @property
    def _own(self) -> Any:
        if "_link" not in self.__dict__:
            object.__setattr__(self, "_link", connected(self.url))
        return self.__dict__["_link"]

    def only(self, split: str) -> RedisSource:
        share = None if self.limit is None else max(1, self.limit // len(self.keys))
        return replace(self, keys=(split,), limit=share)

    def in_small_steps(self) -> RedisSource:
        return replace(self, limit=at_most_at_once(self.limit, _SMALL_STEP * len(self.keys)))

    def initial(self) -> Positions:
        reach(self._own, self, self.url)
        return dict.fromkeys(self.keys, _BEFORE_ALL)

    def available(self, since: Positions) -> Positions:
        def newest(key: str, last: str) -> str:
            entries = self._own.xrevrange(key, count=1)
            found = entries[0][0].decode() if entries else last
            return max(found, last, key=_place)  # the newest may have been deleted

        return self.asked(since, lambda: {k: newest(k, last) for k, last in since.items()})

    def step(self, since: Positions, end: Positions) -> Positions:
        if self.limit is None:
            return end
        share = max(1, self.limit // len(self.keys))

        def some(key: str, last: str) -> str:
            if last == end[key]:
                return last
            entries = self._own.xrange(key, min=f"({last}", max=end[key], count=share)
            return entries[-1][0].decode() if len(entries) == share else str(end[key])

        return self.asked(since, lambda: {k: some(k, last) for k, last in since.items()})

    def between(
        self, start: Positions, end: Positions, parallelism: int
    ) -> Sequence[tuple[str, Split]]:
        return [
            (key, RedisSplit(self, key, start[key], upto))
            for key, upto in end.items()
            if upto != start[key]
        ]


@dataclass(frozen=True, eq=False)
class RedisSplit(Split):
    """The entries of a stream after one id and up to another."""

    of: RedisSource
    key: str
    after: str
    upto: str

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        link, after, seen = connected(self.of.url, _TRIES), self.after, False
        try:
            while True:
                entries = link.xrange(self.key, min=f"({after}", max=self.upto, count=BUNDLE_ROWS)
                if not entries:
                    break
                seen, after = True, entries[-1][0].decode()
                yield self._batch(entries, columns)
        finally:
            link.close()
        if not seen:
            raise EngineError(
                f"Redis stream {self.key}: the entries up to {self.upto} are gone before they were "
                "read; trim it later, or begin anew with another checkpoint"
            )

    def _batch(self, entries: list[Any], columns: Sequence[str]) -> pa.RecordBatch:
        wanted = chosen(self.of.schema, columns)
        arrays = []
        for each in wanted:
            name = each.name.encode()
            values = [fields.get(name) for _, fields in entries]
            try:
                if pa.types.is_binary(each.type):
                    arrays.append(pa.array(values, each.type))
                    continue
                texts = [None if v is None else v.decode() for v in values]
                arrays.append(typed(pa.array(texts, pa.string()), each.type))
            except (pa.ArrowInvalid, UnicodeDecodeError) as error:
                raise BadRecord(
                    f"Redis stream {self.key}, entries up to {entries[-1][0].decode()}: "
                    f"'{each.name}': {error}"
                ) from None
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)


class RedisSink(GatheringSink):
    """Entries of a Redis stream, a column a field; or hashes, one for each value of a key.

    The entries of an epoch and the note that it counts are one transaction, so an epoch that comes
    twice is written once.
    """

    guarantee = "exactly once"

    def __init__(self, name: str, url: str | Secret, key: str | None) -> None:
        self.name, self.url, self.key = name, Secret.of(url), key
        self.secrets = (self.url,)

    def __str__(self) -> str:
        return f"Redis {'hashes' if self.key else 'stream'} {self.name}"

    def identity(self, schema: pa.Schema) -> str:
        return f"{self} at {server_of(self.url, 6379)}"

    def check(self, schema: pa.Schema) -> None:
        client()
        if self.key is not None and self.key not in schema.names:
            raise PlanError(f"there is no column '{self.key}'{nearest(self.key, schema.names)}")

    def ready(self, job: str | None = None) -> None:
        link = connected(self.url)
        try:
            reach(link, self, self.url)
        finally:
            link.close()

    def store(self, table: pa.Table, job: str, epoch: int) -> None:
        link = connected(self.url)
        note = f"headrace:{job}:{self.name}"
        try:
            with link.pipeline(transaction=True) as together:
                while True:
                    if epoch >= 0:
                        # If another writes the note before this does, nothing is written.
                        together.watch(note)
                        last = together.get(note)
                        if last is not None and int(last) >= epoch:
                            return
                        together.multi()
                        together.set(note, epoch)
                    for batch in table.to_batches():
                        self._add(together, batch)
                    try:
                        together.execute()
                        return
                    except client().WatchError:
                        continue
        finally:
            link.close()

    def _add(self, together: Any, batch: pa.RecordBatch) -> None:
        columns = {n: encoded(batch, n) for n in batch.schema.names}
        missing = {n: batch.column(n).is_null().to_pylist() for n in batch.schema.names}
        for row in range(batch.num_rows):
            fields = {n: c[row] for n, c in columns.items() if not missing[n][row]}
            if self.key is None:
                together.xadd(self.name, fields or {"_": b""})
            else:
                name = f"{self.name}:{columns[self.key][row].decode()}"
                together.delete(name)
                together.hset(name, mapping=fields)
