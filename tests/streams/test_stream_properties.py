"""Random streams: for any records, disorder within the delay, splits and batches, one answer."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import headrace as hr
from headrace import testing
from tests.conftest import for_all, tuples

SCHEMA = pa.schema(
    [("k", pa.string()), ("n", pa.int32()), ("v", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
)


@st.composite
def splits(draw: Any) -> list[list[list[dict[str, Any]]]]:
    """For each split, bundles of records whose times are at most three seconds behind."""
    made = []
    for _ in range(draw(st.integers(1, 3))):
        newest, bundles = draw(st.integers(-20, 20)), []
        for _ in range(draw(st.integers(0, 5))):
            bundle = []
            for _ in range(draw(st.integers(0, 6))):
                newest += draw(st.sampled_from([0, 0, 1, 2, 30]))
                bundle.append(
                    {
                        "k": draw(st.sampled_from(["a", "b", "é", "", None])),
                        "n": draw(st.sampled_from([0, 1, -5, None])),
                        "v": draw(st.sampled_from([0.0, 1.5, -2.0, None])),
                        "at": testing.seconds(newest - draw(st.sampled_from([0, 0.25, 3]))),
                    }
                )
            bundles.append(bundle)
        made.append(bundles)
    return made


def stream_of(found: list[list[list[dict[str, Any]]]], *, bounded: bool, at_once: int) -> hr.Stream:
    scripts = [[testing.records(*bundle) for bundle in bundles] for bundles in found]
    stream = testing.script(*scripts, schema=SCHEMA, bounded=bounded, ends=True, at_once=at_once)
    return stream.event_time("at", delay="3s")


def pipelines(one: hr.Stream, two: hr.Stream) -> list[hr.Stream]:
    by_key, windows = one.key_by("k"), hr.sliding("7s", every="2s")
    return [
        by_key.window(hr.tumbling("4s", offset="1s")).agg(n=hr.count(), v=hr.sum("v")),
        one.key_by("k", "n").window(windows).agg(c=hr.count(), least=hr.min("v")),
        one.key_by("n").window(windows).agg(a=hr.first("v"), z=hr.last("v"), c=hr.count("v")),
        by_key.window(hr.session("3s")).agg(n=hr.count(), m=hr.max("v")),
        one.select("k", "at").join_within(two, on="k", before="2s", after="1s"),
        one.union(two).window(hr.tumbling("5s")).agg(d=hr.count_distinct("k")),
        by_key.window(hr.tumbling("2s")).count().window(windows).agg(n=hr.sum("count")),
    ]


def plain(table: pa.Table) -> list[str]:
    return sorted(map(repr, tuples(table)))


def test_a_stream_gives_the_bounded_answer(engine: Any, box_engine: hr.Box) -> None:
    @for_all(engine, box=12, spark=2, one=splits(), two=splits(), at_once=st.integers(1, 4))
    def check(one: Any, two: Any, at_once: int) -> None:
        live = [stream_of(s, bounded=False, at_once=at_once) for s in (one, two)]
        job = hr.start(pipelines(*live), on=engine)
        assert job.wait(120)
        assert job.progress().late == 0
        whole = [stream_of(s, bounded=True, at_once=1) for s in (one, two)]
        for i, wanted in enumerate(pipelines(*whole)):
            assert plain(job.result(i)) == plain(wanted.collect(on=box_engine)), i
