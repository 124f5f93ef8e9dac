"""What a checkpoint depends on, and whether a pipeline still fits it.

A checkpoint has a folder ``headrace`` with a file ``job.json``, which says which pipeline it is of;
one that has changed in a way the state cannot follow is refused. ``docs/checkpoints.md`` says what
may change.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSelector

from headrace.checkpoints.changes import Changes, changes_of
from headrace.checkpoints.control import Control
from headrace.checkpoints.numbering import (
    feeders_of,
    levels_of,
    operators_of,
    origin_of,
    sources_of,
)
from headrace.errors import EngineError, PlanError
from headrace.io.files import load_json
from headrace.io.offsets import OffsetSource, replayable
from headrace.io.sink import Sink
from headrace.jobs import JobOutput
from headrace.operators import is_operator, operator_of
from headrace.operators.operator import Description, Input, Kind, Operator
from headrace.plan.node import Node
from headrace.plan.sources import Read
from headrace.plan.time import EventTime
from headrace.types import type_name

FORMAT = 5
"""The version of what we keep in a checkpoint; another is refused. Until 4 files had no checksums,
and messages of outputs were pickled."""


@dataclass
class Known:
    """A job as its checkpoint knows it."""

    job: dict[str, Any]
    """Its name, its number of shards, its shape and its steps with state, as of now."""
    before: dict[str, Any] | None = None
    """The same as they were; None if it has not begun."""
    changes: Changes = field(default_factory=Changes)


def known_job(
    own: Control,
    outputs: Sequence[JobOutput],
    folder: str,
    engine: str,
    shards: int,
    is_open: bool = True,
) -> Known:
    """The job of a checkpoint, new or as it was; refuses what it cannot be.

    ``is_open`` where the engine can take more steps and aggregates.
    """
    shape = shape_of(outputs)
    saved = own.load("job.json")
    if saved is None:
        _refuse_without_job(own, folder)
        name = uuid.uuid4().hex
        job = {"format": FORMAT, "engine": engine, "job": name, "shards": shards, "shape": shape}
        return Known({**job, "operators": operators_in(outputs)})
    refuse_other_format(saved, folder)
    if not {"job", "shards", "shape"} <= saved.keys():
        raise EngineError(
            f"{own.root}/job.json does not say what it should; put it back from a copy, or begin "
            "anew with another checkpoint"
        )
    if "moving" in saved:
        raise PlanError(
            f"the job of the checkpoint {folder!r} was being moved to {saved['moving']!r}; remove "
            "that folder, and move it again"
        )
    if "moved" in saved:
        raise PlanError(
            f"the job of the checkpoint {folder!r} was moved to {saved['moved']!r}; start it from "
            "there, for two would write the same results twice"
        )
    if engine_of(saved) != engine:
        raise PlanError(
            f"the checkpoint {folder!r} is of a job on {engine_of(saved)}; to go on with it on "
            f"{engine}, move it: headrace state move {folder} NEW-FOLDER --on {engine}"
        )
    changes = changes_of(saved["shape"], shape, is_open)
    refuse_other_feeders(changes, saved.get("operators", ()), operators_in(outputs))
    if changes.refused:
        raise PlanError(
            f"the checkpoint {folder!r} is of another pipeline: {changes.refused}; go back to what "
            "it was, or give another checkpoint to begin anew"
        )
    job = {**saved, "format": FORMAT, "shape": shape, "operators": operators_in(outputs)}
    return Known(job, saved, changes)


def refuse_other_format(job: Mapping[str, Any], folder: str) -> None:
    """Refuse a checkpoint that another version began, whose files this one does not know."""
    if job.get("format", 1) != FORMAT:
        raise PlanError(
            f"the checkpoint {folder!r} has format {job.get('format', 1)}, and this version of "
            f"headrace reads format {FORMAT}; finish it with the version that began it, or give "
            "another checkpoint to begin anew"
        )


def _refuse_without_job(own: Control, folder: str) -> None:
    """Refuse a checkpoint whose ``job.json`` is gone: it would begin anew over what is there."""
    entries = own.system.get_file_info(FileSelector(own.root, allow_not_found=True))
    names = {entry.base_name for entry in entries}
    manifest = load_json(own.system, f"{own.root}/box/manifest.json", "it says what the job has")
    begun = manifest is not None and manifest["epoch"] >= 0
    if begun or any(n.startswith("source-") or n in ("control.json", "initial") for n in names):
        raise PlanError(
            f"'headrace/job.json' is gone from the checkpoint {folder!r}, or state was being moved "
            "there and not all of it has come; put it back from a copy, or remove the folder, and "
            "begin or move again"
        )


def last_epochs(known: Known, outputs: int, epoch: int) -> list[int]:
    """For each output the last epoch it has, ``epoch`` being the job's; -1 if it has none yet.

    The job is told from which epoch on an output that is new counts: it may be cut off before that.
    """
    first = [*known.job.get("since", ()), *([0] * outputs)][:outputs]
    for number in known.changes.begun:
        first[number] = epoch + 1
    known.job["since"] = first
    return [epoch if epoch >= since else -1 for since in first]


def refuse_other_feeders(
    changes: Changes, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> None:
    """A step that has state gets no records of another source: they may be older than it is."""
    for number, (old, new) in enumerate(zip(before, after, strict=False)):
        if old["feeders"] != new["feeders"]:
            text = f"step {number + 1}, '{new['name']}', gets records from elsewhere besides"
            changes.take(text, is_taken=False)


def engine_of(job: Mapping[str, Any]) -> str:
    """Which engine a checkpoint is of."""
    return str(job.get("engine", "spark"))


def offsets_of(outputs: Sequence[JobOutput]) -> list[OffsetSource | None]:
    """The job's sources, as such as can be read again; None for a frame of Spark's."""
    found: list[OffsetSource | None] = []
    for node in sources_of([output.node for output in outputs]):
        origin = origin_of(node)
        found.append(replayable(origin.source) if isinstance(origin, Read) else None)
    return found


def refuse_more_after_the_end(own: Control, outputs: Sequence[JobOutput], folder: str) -> None:
    """Refuse to go on with a job whose input had ended, and now has more."""
    for number, source in enumerate(offsets_of(outputs)):
        more = None if source is None else source.more_after_end(source_folder(own, number))
        if more:
            raise PlanError(
                f"the input of the checkpoint {folder!r} has ended, and {more}, which would never "
                "be read; give another checkpoint to read all of it"
            )


def source_folder(own: Control, number: int) -> str:
    """Where a source keeps what it must not forget."""
    return f"{own.folder}/source-{number}"


# Shapes


def shape_of(outputs: Sequence[JobOutput]) -> dict[str, list[Any]]:
    """What a checkpoint depends on: sources, steps with state, outputs. Others may change."""
    ends = [output.node for output in outputs]
    steps = [_described(node) for node in operators_of(ends)]
    sources = zip(sources_of(ends), offsets_of(outputs), strict=True)
    return {
        "source": [_source_shape(node, offsets) for node, offsets in sources],
        "step": [_step_shape(step) for step in steps],
        "function": [step.functions for step in steps],
        "grouping": [
            [step.grouping, [list(a) for a in step.aggregates]] if step.grouping else None
            for step in steps
        ],
        "output": [_output_shape(o) for o in outputs],
        "columns": [list(o.node.schema.names) for o in outputs],
        "place": [_place(o) for o in outputs],
    }


def operators_in(outputs: Sequence[JobOutput]) -> list[dict[str, Any]]:
    """What must be known of the steps with state to look at them, and to move them."""
    ends = [output.node for output in outputs]
    found = []
    for node, level in zip(operators_of(ends), levels_of(ends), strict=True):
        kinds = compiled(node).kinds() if is_operator(node) else {}
        found.append(
            {
                "name": f"{node.name} {node.detail}",
                "level": level,
                "feeders": [sorted(names) for names in feeders_of(node, ends)],
                "kinds": {str(number): _kind(kind) for number, kind in kinds.items()},
            }
        )
    return found


def _kind(kind: Kind) -> dict[str, Any]:
    window = kind.slices
    return {
        "name": kind.name,
        "schema": base64.b64encode(kind.schema.serialize()).decode(),
        "keys": None if kind.keys is None else list(kind.keys),
        "slices": None if window is None else [window.size, window.every, window.offset],
        "pickled": kind.pickled,
    }


def _source_shape(node: Node, offsets: OffsetSource | None) -> str:
    kind = "a Spark DataFrame" if offsets is None else offsets.identity()
    if not isinstance(node, EventTime):
        return kind
    return f"{kind}, {'processing' if node.by_clock else 'event'} time {node.column}"


def _described(node: Node) -> Description:
    if not is_operator(node):
        return Description(f"{node.name} {node.detail}", 0)
    return compiled(node).describe()


def compiled(node: Node) -> Operator:
    """The operator of a step with state."""
    return operator_of(node, [Input((), i.schema) for i in node.inputs], "UTC")


def _step_shape(step: Description) -> str:
    columns = f", keeping {_columns(step.keeps)}" if step.keeps else ""
    version = f", state version {step.version}" if step.version else ""
    return f"{step.text}{columns}{version}"


def _columns(fields: Sequence[pa.Field]) -> str:
    return ", ".join(f"{f.name} {type_name(f.type)}" for f in fields)


def _place(output: JobOutput) -> str:
    """Where an output goes, whatever its columns."""
    to = output.to
    return str(to) if isinstance(to, Sink) else ""


def _output_shape(output: JobOutput) -> str:
    to = output.to
    if isinstance(to, Sink):
        return to.identity(output.node.schema)
    return "kept in memory" if to is None else type(to).__name__
