"""Word count over count windows (RStream §V): since when has each word been seen ten times?

For each word, a window of its last ten occurrences by event time, every five of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace import col
from headrace.apps import StreamApp
from headrace.apps.streams import app, in_order
from headrace.apps.wordcount import tables

SIZE, EVERY = 10, 5


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    return (
        inputs["lines"]
        .flat_map(col("line").lower().split("[^a-z]+"), name="word")
        .filter(col("word") != "")
        .key_by("word")
        .window(hr.count_window(SIZE, every=EVERY))
        .agg(n=hr.count(), since=hr.min("at"))
    )


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    seen: dict[str, list[int]] = defaultdict(list)
    for at, line in in_order(inputs["lines"], "line"):
        for word in re.findall("[a-z]+", line.lower()):
            seen[word].append(at)
    return {
        (word, times[start + SIZE - 1], start // EVERY, SIZE, times[start])
        for word, times in seen.items()
        for start in range(0, len(times) - SIZE + 1, EVERY)
    }


APP = app(
    "window_wc", "each word's last ten, every five of them (RStream)", 500_000,
    StreamApp(tables, pipeline, None, 100_000), reference,
)  # fmt: skip
