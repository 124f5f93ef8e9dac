"""``headrace bench buffering``: the experiments on buffering policies, run and shown."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.bench.buffering import EXPERIMENTS, Experiments
from headrace.bench.buffering_plots import plots
from headrace.cli.ordered import chosen, draw, show_targets


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


def show(report: dict[str, Any], console: Console) -> None:
    """The report as tables."""
    for name, rows in report["experiments"].items():
        console.print(f"\n[bold]{name}[/bold]: {EXPERIMENTS[name].__doc__}", soft_wrap=True)
        table = Table(show_edge=False, pad_edge=False)
        latency = "p50_ms" in rows[0]
        headings = ["policy", "buffers"] if latency else ["policy"]
        headings += [
            "records",
            *(["p50", "p99", "max ms"] if latency else ["K/s", "spread", "K/cpu s"]),
        ]
        headings.append("others")
        for heading in headings:
            is_left = heading == "policy"
            table.add_column(heading, justify="left" if is_left else "right", no_wrap=True)
        for row in rows:
            cells = [row["policy"], str(row["buffers"])] if latency else [row["policy"]]
            cells.append(f"{row['records']:,}")
            if latency:
                cells += [f"{row[key]:,.1f}" for key in ("p50_ms", "p99_ms", "max_ms")]
            else:
                rates = ("records_per_s", "records_per_s_spread", "records_per_cpu_s")
                cells += [f"{row[key] / 1000:,.1f}" for key in rates]
            table.add_row(*cells, f"{100 * row['others']:.0f} %")
        console.print(table, soft_wrap=True)
    console.print(
        "\nthroughput: medians in thousand records a second, and the distance between quartiles; "
        "latency: of every record, from when it was due; others: the share of the cores that other "
        "processes had",
        soft_wrap=True,
    )
    show_targets(report, console)
