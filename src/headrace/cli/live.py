"""A running job in the terminal: rates, watermarks, delay, its newest results, what is late."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.display import table_of
from headrace.jobs import Job, Progress
from headrace.signals import asked_to_stop
from headrace.windows import BEGINNING, FOREVER, show_time

EVERY = 0.25
_LINES = 2.0
"""How often results are printed where there is no terminal, in seconds."""
_MIN_NAME = 8
"""Columns that a name keeps, however long the numbers beside it are."""


class Newest:
    """The newest results of a stream, given as they come."""

    def __init__(self, schema: pa.Schema, rows: int) -> None:
        self.schema, self.rows = schema, max(1, rows)
        self.lock = threading.Lock()
        self.batches: list[pa.RecordBatch] = []
        self.fresh = 0
        """How many have come since they were last shown."""

    def __call__(self, batch: pa.RecordBatch) -> None:
        with self.lock:
            self.fresh += batch.num_rows
            kept = [*self.batches, batch][-self.rows :]
            while len(kept) > 1 and sum(b.num_rows for b in kept[1:]) >= self.rows:
                kept.pop(0)
            self.batches = kept

    def table(self) -> pa.Table:
        """The newest, the last one last."""
        with self.lock:
            whole = pa.Table.from_batches(self.batches, self.schema)
        return whole.slice(max(0, whole.num_rows - self.rows))

    def taken(self) -> pa.Table:
        """Those that have not been shown."""
        with self.lock:
            fresh, self.fresh = self.fresh, 0
        table = self.table()
        return table.slice(max(0, table.num_rows - fresh))


def view(name: str, progress: Progress, newest: Newest | None = None, width: int = 80) -> Group:
    """One picture of a job. Names are shortened so that no number is cut at ``width`` columns."""
    delay = ""
    if progress.delay_p50 is not None and progress.delay_p99 is not None:
        p50, p99 = 1000 * progress.delay_p50, 1000 * progress.delay_p99
        delay = f"   delay {p50:.0f} ms, p99 {p99:.0f} ms"
    head = Text.assemble(
        (_short(name, width // 2), "bold"),
        f"  {progress.seconds:.1f} s   late {progress.late:,}   bad {progress.bad:,}",
    )
    rates = Text(
        f"  in {progress.records_in:,} ({progress.rate_in:,.0f}/s)   "
        f"out {progress.records_out:,} ({progress.rate_out:,.0f}/s)"
    )
    more = Text(f"  in flight {progress.bytes_in_flight / 1e6:.1f} MB{delay}", "dim")
    waits = [f"{source.name}: {source.waits}" for source in progress.sources if source.waits]
    notes = [Text(f"  {note}", "yellow") for note in [*progress.notes[-2:], *waits]]
    shown: list[Any] = [] if newest is None else [Text(""), table_of(newest.table())]
    return Group(head, rates, more, _steps(progress, width), *notes, *shown)


def _steps(progress: Progress, width: int) -> Table:
    """The sources and steps of a job, a row each."""
    rows = [["", "records", "busy s", "state MB", "keys", "watermark"]]
    for source in progress.sources:
        mark = "" if source.watermark is None else _moment(source.watermark)
        rows.append([source.name, f"{source.records:,}", "", "", "", mark])
    for stage in progress.stages:
        state = f"{stage.state_bytes / 1e6:.1f}" if stage.state_bytes else ""
        keys = f"{stage.keys:,}" if stage.keys else ""
        busy, mark = f"{stage.busy:.1f}", _moment(stage.watermark)
        rows.append([stage.name, f"{stage.records_in:,}", busy, state, keys, mark])
    if not any(row[4] for row in rows[1:]):
        rows = [[*row[:4], row[5]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = max(_MIN_NAME, width - 2 - sum(each + 2 for each in widths[1:]))
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="dim")
    for heading in rows[0]:
        justify: Any = "left" if heading in ("", "watermark") else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for first, *others in rows[1:]:
        table.add_row(f"  {_short(first, room)}", *others)
    return table


def _moment(watermark: int) -> str:
    """A watermark to the second."""
    if BEGINNING < watermark < FOREVER:
        return show_time(watermark).partition(".")[0]
    return "the end" if watermark >= FOREVER else "none yet"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def watch(
    name: str,
    job: Job,
    console: Console,
    newest: Newest | None = None,
    results: Console | None = None,
) -> None:
    """Show a job until it ends. Ctrl-C or SIGTERM stops it, and shows how it drains.

    Where there is no terminal, its newest results are printed as they come.
    """
    with asked_to_stop():
        if not console.is_terminal:
            while not job.wait(_LINES):
                if newest is not None and results is not None and newest.fresh:
                    results.print(table_of(newest.taken()))
            return

        def picture(newest: Newest | None) -> Group:
            return view(name, job.progress(), newest, console.width)

        with Live(picture(newest), console=console, auto_refresh=False) as live:
            while not job.wait(EVERY):
                live.update(picture(newest), refresh=True)
            live.update(picture(None), refresh=True)
