"""A job's checkpoint on Spark: what Spark keeps there beside what we do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.checkpoints.control import Control
from headrace.checkpoints.shape import Known, known_job, refuse_more_after_the_end
from headrace.errors import PlanError
from headrace.io.files import filesystem
from headrace.jobs import JobOutput
from headrace.spark.graph import Graph
from headrace.spark.initial import FOLDER as INITIAL
from headrace.spark.initial import checked_initial
from headrace.spark.state import last_batch, refuse_without_control


def known_stream(own: Control, graph: Graph, folder: str, session: Any) -> Known:
    """The job's name, its number of shards and its shape, as they were or as they will be."""
    outputs: Sequence[JobOutput] = graph.outputs
    shards = max(1, int(session.sparkContext.defaultParallelism))
    known = known_job(own, outputs, folder, "spark", shards, is_open=False)
    if known.before is None:
        system, root = filesystem(folder)
        if system.get_file_info(f"{root}/offsets").type.name == "Directory":
            raise PlanError(f"{folder!r} is the checkpoint of another program; give another folder")
        return known
    _refuse_incomplete(own, graph, folder, known.before)
    if own.read().get("finished"):
        refuse_more_after_the_end(own, outputs, folder)
    return known


def _refuse_incomplete(own: Control, graph: Graph, folder: str, job: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of which a part was removed: Spark would begin that part anew."""
    refuse_without_control(own, job, folder)
    batch = own.read().get("batch")
    needs_initial = "base" in job and last_batch(folder, "commits") is None
    if needs_initial and checked_initial(own) is None:
        raise PlanError(
            f"state was moved to {folder!r}, and 'headrace/{INITIAL}/initial.json' is gone from "
            "it; put it back, or move the state again"
        )
    if batch is None:
        return
    if any(source.offsets is None for source in graph.sources):
        own.frontiers_after(batch)
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
