"""Ten queries over orders, their lines and customers: four of TPC-H's, and six plainer ones.

There are four lines to an order and ten orders to a customer. Prices are cents and discounts
percents, so that sums are exact and every engine gives the same.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import headrace as hr
from headrace import col
from headrace.apps import App

SEGMENTS = ["AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY"]
PRIORITIES = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]
MODES = ["AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK"]
FIRST, LAST = datetime.date(1992, 1, 1), datetime.date(1998, 8, 2)
GROUP_ROWS = 1 << 18

LINE = ("order_id", "part_id", "quantity", "price", "discount", "shipped")
Rows = set[tuple[Any, ...]]


def pipelines(path: str, form: str = "parquet") -> dict[str, hr.Stream]:
    lines, orders, customers = (
        hr.read_parquet(Path(path) / f"{name}.parquet") for name in ("lines", "orders", "customers")
    )
    cost = col("price") * (100 - col("discount"))
    urgent = col("priority").is_in(PRIORITIES[:2]).cast("int")
    return {
        "aggregates": lines.group_by("mode", "returned").agg(
            n=hr.count(), quantity=hr.sum("quantity"), mean=hr.mean("price"),
            least=hr.min("price"), most=hr.max("discount"),
        ),
        "join": lines.join(orders, on="order_id").group_by("priority").agg(price=hr.sum("price")),
        "two_joins": lines.filter(col("quantity") < 25)
        .join(orders, on="order_id")
        .join(customers, on="customer_id")
        .group_by("segment")
        .agg(price=hr.sum("price")),
        "first_100": lines.filter(col("discount") == 5)
        .select(*LINE)
        .sort("-price", "order_id", "part_id")
        .limit(100),
        "top_parts": lines.group_by("part_id")
        .agg(price=hr.sum("price"))
        .sort("-price", "part_id")
        .limit(10),
        "distinct": lines.select("part_id", "quantity").distinct().agg(n=hr.count()),
        "q1": lines.filter(col("shipped") <= day(1998, 9, 2))
        .group_by("returned", "status")
        .agg(
            quantity=hr.sum("quantity"), price=hr.sum("price"), cost=hr.sum(cost),
            charge=hr.sum(cost * (100 + col("tax"))), mean_quantity=hr.mean("quantity"),
            mean_price=hr.mean("price"), mean_discount=hr.mean("discount"), n=hr.count(),
        ),
        "q3": customers.filter(col("segment") == "BUILDING")
        .join(orders.filter(col("ordered") < day(1995, 3, 15)), on="customer_id")
        .join(lines.filter(col("shipped") > day(1995, 3, 15)), on="order_id")
        .group_by("order_id", "ordered", "urgency")
        .agg(cost=hr.sum(cost))
        .sort("-cost", "ordered", "order_id")
        .limit(10),
        "q6": lines.filter(
            (col("shipped") >= day(1994, 1, 1))
            & (col("shipped") < day(1995, 1, 1))
            & col("discount").between(5, 7)
            & (col("quantity") < 24)
        ).agg(cost=hr.sum(col("price") * col("discount"))),
        "q12": orders.join(
            lines.filter(
                col("mode").is_in(["MAIL", "SHIP"])
                & (col("committed") < col("received"))
                & (col("shipped") < col("committed"))
                & (col("received") >= day(1994, 1, 1))
                & (col("received") < day(1995, 1, 1))
            ),
            on="order_id",
        )
        .group_by("mode")
        .agg(high=hr.sum(urgent), low=hr.sum(1 - urgent)),
    }  # fmt: skip


def day(*parts: int) -> Any:
    return hr.lit(datetime.date(*parts))


def reference(path: str) -> dict[str, Rows]:
    lines, orders, customers = (
        pq.read_table(Path(path) / f"{name}.parquet").to_pylist()
        for name in ("lines", "orders", "customers")
    )
    order_of = {row["order_id"]: row for row in orders}
    customer_of = {row["customer_id"]: row for row in customers}
    for row in lines:
        row["cost"] = row["price"] * (100 - row["discount"])
    march, september = datetime.date(1995, 3, 15), datetime.date(1998, 9, 2)
    year = (datetime.date(1994, 1, 1), datetime.date(1995, 1, 1))
    some = [row for row in lines if row["quantity"] < 25]
    first = sorted(
        (row for row in lines if row["discount"] == 5),
        key=lambda row: (-row["price"], row["order_id"], row["part_id"]),
    )
    parts = grouped((row["part_id"], row["price"]) for row in lines)
    sold = sorted((-sum(prices), part) for part, prices in parts.items())
    open_orders = [
        (order, row)
        for row in lines
        if row["shipped"] > march
        and (order := order_of[row["order_id"]])["ordered"] < march
        and customer_of[order["customer_id"]]["segment"] == "BUILDING"
    ]
    owed = grouped(
        ((order["order_id"], order["ordered"], order["urgency"]), row["cost"])
        for order, row in open_orders
    )
    largest = sorted((-sum(costs), *key) for key, costs in owed.items())
    late = grouped(
        (row["mode"], order_of[row["order_id"]]["priority"] in PRIORITIES[:2])
        for row in lines
        if row["mode"] in ("MAIL", "SHIP")
        and row["shipped"] < row["committed"] < row["received"]
        and year[0] <= row["received"] < year[1]
    )
    return {
        "aggregates": {
            (
                *key, len(rows), total(rows, "quantity"), total(rows, "price") / len(rows),
                min(row["price"] for row in rows), max(row["discount"] for row in rows),
            )
            for key, rows in grouped(((r["mode"], r["returned"]), r) for r in lines).items()
        },
        "join": sums((order_of[row["order_id"]]["priority"], row["price"]) for row in lines),
        "two_joins": sums(
            (customer_of[order_of[row["order_id"]]["customer_id"]]["segment"], row["price"])
            for row in some
        ),
        "first_100": {tuple(row[n] for n in LINE) for row in first[:100]},
        "top_parts": {(part, -price) for price, part in sold[:10]},
        "distinct": {(len({(row["part_id"], row["quantity"]) for row in lines}),)},
        "q1": {
            (
                *key, total(rows, "quantity"), total(rows, "price"), total(rows, "cost"),
                sum(row["cost"] * (100 + row["tax"]) for row in rows),
                *(total(rows, n) / len(rows) for n in ("quantity", "price", "discount")),
                len(rows),
            )
            for key, rows in grouped(
                ((r["returned"], r["status"]), r) for r in lines if r["shipped"] <= september
            ).items()
        },
        "q3": {(*key, -cost) for cost, *key in sorted(largest, key=_by_cost)[:10]},
        "q6": {
            (
                sum(
                    row["price"] * row["discount"]
                    for row in lines
                    if year[0] <= row["shipped"] < year[1]
                    and 5 <= row["discount"] <= 7
                    and row["quantity"] < 24
                ),
            )
        },
        "q12": {(mode, sum(high), len(high) - sum(high)) for mode, high in late.items()},
    }  # fmt: skip


def _by_cost(found: tuple[Any, ...]) -> tuple[Any, ...]:
    cost, order, ordered, _ = found
    return cost, ordered, order


def grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def sums(pairs: Iterable[tuple[Any, int]]) -> Rows:
    return {(key, sum(values)) for key, values in grouped(pairs).items()}


def total(rows: list[dict[str, Any]], name: str) -> int:
    return sum(row[name] for row in rows)


def generate(folder: Path, records: int, seed: int, form: str) -> Path:
    """Three Parquet files: ``records`` lines, and their orders and customers."""
    place = folder / f"orders-{records}-{seed}"
    if place.exists():
        return place
    draft = folder / f".orders-{records}-{seed}"
    draft.mkdir(parents=True, exist_ok=True)
    for name, table in tables(records, seed).items():
        pq.write_table(table, draft / f"{name}.parquet", row_group_size=GROUP_ROWS)
    return draft.rename(place)


def tables(records: int, seed: int) -> dict[str, pa.Table]:
    """Lines in the order of their orders, whose numbers and customers are in none."""
    rng = np.random.default_rng([seed, 17])
    orders, customers = max(1, records // 4), max(1, records // 40)
    span = (LAST - FIRST).days
    numbers = rng.permutation(orders)
    ordered = rng.integers(0, span - 151, orders).astype(np.int32)
    of = np.sort(rng.integers(0, orders, records))
    shipped = ordered[of] + rng.integers(1, 122, records).astype(np.int32)
    committed = ordered[of] + rng.integers(30, 91, records).astype(np.int32)
    received = shipped + rng.integers(1, 31, records).astype(np.int32)
    quantity = rng.integers(1, 51, records)
    price = quantity * rng.integers(90_000, 200_000, records)
    recent = received > (datetime.date(1995, 6, 17) - FIRST).days
    returned = np.where(recent, 2, rng.integers(0, 2, records))
    return {
        "lines": pa.table(
            {
                "order_id": numbers[of],
                "part_id": rng.integers(0, max(1, records // 4), records),
                "quantity": quantity,
                "price": price,
                "discount": rng.integers(0, 11, records),
                "tax": rng.integers(0, 9, records),
                "returned": chosen(["A", "R", "N"], returned),
                "status": chosen(["F", "O"], (shipped > span // 2).astype(np.int64)),
                "shipped": dates(shipped),
                "committed": dates(committed),
                "received": dates(received),
                "mode": chosen(MODES, rng.integers(0, len(MODES), records)),
            }
        ),
        "orders": pa.table(
            {
                "order_id": numbers,
                "customer_id": rng.integers(0, customers, orders),
                "ordered": dates(ordered),
                "priority": chosen(PRIORITIES, rng.integers(0, len(PRIORITIES), orders)),
                "urgency": np.zeros(orders, np.int32),
            }
        ),
        "customers": pa.table(
            {
                "customer_id": rng.permutation(customers),
                "segment": chosen(SEGMENTS, rng.integers(0, len(SEGMENTS), customers)),
            }
        ),
    }


def chosen(words: list[str], places: Any) -> pa.Array:
    return pc.take(pa.array(words), pa.array(places))


def dates(days: Any) -> pa.Array:
    return pa.array(days + (FIRST - datetime.date(1970, 1, 1)).days, pa.int32()).cast(pa.date32())


APP = App(
    "orders", "ten queries with joins over orders, after TPC-H", ("parquet",), 4_000_000,
    generate, pipelines, reference,
)  # fmt: skip
