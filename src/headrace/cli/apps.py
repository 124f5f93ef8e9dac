"""List the workloads that come with headrace."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from headrace import apps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def main(arguments: argparse.Namespace) -> int:
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("app", "what it does", "input", "default records"):
        table.add_column(heading, justify="right" if "records" in heading else "left")
    for name in apps.NAMES:
        app = apps.load(name)
        table.add_row(app.name, app.summary, ", ".join(app.forms), f"{app.records:,}")
    console = Console()
    console.print(table)
    console.print("\nheadrace run APP runs one; headrace bench APP measures it.")
    return 0
