"""The engines and baselines a benchmark can run."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa

from headrace.apps import App
from headrace.bench import orders
from headrace.bench.peers import installed
from headrace.bench.runner import Job
from headrace.errors import PlanError, nearest
from headrace.spark.engine import Spark

ENGINES = ("spark", "box")
BASELINES = ("pyspark", "duckdb", "polars")


def jobs_for(
    app: App, path: str, form: str, on: list[str], against: list[str], spark: Spark, box: Any
) -> dict[str, Job]:
    """What to run, by name, engines first."""
    jobs: dict[str, Job] = {}
    for name in on:
        if name not in ENGINES:
            raise PlanError(f"there is no engine '{name}'{nearest(name, ENGINES)}")
        jobs[name] = _ours(app, path, form, box if name == "box" else spark)
    for name in against:
        if name not in BASELINES:
            raise PlanError(f"there is no baseline '{name}'{nearest(name, BASELINES)}")
        jobs[name] = _baseline(name, app, path, form, spark)
    return jobs


def _ours(app: App, path: str, form: str, engine: Any) -> Job:
    def query(name: str) -> pa.Table:
        return app.pipelines(path, form)[name].collect(on=engine)

    return {name: partial(query, name) for name in app.pipelines(path, form)}


def _baseline(name: str, app: App, path: str, form: str, spark: Spark) -> Job:
    if app.name == "orders":
        if name == "pyspark":
            return orders.pyspark_queries(lambda: spark.session, path)
        queries = orders.duckdb_queries if name == "duckdb" else orders.polars_queries
        return queries(installed(name), path)
    if name != "pyspark":
        raise PlanError(f"{name}: there is no baseline for {app.name}; use pyspark")

    def run() -> Any:
        from headrace.bench.pyspark import JOBS

        return JOBS[app.name](spark.session, path, form)

    return run
