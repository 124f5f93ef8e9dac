"""TPCx-BB query 15: categories with flat or declining sales in a given store, each year.

A category's daily net sales are regressed on the day of the year; slopes of zero or less are
emitted with their intercepts. Sales are in whole cents, so that sums are exact.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace import col
from headrace.apps import StreamApp
from headrace.apps.retail import DAY, YEAR, sales
from headrace.apps.streams import app, in_order

STORE = 10


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    return (
        inputs["sales"]
        .filter(col("store") == STORE)
        .key_by("category")
        .window(hr.tumbling("1 day"))
        .agg(y=hr.sum("net"))
        .with_columns(x=f"unix_seconds(window_start) % {YEAR} div {DAY}")
        .key_by("category")
        .window(window)
        .agg(
            n=hr.count(), x=hr.sum("x"), y=hr.sum("y"), xy=hr.sum("x * y"), xx=hr.sum("x * x")
        )
        .filter("n * xx > x * x and n * xy <= x * y")
        .with_columns(slope="(n * xy - x * y) / (n * xx - x * x)")
        .select("category", "window_start", "slope", intercept="(y - slope * x) / n")
    )  # fmt: skip


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    days: dict[tuple[int, int], int] = defaultdict(int)
    for at, store, category, net in in_order(inputs["sales"], "store", "category", "net"):
        if store == STORE:
            days[category, at // (DAY * 1_000_000)] += net
    points: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for (category, day), net in days.items():
        points[category, day // 365].append((day % 365, net))
    declining = set()
    for (category, year), some in points.items():
        n, x, y = len(some), sum(x for x, _ in some), sum(y for _, y in some)
        over = n * sum(x * y for x, y in some) - x * y
        under = n * sum(x * x for x, _ in some) - x * x
        if under > 0 and over <= 0:
            slope = over / under
            declining.add((category, year * YEAR * 1_000_000, slope, (y - slope * x) / n))
    return declining


APP = app(
    "bb_q15", "categories with declining sales over a year (TPCx-BB)", 4_000_000,
    StreamApp(
        partial(sales, seconds=DAY), pipeline, hr.tumbling("365 days"), 10_000, DAY, DAY // 20
    ),
    reference,
)  # fmt: skip
