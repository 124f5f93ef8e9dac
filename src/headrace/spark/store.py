"""A shard's bundles in Spark's state: few and small ones in its note, others in a map.

A call to Spark's state waits for the JVM, and a map costs a task several milliseconds before its
first value; the note is read and written in any case. So what is small travels with the note, and
what changes is written at the end of a micro-batch, once.
"""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from headrace.checkpoints.bundle_file import Key
from headrace.operators.stores import unpack
from headrace.spark.wire import pack

_SMALL = 256 << 10
"""As much text may be the bundles that go with the note: all of them do, or else none."""
_CODEC = "lz4"
_NAME = "bundles"
Small = tuple[int, str]
"""A bundle's size, and the bundle as text, compressed."""


class ShardBundles:
    """The bundles of a shard of a level, those of this micro-batch at hand."""

    def __init__(self, small: dict[Key, Small] | None, large: Any) -> None:
        self.small, self.large = small, large
        self.at_hand: dict[Key, pa.RecordBatch] = {}
        self.changed: dict[Key, None] = {}

    @staticmethod
    def of(note: dict[str, Any], large: Any) -> ShardBundles:
        """Those that a shard has, which ``note`` is of; ``large`` is Spark's map."""
        return ShardBundles(_small(note) if _NAME in note else None, large)

    def get(self, key: Key, schema: pa.Schema) -> pa.RecordBatch:
        batch = self.at_hand.get(key)
        if batch is None:
            if self.small is None:
                data: Any = self.large.getValue(key)[0]
            else:
                data = _loosened(*self.small[key])
            batch = self.at_hand[key] = unpack(data, schema)
        return batch

    def put(self, key: Key, batch: pa.RecordBatch) -> None:
        self.at_hand[key] = batch
        self.changed[key] = None

    def remove(self, key: Key) -> None:
        self.at_hand.pop(key, None)
        self.changed[key] = None

    def save(self, note: dict[str, Any]) -> None:
        """Have Spark's state hold what has changed, or the note."""
        self.write({k: pack(self.at_hand[k]) if k in self.at_hand else None for k in self.changed})
        self.changed = {}
        note.pop(_NAME, None)
        if self.small is not None:
            note[_NAME] = [[*key, *held] for key, held in self.small.items()]

    def write(self, packed: dict[Key, Any]) -> None:
        """Hold bundles, each as bytes, or (None) no longer."""
        if self.small is not None:
            for key, data in packed.items():
                self.small.pop(key, None)
                if data is not None:
                    self.small[key] = _tightened(data)
            if sum(len(text) for _, text in self.small.values()) <= _SMALL:
                return
            packed = {key: _loosened(*held).to_pybytes() for key, held in self.small.items()}
            self.small = None
        for key, data in packed.items():
            if data is None:
                self.large.removeKey(key)
            else:
                self.large.updateValue(key, (data,))


class SparkStore:
    """One operator's bundles among those of a shard."""

    def __init__(self, bundles: ShardBundles, operator: int) -> None:
        self.bundles, self.operator = bundles, operator

    def get(self, kind: int, slice: int, number: int, schema: pa.Schema) -> pa.RecordBatch:
        return self.bundles.get((self.operator, kind, slice, number), schema)

    def put(self, kind: int, slice: int, number: int, batch: pa.RecordBatch) -> None:
        self.bundles.put((self.operator, kind, slice, number), batch)

    def remove(self, kind: int, slice: int, number: int) -> None:
        self.bundles.remove((self.operator, kind, slice, number))


def small_bundles(note: dict[str, Any]) -> dict[Key, pa.Buffer]:
    """The bundles that a note has, which then has them no longer."""
    found = {key: _loosened(*held) for key, held in _small(note).items()}
    note.pop(_NAME, None)
    return found


def _small(note: dict[str, Any]) -> dict[Key, Small]:
    return {
        (operator, kind, slice, number): (size, text)
        for operator, kind, slice, number, size, text in note.get(_NAME, ())
    }


def _tightened(data: bytes) -> Small:
    return len(data), base64.b64encode(pa.compress(data, _CODEC, asbytes=True)).decode()


def _loosened(size: int, text: str) -> pa.Buffer:
    return pa.decompress(base64.b64decode(text), size, _CODEC)
