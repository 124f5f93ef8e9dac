"""``buffer``: records gathered before they go on, whatever the policy the same ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import testing
from tests.conftest import for_all, tuples

POLICIES = st.one_of(
    st.just(hr.immediate),
    st.integers(1, 9).map(hr.fixed),
    st.builds(hr.adaptive, st.integers(1, 9), st.sampled_from(["1ms", "50ms"])),
)


def _seen(before: list[int], row: Any) -> Any:
    return [*before, row.v], str(before)


STEPS: dict[str, Any] = {
    "filter": lambda s: s.filter("v % 3 <> 1"),
    "flat_map": lambda s: s.flat_map(lambda r: [r.v] * (r.v % 3), name="v", keep=["k", "at"],
                                     schema={"v": "bigint"}),
    "shuffle": lambda s: s.shuffle(),
    "batches": lambda s: s.map_batches(lambda b: b, schema=s.schema),
}  # fmt: skip
ENDS: dict[str, Any] = {
    "records": lambda s: s,
    "limit": lambda s: s.limit(7),
    "groups": lambda s: s.group_by("k").agg(n=hr.count(), all=hr.collect("v")),
    "windows": lambda s: (
        s.key_by("k").window(hr.tumbling("5s")).agg(first=hr.first("v"), all=hr.collect("v"))
    ),
    "scan": lambda s: s.key_by("k").scan(_seen, list, schema={"seen": "string"}),
    "scan by arrival": lambda s: (
        s.key_by("k").scan(_seen, list, schema={"seen": "string"}, order="arrival")
    ),
    "union": lambda s: s.union(s.filter("v > 10")),
}  # fmt: skip


def records(values: list[int]) -> hr.Stream:
    """Two splits that send a few records at a time."""
    scripts = []
    for split in (0, 1):
        mine = [
            {"k": "ab"[v % 2], "v": v, "at": testing.seconds(i)}
            for i, v in enumerate(values[split::2])
        ]
        scripts.append([testing.records(*mine[i : i + 3]) for i in range(0, len(mine), 3)])
    schema = {"k": "string", "v": "bigint", "at": "timestamp"}
    return testing.script(*scripts, schema=schema).event_time("at", delay="1000s")


def test_a_buffer_changes_no_result(engine: Any) -> None:
    @for_all(
        engine,
        box=100,
        spark=2,
        values=st.lists(st.integers(0, 20), max_size=40),
        steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
        end=st.sampled_from(sorted(ENDS)),
        policies=st.lists(POLICIES, min_size=4, max_size=4),
        workers=st.integers(1, 3),
        ordered=st.booleans(),
    )
    def check(
        values: list[int], steps: list[str], end: str, policies: Any, workers: int, ordered: bool
    ) -> None:
        plain = buffered = records(values)
        buffered = buffered.buffer(policies[0])
        for name, policy in zip(steps, policies[1:], strict=False):
            plain, buffered = STEPS[name](plain), STEPS[name](buffered).buffer(policy)
        one: Any = engine
        other: Any = engine
        if engine.name == "box":
            ordered = ordered and end != "union"
            one = hr.Box(workers=2, ordered=ordered)
            other = hr.Box(workers=workers, buffer=policies[-1], ordered=ordered, debug=True)
        wanted = tuples(ENDS[end](plain).collect(on=one))
        got = tuples(ENDS[end](buffered).collect(on=other))
        by_key = end in ("groups", "windows", "scan", "scan by arrival")
        if "shuffle" in steps and engine.name == "spark":  # there it leaves no order
            assert len(got) == len(wanted)
        elif by_key:
            assert sorted(map(repr, got)) == sorted(map(repr, wanted))
        else:
            assert got == wanted


def test_explain_tells_the_policy_and_where_it_does_nothing() -> None:
    stream = hr.from_items([1, 2, 3]).filter("value > 1").buffer(hr.adaptive(16, "20ms"))
    box = hr.Box(buffer=hr.fixed(1024))
    assert "buffer adaptive(16, 20ms)  [holds records" in stream.explain(on=box)
    assert "[ingress, fixed(1024)]" in stream.explain(on=box)
    assert "buffer adaptive(16, 20ms)  [nothing to do" in stream.explain(on="spark")


def test_what_is_no_policy_is_refused() -> None:
    stream = hr.from_items([{"v": 1}])
    with pytest.raises(hr.PlanError, match=r"step 2, buffer: policy: 1024 is not a buffering pol"):
        stream.buffer(1024)  # type: ignore[arg-type]
    with pytest.raises(hr.PlanError, match=r"call it with its size; use hr\.fixed"):
        stream.buffer(hr.fixed)  # type: ignore[arg-type]
    with pytest.raises(hr.PlanError, match=r"fixed: 0 is not a number of records from 1 to 1,048"):
        hr.fixed(0)
    with pytest.raises(hr.PlanError, match="adaptive: timeout='soon' is not a span of time"):
        hr.adaptive(10, "soon")
    with pytest.raises(hr.PlanError, match="Box: buffer=: 'fixed' is not a buffering policy"):
        hr.Box(buffer="fixed")  # type: ignore[arg-type]
    with pytest.raises(hr.PlanError, match=r"Box: buffer= says how many .* drop bundle="):
        hr.Box(buffer=hr.fixed(10), bundle=10)
    with pytest.raises(hr.PlanError, match="call it before step 2, buffer, or pass buffer= to"):
        stream.buffer(hr.fixed(10)).event_time("v")
