"""Random pipelines of bounded input give what DuckDB gives for the same query."""

from __future__ import annotations

import math
import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import headrace as hr
from headrace.box.scheduler import SCHEDULERS
from tests.fuzz.budget import rounds
from tests.fuzz.pipelines import Pipeline, random_pipeline, random_table

Rows = list[tuple[Any, ...]]


def _expected(p: Pipeline, tables: dict[str, pa.Table], schema: pa.Schema) -> Rows:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        for name, table in tables.items():
            connection.register(name, table)
        return _rows(connection.sql(p.sql).to_arrow_table().cast(schema))


def _rows(table: pa.Table) -> Rows:
    """The records in an order that does not depend on the last digits of a number."""
    rows = list(zip(*(c.to_pylist() for c in table.columns), strict=True))
    return sorted(rows, key=lambda r: repr([_rounded(v) for v in r]))


def _rounded(value: Any) -> Any:
    return f"{value + 0.0:.6g}" if isinstance(value, float) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    return bool(a == b)


def check(rng: random.Random, engine: Any) -> None:
    tables = {"t": random_table(rng), "u": random_table(rng)}
    p = random_pipeline(rng, tables)
    shown = "\n  ".join([f"{engine.name}:", *p.steps, p.sql])
    try:
        table = p.stream.collect(on=engine)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{shown}") from error
    got, want = _rows(table), _expected(p, tables, table.schema)
    assert len(got) == len(want), f"{len(got)} records, not {len(want)}\n{shown}"
    for mine, theirs in zip(got, want, strict=True):
        assert all(map(_same, mine, theirs)), f"{mine} is not {theirs}\n{shown}"


def any_box(rng: random.Random) -> hr.Box:
    return hr.Box(
        workers=rng.choice([1, 2, 4]),
        bundle=rng.choice([None, 1, 7, 100]),
        scheduler=rng.choice(sorted(SCHEDULERS)),
        debug=True,
    )


def check_on_the_box(rng: random.Random, folder: str = "") -> None:
    check(rng, any_box(rng))


@pytest.mark.slow
def test_the_box_gives_what_duckdb_gives() -> None:
    rounds(9.0, check_on_the_box)


@pytest.mark.slow
def test_spark_gives_what_duckdb_gives(spark_engine: hr.Spark) -> None:
    rounds(6.0, lambda rng: check(rng, spark_engine))
