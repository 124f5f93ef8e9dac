"""A retailer's clicks and sales, as TPCx-BB has them: for the workloads ``bb_q1`` to ``bb_q15``.

18 000 items in ten categories, 100 000 customers, 12 stores, 60 pages of eight kinds. Half of the
clicks have no user. A user's visit has 11 to 21 clicks, about a minute apart; every fifth visitor
buys what was clicked last. The lines of a ticket have one time.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.apps.streams import in_order, times

ITEMS, CUSTOMERS, STORES, CATEGORIES, PAGES = 18_000, 100_000, 12, 10, 60
HOT = (1, 6001, 10_001, 16_001)
"""The items that are clicked and sold most often."""
ITEM = 10_001
"""The item that queries ask about."""
KINDS = ("general", "order", "welcome", "ad", "feedback", "protected", "dynamic", "review")
HOUR, DAY, YEAR = 3600, 86_400, 365 * 86_400
EPOCH = 6 * HOUR
"""The seconds that an epoch of clicks spans."""


def items(rng: np.random.Generator, count: int) -> Any:
    """Items: 55 % uniform, 5 % among the hot ones, 40 % normal."""
    which = rng.random(count)
    normal = np.clip(rng.normal(ITEMS // 2, 60, count), 1, ITEMS).astype(np.int64)
    others = np.where(which < 0.55, rng.integers(1, ITEMS + 1, count), normal)
    return np.where(which < 0.95, others, rng.choice(HOT, count))


def pages(kind: str) -> list[int]:
    """The pages of a kind."""
    return [page for page in range(PAGES) if KINDS[page % len(KINDS)] == kind]


def clicks(records: int, seed: int, per_epoch: int, early: int) -> dict[str, pa.Table]:
    """Clicks: the user (or null), the item, the page, and the number of the sale if it is one."""
    rng = np.random.default_rng([seed, 17])
    known, span = records // 2, records * EPOCH / per_epoch
    sizes = rng.integers(11, 22, known // 11 + 1)
    visit = np.repeat(np.arange(len(sizes)), sizes)[:known]
    place = np.arange(known) - np.searchsorted(visit, visit)
    begins = rng.random(len(sizes)) * span
    minutes = 60 * (place + rng.random(known))
    # Only the order of the clicks is random; their times are those of a steady rate.
    order = np.argsort(np.append(begins[visit] + minutes, rng.random(records - known) * span))
    sold = (place == sizes[visit] - 1) & (visit % 5 == 0)
    user = np.append(rng.integers(0, CUSTOMERS, len(sizes))[visit], np.full(records - known, -1))
    sale = np.append(np.where(sold, visit, -1), np.full(records - known, -1))
    page = np.where(sale < 0, rng.integers(0, PAGES, records), rng.choice(pages("order"), records))
    return {
        "clicks": pa.table(
            {
                "at": times(records, per_epoch, early, seed, EPOCH, EPOCH // 20),
                "user": pa.array(user[order], mask=user[order] < 0),
                "item": items(rng, records),
                "page": page[order],
                "sale": pa.array(sale[order], mask=sale[order] < 0),
            }
        )
    }


def sales(records: int, seed: int, per_epoch: int, early: int, seconds: int) -> dict[str, pa.Table]:
    """Lines of tickets: the store, the item and its category, and what was paid, in cents."""
    rng = np.random.default_rng([seed, 19])
    ticket = np.repeat(np.arange(records), rng.integers(1, 17, records))[:records]
    last = np.searchsorted(ticket, ticket, side="right") - 1
    item = items(rng, records)
    return {
        "sales": pa.table(
            {
                "at": times(records, per_epoch, early, seed, seconds, seconds // 20).take(last),
                "ticket": ticket,
                "store": rng.integers(1, STORES + 1, records)[ticket],
                "item": item,
                "category": item % CATEGORIES + 1,
                "net": rng.integers(100, 20_000, records),
            }
        )
    }


def sessions(table: pa.Table, *columns: str) -> list[tuple[int, list[tuple[Any, ...]]]]:
    """Sessions of users for the references: the end of each, and its clicks in order."""
    users: dict[int, list[list[tuple[Any, ...]]]] = defaultdict(list)
    for at, user, *rest in in_order(table, "user", *columns):
        if user is None:
            continue
        if not users[user] or at - users[user][-1][-1][0] >= HOUR * 1_000_000:
            users[user].append([])
        users[user][-1].append((at, *rest))
    return [(s[-1][0] + HOUR * 1_000_000, s) for of_user in users.values() for s in of_user]
