"""``headrace bench ordered`` and ``buffering``: sets of experiments, run, shown and drawn."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.bench import buffering, buffering_plots, ordered, ordered_plots
from headrace.bench.experiments import Experiments, Scale
from headrace.bench.samples import REACHED, Row
from headrace.cli import buffering_tables, ordered_tables
from headrace.errors import PlanError, nearest


@dataclass(frozen=True)
class Subject:
    """A set of experiments, and how its report is shown."""

    experiments: Experiments
    table: Callable[[list[Row]], Table]
    legend: str
    plots: Callable[[dict[str, Any]], dict[str, str]]


SUBJECTS = {
    "ordered": Subject(
        ordered.EXPERIMENTS, ordered_tables.table, ordered_tables.LEGEND, ordered_plots.plots
    ),
    "buffering": Subject(
        buffering.EXPERIMENTS,
        buffering_tables.table,
        buffering_tables.LEGEND,
        buffering_plots.plots,
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "ordered streams, buffering",
        "for 'headrace bench ordered' and 'headrace bench buffering', which take --records, "
        "--seed, --rounds, --workers, --seconds and --json as well",
    )
    names = ", ".join(
        f"of {name} {', '.join(subject.experiments.each)}" for name, subject in SUBJECTS.items()
    )
    group.add_argument("--only", metavar="NAME,…", help=f"some of the experiments: {names} (all)")
    group.add_argument("--plots", metavar="FOLDER", help="write plots there as SVG")


def measured(
    subject: Subject, arguments: argparse.Namespace, console: Console, notes: Console
) -> dict[str, Any]:
    """Run the experiments, show them, and draw them if asked."""
    names = _chosen(arguments, subject.experiments.each)
    with notes.status("starting") as status:
        scale = Scale(
            rounds=arguments.rounds,
            workers=arguments.workers,
            records=arguments.records,
            seconds=arguments.seconds,
            seed=arguments.seed,
            progress=status.update,
        )
        report = subject.experiments.run(names, scale)
    _show(report, subject, console)
    if arguments.plots:
        folder = Path(arguments.plots)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in subject.plots(report).items():
            (folder / name).write_text(text, encoding="utf-8")
    return report


def _chosen(arguments: argparse.Namespace, experiments: Mapping[str, Any]) -> list[str]:
    """The names of the experiments to run."""
    names = list(experiments) if arguments.only is None else arguments.only.split(",")
    for name in names:
        if name not in experiments:
            raise PlanError(f"--only: there is no experiment '{name}'{nearest(name, experiments)}")
    if arguments.records is not None and arguments.records < 1000:
        raise PlanError(f"--records {arguments.records}: too few to measure; use 1000 or more")
    return names


def _show(report: dict[str, Any], subject: Subject, console: Console) -> None:
    """A table for each experiment, what was asked for, and whether results are equal."""
    for name, rows in report["experiments"].items():
        what = subject.experiments.each[name].__doc__
        console.print(f"\n[bold]{name}[/bold]: {what}", soft_wrap=True)
        console.print(subject.table(rows), soft_wrap=True)
    console.print(f"\n{subject.legend}", soft_wrap=True)
    for target in report["targets"]:
        goal = f"≥ {target['at_least']}" if "at_least" in target else f"< {target['below']}"
        if target.get("reached", 1.0) < REACHED:
            goal += f", but only {100 * target['reached']:.0f} % of the load was reached"
        met = "[green]met[/green]" if target["met"] else "[red]missed[/red]"
        console.print(f"{target['target']}: {target['value']} ({goal}: {met})", soft_wrap=True)
    console.print("results equal" if report["equal"] else "[red]results differ[/red]")
