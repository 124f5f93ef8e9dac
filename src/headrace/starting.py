"""``hr.start`` and ``hr.run``: several outputs as one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.engines import resolve
from headrace.errors import PlanError
from headrace.hints import keywords
from headrace.jobs import Job, JobOutput, Progress
from headrace.stream import Stream
from headrace.writing import Output, finished


@keywords
def start(
    outputs: Sequence[Any], on: Any = None, *, checkpoint: Any = None, trigger: Any = None
) -> Job:
    """Start several outputs as one job, so that their sources are read once.

    Each is what a ``write_…`` method returns, a stream, or a pair of a stream and where it goes:
    ``hr.start([fares.write_parquet("out"), (trips.late, keep)])``.
    """
    return _started("start", outputs, on, checkpoint, trigger)


@keywords
def run(
    outputs: Sequence[Any], on: Any = None, *, checkpoint: Any = None, trigger: Any = None
) -> Progress:
    """Run several outputs as one job to the end; see ``hr.start`` and ``Output.run``."""
    return finished(_started("run", outputs, on, checkpoint, trigger))


def _started(name: str, outputs: Sequence[Any], on: Any, checkpoint: Any, trigger: Any) -> Job:
    if isinstance(outputs, (Stream, Output)) or not isinstance(outputs, Sequence):
        raise PlanError(f"{name} takes a list: hr.{name}([output, …]), or output.{name}() for one")
    planned = job_outputs(outputs, name)
    if not planned:
        raise PlanError(f"{name}: there is nothing to {name}; give a list of outputs")
    engines = [item.on for item in outputs if isinstance(item, Output) and item.on is not None]
    on = engines[0] if on is None and engines else on
    job: Job = resolve(on).start(planned, checkpoint, trigger)
    return job


def job_outputs(items: Sequence[Any], name: str = "start") -> list[JobOutput]:
    """Outputs and streams as an engine takes them; ``name`` is the function in messages."""
    return [_planned(name, item) for item in items]


def _planned(name: str, item: Any) -> JobOutput:
    """A stream, with where it goes or without, as an engine takes it."""
    if isinstance(item, Output):
        item.mark_used()
        item = (item.stream, item.sink)
    stream, to = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
    if not isinstance(stream, Stream):
        raise PlanError(f"{name}: {stream!r} is not a stream, nor a (stream, sink) pair")
    return stream._output(to)
