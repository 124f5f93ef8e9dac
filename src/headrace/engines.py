"""Engines by name: what ``on=`` takes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from headrace.errors import PlanError, nearest
from headrace.interrupts import deferred_interrupts
from headrace.io.sink import Sink
from headrace.iteration import ENGINE, Kept
from headrace.jobs import Job, JobOutput
from headrace.plan.node import Node
from headrace.plan.stages import Stage

NAMES = ("spark", "box")
VARIABLE = "HEADRACE_ENGINE"
"""An environment variable: the engine where none is named."""


_MODULES = {
    "spark": (
        "headrace.spark.bounded",
        "headrace.spark.lookups",
        "headrace.spark.streaming",
        "pyspark.sql.classic.dataframe",
        "pyspark.sql.pandas.map_ops",
    )
}
"""The modules that an engine imports late, by its name."""


@runtime_checkable
class Engine(Protocol):
    """Something that runs a plan."""

    name: str

    def collect(self, node: Node) -> pa.Table:
        """All records, in order."""

    def bundles(self, node: Node) -> Iterator[pa.RecordBatch]:
        """The records, a bundle at a time, in order, without holding them all."""

    def write(self, node: Node, sink: Sink) -> int:
        """Write to a sink, commit once all records are there, and return their number."""

    def run(self, node: Node) -> None:
        """Run for the effect of its functions alone."""

    def hold(self, node: Node) -> Kept:
        """Compute the records, and keep them for plans of this engine."""

    def start(
        self, outputs: Sequence[JobOutput], checkpoint: Any = None, trigger: Any = None
    ) -> Job:
        """Start a job in the background, and return at once."""

    def stages(self, node: Node) -> Stage:
        """The stages of a plan as it runs them."""

    def where(self, stage: Stage, readers: Sequence[Stage] = ()) -> list[str]:
        """Where the head of a stage and each of its steps run, in a few words."""


def resolve(on: Any = None) -> Engine:
    """The engine that ``on`` names: a name, an engine, or a SparkSession.

    Modules that it imports when it runs are imported here, where Ctrl-C cannot interrupt them.
    """
    with deferred_interrupts():
        engine = _engine(on)
        for module in _MODULES.get(engine.name, ()):
            importlib.import_module(module)
    return engine


def _engine(on: Any) -> Engine:
    if on is None:
        on = ENGINE.get() or os.environ.get(VARIABLE) or "spark"
    if isinstance(on, str):
        if on == "spark":
            from headrace.spark.engine import Spark

            return Spark()
        if on == "box":
            from headrace.box.engine import Box

            return Box()
        raise PlanError(f"there is no engine '{on}'{nearest(on, NAMES)}")
    if type(on).__module__.startswith("pyspark.") and type(on).__name__ == "SparkSession":
        from headrace.spark.engine import Spark

        return Spark(session=on)
    if isinstance(on, type):
        raise PlanError(f"on={on.__name__} is a class; make an engine of it: {on.__name__}()")
    if isinstance(on, Engine):
        return on
    raise PlanError(
        f"on={on!r} is not an engine; use 'spark', 'box', hr.Spark(…), hr.Box(…) or a SparkSession"
    )
