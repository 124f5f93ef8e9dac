"""Windowed word count (StreamBox §9): how often is each word in the last 30 seconds?"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace import col
from headrace.apps import StreamApp
from headrace.apps.lines import lines
from headrace.apps.streams import app, micros, times, windows


def tables(records: int, seed: int, per_second: int, early: int) -> dict[str, pa.Table]:
    text = pa.chunked_array(list(lines(records, seed)), pa.string())
    return {"lines": pa.table({"at": times(records, per_second, early, seed), "line": text})}


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    return (
        inputs["lines"]
        .flat_map(col("line").lower().split("[^a-z]+"), name="word")
        .filter(col("word") != "")
        .key_by("word")
        .window(window)
        .agg(n=hr.count())
    )


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    found: Counter[tuple[str, int]] = Counter()
    table = inputs["lines"]
    for at, line in zip(micros(table), table["line"].to_pylist(), strict=True):
        for start in windows(at, 30_000_000, 1_000_000):
            for word in re.findall("[a-z]+", line.lower()):
                found[word, start] += 1
    return {(word, start, start + 30_000_000, n) for (word, start), n in found.items()}


APP = app(
    "wordcount", "count words in a sliding window (StreamBox)", 1_000_000,
    StreamApp(tables, pipeline, hr.sliding("30s", every="1s")), reference,
)  # fmt: skip
