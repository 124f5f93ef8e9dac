"""The engines and baselines a benchmark can run."""

from __future__ import annotations

from typing import Any

from headrace.apps import App
from headrace.bench.runner import Job
from headrace.errors import PlanError, nearest
from headrace.spark.engine import Spark

ENGINES = ("spark", "box")
BASELINES = ("pyspark",)


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
        jobs[name] = _pyspark(app, path, form, spark)
    return jobs


def _ours(app: App, path: str, form: str, engine: Any) -> Job:
    def run() -> Any:
        return {name: s.collect(on=engine) for name, s in app.pipelines(path, form).items()}

    return run


def _pyspark(app: App, path: str, form: str, spark: Spark) -> Job:
    def run() -> Any:
        from headrace.bench.pyspark import JOBS

        return JOBS[app.name](spark.session, path, form)

    return run
