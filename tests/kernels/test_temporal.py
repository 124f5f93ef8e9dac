"""The temporal join finds every pair once, however its input comes."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.kernels.temporal import TemporalJoin
from headrace.operators.join_within import NearInTime
from headrace.operators.operator import Input
from headrace.operators.shards import Shards
from headrace.operators.stores import TrackedStore
from headrace.windows import FOREVER

TIME = pa.timestamp("us", "UTC")
BEFORE, AFTER = 30_000, 50_000
KINDS = {"int": pa.int64(), "short": pa.int16(), "text": pa.string(), "float": pa.float64()}


def node_of(kind, columns=1):
    keys = [f"k{i}" for i in range(columns)]
    fields = [("at", TIME), *((k, kind) for k in keys)]
    left = pa.schema([*fields, ("a", pa.string()), ("n", pa.int32())])
    right = pa.schema([*fields, ("b", pa.float64())])
    streams = [
        hr.from_arrow(schema.empty_table()).event_time("at", delay="1s") for schema in (left, right)
    ]
    joined = streams[0].join_within(streams[1], on=keys, before="30ms", after="50ms")
    return joined.node


def moment(micros):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def batch_of(schema, records):
    """Records of (time, keys, payload) as a bundle."""
    rows = []
    for at, keys, payload in records:
        values = [at, *keys, *([payload, None if payload == "7" else int(payload)])]
        if "b" in schema.names:
            values = [at, *keys, float(payload)]
        rows.append(dict(zip(schema.names, values, strict=True)))
    return pa.RecordBatch.from_pylist(rows, schema)


def pairs_of(lefts, rights):
    return Counter(
        (at, keys, payload, other, float(found))
        for at, keys, payload in lefts
        for other, theirs, found in rights
        if keys == theirs and None not in keys and at - BEFORE <= other <= at + AFTER
    )


def rows_of(batches, columns):
    found = Counter()
    for batch in batches:
        batch.validate(full=True)
        for row in batch.to_pylist():
            at, *rest = row.values()
            keys, (payload, number, other, right) = tuple(rest[:columns]), rest[columns:]
            assert number == (None if payload == "7" else int(payload))
            start = datetime(1970, 1, 1, tzinfo=UTC)
            times = [(t - start) // timedelta(microseconds=1) for t in (at, other)]
            found[times[0], keys, payload, times[1], right] += 1
    return found


def records(kind, columns):
    values = {"int": st.integers(-2, 2), "short": st.integers(0, 2), "float": st.just(0.5)}
    key = values.get(kind, st.sampled_from(["", "k", "a longer key than sixteen bytes"]))
    keys = st.tuples(*[key] * columns)
    times = st.integers(0, 400_000) | st.integers(0, 10**9)
    payload = st.integers(0, 9).map(str)
    return st.lists(st.tuples(times, keys, payload), max_size=40)


@st.composite
def inputs(draw):
    kind, columns = draw(st.sampled_from(list(KINDS))), draw(st.integers(1, 2))
    sides = [draw(records(kind, columns)) for _ in range(2)]
    order = draw(st.permutations([0] * len(sides[0]) + [1] * len(sides[1])))
    return kind, columns, sides, order, draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 8]))


def bundles(sides, order, size):
    """The bundles of both sides, which come in turns."""
    rest, run = [list(side) for side in sides], []
    for side in order:
        if run and (run[0] != side or len(run) == size):
            yield run[0], [rest[run[0]].pop(0) for _ in run]
            run = []
        run.append(side)
    if run:
        yield run[0], [rest[run[0]].pop(0) for _ in run]


@given(case=inputs())
def test_every_pair_is_found_once(case):
    kind, columns, sides, order, size, parts = case
    node = node_of(KINDS[kind], columns)
    join = TemporalJoin(node, parts)
    schemas = [node.left.schema, node.right.schema]
    found = []
    for side, some in bundles(sides, order, size):
        found += join.add(side, batch_of(schemas[side], some), first=size)[0]
    assert rows_of(found, columns) == pairs_of(*sides)


@given(case=inputs(), data=st.data())
def test_what_is_forgotten_at_a_watermark_would_match_nothing(case, data):
    kind, columns, sides, order, size, parts = case
    node = node_of(KINDS[kind], columns)
    join = TemporalJoin(node, parts)
    schemas = [node.left.schema, node.right.schema]
    sides = [sorted(side, key=lambda r: r[0]) for side in sides]
    left = [list(side) for side in sides]
    found = []
    for side, some in bundles(sides, order, size):
        found += join.add(side, batch_of(schemas[side], some))[0]
        left[side] = left[side][len(some) :]
        if data.draw(st.booleans()):
            join.forget(side, left[side][0][0] if left[side] else FOREVER)
    assert rows_of(found, columns) == pairs_of(*sides)


def test_records_are_forgotten():
    node = node_of(pa.int64())
    join = TemporalJoin(node, 4)
    for at in range(0, 2_000_000, 10_000):
        rows = [(at + i, (i,), "1") for i in range(100)]
        for side, schema in enumerate((node.left.schema, node.right.schema)):
            join.add(side, batch_of(schema, rows))
            join.forget(side, at)
    assert all(len(slices) <= 6 for slices in join.slices)
    assert all(len(records.current.batches) <= 40 for records in join.records)
    for side in (0, 1):
        join.forget(side, FOREVER)
    assert not join.nbytes
    assert all(not records.current.batches for records in join.records)


@settings(max_examples=5)
@given(threads=st.integers(2, 6), parts=st.sampled_from([1, 4]), keys=st.sampled_from([1, 200]))
def test_threads_that_add_at_once_find_every_pair_once(threads, parts, keys):
    node = node_of(pa.int64())
    join = TemporalJoin(node, parts)
    schemas = [node.left.schema, node.right.schema]
    sides = [[(i * 300, (i * (3 + s) % keys,), "5") for i in range(600)] for s in range(2)]
    work = [(s, sides[s][i : i + 20]) for i in range(0, 600, 20) for s in range(2)]
    found, errors = [], []

    def run(number):
        try:
            for side, some in work[number::threads]:
                found.extend(join.add(side, batch_of(schemas[side], some), number)[0])
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not errors
    assert rows_of(found, 1) == pairs_of(*sides)


@pytest.mark.parametrize("rows", [10, 3000])
@pytest.mark.parametrize("count", [1, 4])
def test_the_stores_have_all_that_may_still_match_when_flushed(count, rows):
    node = node_of(pa.string())
    schemas = [node.left.schema, node.right.schema]
    operator = NearInTime(node, [Input((), schema) for schema in schemas], "UTC")
    shards = Shards(operator, count, 2, [(TrackedStore({}), {}) for _ in range(count)])
    keys = [None if i % 51 == 50 else str(i % 51) for i in range(rows)]
    sides = [[(i * 300_000 // rows, (k,), str(i % 9)) for i, k in enumerate(keys)]] * 2
    early = [[r for r in side if r[0] < 150_000] for side in sides]
    late = [[r for r in side if r[0] >= 150_000] for side in sides]

    def add(shards, parts):
        return [
            result
            for lane, part in enumerate(parts)
            for start in range(0, len(part), 1500)
            for _, result in shards.add(
                lane, batch_of(schemas[lane], part[start : start + 1500]), (lane, 0, 0), 1
            )
        ]

    def advance(shards, watermark):
        for lane in (0, 1):
            shards.watermarks[lane] = watermark
            for tasks in operator.advance(shards, lane, watermark, lambda shard, result: None):
                for task in tasks:
                    task()

    def flush(shards):
        for tasks in shards.flush():
            for task in tasks:
                task()

    found = add(shards, early)
    advance(shards, 150_000)
    flush(shards)
    again = Shards(operator, count, 2, list(zip(shards.stores, shards.notes, strict=True)))
    again.watermarks = list(shards.watermarks)
    found += add(again, late)
    assert rows_of(found, 1) == pairs_of(*sides)
    advance(again, FOREVER)
    flush(again)
    assert not any(store.batches for store in again.stores)
