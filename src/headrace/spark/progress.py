"""How far a Spark job is, on a terminal, while it runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace.spark.session import running

_QUIET_SECONDS = 10.0


@contextlib.contextmanager
def progress(what: str, console: Console | None = None) -> Iterator[None]:
    """Show the tasks of the running Spark jobs; a line now and then where there is no terminal."""
    console = console or Console(stderr=True)
    done = threading.Event()
    target = _bars if console.is_terminal else _lines
    thread = threading.Thread(target=target, args=(what, console, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _tasks() -> tuple[int, int]:
    """Tasks done and known of the jobs that run now."""
    session = running()
    if session is None:
        return 0, 0
    tracker = session.sparkContext.statusTracker()
    finished = known = 0
    for job in tracker.getActiveJobsIds():
        info = tracker.getJobInfo(job)
        for stage_id in info.stageIds if info else []:
            stage = tracker.getStageInfo(stage_id)
            if stage:
                finished += stage.numCompletedTasks
                known += stage.numTasks
    return finished, known


def _bars(what: str, console: Console, done: threading.Event) -> None:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bars:
        task = bars.add_task(what, total=None)
        while not done.wait(0.2):
            finished, known = _tasks()
            bars.update(task, completed=finished, total=known or None)


def _lines(what: str, console: Console, done: threading.Event) -> None:
    start = time.monotonic()
    while not done.wait(_QUIET_SECONDS):
        finished, known = _tasks()
        seconds = time.monotonic() - start
        console.print(f"{what}: {finished} of {known} tasks after {seconds:.0f} s", style="dim")
