"""A running job in the terminal: rates, watermarks, delay, what is in flight, what is late."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.jobs import Job, Progress
from headrace.signals import asked_to_stop
from headrace.windows import show_time

EVERY = 0.25


def view(name: str, progress: Progress) -> Group:
    """One picture of a job."""
    delay = "–"
    if progress.delay_p50 is not None and progress.delay_p99 is not None:
        delay = f"{1000 * progress.delay_p50:.0f} ms, p99 {1000 * progress.delay_p99:.0f} ms"
    head = Text.assemble(
        (name, "bold"),
        f"  {progress.seconds:.1f} s   in {progress.records_in:,} ({progress.rate_in:,.0f}/s)   "
        f"out {progress.records_out:,} ({progress.rate_out:,.0f}/s)   output delay {delay}   "
        f"in flight {progress.bundles_in_flight} bundles, {progress.bytes_in_flight / 1e6:.1f} MB"
        f"   late {progress.late:,}   bad {progress.bad:,}",
    )
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="dim")
    for heading in ("", "records", "bundles", "busy s", "state MB", "watermark"):
        table.add_column(heading, justify="left" if heading in ("", "watermark") else "right")
    for source in progress.sources:
        mark = "" if source.watermark is None else show_time(source.watermark)
        table.add_row(f"  {source.name}", f"{source.records:,}", "", "", "", mark)
    for stage in progress.stages:
        table.add_row(
            f"  {stage.name}", f"{stage.records_in:,}", f"{stage.bundles:,}", f"{stage.busy:.2f}",
            f"{stage.state_bytes / 1e6:.1f}" if stage.state_bytes else "",
            show_time(stage.watermark),
        )  # fmt: skip
    notes = [Text(f"  {note}", "yellow") for note in progress.notes[-3:]]
    return Group(head, table, *notes)


def watch(name: str, job: Job, console: Console) -> None:
    """Show a job until it ends. Ctrl-C or SIGTERM stops it, and shows how it drains."""
    with asked_to_stop():
        if not console.is_terminal:
            job.wait()
            return
        with Live(view(name, job.progress()), console=console, auto_refresh=False) as live:
            while not job.wait(EVERY):
                live.update(view(name, job.progress()), refresh=True)
            live.update(view(name, job.progress()), refresh=True)
