"""The state of jobs that do not run: looked at, and moved from one engine to the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.checkpoints.changes import Changes, changes_of
from headrace.checkpoints.control import Control, checkpoint_folder, opened
from headrace.checkpoints.lease import Lease
from headrace.checkpoints.shape import (
    engine_of,
    operators_in,
    refuse_other_feeders,
    refuse_other_format,
    shape_of,
)
from headrace.checkpoints.state import JobState, in_shards, old_first, refuse_used
from headrace.errors import PlanError
from headrace.io.folder import check_log
from headrace.starting import job_outputs

ENGINES = ("box", "spark")


def read_state(folder: str | Path, spark: Any = None) -> JobState:
    """The state of a job that does not run, from its checkpoint.

    Spark's state is read with Spark: ``spark`` is a ``hr.Spark``, one on this machine unless given.
    """
    with _held(checkpoint_folder(folder)) as own:
        return _read(own, checkpoint_folder(folder), spark)


def move_state(
    source: str | Path,
    target: str | Path,
    *,
    on: str | None = None,
    shards: int | None = None,
    spark: Any = None,
) -> JobState:
    """Move a job's state to a new checkpoint, of the other engine or of another number of shards.

    ``on`` is ``"box"`` or ``"spark"``, the same as before unless told; ``target`` is a folder that
    is not there yet. Start the pipeline with it as its checkpoint, and it goes on. From then on the
    job cannot be started from ``source``.
    """
    if on not in (None, *ENGINES):
        raise PlanError(f"move_state: on={on!r} is neither 'box' nor 'spark'")
    if shards is not None and (isinstance(shards, bool) or not isinstance(shards, int)):
        raise PlanError(f"move_state: shards={shards!r} is not a number")
    if shards is not None and not 1 <= shards <= 4096:
        raise PlanError(f"move_state: shards={shards} is not a number from 1 to 4096")
    here, there = checkpoint_folder(source), checkpoint_folder(target)
    with _held(here) as own:
        state = _read(own, here, spark)
        job = {n: v for n, v in (own.load("job.json") or {}).items() if n != "moving"}
        state = state if shards is None else in_shards(state, shards)
        on = on or engine_of(job)
        state = state if on == engine_of(job) else old_first(state)
        if on == "box":
            from headrace.box.checkpoint import write_state
        else:
            from headrace.spark.state import write_state
        refuse_used(there)
        own.save("job.json", {**job, "moving": there})  # till all of it is there, neither starts
        write_state(there, state)
        own.save("job.json", {**job, "moved": there})
    return state


def changes_since(folder: str | Path, outputs: Sequence[Any]) -> Changes:
    """What has changed in a pipeline since a checkpoint was begun; ``outputs`` as for ``start``."""
    where = checkpoint_folder(folder)
    saved = opened(where).load("job.json")
    if saved is None:
        raise _no_checkpoint(where)
    refuse_other_format(saved, where)
    given = job_outputs(outputs)
    changes = changes_of(saved["shape"], shape_of(given), engine_of(saved) == "box")
    refuse_other_feeders(changes, saved.get("operators", ()), operators_in(given))
    return changes


def _no_checkpoint(folder: str) -> PlanError:
    return PlanError(
        f"there is no checkpoint of a job in {folder!r}, for it has no 'headrace/job.json'; check "
        "the path"
    )


@contextlib.contextmanager
def _held(folder: str) -> Iterator[Control]:
    own = opened(folder)
    job = own.load("job.json")
    if job is None:
        raise _no_checkpoint(folder)
    refuse_other_format(job, folder)
    lease = Lease(own)
    lease.take()
    try:
        yield own
    finally:
        lease.release()


def _read(own: Control, folder: str, spark: Any) -> JobState:
    job = own.load("job.json")
    assert job is not None
    if "moved" in job:
        raise PlanError(f"the job of the checkpoint {folder!r} was moved to {job['moved']!r}")
    state = _state_of(job, folder, spark)
    for where, source in zip(state.folders, state.sources, strict=True):
        check_log(where, source["at"])
    return state


def _state_of(job: dict[str, Any], folder: str, spark: Any) -> JobState:
    if engine_of(job) == "box":
        from headrace.box.checkpoint import read_state as read_box

        return read_box(folder, job)
    from headrace.spark.engine import Spark
    from headrace.spark.state import job_state
    from headrace.spark.state import read_state as read_spark
    from headrace.spark.wire import labels_of

    session = (spark or Spark()).session
    levels = max((operator["level"] for operator in job["operators"]), default=0)
    return job_state(read_spark(session, folder, levels, labels_of(job["shards"])))
