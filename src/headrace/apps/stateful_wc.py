"""Stateful word count (Multicore study): a running count per word, emitted for each word seen.

Counts never expire. Words at the same time are counted in the order of the input.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace import col
from headrace.apps import StreamApp
from headrace.apps.streams import app, in_order
from headrace.apps.wordcount import tables


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    return (
        inputs["lines"]
        .flat_map(col("line").lower().split("[^a-z]+"), name="word")
        .filter(col("word") != "")
        .key_by("word")
        .running(n=hr.count())
    )


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    counts: Counter[str] = Counter()
    running = set()
    for at, line in in_order(inputs["lines"], "line"):
        for word in re.findall("[a-z]+", line.lower()):
            counts[word] += 1
            running.add((at, word, counts[word]))
    return running


APP = app(
    "stateful_wc", "a running count of each word (Multicore study)", 200_000,
    StreamApp(tables, pipeline, None, 100_000), reference,
)  # fmt: skip
