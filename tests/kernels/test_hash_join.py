"""The hash table of joins gives the pairs that a loop over all rows gives."""

from __future__ import annotations

import datetime
import decimal
import math
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels.hash_join import HashTable
from headrace.kernels.native import hash_join as native

DAYS = [datetime.datetime(1900, 1, 1), datetime.datetime(2024, 2, 29)]
LARGE = 2**64
VALUES = {
    pa.int8(): [-128, -1, 0, 1, 127],
    pa.int16(): [-(2**15), -1, 0, 2**15 - 1],
    pa.int32(): [-(2**31), -1, 0, 1, 2**31 - 1],
    pa.int64(): [-(2**63), -1, 0, 1, 2, 3, 2**32, 2**63 - 1],
    pa.bool_(): [False, True],
    pa.float32(): [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf],
    pa.float64(): [0.0, -0.0, 0.1, math.nan, math.inf, -math.inf],
    pa.date32(): [day.date() for day in DAYS],
    pa.timestamp("us"): DAYS,
    pa.timestamp("us", "UTC"): [day.replace(tzinfo=datetime.UTC) for day in DAYS],
    pa.duration("us"): [datetime.timedelta(days=n) for n in (-1, 0, 1)],
    pa.string(): ["", "a", "b", "é" * 9, "a" * 8, "a" * 16, "a" * 17, "a\0", "\0"],
    pa.binary(): [b"", b"\0", b"\0\0", b"\xff" * 15, b"\xff" * 16],
    pa.decimal128(9, 2): [decimal.Decimal(n).scaleb(-2) for n in (-110, 0, 110)],
    pa.decimal128(38, 0): [decimal.Decimal(n) for n in (-1, 0, 1, LARGE, LARGE + 1)],
    pa.null(): [None],
}
KINDS = list(VALUES)


def plain(value):
    """A value by which equal keys are equal."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def reference(build, probe):
    """All pairs of rows with equal keys that are there."""
    keys = [[tuple(map(plain, row)) for row in side] for side in (probe, build)]
    return [
        (i, j)
        for i, a in enumerate(keys[0])
        for j, b in enumerate(keys[1])
        if None not in a and a == b
    ]


def columns(rows, kinds, offset):
    """Rows as columns that begin within their buffers."""
    before = [None] * offset
    return [
        pa.array(before + [row[i] for row in rows] + before, kind).slice(offset, len(rows))
        for i, kind in enumerate(kinds)
    ]


@st.composite
def sides(draw):
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    values = [VALUES[kind] + [None] * draw(st.integers(0, 1)) for kind in kinds]
    rows = st.lists(st.tuples(*map(st.sampled_from, values)), max_size=12)
    return kinds, draw(rows), draw(rows)


@given(sides(), st.integers(0, 9))
def test_pairs_are_those_of_a_loop_over_all_rows(drawn, offset):
    kinds, build, probe = drawn
    table = HashTable(columns(build, kinds, offset))
    keys = columns(probe, kinds, 2 * offset)
    want = reference(build, probe)
    left, right = table.probe(keys)
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == want
    there = {i for i, _ in want}
    assert table.contains(keys).tolist() == [i in there for i in range(len(probe))]
    alone = [(i, -1) for i in range(len(probe)) if i not in there]
    left, right = table.find(keys).pairs(alone=True)
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == sorted(want + alone)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_type_can_be_a_key(kind):
    values = [None, *VALUES[kind], None]
    for rows in (values, values * 2):
        keys = [pa.array(rows, kind)]
        table, want = HashTable(keys), reference([(v,) for v in rows], [(v,) for v in rows])
        assert list(zip(*(side.tolist() for side in table.probe(keys)), strict=True)) == want
        assert table.is_unique == all(i == j for i, j in want)


def random_keys(rng, rows, distinct, spread):
    return pa.array(rng.integers(0, distinct, rows) * spread - 17)


@pytest.mark.parametrize("spread", [1, 1_000_003], ids=["dense", "sparse"])
@pytest.mark.parametrize("form", ["word", "text", "pair"])
def test_many_rows_and_many_threads(spread, form):
    rng = np.random.default_rng(5)
    build, probe = random_keys(rng, 20_000, 9_000, spread), random_keys(rng, 50_000, 18_000, spread)

    def keys(words):
        if form == "word":
            return [words]
        text = words.cast(pa.string())
        return [text] if form == "text" else [words, text]

    rows = {}
    for j, word in enumerate(build.to_pylist()):
        rows.setdefault(word, []).append(j)
    want = [(i, j) for i, word in enumerate(probe.to_pylist()) for j in rows.get(word, ())]
    table = HashTable(keys(build))
    assert not table.is_unique
    answers = [None] * 4

    def run(n):
        answers[n] = table.probe(keys(probe))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(answers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for left, right in answers:
        assert list(zip(left.tolist(), right.tolist(), strict=True)) == want


def test_keys_whose_hashes_are_equal_are_told_apart():
    words = [f"{i:024}" for i in range(50)]
    data = np.frombuffer("".join(words).encode(), np.uint8)
    table = np.zeros(4 * 128, np.uint64)
    for again in (0, 1):
        for row in range(len(words)):
            key = np.array([9, 24 * row, 24 << 32, 9], np.uint64)
            at = int(native._place_of(key, data, table, data))
            assert table[at + 2] == again * (24 << 32 | (row + 1))
            table[at : at + 3] = 9, 24 * row, 24 << 32 | (row + 1)
