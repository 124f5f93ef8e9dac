"""Stateful word count (Multicore study): a running count of each word, told whenever it is seen.

Counts never expire; of words at one time the one first in the input counts first.
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
    found = set()
    for at, line in in_order(inputs["lines"], "line"):
        for word in re.findall("[a-z]+", line.lower()):
            counts[word] += 1
            found.add((at, word, counts[word]))
    return found


APP = app(
    "stateful_wc", "a running count of each word (Multicore study)", 200_000,
    StreamApp(tables, pipeline, None, 100_000), reference,
)  # fmt: skip
