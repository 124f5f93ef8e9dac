"""``headrace bench ordered``: the experiments on ordered streams, run and shown."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.bench.ordered import EXPERIMENTS, Experiments
from headrace.bench.ordered_plots import plots, sigma_of
from headrace.errors import PlanError, nearest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "ordered streams, buffering",
        "for 'headrace bench ordered' and 'headrace bench buffering', which take --records, "
        "--seed, --rounds, --workers, --seconds and --json as well",
    )
    group.add_argument(
        "--only",
        metavar="NAME,…",
        help=f"some of the experiments: of ordered {', '.join(EXPERIMENTS)}, of buffering "
        "throughput, light, heavy (all)",
    )
    group.add_argument("--plots", metavar="FOLDER", help="write plots there as SVG")


def measured(arguments: argparse.Namespace, console: Console, notes: Console) -> dict[str, Any]:
    """Run the experiments, show them, and draw them if asked."""
    names = chosen(arguments, EXPERIMENTS)
    with notes.status("starting") as status:
        report = Experiments(
            rounds=arguments.rounds,
            workers=arguments.workers,
            records=arguments.records,
            seconds=arguments.seconds,
            seed=arguments.seed,
            progress=status.update,
        ).run(names)
    show(report, console)
    draw(plots(report), arguments)
    return report


def chosen(arguments: argparse.Namespace, experiments: Mapping[str, Any]) -> list[str]:
    """The names of the experiments to run."""
    names = list(experiments) if arguments.only is None else arguments.only.split(",")
    for name in names:
        if name not in experiments:
            raise PlanError(f"--only: there is no experiment '{name}'{nearest(name, experiments)}")
    if arguments.records is not None and arguments.records < 1000:
        raise PlanError(f"--records {arguments.records}: too few to measure; use 1000 or more")
    return names


def draw(drawn: Mapping[str, str], arguments: argparse.Namespace) -> None:
    """Write plots where they were asked for."""
    if arguments.plots:
        folder = Path(arguments.plots)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in drawn.items():
            (folder / name).write_text(text, encoding="utf-8")


_SHOWN = {
    "query": "query", "scheduler": "scheduler", "pipeline": "pipeline", "box": "box",
    "operator": "operator", "reorder": "reorder", "app": "app", "load": "load",
    "worklist": "worklist/partitions", "workers": "workers", "sigma": "σ", "cost_us": "µs a record",
}  # fmt: skip
"""What tells the rows of an experiment apart, and how it is called."""
_MEASURES = {
    "records_per_s": "K records/s", "records_per_cpu_s": "K/cpu s", "mean_ms": "mean ms",
    "p99_ms": "p99 ms",
    "busy_workers": "busy workers", "others": "others",
}  # fmt: skip


def show(report: dict[str, Any], console: Console) -> None:
    """The report as tables: medians, and the distance between the quartiles in brackets."""
    for name, rows in report["experiments"].items():
        told = [key for key in _SHOWN if key in rows[0]]
        measures = [key for key in _MEASURES if any(key in row for row in rows)]
        console.print(f"\n[bold]{name}[/bold]: {EXPERIMENTS[name].__doc__}", soft_wrap=True)
        table = Table(show_edge=False, pad_edge=False)
        for key in told:
            table.add_column(_SHOWN[key], no_wrap=True)
        for key in measures:
            table.add_column(_MEASURES[key], justify="right", no_wrap=True)
        for row in rows:
            cells = [sigma_of(row) if key == "sigma" else _plain(row[key]) for key in told]
            table.add_row(*cells, *(_measured(row, key) for key in measures))
        console.print(table, soft_wrap=True)
    console.print(
        "\nmedians, the distance between quartiles in brackets; latency in the middle 60 % of a "
        "run; others: the share of the cores that other processes had",
        soft_wrap=True,
    )
    show_targets(report, console)


def show_targets(report: dict[str, Any], console: Console) -> None:
    """What was asked for, what came of it, and whether results are equal."""
    for target in report["targets"]:
        goal = f"≥ {target['at_least']}" if "at_least" in target else f"< {target['below']}"
        if target.get("reached", 1.0) < 0.97:
            goal += f", but only {100 * target['reached']:.0f} % of the load was reached"
        met = "[green]met[/green]" if target["met"] else "[red]missed[/red]"
        console.print(f"{target['target']}: {target['value']} ({goal}: {met})", soft_wrap=True)
    console.print("results equal" if report["equal"] else "[red]results differ[/red]")


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _measured(row: dict[str, Any], key: str) -> str:
    if key not in row:
        return "–"
    if key == "others":
        return f"{100 * row[key]:.0f} %"
    if key == "records_per_cpu_s":
        return f"{row[key] / 1000:,.1f}"
    unit, digits = (1000, 1) if key == "records_per_s" else (1, 2)
    middle, around = row[key] / unit, row[f"{key}_spread"] / unit
    return f"{middle:,.{digits}f} ({around:,.{digits}f})"
