"""Run a pipeline and show or write its result."""

from __future__ import annotations

import argparse
import time

import pyarrow as pa
from rich.console import Console

from headrace.cli.targets import add_engine, add_target, engine_of, pipelines_of
from headrace.display import print_table
from headrace.errors import PlanError, nearest
from headrace.spark.progress import progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_engine(parser)
    parser.add_argument("--rows", type=int, default=10, metavar="N", help="records to show (10)")
    parser.add_argument(
        "--top",
        metavar="COLUMN,…",
        help="show the records with the largest of the first that is there",
    )
    parser.add_argument("--write", metavar="FOLDER", help="write Parquet there instead of showing")


def main(arguments: argparse.Namespace) -> int:
    console, notes = Console(), Console(stderr=True)
    engine = engine_of(arguments)
    pipelines = pipelines_of(arguments, notes)
    with notes.status("starting Spark"):
        _ = engine.session
    for name, stream in pipelines.items():
        start = time.perf_counter()
        if arguments.write:
            folder = f"{arguments.write}/{name}"
            with progress(name, notes):
                stream.write_parquet(folder, mode="overwrite", on=engine)
            console.print(
                f"[bold]{name}[/bold]: written to {folder} in {time.perf_counter() - start:.2f} s"
            )
            continue
        with progress(name, notes):
            table = stream.collect(on=engine)
        seconds = time.perf_counter() - start
        console.print(f"[bold]{name}[/bold]: {table.num_rows:,} records in {seconds:.2f} s")
        table = _largest_first(table, arguments.top)
        print_table(table.slice(0, arguments.rows), table.num_rows > arguments.rows, console)
        console.print()
    return 0


def _largest_first(table: pa.Table, columns: str | None) -> pa.Table:
    names = [] if columns is None else columns.split(",")
    for name in names:
        if name in table.schema.names:
            return table.sort_by([(name, "descending")])
    if names:
        hint = nearest(names[0], table.schema.names)
        raise PlanError(f"--top: there is no column '{names[0]}'{hint}")
    return table
