"""TPCx-BB query 4: the mean number of pages in sessions with an abandoned cart, each day.

Clicks of a user with less than an hour between them are a session. A click on a dynamic page puts
something into the cart; a session with such a click after its last order is abandoned.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace import col
from headrace.apps import StreamApp
from headrace.apps.retail import DAY, EPOCH, clicks, pages, sessions
from headrace.apps.streams import app

CART, ORDER = pages("dynamic"), pages("order")


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    moment = hr.sql("unix_micros(at)")
    return (
        inputs["clicks"]
        .filter(col("user").is_not_null())
        .with_columns(
            cart=hr.when(col("page").is_in(CART)).then(moment).otherwise(-1),
            order=hr.when(col("page").is_in(ORDER)).then(moment).otherwise(-1),
        )
        .key_by("user")
        .window(hr.session("1h"))
        .agg(pages=hr.count(), cart=hr.max("cart"), order=hr.max("order"))
        .filter(col("cart") > col("order"))
        .window(window)
        .agg(sessions=hr.count(), pages=hr.mean("pages"))
    )


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    days: dict[int, list[int]] = defaultdict(list)
    for end, session in sessions(inputs["clicks"], "page"):
        cart = max((at for at, page in session if page in CART), default=-1)
        order = max((at for at, page in session if page in ORDER), default=-1)
        if cart > order:
            days[(end - 1) // (DAY * 1_000_000)].append(len(session))
    return {
        (day * DAY * 1_000_000, (day + 1) * DAY * 1_000_000, len(sizes), sum(sizes) / len(sizes))
        for day, sizes in days.items()
    }


APP = app(
    "bb_q4", "pages of sessions with an abandoned cart (TPCx-BB)", 2_000_000,
    StreamApp(clicks, pipeline, hr.tumbling("1 day"), 250_000, EPOCH, EPOCH // 20), reference,
)  # fmt: skip
