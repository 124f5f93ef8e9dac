"""Where a shard's bundles are in Spark's state: with its note, or in a map."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from headrace.spark import store
from headrace.spark.store import ShardBundles, SparkStore, small_bundles
from headrace.spark.wire import pack, unpack

SCHEMA = pa.schema([("data", pa.binary())])


def bundle(size: int, seed: int = 0) -> pa.RecordBatch:
    data = random.Random(seed).randbytes(size)
    return pa.RecordBatch.from_pydict({"data": [data]}, SCHEMA)


class Map:
    """Spark's map, and what it was asked."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.asked: list[str] = []

    def getValue(self, key: Any) -> Any:
        self.asked.append("get")
        return self.values.get(key)

    def updateValue(self, key: Any, value: Any) -> None:
        assert isinstance(value[0], bytes)
        self.asked.append("update")
        self.values[key] = value

    def removeKey(self, key: Any) -> None:
        self.asked.append("remove")
        self.values.pop(key, None)


def batch_of(note: dict[str, Any] | None, large: Map, puts: dict[Any, Any]) -> dict[str, Any]:
    """A micro-batch that puts bundles, or (None) removes them; the note as Spark then has it."""
    bundles = ShardBundles({}, large) if note is None else ShardBundles.of(note, large)
    mine = SparkStore(bundles, 7)
    for name, batch in puts.items():
        mine.put(*name, batch) if batch is not None else mine.remove(*name)
    note = note or {"turn": 1}
    bundles.save(note)
    found: dict[str, Any] = json.loads(json.dumps(note))
    return found


def got(note: dict[str, Any], large: Map, name: tuple[int, int, int]) -> pa.RecordBatch:
    return SparkStore(ShardBundles.of(note, large), 7).get(*name, SCHEMA)


def test_small_bundles_travel_with_the_note_and_no_map_is_asked() -> None:
    large = Map()
    first, second = bundle(1000, 1), bundle(2000, 2)
    note = batch_of(None, large, {(0, 5, 0): first, (1, 1 << 40, 3): second, (0, 6, 0): first})
    note = batch_of(note, large, {(0, 6, 0): None, (0, 5, 0): second})
    assert got(note, large, (0, 5, 0)) == second
    assert got(note, large, (1, 1 << 40, 3)) == second
    assert large.asked == []
    found = {key: unpack(data, SCHEMA) for key, data in small_bundles(note).items()}
    assert found == {(7, 0, 5, 0): second, (7, 1, 1 << 40, 3): second}
    assert note == {"turn": 1}


def test_what_outgrows_the_note_goes_to_the_map_and_stays_there() -> None:
    large = Map()
    note = batch_of(None, large, {(0, 0, i): bundle(50_000, i) for i in range(3)})
    assert large.asked == []
    note = batch_of(note, large, {(0, 0, 9): bundle(100_000, 9), (0, 0, 1): None})
    assert large.asked == ["update"] * 3
    assert sorted(key[3] for key in large.values) == [0, 2, 9]
    assert "bundles" not in note
    assert [got(note, large, (0, 0, i)) == bundle(50_000, i) for i in (0, 2)] == [True, True]
    note = batch_of(note, large, {(0, 0, 0): bundle(10), (0, 0, 2): None})
    assert large.asked[-2:] == ["update", "remove"]
    assert small_bundles(note) == {}
    assert got(note, large, (0, 0, 0)) == bundle(10)


def test_a_note_of_an_earlier_version_has_all_its_bundles_in_the_map() -> None:
    large = Map()
    large.updateValue((7, 0, 0, 0), (pack(bundle(10)),))
    assert got({"turn": 3}, large, (0, 0, 0)) == bundle(10)
    note = batch_of({"turn": 3}, large, {(0, 0, 1): bundle(20)})
    assert note == {"turn": 3}
    assert got(note, large, (0, 0, 1)) == bundle(20)


def test_a_bundle_is_written_once_however_often_it_is_put(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_SMALL", -1)
    large = Map()
    bundles = ShardBundles({}, large)
    mine = SparkStore(bundles, 7)
    for size in (1, 2, 3):
        mine.put(0, 0, 0, bundle(size))
        mine.remove(0, 0, 0)
        mine.put(0, 0, 0, bundle(size))
        assert mine.get(0, 0, 0, SCHEMA) == bundle(size)
    assert large.asked == []
    bundles.save({})
    assert large.asked == ["update"]
