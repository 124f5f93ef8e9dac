"""Measure an app on engines and baselines in one run, and compare them.

Every job runs once to warm up, then all by turns on the same input; the results must be equal.
A ratio says how many times as fast the first is as the second.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace import apps
from headrace.bench.jobs import jobs_for
from headrace.bench.runner import measure
from headrace.cli.targets import form_of, generated
from headrace.errors import PlanError
from headrace.spark.engine import Spark


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", metavar="APP", help="an app's name; 'headrace apps' lists them")
    parser.add_argument("--on", default="spark", metavar="ENGINE,…", help="engines (spark)")
    parser.add_argument(
        "--against",
        default="pyspark",
        metavar="NAME,…",
        help="baselines: pyspark, the same job written by hand; '' for none",
    )
    parser.add_argument("--records", type=int, metavar="N", help="how many records to generate")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the generator (1)")
    parser.add_argument("--format", metavar="FORMAT", help="the input's format, such as parquet")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds, at least 5 (5)")
    parser.add_argument("--master", metavar="URL", help="Spark's master (local[*])")
    parser.add_argument("--json", metavar="FILE", help="write the report there as JSON")


def main(arguments: argparse.Namespace) -> int:
    console, notes = Console(), Console(stderr=True)
    app = apps.load(arguments.app)
    if arguments.rounds < 5:
        raise PlanError("--rounds: fewer than 5 rounds say little on a shared machine")
    form = form_of(app, arguments.format)
    records = app.records if arguments.records is None else arguments.records
    path = str(generated(app, arguments, form, notes))
    spark = Spark(master=arguments.master)
    on, against = (_names(text) for text in (arguments.on, arguments.against))
    jobs = jobs_for(app, path, form, on, against, spark)
    with notes.status("starting Spark") as status:
        _ = spark.session
        report = measure(app, records, jobs, arguments.rounds, status.update)
    report["format"] = form
    show(report, console)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")
    return 0 if report["equal"] else 1


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def show(report: dict[str, Any], console: Console) -> None:
    """The report as a table."""
    console.print(f"{report['app']}, {report['records']:,} records, {report['format']}")
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("engine", "median s", "spread s", "records/s", "peak MB", "worker MB"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    for run in report["runs"]:
        table.add_row(
            run["engine"], f"{run['median_s']:.3f}", f"{run['spread_s']:.3f}",
            f"{run['records_per_s']:,}", f"{run['peak_mb']:,.0f}", f"{run['worker_peak_mb']:,.0f}",
        )  # fmt: skip
    console.print(table)
    for name, ratio in report["ratios"].items():
        console.print(f"{name}: {ratio:.2f} times as fast")
    console.print("results equal" if report["equal"] else "[bold red]results differ[/bold red]")
