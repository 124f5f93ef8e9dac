"""Count windows over any cuts of the input, with states that move and rows that are tidied away."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.kernels.scans import Records, steps_of
from headrace.kernels.scans import counted as counting
from headrace.plan.scans import Scan
from headrace.windows import FOREVER

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])


def node_of(window: Any) -> Scan:
    stream = hr.from_arrow(SCHEMA.empty_table()).key_by("k").window(window)
    node = stream.agg(
        all=hr.collect("v"), total=hr.sum("v"), n=hr.count("v"), text=hr.collect("s")
    ).node
    assert isinstance(node, Scan)
    return node


def reference(rows: list[Any], window: Any) -> list[tuple[Any, ...]]:
    """A window for each record that fills one, in order; then those that are not full."""
    seen: dict[int, list[Any]] = defaultdict(list)

    def given(key: int, number: int) -> tuple[Any, ...]:
        start = number * window.every
        inside = seen[key][start : start + window.size]
        values = [v for _, v, _ in inside if v is not None]
        texts = [s for _, _, s in inside]
        return (key, number, values, sum(values) if values else None, len(values), texts)

    found = []
    for row in rows:
        mine = seen[row[0]]
        mine.append(row)
        over = len(mine) - window.size
        if over >= 0 and over % window.every == 0:
            found.append(given(row[0], over // window.every))
    for key, mine in seen.items():
        full = max(0, (len(mine) - window.size) // window.every + 1)
        rest = range(full * window.every, len(mine), window.every) if window.partial else ()
        found += [given(key, full + i) for i, _ in enumerate(rest)]
    return found


ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.none() | st.integers(-9, 9), st.sampled_from(["", "a", "bc"])),
    max_size=300,
)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are tidied away at once, and few windows taken out at a time."""
    monkeypatch.setattr(counting, "_FEW", 0)
    monkeypatch.setattr(counting, "_MOST", 7)
    monkeypatch.setattr("headrace.kernels.scans.slices._MOST", 9)


@pytest.mark.usefixtures("eager")
def test_any_cut_of_the_input_gives_the_same_windows() -> None:
    @given(
        rows=ROWS, cuts=st.lists(st.integers(0, 300), max_size=6), moves=st.sets(st.integers(0, 6)),
        every=st.integers(1, 4), more=st.integers(0, 5), partial=st.booleans(),
    )  # fmt: skip
    def check(
        rows: list[Any], cuts: list[int], moves: set[int], every: int, more: int, partial: bool
    ) -> None:
        window = hr.count_window(every + more, every, partial=partial)
        node = node_of(window)
        steps = steps_of(node, SCHEMA, "UTC")
        steps.grow(6)
        found: list[tuple[Any, ...]] = []
        edges = [0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]
        for i, (start, end) in enumerate(itertools.pairwise(edges)):
            if i in moves:  # elsewhere, in other slots
                fresh = steps_of(node, SCHEMA, "UTC")
                fresh.grow(6)
                fresh.restore(
                    np.array([3, 1, 5, 0, 2, 4]), steps.state(np.array([3, 1, 5, 0, 2, 4]))
                )
                steps = fresh
            steps.key_columns = lambda slots: [pa.array(slots)]
            columns = [
                pa.array([r[c] for r in rows[start:end]], f.type) for c, f in enumerate(SCHEMA)
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
            steps.grow(6)
            out, origin = steps.run(Records(batch, np.asarray(columns[0].to_numpy()), None))
            if out is not None:
                assert [rows[start + at][0] for at in origin] == out["k"].to_pylist()
                found += [tuple(row.values()) for row in out.to_pylist()]
        full = len(found)
        rest, changed = steps.passed(FOREVER)
        if rest is not None:
            found += [tuple(row.values()) for row in rest.to_pylist()]
            assert set(rest["k"].to_pylist()) == set(changed.tolist())
        wanted = reference(rows, window)
        assert found[:full] == wanted[:full]
        assert sorted(map(str, found)) == sorted(map(str, wanted))

    check()


def test_rows_that_no_window_needs_are_forgotten() -> None:
    node = node_of(hr.count_window(10, every=5))
    steps = steps_of(node, SCHEMA, "UTC")
    steps.grow(100)
    rng = np.random.default_rng(0)
    for _ in range(100):
        keys = rng.integers(0, 100, 4000)
        columns = [pa.array(keys), pa.array(keys), pa.array(["text"] * 4000)]
        steps.run(Records(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), keys, None))
    assert steps.nbytes < 3_000_000
