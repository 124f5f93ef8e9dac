"""TPCx-BB query 3: which items are viewed before a given one is bought, each day?

The last five items that each user viewed are kept. When the user buys the given item, those viewed
in the ten days before are counted; the 30 with the highest counts are emitted.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace import col
from headrace.apps import StreamApp
from headrace.apps.bb_q2 import top
from headrace.apps.retail import DAY, EPOCH, ITEM, clicks
from headrace.apps.streams import app, in_order

LAST, TOP, RECENT = 5, 30, 10 * DAY
EMPTY = np.zeros(1, dtype=[("item", "i8", LAST), ("second", "i8", LAST), ("n", "i8")])[0]
VIEWS = [f"view{i}" for i in range(LAST)]


def views_before(state: Any, row: Any) -> Any:
    """The last items viewed when the item is bought, 0 for those of more than ten days ago."""
    if not row.bought:
        place = state["n"] % LAST
        state["item"][place] = row.item
        state["second"][place] = row.second
        state["n"] += 1
        return state, None
    if row.item != ITEM:
        return state, None
    for place in range(LAST):
        if state["second"][place] < row.second - RECENT:
            state["item"][place] = 0
    views = state["item"]
    return state, (views[0], views[1], views[2], views[3], views[4])


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    return (
        inputs["clicks"]
        .filter(col("user").is_not_null())
        .select("at", "user", "item", second="unix_seconds(at)", bought="sale is not null")
        .key_by("user")
        .scan(views_before, EMPTY, schema=dict.fromkeys(VIEWS, "bigint"))
        .flat_map(hr.array(*VIEWS), name="item")
        .filter(col("item") > 0)
        .key_by("item")
        .window(window)
        .agg(n=hr.count())
        .window(window)
        .top_k(TOP, by="n")
    )


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    views: dict[int, deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=LAST))
    days: dict[int, Counter[int]] = defaultdict(Counter)
    for at, user, item, sale in in_order(inputs["clicks"], "user", "item", "sale"):
        second = at // 1_000_000
        if user is None:
            continue
        if sale is None:
            views[user].append((item, second))
        elif item == ITEM:
            recent = [seen for seen, when in views[user] if when >= second - RECENT]
            days[second // DAY].update(recent)
    return top(days, TOP)


APP = app(
    "bb_q3", "items viewed before a given one is bought (TPCx-BB)", 2_000_000,
    StreamApp(clicks, pipeline, hr.tumbling("1 day"), 250_000, EPOCH, EPOCH // 20), reference,
)  # fmt: skip
