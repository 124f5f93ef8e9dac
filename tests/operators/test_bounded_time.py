"""On bounded input no record is late, however disordered, on either engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import records, script, seconds
from tests.conftest import Rows, for_all, tuples


def pairs_of(stream: hr.Stream) -> hr.Stream:
    return stream.join_within(stream, on="k", before="3s", after="3s")


PIPELINES: dict[str, Callable[[hr.Stream], hr.Stream]] = {
    "records": lambda s: s,
    "tumbling": lambda s: s.key_by("k").window(hr.tumbling("5s")).agg(n=hr.count()),
    "sliding": lambda s: s.key_by("k").window(hr.sliding("6s", every="2s")).agg(n=hr.count()),
    "session": lambda s: s.key_by("k").window(hr.session("4s")).agg(n=hr.count()),
    "scan": lambda s: s.key_by("k").running(n=hr.count()),
    "join": pairs_of,
}


def test_records_out_of_order_are_all_there(rows: Callable[[hr.Stream], Rows]) -> None:
    items = [{"at": seconds(s)} for s in (0, 100, 1, 2, 3)]
    stream = hr.from_items(items).event_time("at", delay="1s")
    assert sorted(rows(stream)) == [(seconds(s),) for s in (0, 1, 2, 3, 100)]
    assert rows(stream.late) == []


@pytest.mark.parametrize("name", PIPELINES)
def test_the_order_of_bounded_input_does_not_matter(engine: Any, name: str) -> None:
    times = st.lists(st.integers(0, 10_000), unique=True, min_size=1, max_size=60)

    @for_all(engine, box=20, spark=2, times=times, delay=st.sampled_from(["0s", "1s", "1h"]))
    def check(times: list[int], delay: str) -> None:
        items = [{"k": t % 3, "at": seconds(t)} for t in times]
        orders = [items, sorted(items, key=lambda item: item["at"])]
        results = [
            PIPELINES[name](hr.from_items(each).event_time("at", delay=delay)) for each in orders
        ]
        one, two = (sorted(tuples(result.collect(on=engine))) for result in results)
        assert one == two


def test_a_shuffled_file_closes_every_window(
    rows: Callable[[hr.Stream], Rows], tmp_path: Any
) -> None:
    order = random.Random(5).sample(range(3600), 3600)
    text = "".join(f"{n},{seconds(n):%Y-%m-%d %H:%M:%S}\n" for n in order)
    (tmp_path / "in.csv").write_text("n,at\n" + text)
    stream = hr.read_csv(str(tmp_path / "in.csv"), schema={"n": "bigint", "at": "timestamp"})
    counts = stream.event_time("at", delay="1s").window(hr.tumbling("1 min")).agg(n=hr.count())
    assert sorted(rows(counts)) == [(seconds(60 * i), seconds(60 * i + 60), 60) for i in range(60)]


def test_punctuation_makes_no_record_of_bounded_input_late(
    rows: Callable[[hr.Stream], Rows],
) -> None:
    items = [{"at": seconds(s)} for s in (5, 1, 9, 2)]
    stream = hr.from_items(items).event_time("at", punctuation="at")
    assert rows(stream.window(hr.tumbling("10s")).agg(n=hr.count()).select("n")) == [(4,)]


def test_bounded_input_beside_a_stream_is_never_late(engine: Any) -> None:
    schema = {"k": "string", "at": "timestamp"}
    live = script(
        [records({"k": "live", "at": seconds(50)})], schema=schema, bounded=False, ends=True
    )
    old = hr.from_items([{"k": "old", "at": seconds(s)} for s in (40, 1, 2)], schema=schema)
    both = old.event_time("at", delay="0s").union(live.event_time("at", delay="0s"))
    counts = both.window(hr.tumbling("1h")).agg(n=hr.count()).select("n")
    job = hr.start([counts, both.select("k")], on=engine)
    job.wait()
    assert tuples(job.result(0)) == [(4,)]


def test_pairs_of_scattered_records_are_found_once(box_engine: hr.Box) -> None:
    rng = random.Random(3)
    times = rng.sample(range(4_000_000), 20_000)
    table = pa.table({"k": [t % 7 for t in times], "at": [seconds(t / 100) for t in times]})
    stream = hr.from_arrow(table).event_time("at")
    pairs = stream.join_within(stream, on="k", before="1s", after="0s").select("at", "at_right")
    by_key: dict[int, list[int]] = {}
    for t in sorted(times):
        by_key.setdefault(t % 7, []).append(t)
    near = [
        (seconds(b / 100), seconds(a / 100))
        for same in by_key.values() for i, b in enumerate(same) for a in same[max(0, i - 100):i + 1]
        if b - a <= 100
    ]  # fmt: skip
    assert sorted(tuples(pairs.collect(on=box_engine))) == sorted(near)
