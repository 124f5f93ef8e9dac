"""An operator with state by key, written once by a user: the same on both engines.

Nothing in either engine knows of it. It runs over input that ends and over input that does not,
and goes on from a checkpoint with what it had in its store.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace import testing
from headrace.windows import FOREVER

GAP = 10_000_000


class Silences(hr.Transform):
    """The last record of each user before a silence of ten seconds."""

    def process(self, bundle: pa.RecordBatch, out: Any) -> None:
        table = pa.Table.from_batches([bundle])
        self.store["seen"] = pa.concat_tables([*self.seen(), table])

    def on_watermark(self, time: int, out: Any) -> None:
        for seen in self.seen():
            rows = seen.sort_by([("user", "ascending"), ("at", "ascending")])
            silent, kept = self.judged(rows, time)
            out.emit(rows.take(silent))
            self.store["seen"] = rows.take(kept)
            oldest = min((t.value for t in rows.take(kept)["at"]), default=FOREVER)
            out.watermark = min(time, oldest)  # what is still to come may be as old as that

    def seen(self) -> list[pa.Table]:
        return [self.store["seen"]] if "seen" in self.store else []

    def judged(self, rows: pa.Table, time: int) -> tuple[pa.Array, pa.Array]:
        """The rows that a silence follows, and those of which it is not known yet."""
        users, times = rows["user"].to_pylist(), [t.value for t in rows["at"]]
        silent, kept = [], []
        for i, (user, at) in enumerate(zip(users, times, strict=True)):
            after = [t for u, t in zip(users[i + 1 :], times[i + 1 :], strict=True) if u == user]
            if not after and (at + GAP > time if time < FOREVER else False):
                kept.append(i)
            elif not after or after[0] - at >= GAP:
                silent.append(i)
        return pa.array(silent, pa.int64()), pa.array(kept, pa.int64())


SCHEMA = {"user": "string", "at": "timestamp"}


def _records(seed: int) -> list[dict[str, Any]]:
    """Records at most four seconds out of order, with silences of some users between them."""
    rng, at, records = random.Random(seed), 0.0, []
    for _ in range(80):
        at += rng.choice([0.25, 1, 6])
        moment = testing.seconds(max(0.0, at - rng.choice([0, 0, 1, 4])))
        records.append({"user": rng.choice("abcdef"), "at": moment})
    return records


def _expected(records: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    for user in sorted({r["user"] for r in records}):
        times = sorted(r["at"] for r in records if r["user"] == user)
        for at, after in zip(times, [*times[1:], None], strict=True):
            if after is None or (after - at).total_seconds() * 1e6 >= GAP:
                yield user, at


def _stream(seed: int, *, bounded: bool, pieces: int = 4) -> hr.Stream:
    records = _records(seed)
    size = -(-len(records) // pieces)
    parts = [testing.records(*records[i : i + size]) for i in range(0, len(records), size)]
    stream = testing.script(parts, schema=SCHEMA, bounded=bounded, ends=True)
    return stream.event_time("at", delay="5s")


@pytest.mark.parametrize("bounded", [True, False])
def test_it_gives_the_same_on_both_engines(engine: Any, bounded: bool) -> None:
    silences = _stream(1, bounded=bounded).key_by("user").transform(Silences)
    job = silences.start(on=engine)
    job.wait()
    rows = [(r["user"], r["at"]) for r in job.result().to_pylist()]
    assert sorted(rows) == sorted(_expected(_records(1)))
    assert len(rows) > 10


@pytest.mark.parametrize("bounded", [True, False])
def test_what_follows_it_sees_its_watermark(engine: Any, bounded: bool) -> None:
    silences = _stream(2, bounded=bounded).key_by("user").transform(Silences)
    counts = silences.window(hr.tumbling("30s")).count("n")
    job = counts.start(on=engine)
    job.wait()
    assert sum(job.result()["n"].to_pylist()) == len(list(_expected(_records(2))))
    starts = [at.timestamp() // 30 for _, at in _expected(_records(2))]
    by_window = {r["window_start"].timestamp() // 30: r["n"] for r in job.result().to_pylist()}
    assert by_window == {start: starts.count(start) for start in set(starts)}


def test_any_number_of_workers_and_bundles_will_do() -> None:
    want = sorted(_expected(_records(3)))
    for workers in (1, 4):
        for bundle in (1, 7, None):
            silences = _stream(3, bounded=True).key_by("user").transform(Silences)
            table = silences.collect(on=hr.Box(workers=workers, bundle=bundle, debug=True))
            assert sorted((r["user"], r["at"]) for r in table.to_pylist()) == want


class Count(hr.Transform):
    """How many records there are, counted where they are read; told when the input ends."""

    part_schema = pa.schema([("rows", pa.int64())])

    @staticmethod
    def partial(bundle: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"rows": pa.array([bundle.num_rows])})

    def process(self, bundle: pa.RecordBatch, out: Any) -> None:
        before = self.store["rows"]["rows"][0].as_py() if "rows" in self.store else 0
        rows = before + sum(bundle["rows"].to_pylist())
        self.store["rows"] = pa.table({"rows": [rows]})

    def on_watermark(self, time: int, out: Any) -> None:
        if time == FOREVER:
            out.emit(self.store.get("rows", pa.table({"rows": [0]})))


@pytest.mark.parametrize("bounded", [True, False])
def test_without_a_key_there_is_one_state(engine: Any, bounded: bool) -> None:
    job = _stream(4, bounded=bounded).transform(Count, schema={"rows": "bigint"}).start(on=engine)
    job.wait()
    assert job.result()["rows"].to_pylist() == [80]
    nothing = testing.script([], schema=SCHEMA, bounded=bounded, ends=True).event_time("at")
    job = nothing.transform(Count, schema={"rows": "bigint"}).start(on=engine)
    job.wait()
    assert job.result()["rows"].to_pylist() == [0]


def test_without_event_time_it_is_told_of_the_end(engine: Any) -> None:
    for bounded in (True, False):
        events = [testing.records({"user": "a"}), testing.records({"user": "b"})]
        stream = testing.script(events, schema={"user": "string"}, bounded=bounded, ends=True)
        job = stream.transform(Count, schema={"rows": "bigint"}).start(on=engine)
        job.wait()
        assert job.result()["rows"].to_pylist() == [2]


def test_its_state_is_in_the_checkpoint(spark_engine: Any, tmp_path: Path) -> None:
    """Half of the records, a stop, the rest: as if it had never stopped."""
    records, folder = _records(5), tmp_path / "in"
    folder.mkdir()

    def put(name: str, some: list[dict[str, Any]]) -> None:
        lines = [f'{{"user": "{r["user"]}", "at": "{r["at"].isoformat()}"}}\n' for r in some]
        (folder / name).write_text("".join(lines))

    def run() -> None:
        stream = hr.read_json(str(folder), schema=SCHEMA, follow=True, until="_DONE")
        stream = stream.event_time("at", delay="5s")
        silences = stream.key_by("user").transform(Silences).write_json(str(tmp_path / "out"))
        job = silences.start(
            on=spark_engine, checkpoint=str(tmp_path / "state"), trigger="available-now"
        )
        job.wait()

    put("1.jsonl", records[:40])
    run()
    put("2.jsonl", records[40:])
    run()
    (folder / "_DONE").touch()
    run()
    rows = hr.read_json(str(tmp_path / "out"), schema=SCHEMA).collect(on="box").to_pylist()
    assert sorted((r["user"], r["at"]) for r in rows) == sorted(_expected(records))


def test_its_faults_name_the_step(engine: Any) -> None:
    class Broken(hr.Transform):
        def process(self, bundle: Any, out: Any) -> None:
            raise ValueError("no")

    stream = hr.from_items([{"user": "a"}])
    with pytest.raises(hr.StepError, match=r"transform \(Broken by user\) failed: ValueError: no"):
        stream.key_by("user").transform(Broken).collect(on=engine)
    with pytest.raises(hr.StepError, match=r"is not a headrace\.Transform"):
        stream.transform(object).collect(on=engine)


class Held(hr.Transform):
    """Passes records on when the watermark has passed them, and not before."""

    def process(self, bundle: pa.RecordBatch, out: Any) -> None:
        table = pa.Table.from_batches([bundle])
        known = [self.store["held"]] if "held" in self.store else []
        self.store["held"] = pa.concat_tables([*known, table])

    def on_watermark(self, time: int, out: Any) -> None:
        held = self.store["held"]
        due = pc.less(held["at"].cast(pa.int64()), time)
        out.emit(held.filter(due))
        self.store["held"] = held.filter(pc.invert(due))


def test_results_of_a_watermark_come_before_it(engine: Any) -> None:
    """Bundles of later epochs come meanwhile, and must not be told the watermark first."""
    rng, script = random.Random(1), []
    for i in range(300):
        times = [testing.seconds(i / 10 + 2 * rng.random()) for _ in range(5)]
        script.append(testing.records(*({"user": rng.choice("abcdefgh"), "at": t} for t in times)))
        script.append(testing.watermark(testing.seconds((i + 1) / 10)))
    on = hr.Box(workers=8, debug=True) if engine.name == "box" else engine
    stream = testing.script(script, schema=SCHEMA, bounded=True).event_time("at")
    held = stream.key_by("user").transform(Held)
    counts = held.key_by("user").window(hr.tumbling("1s")).count("n")
    assert sum(counts.collect(on=on)["n"].to_pylist()) == 1500


def test_a_shard_without_records_is_not_told_of_time(engine: Any) -> None:
    class Tell(hr.Transform):
        def process(self, bundle: Any, out: Any) -> None:
            """Nothing to remember."""

        def on_watermark(self, time: int, out: Any) -> None:
            if time == FOREVER:
                out.emit(pa.table({"n": [1]}))

    one = hr.from_items([{"user": "a"}]).key_by("user").transform(Tell, schema={"n": "bigint"})
    assert one.collect(on=engine)["n"].to_pylist() == [1]


def test_a_watermark_may_be_any_whole_number(engine: Any) -> None:
    class Back(hr.Transform):
        def process(self, bundle: Any, out: Any) -> None:
            out.emit(bundle)

        def on_watermark(self, time: int, out: Any) -> None:
            out.watermark = np.int64(time)

    stream = _stream(6, bounded=False).key_by("user").transform(Back)
    job = stream.window(hr.tumbling("10s")).count("n").start(on=engine)
    job.wait()
    assert sum(job.result()["n"].to_pylist()) == 80


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("name", "1 names a table of the store; a name is text"),
        ("watermark", "set out.watermark to '.*'; it is in microseconds since 1970"),
        ("promise", "promised a watermark after the one it was told"),
        ("columns", "has no column 'user'"),
    ],
)
def test_mistakes_are_told(fault: str, message: str) -> None:
    class Wrong(hr.Transform):
        def process(self, bundle: Any, out: Any) -> None:
            if fault == "name":
                self.store[1] = bundle  # type: ignore[index]
            if fault == "columns":
                out.emit(pa.table({"other": [1]}))

        def on_watermark(self, time: int, out: Any) -> None:
            if fault == "watermark":
                out.watermark = "now"
            elif fault == "promise" and time < FOREVER:
                out.watermark = time + 1

    events = [testing.records({"user": "a", "at": testing.seconds(1)})]
    events += [testing.watermark(testing.seconds(2))]
    stream = testing.script(events, schema=SCHEMA, bounded=True).event_time("at")
    with pytest.raises(hr.StepError, match=message) as caught:
        stream.key_by("user").transform(Wrong).collect(on=hr.Box(workers=2))
    assert "transform (Wrong by user)" in str(caught.value)


def test_a_partial_must_keep_the_keys() -> None:
    class Losing(Count):
        pass

    with pytest.raises(hr.StepError, match="part_schema has no column 'user', a key"):
        _stream(8, bounded=True).key_by("user").transform(
            Losing, schema={"rows": "bigint"}
        ).collect(on="box")
