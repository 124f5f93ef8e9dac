"""Run a pipeline and show or write its result."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from rich.console import Console

from headrace.bench.runner import same_tables
from headrace.box.engine import Box
from headrace.cli.live import Newest, watch
from headrace.cli.targets import Target, add_engine, add_target, engine_of, pipelines_of
from headrace.display import print_table
from headrace.errors import PlanError, nearest
from headrace.io.parquet import ParquetSink
from headrace.jobs import Job, Progress
from headrace.spark.progress import progress
from headrace.starting import start as hr_start
from headrace.stream import Stream
from headrace.writing import Output


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
    stream = parser.add_argument_group("input that does not end")
    stream.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="where to keep the job's state, to go on from it; on both engines",
    )
    stream.add_argument(
        "--trigger",
        metavar="HOW",
        help="available-now, on both engines; or on Spark a batch every so often (500ms)",
    )


def main(arguments: argparse.Namespace) -> int:
    console, notes = Console(), Console(stderr=True)
    if "," in (arguments.on or ""):
        return _compared(arguments, console, notes)
    engine = engine_of(arguments)
    pipelines = pipelines_of(arguments, notes)
    if not isinstance(engine, Box):
        with notes.status("starting Spark"):
            _ = engine.session
    outputs = {n: t for n, t in pipelines.items() if isinstance(t, Output)}
    if outputs:
        _started(outputs, engine, arguments, console, notes)
    for name, stream in pipelines.items():
        if isinstance(stream, Output):
            continue
        if isinstance(engine, Box) or not stream.bounded:
            _as_job(name, stream, engine, arguments, console, notes)
            continue
        _refuse_streams(arguments, name)
        with progress(name, notes):
            job, to = _batch(name, stream, engine, arguments)
            job.wait()
        console.print(f"[bold]{name}[/bold]: {_done(job.progress())}{to}")
        if to:
            continue
        table = _largest_first(job.result(), arguments.top)
        print_table(table.slice(0, arguments.rows), table.num_rows > arguments.rows, console)
        console.print()
    return 0


def _batch(
    name: str, stream: Stream, engine: Any, arguments: argparse.Namespace
) -> tuple[Job, str]:
    """Start a bounded pipeline; the second is where its records go, if not to the terminal."""
    if not arguments.write:
        return stream.start(on=engine), ""
    folder = f"{arguments.write}/{name}"
    return stream.start(on=engine, to=ParquetSink(folder, "overwrite")), f", written to {folder}"


def _compared(arguments: argparse.Namespace, console: Console, notes: Console) -> int:
    """Run on several engines, one after the other, and say whether they gave the same."""
    pipelines = {n: _stream(t) for n, t in pipelines_of(arguments, notes).items()}
    results: list[dict[str, pa.Table]] = []
    for on in [name for name in arguments.on.split(",") if name]:
        engine = engine_of(argparse.Namespace(**{**vars(arguments), "on": on}))
        if not isinstance(engine, Box):
            with notes.status("starting Spark"):
                _ = engine.session
        results.append({})
        for name, stream in pipelines.items():
            if stream.bounded:
                _refuse_streams(arguments, name)
            job = stream.start(on=engine)
            if stream.bounded:
                with notes.status(f"{name} on {on}"):
                    job.wait()
            else:
                watch(f"{name} on {on}", job, notes)
            results[-1][name] = job.result()
            console.print(f"[bold]{name}[/bold] on {on}: {_done(job.progress())}")
    for table in results[0].values():
        table = _largest_first(table, arguments.top)
        print_table(table.slice(0, arguments.rows), table.num_rows > arguments.rows, console)
    equal = all(same_tables(results[0], other) for other in results[1:])
    console.print("results equal" if equal else "[red]results differ[/red]")
    return 0 if equal else 1


def _stream(target: Target) -> Stream:
    """A stream without its sink: engines are compared by what they give."""
    return target.stream if isinstance(target, Output) else target


def _started(
    outputs: Mapping[str, Output],
    engine: Any,
    arguments: argparse.Namespace,
    console: Console,
    notes: Console,
) -> None:
    """Run streams that end in sinks as one job, until it ends or is stopped."""
    if arguments.write:
        raise PlanError("--write is for a stream without a sink, and this one has its own")
    job = hr_start(
        list(outputs.values()), engine, checkpoint=arguments.checkpoint, trigger=arguments.trigger
    )
    watch(", ".join(outputs), job, notes)
    for name, output in outputs.items():
        console.print(f"[bold]{name}[/bold]: {_done(job.progress())}, to {output.sink}")


def _done(told: Progress) -> str:
    late = f", {told.late:,} late" if told.late else ""
    bad = f", {told.bad:,} bad" if told.bad else ""
    counts = f"{told.records_in:,} records in, {told.records_out:,} out"
    if not told.records_in and told.records_out:  # what Spark itself reads is not counted
        counts = f"{told.records_out:,} records out"
    return f"{counts} in {told.seconds:.2f} s{late}{bad}"


def _refuse_streams(arguments: argparse.Namespace, name: str) -> None:
    if arguments.checkpoint or arguments.trigger:
        raise PlanError(
            f"--checkpoint and --trigger are for input that does not end, and that of {name} does; "
            "drop them, or use --format stream"
        )


def _as_job(
    name: str,
    stream: Stream,
    engine: Any,
    arguments: argparse.Namespace,
    console: Console,
    notes: Console,
) -> None:
    """Run as a job, watched while it runs; one that does not end runs until Ctrl-C."""
    folder = f"{arguments.write}/{name}" if arguments.write else ""
    newest = Newest(stream.schema, arguments.rows)
    to: Any = ParquetSink(folder, "overwrite") if folder else None
    if to is None and not stream.bounded:
        to = newest
    job = stream.start(on=engine, to=to, checkpoint=arguments.checkpoint, trigger=arguments.trigger)
    watch(name, job, notes, newest if to is newest else None, console)
    done = _done(job.progress())
    if folder:
        console.print(f"[bold]{name}[/bold]: {done}, written to {folder}")
        return
    table = job.result() if to is None else newest.table()
    console.print(f"[bold]{name}[/bold]: {done}")
    table = _largest_first(table, arguments.top)
    print_table(table.slice(0, arguments.rows), table.num_rows > arguments.rows, console)
    console.print()


def _largest_first(table: pa.Table, columns: str | None) -> pa.Table:
    names = [] if columns is None else columns.split(",")
    for name in names:
        if name in table.schema.names:
            return table.sort_by([(name, "descending")])
    if names:
        hint = nearest(names[0], table.schema.names)
        raise PlanError(f"--top: there is no column '{names[0]}'{hint}")
    return table
