"""Measure an app on engines and baselines in one run, and compare them.

Every job runs once to warm up, then all by turns on the same input; the results must be equal.
A ratio says how many times as fast the first is as the second. Streaming apps are replayed from
memory; with --target the highest rate is sought at which their output delay stays below it.
"headrace bench ordered" measures what it costs the box to keep the order of a stream, and
"headrace bench buffering" what its buffering policies do to throughput and latency.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace import apps
from headrace.apps import kmeans
from headrace.bench import checkpoints, streams
from headrace.bench.iterations import UNLIKE
from headrace.bench.jobs import jobs_for
from headrace.bench.runner import measure
from headrace.box.engine import SCHEDULERS, Box
from headrace.cli import experiments
from headrace.cli.targets import form_of, generated
from headrace.errors import PlanError
from headrace.spark.engine import Spark
from headrace.windows import AnyWindow, duration, sliding, tumbling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "app",
        metavar="APP",
        help="an app's name, 'headrace apps' lists them; or 'ordered' or 'buffering', for the "
        "experiments on ordered streams and on buffering policies",
    )
    parser.add_argument(
        "--on",
        metavar="ENGINE,…",
        help="engines: spark, box (spark; box if it streams); for a streaming app spark streams "
        "one file a batch, spark-best all files in one, spark-batch takes them as bounded input",
    )
    parser.add_argument(
        "--against",
        metavar="NAME,…",
        help="baselines: pyspark, the same job written by hand (pyspark-best: with all files in "
        "one batch, for a streaming app); duckdb and polars for orders and streaming apps; an "
        "engine or limit for a streaming app; mllib and numpy for kmeans",
    )
    parser.add_argument("--records", type=int, metavar="N", help="how many records to generate")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the generator (1)")
    parser.add_argument("--format", metavar="FORMAT", help="the input's format, such as parquet")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds, at least 5 (5)")
    parser.add_argument("--master", metavar="URL", help="Spark's master (local[*])")
    parser.add_argument("--json", metavar="FILE", help="write the report there as JSON")
    box = parser.add_argument_group("the box")
    box.add_argument("--workers", type=int, metavar="N", help="evaluators (all cores)")
    box.add_argument("--pin", action="store_true", help="tie each evaluator to a core")
    box.add_argument("--scheduler", choices=sorted(SCHEDULERS), help="what is done first")
    box.add_argument(
        "--in-order", action="store_true", help="hold each epoch until complete (an ablation)"
    )
    box.add_argument("--bundle", type=int, metavar="N", help="records of a bundle (it adapts)")
    stream = parser.add_argument_group("streaming apps")
    stream.add_argument(
        "--target", action="append", metavar="TIME", help="seek the rate for a delay; 1s, 50ms"
    )
    stream.add_argument(
        "--at",
        type=int,
        metavar="PERCENT",
        help="the output delay at a share of the highest rate --target found, or of full speed",
    )
    stream.add_argument("--seconds", type=float, default=4, help="length of a trial at a rate (4)")
    stream.add_argument("--window", metavar="SIZE[/EVERY]", help="another window: 1s, 30s/1s")
    stream.add_argument(
        "--ooo", type=int, default=0, metavar="PERCENT", help="records out of order, 0 to 100"
    )
    stream.add_argument(
        "--epoch-records", type=int, metavar="N", help="records between two watermarks"
    )
    stream.add_argument(
        "--per-second",
        type=int,
        metavar="N",
        help="records in a second of event time (of bb_ apps: in the hours of an epoch)",
    )
    stream.add_argument(
        "--checkpoint",
        nargs="?",
        const="1s",
        metavar="EVERY",
        help="what a checkpoint on the box costs, every second unless told",
    )
    stream.add_argument("--profile", action="store_true", help="show where time goes")
    parser.add_argument("--centroids", type=int, metavar="K", help="of kmeans (50)")
    experiments.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    console, notes = Console(), Console(stderr=True)
    if arguments.rounds < 5:
        raise PlanError("--rounds: fewer than 5 rounds say little on a shared machine")
    subject = experiments.SUBJECTS.get(arguments.app)
    if subject is not None:
        return _reported(experiments.measured(subject, arguments, console, notes), arguments.json)
    if arguments.only or arguments.plots:
        raise PlanError("--only and --plots are for 'headrace bench ordered' and 'buffering'")
    app = apps.load(arguments.app)
    if arguments.centroids is not None:
        if app.name != "kmeans" or arguments.centroids < 1:
            raise PlanError("--centroids is a number of centroids, for 'headrace bench kmeans'")
        kmeans.K = arguments.centroids
    if arguments.in_order and arguments.scheduler not in (None, "in-order"):
        raise PlanError("--in-order is a scheduler; drop the other")
    scheduler = "in-order" if arguments.in_order else arguments.scheduler
    box = Box(
        workers=arguments.workers,
        pin=arguments.pin,
        scheduler=scheduler or "next-externalization",
        bundle=arguments.bundle,
    )
    if app.stream is not None:
        report = _streaming(app, arguments, box, console, notes)
    else:
        report = _batch(app, arguments, box, console, notes)
    return _reported(report, arguments.json)


def _reported(report: dict[str, Any], file: str | None) -> int:
    if file:
        Path(file).write_text(json.dumps(report, indent=2) + "\n")
    return 0 if report["equal"] else 1


def _batch(
    app: apps.App, arguments: argparse.Namespace, box: Box, console: Console, notes: Console
) -> dict[str, Any]:
    form = form_of(app, arguments.format)
    records = app.records if arguments.records is None else arguments.records
    path = str(generated(app, arguments, form, notes))
    spark = Spark(master=arguments.master)
    on = _names(arguments.on, "spark")
    against = _names(arguments.against, "pyspark")
    jobs = jobs_for(app, path, form, on, against, spark, box)
    with notes.status("starting") as status:
        if "spark" in on or "pyspark" in against:
            status.update("starting Spark")
            _ = spark.session
        report = measure(app, records, jobs, arguments.rounds, status.update, unlike=UNLIKE)
    report["format"] = form
    show(report, console)
    return report


def _streaming(
    app: apps.App, arguments: argparse.Namespace, box: Box, console: Console, notes: Console
) -> dict[str, Any]:
    on = _names(arguments.on, "box")
    against = _names(arguments.against, "")
    if not 0 <= arguments.ooo <= 100:
        raise PlanError(f"--ooo {arguments.ooo}: a percentage is from 0 to 100")
    if arguments.ooo and "limit" in against:
        raise PlanError("--against limit: the limit takes records in order; drop --ooo")
    records = app.records if arguments.records is None else arguments.records
    if records < 1000:
        raise PlanError(f"--records {records}: too few to measure; use 1000 or more")
    with notes.status(f"generating {records:,} records for {app.name}") as status:
        setup = streams.Setup.of(
            app,
            records=records,
            seed=arguments.seed,
            per_second=arguments.per_second,
            epoch_records=arguments.epoch_records,
            early=arguments.ooo,
            window=_window(arguments.window),
            box=box,
        )
        spark = Spark(master=arguments.master)
        jobs, cleaners = streams.jobs_for(setup, on, against, spark)
        try:
            if any("spark" in name for name in jobs):
                status.update("starting Spark")
                _ = spark.session
            report = measure(app, setup.records, jobs, arguments.rounds, status.update)
        finally:
            for clean in cleaners:
                clean()
        report["format"] = "memory"
        report["window"] = repr(setup.window)
        report["epoch_records"], report["per_second"] = setup.epoch_records, setup.per_second
        assert app.stream is not None
        report["seconds"] = app.stream.seconds
        report["ooo"], report["workers"] = arguments.ooo, box.workers
        report["scheduler"] = box.scheduler
        rates = {run["engine"]: run["records_per_s"] for run in report["runs"]}
        most = float(rates.get("box", 0))
        report["targets"] = []
        if (arguments.target or arguments.at) and "box" not in on:
            raise PlanError("--target and --at measure the box; add --on box")
        for text in arguments.target or []:
            target = duration(text, "--target", 1) / 1e6
            best = streams.best_rate(setup, target, most, arguments.seconds, status.update)
            report["targets"].append(_told(best, most, target=target))
        if arguments.at:
            held = [t["rate"] for t in report["targets"] if t["rate"] is not None]
            whole, of = (max(held), "the highest rate held") if held else (most, "full speed")
            status.update(f"the delay at {arguments.at} % of {of}")
            tried = streams.trial(setup, whole * arguments.at / 100, arguments.seconds)
            report["targets"].append(_told(tried, most, percent=arguments.at, of=of))
        if arguments.checkpoint:
            turns = max(1, round(4 * most / setup.records)) if most else 4
            report["checkpoint"] = checkpoints.cost(
                setup, arguments.checkpoint, turns, arguments.rounds, status.update
            )
        if arguments.profile:
            status.update("where time goes")
            report["profile"] = streams.profile(setup)
    show(report, console)
    _show_targets(report, console)
    if arguments.checkpoint:
        _show_checkpoint(report["checkpoint"], console)
    if arguments.profile:
        _show_profile(report["profile"], console)
    return report


def _told(trial: streams.Trial | None, most: float, **what: Any) -> dict[str, Any]:
    if trial is None:
        return {**what, "rate": None}
    return {
        **what,
        "rate": round(trial.rate),
        "of_full_speed": round(trial.rate / most, 3),
        "reached": round(trial.reached),
        "delay_p50_ms": round(1000 * trial.p50, 1),
        "delay_p99_ms": round(1000 * trial.p99, 1),
        "windows": len(trial.delays),
        "rising": trial.rising,
    }


def _window(text: str | None) -> AnyWindow | None:
    if text is None:
        return None
    size, mark, every = text.partition("/")
    return sliding(size, every=every) if mark else tumbling(size)


def _names(text: str | None, default: str) -> list[str]:
    return [name for name in (default if text is None else text).split(",") if name]


def show(report: dict[str, Any], console: Console) -> None:
    """The report as a table."""
    detail = (
        f", {report['window']}, epochs of {report['epoch_records']:,} records, "
        f"{report['per_second']:,} in {report['seconds']:,} s, {report['ooo']} % out of order, "
        f"{report['workers']} workers"
        if "window" in report
        else ""
    )
    console.print(f"{report['app']}, {report['records']:,} records, {report['format']}{detail}")
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("engine", "median s", "spread s", "records/s", "peak MB", "worker MB"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    for run in report["runs"]:
        table.add_row(
            run["engine"], f"{run['median_s']:.3f}", f"{run['spread_s']:.3f}",
            f"{run['records_per_s']:,}", f"{run['peak_mb']:,.0f}", f"{run['worker_peak_mb']:,.0f}",
        )  # fmt: skip
    console.print(table)
    if report["queries"]:
        _show_queries(report["queries"], console)
    for name, ratio in report["ratios"].items():
        console.print(f"{name}: {ratio:.2f} times as fast")
    console.print("results equal" if report["equal"] else "[red]results differ[/red]")


def _show_queries(queries: dict[str, dict[str, float]], console: Console) -> None:
    """Each query's seconds."""
    engines = list(next(iter(queries.values())))
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("query")
    for engine in engines:
        table.add_column(f"{engine} s", justify="right")
    for name, seconds in queries.items():
        table.add_row(name, *(f"{seconds[engine]:.3f}" for engine in engines))
    console.print(table)


