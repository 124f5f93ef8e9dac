"""TPCx-BB query 1: which items are sold together most often, each hour?

Every two different items of three categories on a ticket of five stores are a pair. Of the pairs
sold more than 50 times in a window, the top 100 are emitted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from itertools import combinations
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace import col
from headrace.apps import StreamApp
from headrace.apps.retail import HOUR, sales
from headrace.apps.streams import app, in_order

STORES, CATEGORIES = (1, 2, 3, 4, 5), (1, 2, 3)
OFTEN, TOP = 50, 100


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    lines = (
        inputs["sales"]
        .filter(col("store").is_in(STORES) & col("category").is_in(CATEGORIES))
        .key_by("ticket", "item")
        .window(window)
        .distinct()
    )
    return (
        lines.join_within(lines, on="ticket")
        .filter("item < item_right")
        .key_by("item", "item_right")
        .window(window)
        .agg(n=hr.count())
        .filter(col("n") > OFTEN)
        .window(window)
        .top_k(TOP, by="n")
    )


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    tickets: dict[tuple[int, int], set[int]] = defaultdict(set)
    columns = ("ticket", "store", "item", "category")
    for at, ticket, store, item, category in in_order(inputs["sales"], *columns):
        if store in STORES and category in CATEGORIES:
            tickets[at // (HOUR * 1_000_000), ticket].add(item)
    hours: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    for (hour, _), bought in tickets.items():
        hours[hour].update(combinations(sorted(bought), 2))
    best = set()
    for hour, pairs in hours.items():
        start, end = hour * HOUR * 1_000_000, (hour + 1) * HOUR * 1_000_000
        ranked = sorted((-n, pair) for pair, n in pairs.items() if n > OFTEN)
        best |= {(start, end, *pair, -n) for n, pair in ranked[:TOP]}
    return best


APP = app(
    "bb_q1", "items sold together (TPCx-BB)", 2_000_000,
    StreamApp(partial(sales, seconds=HOUR), pipeline, hr.tumbling("1h"), 200_000, HOUR, HOUR // 20),
    reference,
)  # fmt: skip
