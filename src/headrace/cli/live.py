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
from headrace.windows import show_time

EVERY = 0.25
_LINES = 2.0
"""How often results are printed where there is no terminal, in seconds."""
_NAME = 28


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


def view(name: str, progress: Progress, newest: Newest | None = None) -> Group:
    """One picture of a job, at most 80 columns wide where its results are."""
    delay = ""
    if progress.delay_p50 is not None and progress.delay_p99 is not None:
        p50, p99 = 1000 * progress.delay_p50, 1000 * progress.delay_p99
        delay = f"   delay {p50:.0f} ms, p99 {p99:.0f} ms"
    head = Text.assemble(
        (_short(name), "bold"),
        f"  {progress.seconds:.1f} s   in {progress.records_in:,} ({progress.rate_in:,.0f}/s)   "
        f"out {progress.records_out:,} ({progress.rate_out:,.0f}/s)",
    )
    more = Text(
        f"  late {progress.late:,}   bad {progress.bad:,}   in flight "
        f"{progress.bytes_in_flight / 1e6:.1f} MB{delay}",
        "dim",
    )
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="dim")
    scans = any(stage.keys for stage in progress.stages)
    for heading in ("", "records", "busy s", "state MB", *(["keys"] if scans else []), "watermark"):
        table.add_column(
            heading, justify="left" if heading in ("", "watermark") else "right", no_wrap=True
        )
    for source in progress.sources:
        mark = "" if source.watermark is None else show_time(source.watermark)
        more_columns = [""] if scans else []
        table.add_row(
            f"  {_short(source.name)}", f"{source.records:,}", "", "", *more_columns, mark
        )
    for stage in progress.stages:
        state = f"{stage.state_bytes / 1e6:.1f}" if stage.state_bytes else ""
        keys = [f"{stage.keys:,}" if stage.keys else ""] if scans else []
        table.add_row(
            f"  {_short(stage.name)}", f"{stage.records_in:,}", f"{stage.busy:.1f}", state, *keys,
            show_time(stage.watermark),
        )  # fmt: skip
    waits = [f"{source.name}: {source.waits}" for source in progress.sources if source.waits]
    notes = [Text(f"  {note}", "yellow") for note in [*progress.notes[-2:], *waits]]
    shown: list[Any] = [] if newest is None else [Text(""), table_of(newest.table())]
    return Group(head, more, table, *notes, *shown)


def _short(text: str) -> str:
    return text if len(text) <= _NAME else text[: _NAME - 1] + "…"


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
        with Live(view(name, job.progress(), newest), console=console, auto_refresh=False) as live:
            while not job.wait(EVERY):
                live.update(view(name, job.progress(), newest), refresh=True)
            live.update(view(name, job.progress()), refresh=True)
