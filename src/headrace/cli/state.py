"""Look at the state of a job that does not run, move it, or see what a change means for it.

headrace state show FOLDER              what a checkpoint holds
headrace state move FROM TO --on box    go on with a job on the other engine
headrace state diff FOLDER FILE         which changes of a pipeline its checkpoint can take
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.checkpoints.shape import engine_of
from headrace.checkpoints.state import JobState, holdings
from headrace.cli.targets import add_target, pipelines_of
from headrace.state import ENGINES, changes_since, move_state, read_state
from headrace.windows import show_time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="what a checkpoint holds")
    show.add_argument("folder", metavar="FOLDER", help="the job's checkpoint")
    show.set_defaults(act=_show)
    move = actions.add_parser(
        "move",
        help="move a job's state to a new checkpoint",
        description="Start the pipeline with the new checkpoint, and it goes on; from the old one "
        "it cannot be started any more.",
    )
    move.add_argument("source", metavar="FROM", help="the job's checkpoint")
    move.add_argument("target", metavar="TO", help="a folder that is not there yet")
    move.add_argument("--on", choices=ENGINES, help="the engine to go on with (the same)")
    move.add_argument("--shards", type=int, metavar="N", help="another number of shards")
    move.set_defaults(act=_move)
    diff = actions.add_parser(
        "diff",
        help="which changes of a pipeline its checkpoint can take",
        description="Compares a pipeline with the one a checkpoint is of, and starts nothing. Ends "
        "with 1 if something cannot be taken.",
    )
    diff.add_argument("folder", metavar="FOLDER", help="the job's checkpoint")
    add_target(diff)
    diff.set_defaults(act=_diff, on=None)


def main(arguments: argparse.Namespace) -> int:
    return int(arguments.act(arguments))


def _show(arguments: argparse.Namespace) -> int:
    _print(read_state(arguments.folder), Console())
    return 0


def _move(arguments: argparse.Namespace) -> int:
    console = Console()
    with Console(stderr=True).status("moving"):
        state = move_state(
            arguments.source, arguments.target, on=arguments.on, shards=arguments.shards
        )
    records = sum(holding.records for holding in holdings(state))
    on = arguments.on or engine_of(state.job)
    console.print(
        f"{records:,} records of state in {state.shards} shards, after epoch {state.epoch}, are in "
        f"{arguments.target} for {on}; start the pipeline with that as its checkpoint",
        soft_wrap=True,
    )
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    console = Console()
    targets = pipelines_of(arguments, Console(stderr=True)).values()
    changes = changes_since(arguments.folder, list(targets))
    for change in changes.found:
        verdict = "[green]taken[/green]  " if change.is_taken else "[red]refused[/red]"
        console.print(f"{verdict} {escape(change.text)}", soft_wrap=True)
    if not changes.found:
        console.print("nothing has changed that a checkpoint depends on")
    return 1 if changes.refused else 0


def _print(state: JobState, console: Console) -> None:
    ended = ", its input has ended" if state.finished else ""
    console.print(
        f"a job on {engine_of(state.job)}, after epoch {state.epoch}, "
        f"{state.shards} shards{ended}\n",
        soft_wrap=True,
    )
    sources = Table("source", "position", "watermark", "idle", box=None, header_style="bold")
    for name, source in zip(state.job["shape"]["source"], state.sources, strict=False):
        frontier = source["frontier"]
        at = ", ".join(f"{split} at {position}" for split, position in source["at"].items())
        mark = show_time(frontier["promised"]) if frontier else ""
        sources.add_row(name, at, mark, ", ".join(frontier.get("idle", ())))
    console.print(sources)
    steps = Table(
        "step", "holds", "slices", "records", "bytes", "from", "to", "watermark",
        "records by shard", box=None, header_style="bold",
    )  # fmt: skip
    for held in holdings(state):
        steps.add_row(
            held.step, held.what, str(held.slices), f"{held.records:,}", f"{held.nbytes:,}",
            "" if held.oldest is None else show_time(held.oldest),
            "" if held.newest is None else show_time(held.newest),
            show_time(held.watermark), " ".join(map(str, held.shards)),
        )  # fmt: skip
    console.print()
    console.print(steps)
    if state.pickles:
        console.print(
            "\nPython objects of your functions are pickled in these files; loading them runs "
            f"code: {', '.join(state.pickles)}",
            soft_wrap=True,
        )
