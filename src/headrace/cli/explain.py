"""Show a pipeline's plan, its stages, and where each step runs."""

from __future__ import annotations

import argparse

from rich.console import Console

from headrace.cli.targets import add_engine, add_target, engine_of, pipelines_of
from headrace.writing import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_engine(parser)
    parser.add_argument("--graph", action="store_true", help="a Mermaid flowchart instead of text")
    parser.set_defaults(records=1000)


def main(arguments: argparse.Namespace) -> int:
    engine = engine_of(arguments)
    pipelines = pipelines_of(arguments, Console(stderr=True))
    for name, stream in pipelines.items():
        if len(pipelines) > 1:
            print(f"%% {name}" if arguments.graph else f"== {name} ==")
        if isinstance(stream, Output) and not arguments.graph:
            print(stream.explain(on=engine))
        else:
            plain = stream.stream if isinstance(stream, Output) else stream
            print(plain.explain("graph" if arguments.graph else "text", on=engine))
        print()
    return 0