def _show_targets(report: dict[str, Any], console: Console) -> None:
    for found in report["targets"]:
        what = (
            f"under {1000 * found['target']:.0f} ms"
            if "target" in found
            else f"at {found['percent']} % of {found['of']}"
        )
        if found["rate"] is None:
            console.print(f"output delay {what}: at no rate that was tried")
            continue
        console.print(
            f"output delay {what}: {found['rate']:,} records/s "
            f"({100 * found['of_full_speed']:.0f} % of full speed), median "
            f"{found['delay_p50_ms']} ms, p99 {found['delay_p99_ms']} ms over "
            f"{found['windows']} windows" + (", rising" if found["rising"] else "")
        )


def _show_checkpoint(found: dict[str, Any], console: Console) -> None:
    console.print(
        f"with a checkpoint every {found['every']}: {found['speed']:.2f} times as fast as without "
        f"({found['with_s']:.2f} s and {found['without_s']:.2f} s for {found['records']:,} "
        f"records, {found['checkpoints']} checkpoints, {found['written_mb']:,.1f} MB written)"
        + ("" if found["equal"] else ", [red]results differ[/red]")
    )


def _show_profile(found: dict[str, Any], console: Console) -> None:
    table = Table(show_edge=False, pad_edge=False)
    headings = (
        "stage", "records", "bundles", "busy s", "kernel µs", "lock µs", "waiting µs", "switches",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for row in found["stages"]:
        table.add_row(
            row["stage"], f"{row['records']:,}", f"{row['bundles']:,}", f"{row['busy_s']:.3f}",
            f"{row['kernel_us']:,.1f}", f"{row['lock_us']:,.1f}", f"{row['waiting_us']:,.1f}",
            f"{row['switches']:.2f}",
        )  # fmt: skip
    console.print(table)
    console.print(
        "a bundle's time in kernels, holding the interpreter lock and waiting, and how often its "
        f"thread gave up its core; {found['dispatch_us']:.0f} µs more of the lock to hand it out\n"
        f"the lock is busy all the time at about {found['cores']} cores",
        soft_wrap=True,
    )
