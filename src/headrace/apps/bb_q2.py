"""TPCx-BB query 2: which items are viewed together with a given one, each day?

Clicks of a user with less than an hour between them are a session. The 30 items that share the most
sessions with the given item are emitted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace import col
from headrace.apps import StreamApp
from headrace.apps.retail import DAY, EPOCH, ITEM, clicks, sessions
from headrace.apps.streams import app

TOP = 30


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    return (
        inputs["clicks"]
        .filter(col("user").is_not_null())
        .key_by("user")
        .window(hr.session("1h"))
        .agg(items=hr.collect("item"))
        .filter(col("items").has(ITEM))
        .flat_map(col("items").distinct(), name="item")
        .filter(col("item") != ITEM)
        .key_by("item")
        .window(window)
        .agg(n=hr.count())
        .window(window)
        .top_k(TOP, by="n")
    )


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    days: dict[int, Counter[int]] = defaultdict(Counter)
    for end, session in sessions(inputs["clicks"], "item"):
        items = {item for _, item in session}
        if ITEM in items:
            days[(end - 1) // (DAY * 1_000_000)].update(items - {ITEM})
    return top(days, TOP)


def top(days: dict[int, Counter[int]], k: int) -> set[tuple[Any, ...]]:
    """The most frequent of each day, ties by number."""
    best = set()
    for day, counts in days.items():
        start, end = day * DAY * 1_000_000, (day + 1) * DAY * 1_000_000
        ranked = sorted((-n, item) for item, n in counts.items())
        best |= {(start, end, item, -n) for n, item in ranked[:k]}
    return best


APP = app(
    "bb_q2", "items viewed together with a given one (TPCx-BB)", 2_000_000,
    StreamApp(clicks, pipeline, hr.tumbling("1 day"), 250_000, EPOCH, EPOCH // 20), reference,
)  # fmt: skip
