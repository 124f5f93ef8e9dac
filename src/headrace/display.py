"""Tables and progress on a terminal."""

from __future__ import annotations

import datetime

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.types import type_name


def print_table(table: pa.Table, more: bool = False, console: Console | None = None) -> None:
    """Print a table's rows."""
    console = console or Console()
    console.print(table_of(table))
    if more:
        console.print(f"[dim]the first {table.num_rows} records; there are more[/dim]")


def table_of(table: pa.Table) -> Table:
    """A table's rows as a terminal shows them, numbers to the right."""
    shown = Table(show_edge=False, pad_edge=False)
    for field in table.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        shown.add_column(
            Text.assemble(field.name, "\n", (type_name(field.type), "dim")),
            justify="right" if number else "left",
            overflow="fold",
        )
    for row in table.to_pylist():
        shown.add_row(*(_cell(row[name]) for name in table.schema.names))
    return shown


def _cell(value: object) -> Text:
    if value is None:
        return Text("null", "dim")
    if isinstance(value, datetime.datetime):  # in UTC, as its type says; without it a row fits
        value = value.replace(tzinfo=None)
        text = str(value)
        return Text(text.rstrip("0") if value.microsecond else text)
    return Text(f"{value:.6g}" if isinstance(value, float) else str(value))
