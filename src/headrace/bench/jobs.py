"""The engines and baselines a benchmark can run."""

from __future__ import annotations

from typing import Any

from headrace.apps import App
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
    known = _baselines(app, path, form, spark) if against else {}
    for name in against:
        if name not in known:
            raise PlanError(f"there is no baseline '{name}' of {app.name}{nearest(name, known)}")
        jobs[name] = known[name]
    return jobs


def _ours(app: App, path: str, form: str, engine: Any) -> Job:
    def run() -> Any:
        return {name: s.collect(on=engine) for name, s in app.pipelines(path, form).items()}

    return run


def _baselines(app: App, path: str, form: str, spark: Spark) -> dict[str, Job]:
    """The same job as it is written without Headrace."""
    from headrace.bench import iterations, pyspark

    known: dict[str, Job] = {}
    if app.name in pyspark.JOBS:
        known["pyspark"] = lambda: pyspark.JOBS[app.name](spark.session, path, form)
    for name, job in iterations.BASELINES.get(app.name, {}).items():
        known[name] = lambda job=job: job(spark.session, path)  # type: ignore[misc]
    return known
