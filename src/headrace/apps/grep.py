"""Windowed grep (StreamBox §9): the web addresses in records of 1 KB, counted and listed."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace import col
from headrace.apps import StreamApp
from headrace.apps.lines import lines
from headrace.apps.streams import app, micros, times, windows

PATTERN = r"https?://[a-z0-9-]+(?:\.[a-z0-9-]+)+/[a-z0-9/_-]*"
RARITY = 100
"""One record in so many has an address in it."""


def tables(records: int, seed: int, per_second: int, early: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng([seed, 3])
    kinds = next(iter(lines(9 * 1000, seed)))
    parts = []
    for start in range(0, records, 50_000):
        count = min(50_000, records - start)
        picks = [kinds.take(pa.array(rng.integers(0, len(kinds), count))) for _ in range(9)]
        sites = np.where(rng.random(count) * RARITY < 1, rng.integers(0, 5000, count), -1)
        urls = [f"http://site{s}.example.com/page/{s % 17}" if s >= 0 else "" for s in sites]
        parts.append(pc.binary_join_element_wise(*picks[:5], pa.array(urls), *picks[5:], " "))
    text = pa.chunked_array(parts, pa.string())
    return {"reviews": pa.table({"at": times(records, per_second, early, seed), "text": text})}


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    return (
        inputs["reviews"]
        .flat_map(col("text").extract_all(PATTERN), name="url")
        .window(window)
        .agg(n=hr.count(), urls=hr.collect("url"))
    )


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    found: dict[int, list[str]] = defaultdict(list)
    table = inputs["reviews"]
    for at, text in zip(micros(table), table["text"].to_pylist(), strict=True):
        urls = re.findall(PATTERN, text)
        for start in windows(at, 30_000_000, 1_000_000) if urls else []:
            found[start] += urls
    return {(s, s + 30_000_000, len(urls), tuple(urls)) for s, urls in found.items()}


APP = app(
    "grep", "find web addresses in a sliding window (StreamBox)", 200_000,
    StreamApp(tables, pipeline, hr.sliding("30s", every="1s"), 100_000), reference,
)  # fmt: skip
