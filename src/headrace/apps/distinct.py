"""Counting distinct URLs (StreamBox §9): how many different ones are there each second?"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.apps import StreamApp
from headrace.apps.streams import app, micros, times

URLS = 50_000_000


def tables(records: int, seed: int, per_second: int, early: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng([seed, 5])
    # By Zipf's law: the rank is the inverse of its distribution function, 1/rank summed.
    ranks = np.minimum(np.exp(rng.random(records) * np.log(URLS)), URLS - 1).astype(np.int64)
    ids = ranks * 2654435761 % (1 << 40)
    return {"visits": pa.table({"at": times(records, per_second, early, seed), "url": ids})}


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    different = inputs["visits"].key_by("url").window(window).distinct()
    return different.window(window).agg(urls=hr.count())


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    found: dict[int, set[int]] = defaultdict(set)
    table = inputs["visits"]
    for at, url in zip(micros(table), table["url"].to_pylist(), strict=True):
        found[at // 1_000_000 * 1_000_000].add(url)
    return {(s, s + 1_000_000, len(urls)) for s, urls in found.items()}


APP = app(
    "distinct", "count distinct URLs each second (StreamBox)", 2_000_000,
    StreamApp(tables, pipeline, hr.tumbling("1s")), reference,
)  # fmt: skip
