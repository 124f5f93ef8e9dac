"""The engines and baselines a benchmark can run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.apps import App
from headrace.bench import iterations, orders, pyspark
from headrace.bench.peers import installed
from headrace.bench.runner import Job
from headrace.errors import PlanError, nearest
from headrace.spark.engine import Spark

ENGINES = ("spark", "box")


def jobs_for(
    app: App, path: str, form: str, on: list[str], against: list[str], spark: Spark, box: Any
) -> dict[str, Job]:
    """What to run, by name, engines first."""
    jobs: dict[str, Job] = {}
    for name in on:
        if name not in ENGINES:
            raise PlanError(f"there is no engine '{name}'{nearest(name, ENGINES)}")
        jobs[name] = _ours(app, path, form, box if name == "box" else spark)
    known = _baselines(app, path, form, spark)
    for name in against:
        if name not in known:
            raise PlanError(f"there is no baseline '{name}' of {app.name}{nearest(name, known)}")
        jobs[name] = known[name]()
    return jobs


def _ours(app: App, path: str, form: str, engine: Any) -> Job:
    def query(name: str) -> pa.Table:
        return app.pipelines(path, form)[name].collect(on=engine)

    return {name: partial(query, name) for name in app.pipelines(path, form)}


def _baselines(app: App, path: str, form: str, spark: Spark) -> dict[str, Callable[[], Job]]:
    """The same job as it is written without Headrace, made when it is asked for."""
    known: dict[str, Callable[[], Job]] = {}
    if app.name == "orders":
        known["pyspark"] = lambda: orders.pyspark_queries(lambda: spark.session, path)
        known["duckdb"] = lambda: orders.duckdb_queries(installed("duckdb"), path)
        known["polars"] = lambda: orders.polars_queries(installed("polars"), path)
    if app.name in pyspark.JOBS:
        known["pyspark"] = lambda: lambda: pyspark.JOBS[app.name](spark.session, path, form)
    for name, job in iterations.BASELINES.get(app.name, {}).items():
        known[name] = lambda job=job: lambda: job(spark.session, path)  # type: ignore[misc]
    return known
