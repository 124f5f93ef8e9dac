"""A job's checkpoint on Spark: what Spark keeps there beside what we do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.checkpoints.control import Control
from headrace.checkpoints.shape import Known, known_job, refuse_more_after_the_end
from headrace.errors import PlanError
from headrace.io.files import filesystem
from headrace.jobs import JobOutput
from headrace.spark.graph import Graph
from headrace.spark.initial import FOLDER as INITIAL
from headrace.spark.initial import initial_of


def known_stream(own: Control, graph: Graph, folder: str, session: Any) -> Known:
    """The job's name, its number of shards and its shape, as they were or as they will be."""
    outputs: Sequence[JobOutput] = graph.outputs
    shards = max(1, int(session.sparkContext.defaultParallelism))
    known = known_job(own, outputs, folder, "spark", shards, is_open=False)
    if known.before is None:
        system, root = filesystem(folder)
        if system.get_file_info(f"{root}/offsets").type.name == "Directory":
            raise PlanError(f"{folder!r} is the checkpoint of another program; give another folder")
        if own.system.get_file_info(f"{own.root}/{INITIAL}").type.name == "Directory":
            raise PlanError(
                f"state was being moved to {folder!r}, and not all of it has come; remove the "
                "folder, and move it again"
            )
        return known
    _refuse_incomplete(own, graph, folder)
    if own.read().get("finished"):
        refuse_more_after_the_end(own, outputs, folder)
    return known


def _refuse_incomplete(own: Control, graph: Graph, folder: str) -> None:
    """Refuse a checkpoint of which a part was removed: Spark would begin that part anew."""
    batch = own.read().get("batch")
    if batch is None:
        if "base" in (own.load("job.json") or {}) and initial_of(own) is None:
            raise PlanError(
                f"state was moved to {folder!r}, and 'headrace/{INITIAL}' is gone from it; put it "
                "back, or move the state again"
            )
        return
    system, root = filesystem(folder)
    wanted = [f"offsets/{batch}"]
    if batch > 0:
        wanted.append(f"commits/{batch - 1}")
    if graph.operators:
        wanted.append("state")
    for name in wanted:
        if system.get_file_info(f"{root}/{name}").type.name == "NotFound":
            raise PlanError(
                f"the checkpoint {folder!r} is at batch {batch}, but {name!r} is gone from it; put "
                "it back, or give another checkpoint to begin anew"
            )
