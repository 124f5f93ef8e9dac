"""What a scan keeps in its store: a state that begins anew from it is as one that never stopped."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.shape import compiled
from headrace.checkpoints.state import JobState, in_shards
from headrace.operators import scan as scans
from headrace.operators.operator import Operator, Part
from headrace.operators.stores import Name, Note, TrackedStore, pack
from headrace.windows import FOREVER

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def _total(total: int, row: Any) -> Any:
    return total + row.v, total + row.v


def _seen(seen: list[int], row: Any) -> Any:
    return [*seen, row.v], str(seen)


def operator_for(kind: str) -> Operator:
    stream = hr.from_arrow(pa.Table.from_batches([], SCHEMA)).event_time("at").key_by("k")
    if kind == "numbers":
        scanned = stream.scan(_total, 0, schema={"total": "bigint"}, keep="v")
    elif kind == "duplicates":
        scanned = stream.stream.deduplicate("k", within="3us")
    else:
        scanned = stream.scan(_seen, list, schema={"seen": "string"}, keep="v", ttl="40us")
    return compiled(scanned.node)


class Job:
    """One shard's state; ``restart`` begins it anew from what is in its store."""

    def __init__(self, operator: Operator) -> None:
        self.operator, self.note = operator, dict[str, Any]()
        self.store = TrackedStore({})
        self.state = operator.state(self.store, self.note)

    def step(self, parts: list[Part], watermark: int) -> list[Any]:
        results = self.state.take(parts, [watermark])
        return [row for _, batch in results for row in batch.to_pylist()]

    def restart(self) -> None:
        self.state.save()
        self.begin(*self.kept())

    def kept(self) -> tuple[Note, dict[Name, pa.Buffer]]:
        names = {*self.store.batches, *self.store.packed}
        return json.loads(json.dumps(self.note)), {name: self.store.data(name) for name in names}

    def begin(self, note: Note, bundles: dict[Name, pa.Buffer]) -> None:
        self.note, self.store = note, TrackedStore(bundles)
        self.state = self.operator.state(self.store, self.note)

    def listed(self) -> set[Name]:
        return {
            (kind, int(slice), number)
            for kind in (0, 1)
            for slice, bundles in self.note.get(f"kept-{kind}", {}).items()
            for number, _, _ in bundles
        }

    def age(self) -> None:
        """Have the store as versions had it that knew 32 buckets, and one time for all records."""
        self.state.save()
        store, note = TrackedStore({}), {n: v for n, v in self.note.items() if n != "lows"}
        lows = self.note.get("lows", {})
        note["low"] = min(lows.values(), default=FOREVER)
        for name in [name for name in self.listed() if name[0] == 0]:
            store.put(*name, self.store.get(*name, SCHEMA))
        schema: pa.Schema = self.operator.kept_schema  # type: ignore[attr-defined]
        rows = [self.store.get(*name, schema) for name in self.listed() if name[0] == 1]
        together = pa.Table.from_batches(rows, schema).combine_chunks()
        note["kept-1"] = {}
        for batch in together.to_batches():
            old = scans.prefixes_of([batch.column("k")], batch.num_rows) >> 3
            for bucket in sorted(set(old.tolist())):
                mine = batch.filter(pa.array(old == bucket))
                store.put(1, bucket, 0, mine)
                note["kept-1"][str(bucket)] = [[0, mine.num_rows, []]]
        self.begin(note, {name: pack(batch) for name, batch in store.batches.items()})


