"""Clicks with their products' data (RStream's broadcast): sales by category each second."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.apps import StreamApp
from headrace.apps.streams import app, micros, times

PRODUCTS, CATEGORIES = 100_000, 40


@cache
def catalogue() -> pa.Table:
    """Most of the products there are, with category and price; a product's number is no place."""
    rng = np.random.default_rng(31)
    numbers = rng.permutation(4 * PRODUCTS)[:PRODUCTS]
    category = [f"category {c}" for c in rng.integers(0, CATEGORIES, PRODUCTS)]
    return pa.table(
        {"product": numbers, "category": category, "price": rng.integers(1, 400, PRODUCTS) / 4}
    )


def tables(records: int, seed: int, per_second: int, early: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng([seed, 30])
    known = catalogue()["product"].to_numpy()
    product = np.where(
        rng.random(records) < 0.9,
        known[rng.integers(0, PRODUCTS, records)],
        rng.integers(0, 4 * PRODUCTS, records),
    )
    at = times(records, per_second, early, seed)
    return {
        "clicks": pa.table({"at": at, "product": product, "pieces": rng.integers(1, 5, records)})
    }


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    return (
        inputs["clicks"]
        .join(hr.from_arrow(catalogue()), on="product")
        .key_by("category")
        .window(window)
        .agg(sales=hr.sum("pieces * price"), n=hr.count())
    )


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    known = {row["product"]: row for row in catalogue().to_pylist()}
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    table = inputs["clicks"]
    columns = (table[n].to_pylist() for n in ("product", "pieces"))
    for at, product, pieces in zip(micros(table), *columns, strict=True):
        row = known.get(product)
        if row is not None:
            found[row["category"], at // 1_000_000 * 1_000_000].append(pieces * row["price"])
    return {(c, s, s + 1_000_000, sum(v), len(v)) for (c, s), v in found.items()}


APP = app(
    "enrich", "clicks joined with a table of products, sales by category (RStream)", 4_000_000,
    StreamApp(tables, pipeline, hr.tumbling("1s"), 500_000), reference,
)  # fmt: skip
