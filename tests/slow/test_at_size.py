"""What only shows at size: memory that stays bounded, and many more random expressions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import headrace as hr
from headrace import apps
from headrace.bench.memory import MemoryWatch
from tests.expressions.test_against_spark import EXPRESSION, OF_TIME, ZONES, agree, tables

pytestmark = pytest.mark.slow


def test_a_workers_memory_does_not_grow_with_the_lines(spark_engine, tmp_path):
    app = apps.load("wc")
    path = str(app.generate(tmp_path, 5_000_000, 1, "text"))
    (words,) = app.pipelines(path, "text").values()
    with MemoryWatch() as watch:
        counts = words.collect(on=spark_engine)
    assert sum(counts["n"].to_pylist()) == 80_000_000
    assert watch.worker < 1_000_000_000


def test_a_workers_memory_does_not_grow_with_the_groups(spark_engine):
    def keys(rank: int, size: int) -> Iterator[pa.RecordBatch]:
        for start in range(0, 1_000_000, 100_000):
            ids = np.arange(start, start + 100_000) + rank * 1_000_000
            yield pa.record_batch({"k": ids, "s": [f"a longer key of text {n}" for n in ids]})

    stream = hr.generate(keys, splits=8).group_by("k", "s").agg(n=hr.count())
    with MemoryWatch() as watch:
        total = stream.agg(groups=hr.count(), records=hr.sum("n")).collect(on=spark_engine)
    assert total.to_pylist() == [{"groups": 8_000_000, "records": 8_000_000}]
    assert watch.worker < 1_000_000_000


@settings(max_examples=1500)
@given(text=EXPRESSION, table=tables())
def test_many_more_expressions_agree_with_spark(session, text, table):
    agree(session, text, table)


@settings(max_examples=300)
@given(text=OF_TIME, table=tables(), zone=ZONES)
def test_many_more_wall_clocks_agree_with_spark(session, text, table, zone):
    agree(session, text, table, zone)