def parts_of(records: list[tuple[int, int]], turn: int, tasks: int) -> Iterator[Part]:
    """Records, a key and a time each, as bundles of which two have the same place."""
    for i in range(0, len(records), 3):
        rows = [
            {"k": k, "v": 100 * turn + i + j, "at": at} for j, (k, at) in enumerate(records[i:][:3])
        ]
        yield Part(0, pa.RecordBatch.from_pylist(rows, SCHEMA), (0, turn, i // 3 % tasks))


RECORDS = st.lists(st.tuples(st.integers(0, 60), st.integers(-20, 40)), max_size=20)
HOW = st.sampled_from(["go", "restart", "age"])
STEPS = st.lists(
    st.tuples(RECORDS, st.integers(0, 12), st.integers(1, 3), HOW), min_size=2, max_size=12
)


@pytest.mark.parametrize("kind", ["numbers", "objects that are forgotten", "duplicates"])
@pytest.mark.parametrize("bucket", [64, 256 << 10])
def test_a_scan_goes_on_from_its_store(
    kind: str, bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "_BUCKET", bucket)
    operator = operator_for(kind)

    @settings(max_examples=60)
    @given(steps=STEPS)
    def check(steps: Any) -> None:
        whole, cut = Job(operator), Job(operator)
        watermark = -20
        for turn, (found, ahead, tasks, how) in enumerate(steps):
            records = [(k, max(watermark, watermark + at)) for k, at in found]
            watermark += ahead
            parts = [list(parts_of(records, turn, tasks)) for _ in range(2)]
            assert cut.step(parts[0], watermark) == whole.step(parts[1], watermark)
            assert cut.state.keys_held == whole.state.keys_held
            if how == "restart":
                cut.restart()
            elif how == "age":
                cut.age()
            elif turn % 2:
                cut.state.save()
            if how != "go" or turn % 2:
                assert set(cut.store.batches) | set(cut.store.packed) == cut.listed()
        assert cut.step([], FOREVER) == whole.step([], FOREVER)

    check()


def _written(job: Job) -> dict[Name, Any]:
    job.state.save()
    return job.store.changes()


def test_buckets_are_few_while_little_is_kept_and_many_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scans, "_BUCKET", 1 << 10)
    job = Job(operator_for("numbers"))
    counts = []
    for turn, keys in enumerate((10, 100, 1000, 5000)):
        batch = pa.RecordBatch.from_pydict(
            {"k": range(keys), "v": range(keys), "at": [turn] * keys}, SCHEMA
        )
        job.step([Part(0, batch, (0, turn, 0))], turn + 1)
        _written(job)
        counts.append(sum(name[0] == 1 for name in job.listed()))
    assert counts[0] == 1
    assert counts == sorted(counts)
    assert 32 < counts[-1] <= 256
    job.restart()
    one = pa.RecordBatch.from_pydict({"k": [7], "v": [1], "at": [9]}, SCHEMA)
    (row,) = job.step([Part(0, one, (0, 9, 0))], 10)
    assert row["total"] == 4 * 7 + 1
    assert len([name for name in _written(job) if name[0] == 1]) == 1
    assert job.state.keys_held == 5000


def test_a_bundle_that_waits_is_written_once_and_read_when_it_is_due() -> None:
    job = Job(operator_for("numbers"))
    for turn in range(5):
        batch = pa.RecordBatch.from_pydict(
            {"k": [1, 2], "v": [turn, turn], "at": [100 * turn, 100 * turn + 1]}, SCHEMA
        )
        assert job.step([Part(0, batch, (0, turn, 0))], turn - 10) == []
        assert [name[0] for name in _written(job)] == [0]
    job.restart()
    assert len(job.step([], 101)) == 3
    assert len(job.store.packed) == 3  # two have been asked for
    written = {name: batch for name, batch in _written(job).items() if name[0] == 0}
    assert sorted(batch.num_rows for batch in written.values() if batch is not None) == [1]
    assert sum(batch is None for batch in written.values()) == 2
    assert len(job.step([], FOREVER)) == 7


@pytest.mark.parametrize("shards", [1, 3])
def test_shards_of_which_each_has_its_own_buckets_are_put_together(
    shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard with many keys has other buckets than one with few; both go to the same new ones."""
    monkeypatch.setattr(scans, "_BUCKET", 1 << 10)
    operator = operator_for("numbers")
    jobs = [Job(operator), Job(operator)]
    for job, keys in zip(jobs, (range(2000), range(5000, 5010)), strict=True):
        rows = {"k": keys, "v": keys, "at": [0] * len(keys)}
        late = {"k": [keys[0]], "v": [1], "at": [50]}
        parts = [pa.RecordBatch.from_pydict(each, SCHEMA) for each in (rows, late)]
        job.step([Part(0, part, (0, 0, 0)) for part in parts], 10)
        job.state.save()
    known = {
        "name": "scan",
        "kinds": {
            str(number): {
                "name": kind.name, "keys": kind.keys, "slices": None,
                "schema": _text(kind.schema),
            }
            for number, kind in operator.kinds().items()
        },
    }  # fmt: skip
    notes, bundles = zip(*(job.kept() for job in jobs), strict=True)
    state = JobState(
        {"shards": 2, "operators": [known]}, 0, False, [], [], [list(notes)], [list(bundles)],
        [10], 1,
    )  # fmt: skip
    cut = in_shards(state, shards)
    found, held = [], 0
    for note, mine in zip(cut.notes[0], cut.bundles[0], strict=True):
        job = Job(operator)
        job.begin(json.loads(json.dumps(note)), mine)
        due = job.step([], 100)
        found += due
        job.restart()
        held += job.state.keys_held
        levels = {slice >> 32 for kind, slice, _ in job.listed() if kind == 1}
        assert len(levels) == 1 or not due
    assert sorted(row["total"] for row in found) == [1, 5001]
    assert held == 2010


def _text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()
