"""The command ``headrace``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from headrace.cli import apps, bench, doctor, explain, run, state
from headrace.errors import HeadraceError

COMMANDS = (run, explain, state, apps, bench, doctor)


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    from headrace import __version__

    top = argparse.ArgumentParser(
        prog="headrace",
        description="One streaming pipeline in Python, on Spark or on one machine.",
    )
    top.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        name = module.__name__.rsplit(".", 1)[-1]
        text = (module.__doc__ or "").strip()
        command = commands.add_parser(
            name,
            help=text.splitlines()[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(call=module.main)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it went well, 1 if not, 2 if it was called wrongly."""
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.call(arguments) or 0)
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("headrace: stopped", file=sys.stderr)
        return 130
