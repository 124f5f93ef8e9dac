"""The queries of the app ``orders`` as users of SQL and of Polars write them, over its files."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.bench.runner import Queries

TABLES = ("lines", "orders", "customers")

SQL = {
    "aggregates": """
        SELECT mode, returned, count(*) AS n, sum(quantity), avg(price), min(price), max(discount)
        FROM lines GROUP BY mode, returned""",
    "join": """
        SELECT priority, sum(price) FROM lines JOIN orders USING (order_id) GROUP BY priority""",
    "two_joins": """
        SELECT segment, sum(price) FROM lines JOIN orders USING (order_id)
        JOIN customers USING (customer_id) WHERE quantity < 25 GROUP BY segment""",
    "first_100": """
        SELECT order_id, part_id, quantity, price, discount, shipped FROM lines
        WHERE discount = 5 ORDER BY price DESC, order_id, part_id LIMIT 100""",
    "top_parts": """
        SELECT part_id, sum(price) AS price FROM lines GROUP BY part_id
        ORDER BY price DESC, part_id LIMIT 10""",
    "distinct": """
        SELECT count(*) FROM (SELECT DISTINCT part_id, quantity FROM lines)""",
    "q1": """
        SELECT returned, status, sum(quantity), sum(price), sum(price * (100 - discount)),
        sum(price * (100 - discount) * (100 + tax)), avg(quantity), avg(price), avg(discount),
        count(*) FROM lines WHERE shipped <= DATE '1998-09-02' GROUP BY returned, status""",
    "q3": """
        SELECT order_id, ordered, urgency, sum(price * (100 - discount)) AS cost
        FROM customers JOIN orders USING (customer_id) JOIN lines USING (order_id)
        WHERE segment = 'BUILDING' AND ordered < DATE '1995-03-15'
        AND shipped > DATE '1995-03-15' GROUP BY order_id, ordered, urgency
        ORDER BY cost DESC, ordered, order_id LIMIT 10""",
    "q6": """
        SELECT sum(price * discount) FROM lines
        WHERE shipped >= DATE '1994-01-01' AND shipped < DATE '1995-01-01'
        AND discount BETWEEN 5 AND 7 AND quantity < 24""",
    "q12": """
        SELECT mode, sum(CASE WHEN priority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END),
        sum(CASE WHEN priority IN ('1-URGENT', '2-HIGH') THEN 0 ELSE 1 END)
        FROM orders JOIN lines USING (order_id)
        WHERE mode IN ('MAIL', 'SHIP') AND committed < received AND shipped < committed
        AND received >= DATE '1994-01-01' AND received < DATE '1995-01-01' GROUP BY mode""",
}


def pyspark_queries(start: Callable[[], Any], path: str) -> Queries:
    """Spark SQL over the files, which are opened for every query as ours are."""

    def query(text: str) -> pa.Table:
        session = start()
        for name in TABLES:
            session.read.parquet(f"{path}/{name}.parquet").createOrReplaceTempView(name)
        return session.sql(text).toArrow()

    return {name: partial(query, text) for name, text in SQL.items()}


def duckdb_queries(duckdb: Any, path: str) -> Queries:
    """DuckDB over the files."""
    connection = duckdb.connect()
    for name in TABLES:
        connection.execute(f"CREATE VIEW {name} AS FROM read_parquet('{path}/{name}.parquet')")

    def query(text: str) -> pa.Table:
        table = connection.sql(text).to_arrow_table()
        wide = [pa.types.is_decimal(f.type) and f.type.scale == 0 for f in table.schema]
        fields = [
            pa.field(f.name, pa.int64()) if whole else f
            for f, whole in zip(table.schema, wide, strict=True)
        ]
        return table.cast(pa.schema(fields))  # a sum of whole numbers is a decimal there

    return {name: partial(query, text) for name, text in SQL.items()}


def polars_queries(pl: Any, path: str) -> Queries:
    """Lazy frames over the files, on Polars' streaming engine."""
    c, day = pl.col, datetime.date

    def frames() -> list[Any]:
        return [pl.scan_parquet(f"{path}/{name}.parquet") for name in TABLES]

    cost = c("price") * (100 - c("discount"))
    urgent = c("priority").is_in(["1-URGENT", "2-HIGH"]).cast(pl.Int64)
    march = day(1995, 3, 15)

    def aggregates(lines: Any, orders: Any, customers: Any) -> Any:
        return lines.group_by("mode", "returned").agg(
            pl.len(), c("quantity").sum(), mean=c("price").mean(), least=c("price").min(),
            most=c("discount").max(),
        )  # fmt: skip

    def join(lines: Any, orders: Any, customers: Any) -> Any:
        return lines.join(orders, on="order_id").group_by("priority").agg(c("price").sum())

    def two_joins(lines: Any, orders: Any, customers: Any) -> Any:
        some = lines.filter(c("quantity") < 25).join(orders, on="order_id")
        return some.join(customers, on="customer_id").group_by("segment").agg(c("price").sum())

    def first_100(lines: Any, orders: Any, customers: Any) -> Any:
        names = ["order_id", "part_id", "quantity", "price", "discount", "shipped"]
        some = lines.filter(c("discount") == 5).select(names)
        return some.sort("price", "order_id", "part_id", descending=[True, False, False]).head(100)

    def top_parts(lines: Any, orders: Any, customers: Any) -> Any:
        prices = lines.group_by("part_id").agg(c("price").sum())
        return prices.sort("price", "part_id", descending=[True, False]).head(10)

    def distinct(lines: Any, orders: Any, customers: Any) -> Any:
        return lines.select("part_id", "quantity").unique().select(pl.len())

    def q1(lines: Any, orders: Any, customers: Any) -> Any:
        some = lines.filter(c("shipped") <= day(1998, 9, 2)).group_by("returned", "status")
        means = {f"mean_{n}": c(n).mean() for n in ("quantity", "price", "discount")}
        charge = (cost * (100 + c("tax"))).sum()
        return some.agg(
            c("quantity").sum(), c("price").sum(), cost=cost.sum(), charge=charge, **means,
            n=pl.len(),
        )  # fmt: skip

    def q3(lines: Any, orders: Any, customers: Any) -> Any:
        of = customers.filter(c("segment") == "BUILDING")
        open_orders = of.join(orders.filter(c("ordered") < march), on="customer_id")
        owed = open_orders.join(lines.filter(c("shipped") > march), on="order_id")
        costs = owed.group_by("order_id", "ordered", "urgency").agg(cost=cost.sum())
        return costs.sort("cost", "ordered", "order_id", descending=[True, False, False]).head(10)

    def q6(lines: Any, orders: Any, customers: Any) -> Any:
        some = lines.filter(
            (c("shipped") >= day(1994, 1, 1)) & (c("shipped") < day(1995, 1, 1))
            & c("discount").is_between(5, 7) & (c("quantity") < 24)
        )  # fmt: skip
        return some.select((c("price") * c("discount")).sum())

    def q12(lines: Any, orders: Any, customers: Any) -> Any:
        some = lines.filter(
            c("mode").is_in(["MAIL", "SHIP"]) & (c("committed") < c("received"))
            & (c("shipped") < c("committed")) & (c("received") >= day(1994, 1, 1))
            & (c("received") < day(1995, 1, 1))
        )  # fmt: skip
        joined = orders.join(some, on="order_id").group_by("mode")
        return joined.agg(high=urgent.sum(), low=(1 - urgent).sum())

    queries = (
        aggregates, join, two_joins, first_100, top_parts, distinct, q1, q3, q6, q12
    )  # fmt: skip

    def collected(query: Any) -> pa.Table:
        table = query(*frames()).collect(engine="streaming").to_arrow()
        counts = [
            pa.field(f.name, pa.int64()) if pa.types.is_unsigned_integer(f.type) else f
            for f in table.schema
        ]
        return table.cast(pa.schema(counts))

    return {query.__name__: partial(collected, query) for query in queries}
