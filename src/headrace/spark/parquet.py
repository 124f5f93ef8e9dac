"""Parquet that Spark reads itself, since it must hold the records anyway: for a large join, a sort.

Only where it is sure to read what we would: files and columns that every reader takes alike, and
steps after them that are expressions which cannot fail. All else is read in the Python worker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.io.files import LOCAL, filesystem
from headrace.io.parquet import ParquetSource
from headrace.kernels.expressions import compile_expression
from headrace.plan.node import Narrow
from headrace.plan.prune import prune
from headrace.plan.rows import Explode, Filter, Project
from headrace.plan.sources import Read
from headrace.plan.stages import Stage
from headrace.spark.columns import apply_steps, is_plain, quoted, spark_schema

_PATH = re.compile(r"/[\w./+@-]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


def reads_itself(stage: Stage) -> bool:
    """Whether Spark can read a stage's records and take its steps with our answer."""
    head = stage.head
    if not isinstance(head, Read) or not isinstance(head.source, ParquetSource):
        return False
    steps = _steps(stage)
    columns = prune(steps, head.schema.names, None)[1]
    return (
        set(columns) <= head.source.common
        and all(_NAME.fullmatch(name) for name in head.schema.names)
        and _are_found(head.source)
        and is_plain(steps)
        and not _may_fail(steps)
    )


def rows(session: Any, stage: Stage) -> Any:
    """The records of a stage, with no Python on their way."""
    head = stage.head
    assert isinstance(head, Read)
    assert isinstance(head.source, ParquetSource)
    steps, columns = prune(_steps(stage), head.schema.names, None)
    # All that it can read, so that it knows which share of a file the columns are.
    known = pa.schema([field for field in head.schema if field.name in head.source.common])
    reader = session.read.schema(spark_schema(known))
    for name in ("ignoreCorruptFiles", "ignoreMissingFiles", "mergeSchema"):
        reader = reader.option(name, "false")
    reader = reader.option("datetimeRebaseMode", "CORRECTED")
    frame = reader.parquet(*(f"file://{path}" for path in _paths(head.source)))
    return apply_steps(frame.select([quoted(name) for name in columns]), steps)


def _steps(stage: Stage) -> tuple[Narrow, ...]:
    """The steps of a stage, and before them what its source would decide, which Spark can too."""
    head = stage.head
    assert isinstance(head, Read)
    conditions = head.source.conditions
    return (*(Filter(head.schema, head.step, head, tree) for tree in conditions), *stage.steps)


def _paths(source: ParquetSource) -> list[str]:
    return [filesystem(file.path)[1] for file in source.files]


def _are_found(source: ParquetSource) -> bool:
    """Whether Spark finds these files by their paths, and no others."""
    if any(filesystem(file.path)[0] is not LOCAL for file in source.files):
        return False
    paths = _paths(source)
    return len(set(paths)) == len(paths) and all(
        _PATH.fullmatch(path) and not re.search(r"/[._][^/]*$", path) for path in paths
    )


def _may_fail(steps: Sequence[Narrow]) -> bool:
    """Whether an expression may stop the job: then we compute it, and name the record."""
    for step in steps:
        trees: list[Any] = []
        if isinstance(step, Project):
            trees = [tree for _, tree in step.columns]
        elif isinstance(step, Filter):
            trees = [step.condition]
        elif isinstance(step, Explode):
            trees = [step.elements]
        if any(compile_expression(tree, step.input.schema).raises for tree in trees):
            return True
    return False
