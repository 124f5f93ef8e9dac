"""What a sink is, small enough to write your own in twenty lines.

A sink opens a writer for each task; a writer takes bundles and, when it closes, says what it
wrote. When every task has succeeded the sink commits all that was said, and only then do readers
see anything: a task that fails or runs twice leaves nothing behind. This is a whole sink:

    class Memory(Sink):
        kept = []

        def open(self, schema, task): return MemoryWriter()
        def commit(self, messages): Memory.kept.extend(messages)

    class MemoryWriter:
        def __init__(self): self.batches = []
        def write(self, batch): self.batches.append(batch)
        def close(self): return self.batches

``stream.write_to(Memory()).run()`` writes to it. Name the class in the entry-point group
``headrace.sinks`` of your package, and ``stream.write("memory")`` finds it.

A sink's life, of which a class overrides what it needs:

    check(schema)       while the pipeline is built
    goes_on()           if the run goes on from a checkpoint
    ready(job)          before a run; nothing has been changed yet
    resume(epoch)       if the run goes on from a checkpoint
    begin(schema)       before the writers
    open(schema, task)  in the workers, for each task
    commit(messages), or commit_epoch(job, epoch, messages)
    finish()            when a streaming query has ended well
    abort()             what was not committed is to be removed

Input that ends is committed once. A stream that does not is committed again and again: Spark calls
``commit_epoch`` for every micro-batch, and so does the box after every checkpoint; without one the
box calls ``begin``, ``open`` and ``commit`` in turn.

A class that has ``check``, ``open``, ``commit`` and ``abort`` without being a ``Sink`` will do too,
with any of the others it likes.
"""
# ruff: noqa: B027 - the parts of its life that a sink does not need are empty, not abstract

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa


class Writer(Protocol):
    """One task's part of the output."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a bundle."""

    def close(self) -> Any:
        """Finish, and return a picklable message for ``commit``; None if nothing was written."""


class Sink(ABC):
    """Where records go. It is picklable, and travels to the workers."""

    guarantee: str = "at least once"
    """What it promises on a stream, if a job is killed and goes on; ``explain`` shows it."""
    by_interval: bool = False
    """Whether an engine without batches commits now and then: where each commit makes a file."""

    def identity(self, schema: pa.Schema) -> str:
        """What a checkpoint remembers it by: a job does not go on with another output."""
        return type(self).__name__

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns it cannot write, while the pipeline is being built."""

    def ready(self, job: str | None = None) -> None:
        """Told before a run; refuse one that cannot work, and change nothing yet.

        ``job`` names the job if it commits by epoch, the same whenever it goes on.
        """

    def goes_on(self) -> None:
        """Told before ``ready`` that the job has begun before: what is there is not in its way."""

    def resume(self, epoch: int) -> None:
        """Told after ``ready`` that this job has committed up to an epoch."""

    def begin(self, schema: pa.Schema) -> None:
        """Prepare what the writers need."""

    @abstractmethod
    def open(self, schema: pa.Schema, task: str) -> Writer:
        """A writer for one task; ``task`` is different for every attempt of every task."""

    @abstractmethod
    def commit(self, messages: list[Any]) -> None:
        """Make visible what the writers said they wrote."""

    def commit_epoch(self, job: str, epoch: int, messages: list[Any]) -> None:
        """Make visible what was written in an epoch, which may have come without records.

        After a failure the last epoch may come twice, with the same records. A sink that can tell,
        and counts it once, overrides this and says ``guarantee = "exactly once"``.
        """
        if messages:
            self.commit(messages)

    def finish(self) -> None:
        """Told when a job that commits by epoch has ended well."""

    def abort(self) -> None:
        """Remove what was written and not committed.

        Called when a job fails, and at the end of every job that commits by epoch.
        """


def as_sink(thing: Any) -> Sink | None:
    """A sink as it is, an object that only looks like one as a sink, None for anything else.

    Called where a sink enters; what comes after relies on the methods of ``Sink``.
    """
    if isinstance(thing, Sink):
        return thing
    return _Adapted(thing) if isinstance(thing, SinkLike) else None


def name_of(sink: Any) -> str:
    """A sink in a plan: as it shows itself, by its class where it does not."""
    kind: Any = type(sink)
    return kind.__name__ if kind.__str__ is object.__str__ else str(sink)


@runtime_checkable
class SinkLike(Protocol):
    """The least that ``as_sink`` takes for a sink."""

    def check(self, schema: pa.Schema) -> None: ...
    def open(self, schema: pa.Schema, task: str) -> Writer: ...
    def commit(self, messages: list[Any]) -> None: ...
    def abort(self) -> None: ...


@dataclass(eq=False)
class _Adapted(Sink):
    """An object with the methods of a sink; those it lacks are a sink's own."""

    thing: Any

    def __post_init__(self) -> None:
        self.guarantee = getattr(self.thing, "guarantee", Sink.guarantee)
        self.by_interval = bool(getattr(self.thing, "by_interval", Sink.by_interval))
        self.committed = False

    def __str__(self) -> str:
        return name_of(self.thing)

    def __copy__(self) -> _Adapted:
        return _Adapted(copy.copy(self.thing))

    def _tell(self, method: str, *arguments: Any) -> None:
        if hasattr(self.thing, method):
            getattr(self.thing, method)(*arguments)

    def identity(self, schema: pa.Schema) -> str:
        if hasattr(self.thing, "identity"):
            return str(self.thing.identity(schema))
        return type(self.thing).__name__

    def check(self, schema: pa.Schema) -> None:
        self.thing.check(schema)

    def ready(self, job: str | None = None) -> None:
        self.committed = False
        self._tell("ready", *(() if job is None else (job,)))

    def goes_on(self) -> None:
        self._tell("goes_on")

    def resume(self, epoch: int) -> None:
        self._tell("resume", epoch)

    def begin(self, schema: pa.Schema) -> None:
        self._tell("begin", schema)

    def open(self, schema: pa.Schema, task: str) -> Writer:
        writer: Writer = self.thing.open(schema, task)
        return writer

    def commit(self, messages: list[Any]) -> None:
        if self.committed and getattr(self.thing, "mode", None) == "overwrite":
            self.thing.mode = "append"  # the first commit of a run has replaced what was there
        self.thing.commit(messages)
        self.committed = True

    def commit_epoch(self, job: str, epoch: int, messages: list[Any]) -> None:
        if hasattr(self.thing, "commit_epoch"):
            self.thing.commit_epoch(job, epoch, messages)
        else:
            super().commit_epoch(job, epoch, messages)

    def finish(self) -> None:
        self._tell("finish")

    def abort(self) -> None:
        self.thing.abort()
