"""What a command works on: an app by name, or a Python file with a pipeline."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle
from rich.console import Console

from headrace import apps
from headrace.box.engine import Box
from headrace.errors import PlanError, nearest
from headrace.spark.engine import Spark
from headrace.stream import Stream

_NAMES = ("pipeline", "pipelines", "stream", "streams", "main")


def add_target(parser: argparse.ArgumentParser) -> None:
    """The arguments that choose a pipeline and its input."""
    parser.add_argument(
        "target",
        metavar="APP_OR_FILE",
        help="an app's name, or a Python file that "
        "has a Stream called 'pipeline' or a function of that name",
    )
    parser.add_argument("--input", metavar="PATH", help="the app's input; generated if not given")
    parser.add_argument("--records", type=int, metavar="N", help="how many records to generate")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the generator (1)")
    parser.add_argument(
        "--format", metavar="FORMAT", help="the app's input format, such as parquet"
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The arguments that choose an engine."""
    parser.add_argument(
        "--on",
        default=None,
        metavar="ENGINE",
        help="the engine: spark (default) or box; with 'run', spark,box compares them",
    )
    parser.add_argument(
        "--master",
        metavar="URL",
        help="Spark's master, such as local[2] or spark://host:7077 (default local[*])",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="the box's evaluators (default all cores)"
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Spark setting; may be repeated",
    )


def engine_of(arguments: argparse.Namespace) -> Any:
    """The engine that the arguments name."""
    from headrace.engines import resolve

    settings = {}
    for item in arguments.config:
        key, mark, value = item.partition("=")
        if not mark:
            raise PlanError(f"--config {item}: write it as KEY=VALUE")
        settings[key] = value
    if arguments.on == "box":
        if arguments.master or settings:
            raise PlanError("--master and --config are Spark's; drop them, or --on box")
        return Box(workers=arguments.workers)
    if arguments.workers is not None:
        raise PlanError("--workers is the box's; add --on box")
    if arguments.on in (None, "spark") and (arguments.master or settings):
        return Spark(master=arguments.master, config=settings)
    return resolve(arguments.on)


def pipelines_of(arguments: argparse.Namespace, console: Console) -> dict[str, Stream]:
    """The pipelines of the target by name."""
    target = arguments.target
    if target.endswith(".py") or Path(target).is_file():
        return _from_file(Path(target))
    app = apps.load(target)
    form = form_of(app, arguments.format)
    path = arguments.input or str(generated(app, arguments, form, console))
    return app.pipelines(path, form)


def form_of(app: apps.App, name: str | None) -> str:
    """The input format: the app's first unless another is asked for."""
    if name is None:
        return app.forms[0]
    if name not in app.forms:
        raise PlanError(f"{app.name} does not read '{name}'{nearest(name, app.forms)}")
    return name


def generated(app: apps.App, arguments: argparse.Namespace, form: str, console: Console) -> Path:
    """The app's generated input, made once for a size and a seed."""
    records = app.records if arguments.records is None else arguments.records
    if records < 0:
        raise PlanError(f"--records {records}: a number of records is not negative")
    folder = Path(tempfile.gettempdir()) / "headrace-input"
    with console.status(f"generating {records:,} records for {app.name}"):
        return app.generate(folder, records, arguments.seed, form)


def _module(path: Path) -> Any:
    """The file as a module, whose functions travel to workers by value."""
    spec = importlib.util.spec_from_file_location("headrace_pipeline", path)
    if spec is None or spec.loader is None:
        raise PlanError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    cloudpickle.register_pickle_by_value(module)
    spec.loader.exec_module(module)
    return module


def _from_file(path: Path) -> dict[str, Stream]:
    if not path.is_file():
        raise PlanError(f"there is no file {str(path)!r}")
    found = vars(_module(path))
    for name in _NAMES:
        if name in found:
            value = found[name]
            value = value() if callable(value) and not isinstance(value, Stream) else value
            if isinstance(value, Stream):
                return {name: value}
            if isinstance(value, Mapping) and all(isinstance(v, Stream) for v in value.values()):
                return dict(value)
            raise PlanError(f"{path}: '{name}' is {value!r}, which is not a Stream")
    streams = {k: v for k, v in found.items() if isinstance(v, Stream)}
    if len(streams) == 1:
        return streams
    raise PlanError(
        f"{path}: which stream is meant? name one 'pipeline'"
        + (f"; there are: {', '.join(streams)}" if streams else "; there is none")
    )
