"""What a command works on: an app by name, or a Python file with a pipeline."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
from rich.console import Console

from headrace import apps
from headrace.box.engine import Box
from headrace.cache import cache_folder
from headrace.engines import NAMES, VARIABLE
from headrace.errors import HeadraceError, PlanError, nearest
from headrace.kernels.rows import user_line
from headrace.plan.time import nodes_of
from headrace.spark.engine import Spark
from headrace.stream import Stream
from headrace.writing import Output

_NAMES = ("pipeline", "pipelines", "streams", "main")


def add_target(parser: argparse.ArgumentParser) -> None:
    """The arguments that choose a pipeline and its input."""
    parser.add_argument(
        "target",
        metavar="APP_OR_FILE",
        help="an app's name, or a Python file that has a Stream called 'pipeline', with a sink or "
        "without; of a file that has none, all streams that nothing else in it reads",
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


def pipelines_of(arguments: argparse.Namespace, console: Console) -> dict[str, Target]:
    """The pipelines of the target by name."""
    target = arguments.target
    if target.endswith(".py") or Path(target).is_file():
        with _by_default(arguments.on):
            return _from_file(Path(target))
    app = apps.load(target)
    form = form_of(app, arguments.format)
    path = arguments.input or str(generated(app, arguments, form, console))
    return dict(app.pipelines(path, form))


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
    folder = cache_folder("input")
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
    try:
        spec.loader.exec_module(module)
    except HeadraceError:
        raise
    except Exception as error:
        raise PlanError(_what_failed(path, error)) from error
    return module


def _what_failed(path: Path, error: Exception) -> str:
    """An error of a pipeline file: its line, and what Python says of it."""
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}: {(error.text or '').strip()}"
        return f"{path} cannot be read as Python: {type(error).__name__}: {error.msg}\n  at {where}"
    line = user_line(error.__traceback__)
    return f"{path} failed: {reason}" + (f"\n  at {line}" if line else "")


Target = Stream | Output


@contextlib.contextmanager
def _by_default(engine: str | None) -> Iterator[None]:
    """While a file runs: what it computes by itself, such as a sink of input that ends, is computed
    on the engine asked for."""
    before = os.environ.get(VARIABLE)
    if engine in NAMES:
        os.environ[VARIABLE] = engine
    try:
        yield
    finally:
        if before is not None:
            os.environ[VARIABLE] = before
        else:
            os.environ.pop(VARIABLE, None)


def _from_file(path: Path) -> dict[str, Target]:
    """What a file defines: its 'pipeline', or all that nothing else in it reads."""
    if not path.is_file():
        raise PlanError(f"there is no file {str(path)!r}")
    found = vars(_module(path))
    for name in _NAMES:
        if name in found:
            value = found[name]
            value = value() if callable(value) and not isinstance(value, Stream) else value
            if value is None:  # a sink of input that ends: it has been written
                return {}
            targets = _targets(name, value)
            if targets is None:
                raise PlanError(
                    f"{path}: '{name}' is {value!r}, which is not a Stream, nor one that ends in a "
                    "sink"
                )
            return targets
    outputs: dict[str, Target] = {k: v for k, v in found.items() if isinstance(v, Output)}
    if outputs:
        return outputs
    streams: dict[str, Target] = {k: v for k, v in found.items() if isinstance(v, Stream)}
    inner = {id(n) for s in streams.values() for n in _before(s)}
    last = {k: v for k, v in streams.items() if isinstance(v, Stream) and id(v.node) not in inner}
    if last:
        return dict(last)
    raise PlanError(f"{path}: there is no stream in it; call one 'pipeline'")


def _targets(name: str, value: Any) -> dict[str, Target] | None:
    """A stream, one that ends in a sink, or several of them."""
    if isinstance(value, Target):
        return {name: value}
    if isinstance(value, Mapping) and all(isinstance(v, Target) for v in value.values()):
        return dict(value)
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, Target) for v in value):
        return {f"{name} {i + 1}": v for i, v in enumerate(value)}
    return None


def _before(target: Target) -> list[Any]:
    """The steps that a stream's last one reads."""
    node = target.stream.node if isinstance(target, Output) else target.node
    return [n for n in nodes_of(node) if n is not node]
