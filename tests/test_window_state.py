"""What windows keep in their store, where an aggregate follows the order of the input."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.shape import compiled
from headrace.operators.operator import Hosting
from headrace.operators.stores import MemoryStore, Order, of_lane, place_in
from headrace.windows import FOREVER

SCHEMA = pa.schema([("v", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
WINDOWS = {"tumbling": hr.tumbling("1s"), "sliding": hr.sliding("1s", every="500ms")}


def place(lane: int, sequence: int, steps: tuple[int, ...]) -> Order:
    return (of_lane(lane, 0), sequence, *steps)


@pytest.mark.parametrize("kind", WINDOWS)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=30), st.randoms())
def test_turns_of_either_engine_keep_the_order(
    kind: str, turns: list[tuple[int, bool]], rng: random.Random
) -> None:
    """An engine's places may have more numbers than the other's, and bundles come in any order."""
    stream = hr.from_arrow(pa.Table.from_batches([], SCHEMA)).event_time("at")
    operator = compiled(stream.window(WINDOWS[kind]).agg(all=hr.collect("v")).node)
    store, note = MemoryStore(), dict[str, object]()
    expected: dict[Order, list[int]] = {}
    sequence = value = 0
    for bundles, is_long in turns:
        partial = operator.partial(0, Hosting(1, in_order=False))
        made = []
        for step in range(bundles):
            sequence += 1
            steps = (step, 0, 0) if is_long else (1 << 40,)
            for lane in range(2):
                value += 1
                made.append((place(lane, sequence, steps), value))
        rng.shuffle(made)
        for order, v in made:
            expected[order] = [v, v]
            rows = pa.RecordBatch.from_pydict({"v": [v, v], "at": [0, 600_000]}, schema=SCHEMA)
            partial.add(rows, order, 0)
        for task in partial.seal(None):
            task()
        assert not list(operator.state(store, note).take(partial.sealed(0), [0]))
    results = list(operator.state(store, note).take((), [FOREVER]))
    found = [row for _, batch in results for row in batch.to_pylist()]
    whole = next(row["all"] for row in found if row["window_start"].microsecond == 0)
    in_order = [v for _, pair in sorted(expected.items()) for v in pair]
    assert whole == in_order


def test_a_place_within_a_part_is_two_numbers() -> None:
    places = [(0, 3, 1, 0, 0), (0, 3, 1, 0, 7), (0, 3, 1, 2, 0), (0, 3, 2, 0, 0), (0, 4, 0, 0, 0)]
    assert sorted(places, key=place_in) == places
    assert place_in((5, 9, 1 << 40)) == (9, 1 << 40)
    assert place_in(()) == place_in((4,)) == (0, 0)
    assert place_in((0, 1, 1 << 50, 3, 3))[1] < 1 << 63
