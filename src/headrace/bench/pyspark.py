"""The jobs as a good engineer writes them in PySpark by hand, to be compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

from headrace.apps.collisions import FACTORS
from headrace.apps.search import PATTERN


def _lines(session: Any, path: str, form: str) -> Any:
    if form == "parquet":
        return session.read.parquet(path)
    return session.read.text(path).withColumnRenamed("value", "line")


def wc(session: Any, path: str, form: str) -> dict[str, pa.Table]:
    words = F.explode(F.split(F.lower("line"), "[^a-z]+")).alias("word")
    counts = _lines(session, path, form).select(words).where("word <> ''").groupBy("word").count()
    return {"words": counts.toArrow()}


def search(session: Any, path: str, form: str) -> dict[str, pa.Table]:
    return {"matches": _lines(session, path, form).where(F.col("line").rlike(PATTERN)).toArrow()}


def collisions(session: Any, path: str, form: str) -> dict[str, pa.Table]:
    with open(path) as file:
        names = file.readline().strip().split(",")
    types = ", ".join(
        f"`{n}` {'int' if n.startswith(('NUMBER', 'UNIQUE')) else 'string'}" for n in names
    )
    date = F.to_date("DATE", "MM/dd/yyyy")
    rows = session.read.csv(path, schema=types, header=True).select(
        F.coalesce("BOROUGH", F.lit("")).alias("borough"),
        F.year(date).alias("year"),
        F.expr("dayofyear(to_date(DATE, 'MM/dd/yyyy')) div 7").alias("week"),
        (F.col("NUMBER OF PERSONS KILLED") > 0).cast("int").alias("lethal"),
        F.array_distinct(F.array(*[F.col(f) for f in FACTORS])).alias("factors"),
    )
    weeks = rows.groupBy("year", "week").agg(F.sum("lethal").alias("lethal"))
    factors = (
        rows.select(F.explode("factors").alias("factor"), "lethal")
        .where("factor is not null")
        .groupBy("factor")
        .agg(F.count("*").alias("accidents"), F.avg("lethal").alias("lethal_share"))
    )
    boroughs = rows.groupBy("borough", "year", "week").agg(
        F.count("*").alias("accidents"), F.avg("lethal").alias("mean_lethal")
    )
    return {
        "lethal_per_week": weeks.toArrow(),
        "per_factor": factors.toArrow(),
        "per_borough_and_week": boroughs.toArrow(),
    }


JOBS: dict[str, Callable[[Any, str, str], dict[str, pa.Table]]] = {
    "wc": wc,
    "search": search,
    "collisions": collisions,
}
