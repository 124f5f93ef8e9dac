"""``hr.start``: several outputs as one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.engines import resolve
from headrace.errors import PlanError
from headrace.jobs import Job, Output
from headrace.stream import Stream
from headrace.writing import Outlet


def start(
    outputs: Sequence[Any], on: Any = None, *, checkpoint: Any = None, trigger: Any = None
) -> Job:
    """Start several outputs as one job, so that their sources are read once.

    Each is a stream, or a pair of a stream and where it goes: ``hr.start([(fares, sink),
    (trips.late, keep)])``.
    """
    if isinstance(outputs, (Stream, Outlet)) or not isinstance(outputs, Sequence):
        raise PlanError("start takes a list: hr.start([stream, …]), or stream.start() for one")
    found = outputs_of(outputs)
    if not found:
        raise PlanError("start: there is nothing to start; give a list of streams")
    engines = [item.on for item in outputs if isinstance(item, Outlet) and item.on is not None]
    on = engines[0] if on is None and engines else on
    job: Job = resolve(on).start(found, checkpoint, trigger)
    return job


def outputs_of(items: Sequence[Any]) -> list[Output]:
    """Streams, with where they go or without, as an engine takes them."""
    found: list[Output] = []
    for item in items:
        if isinstance(item, Outlet):
            item = (item.stream, item.sink)
        stream, to = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        if not isinstance(stream, Stream):
            raise PlanError(f"start: {stream!r} is not a stream, nor a (stream, sink) pair")
        found.append(stream._output(to))
    return found
