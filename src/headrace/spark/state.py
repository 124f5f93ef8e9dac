"""The state of a streaming job as its checkpoint on Spark holds it: read, and given to another.

``read_state`` reads what a stopped or killed job has, as of the last batch that its sinks have.
``write_initial`` makes a checkpoint of it with which a job on Spark goes on; see
``headrace.spark.initial``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import fs

from headrace.checkpoints.bundle_file import Key, write_bundles
from headrace.checkpoints.checked import damaged
from headrace.checkpoints.control import Control, opened
from headrace.checkpoints.messages import Message, has_pickles
from headrace.checkpoints.state import Bundles, JobState, copy_folder, refuse_used
from headrace.errors import EngineError, PlanError
from headrace.io.files import filesystem, replace_file
from headrace.operators.stores import Note
from headrace.spark.initial import (
    FOLDER,
    checked_initial,
    messages_of,
    save_initial,
    shard_file,
    shard_name,
    shard_state,
)
from headrace.spark.python.failures import driver_errors
from headrace.spark.session import with_settings
from headrace.spark.store import small_bundles
from headrace.windows import BEGINNING


@dataclass(frozen=True)
class ShardState:
    """What one shard of a level holds."""

    note: dict[str, Any]
    bundles: dict[Key, pa.Buffer]


@dataclass(frozen=True)
class SparkState:
    """A job's state after an epoch."""

    job: dict[str, Any]
    """As in ``job.json``: its name, its number of shards, its shape."""
    epoch: int
    """The last epoch that the sinks have."""
    sources: tuple[dict[str, Any], ...]
    """Of each source: ``at`` its positions, ``idle``, ``ended``, ``silent`` and ``frontier``."""
    folders: tuple[str, ...]
    """Where each source keeps what it must not forget; it may not be there."""
    levels: tuple[tuple[ShardState, ...], ...]
    """By level and shard."""
    finished: bool = False
    messages: tuple[Message | None, ...] = ()
    """What the outputs' writers said of the epoch, where it may not have been committed."""
    files: tuple[str, ...] = ()
    """For each level, where in the checkpoint its bundles are."""

    @property
    def operators(self) -> list[list[int]]:
        """The numbers of the operators of each level."""
        return [sorted(map(int, shards[0].note["operators"])) for shards in self.levels]


# Reading


def read_state(session: Any, folder: str, levels: int, labels: Sequence[int]) -> SparkState:
    """The state of a job that does not run, from its checkpoint.

    ``levels`` and ``labels`` are those of its graph and its shards. Whoever calls holds the lease.
    A batch that the sinks have and Spark has not committed is committed on the way, as Spark would
    have done next.
    """
    own = opened(folder)
    job = own.load("job.json")
    if job is None:
        raise PlanError(f"there is no checkpoint of a job in {folder!r}; check the path")
    refuse_without_control(own, job, folder)
    control = own.read()
    batch = _batch_that_counts(folder, control)
    if batch is None:
        return _not_begun(own, job, control)
    offsets = _offsets(folder, batch)
    frontiers = control["sources"]
    sources = tuple({**at, "frontier": frontiers[str(i)]} for i, at in enumerate(offsets))
    _refuse_other_levels(folder, levels)
    if levels and last_batch(folder, "commits") != batch:
        _commit(folder, batch)
    # Spark numbers operators from the end of a query.
    states = tuple(
        _level(session, folder, levels - 1 - level, batch, labels) for level in range(levels)
    )
    epoch = job.get("base", 0) + batch
    folders = tuple(f"{own.folder}/source-{i}" for i in range(len(sources)))
    files = tuple(f"state/{levels - 1 - level}" for level in range(levels))
    finished = bool(control.get("finished"))
    return SparkState(job, epoch, sources, folders, states, finished, files=files)


def refuse_without_control(own: Control, job: Mapping[str, Any], folder: str) -> None:
    """Refuse a checkpoint of a job that has begun, and whose ``control.json`` is gone."""
    has_begun = "base" in job or last_batch(folder, "offsets") is not None
    if has_begun and own.load("control.json") is None:
        raise PlanError(
            f"'headrace/control.json' is gone from the checkpoint {folder!r}; put it back, or give "
            "another checkpoint to begin anew"
        )


def last_batch(folder: str, log: str) -> int | None:
    """The last batch in a log of Spark's, ``offsets`` or ``commits``; None if it has none."""
    system, root = filesystem(folder)
    entries = system.get_file_info(fs.FileSelector(f"{root}/{log}", allow_not_found=True))
    return max((int(e.base_name) for e in entries if e.base_name.isdigit()), default=None)


def _batch_that_counts(folder: str, control: Mapping[str, Any]) -> int | None:
    """The last batch that the sinks have: the state after it is the job's."""
    planned, committed = last_batch(folder, "offsets"), last_batch(folder, "commits")
    batch: int | None = control.get("batch", committed)
    if planned is None:
        return None
    fits = batch is None or ((committed or 0) <= batch <= planned and "sources" in control)
    if not fits:
        raise EngineError(
            f"the checkpoint {folder!r} does not fit together: Spark has planned batch {planned} "
            f"and committed batch {committed}, and control.json is at {batch}; put it back from a "
            "copy"
        )
    if control.get("delivering") == planned != batch:
        raise _once_more(folder, f"its outputs took batch {planned}, and they may have it or not")
    return batch


def _once_more(folder: str, why: str) -> PlanError:
    return PlanError(
        f"the job of {folder!r} was killed while {why}; start it once more on Spark and stop it, "
        "which settles that, and then move its state"
    )


def _offsets(folder: str, batch: int) -> list[dict[str, Any]]:
    """The positions of every source after a batch, in the order of the sources."""
    system, root = filesystem(folder)
    path = f"{root}/offsets/{batch}"
    version, _, *lines = _spark_file(system, path).decode().splitlines()
    offsets = [json.loads(line) if line.startswith("{") else {} for line in lines]
    if version != "v1":
        raise EngineError(
            f"{path} has the format {version} of Spark's, and this version of headrace reads v1; "
            "leave spark.sql.streaming.queryEvolution.enableSourceEvolution off"
        )
    for i, at in enumerate(offsets):
        if "at" not in at:
            raise PlanError(
                f"source {i + 1} of {folder!r} is a Spark DataFrame, and only Spark can go on "
                "reading it; a job whose state moves reads with headrace's own sources"
            )
    return [{k: at[k] for k in ("at", "idle", "ended", "silent") if k in at} for at in offsets]


def _spark_file(system: Any, path: str) -> bytes:
    """A file of Spark's, compared with the checksums that Hadoop writes beside it on local disks:
    a word, the length of a part, and the CRC-32 of each part."""
    with system.open_input_stream(path) as file:
        data: bytes = file.read()
    beside, _, name = path.rpartition("/")
    try:
        with system.open_input_stream(f"{beside}/.{name}.crc") as file:
            sums: bytes = file.read()
    except FileNotFoundError:
        return data
    size = int.from_bytes(sums[4:8], "big")
    parts = [data[at : at + size] for at in range(0, len(data), size)] if size else []
    if sums[8:] != b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts):
        raise damaged(path, f"it does not fit the checksums in .{name}.crc")
    return data


def _commit(folder: str, batch: int) -> None:
    """Have Spark's log say that a batch is done, or Spark does not read the state after it."""
    system, root = filesystem(folder)
    state = system.get_file_info(fs.FileSelector(f"{root}/state/0/0", allow_not_found=True))
    if any(e.extension == "changelog" and "_" in e.base_name for e in state):
        # Its log names the files of the state, in format 2 of Spark's, and nobody else knows them.
        raise _once_more(folder, f"Spark committed batch {batch}")
    system.create_dir(f"{root}/commits", recursive=True)
    replace_file(system, f"{root}/commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')


def _refuse_other_levels(folder: str, levels: int) -> None:
    system, root = filesystem(folder)
    entries = system.get_file_info(fs.FileSelector(f"{root}/state", allow_not_found=True))
    found = sum(entry.base_name.isdigit() for entry in entries)
    if found != levels:
        raise PlanError(
            f"the checkpoint {folder!r} has state of another pipeline: levels with state are "
            f"{found} there, and {levels} here; give the pipeline that made it"
        )


_SETTINGS = {"spark.sql.execution.arrow.maxRecordsPerBatch": "64"}
"""A bundle may have 16 MB, and an Arrow batch must stay below 2 GB."""
_NOTE = ("key.shard AS shard", "value.value AS note")
_BUNDLES = ("key.shard AS shard", "user_map_key.*", "user_map_value.value AS data")


def _level(
    session: Any, folder: str, operator: int, batch: int, labels: Sequence[int]
) -> tuple[ShardState, ...]:
    """The states of the shards of one level, after a batch."""
    options = {"path": folder, "operatorId": operator, "batchId": batch}
    reader = session.read.format("statestore").options(**options)
    with driver_errors(), with_settings(session, _SETTINGS):
        frame = reader.option("stateVarName", "note").load()
        notes = frame.selectExpr(*_NOTE).toArrow().to_pydict()
        frame = reader.option("stateVarName", "bundles").load()
        bundles = frame.selectExpr(*_BUNDLES).toArrow()
    states = {}
    for label, text in zip(notes["shard"], notes["note"], strict=True):
        note = json.loads(text)
        small: dict[Key, pa.Buffer] = small_bundles(note)
        states[label] = ShardState(note, small)
    if set(states) != set(labels):
        raise EngineError(
            f"the state of {folder!r} after batch {batch} has the shards {sorted(states)}, and the "
            f"job has {sorted(labels)}; put the checkpoint back from a copy"
        )
    columns = (bundles[name].to_pylist() for name in bundles.column_names[:-1])
    for (label, *key), data in zip(zip(*columns, strict=True), bundles["data"], strict=True):
        operator_number, kind, slice, number = key
        states[label].bundles[operator_number, kind, slice, number] = data.as_buffer()
    return tuple(states[label] for label in labels)


def _not_begun(own: Control, job: dict[str, Any], control: Mapping[str, Any]) -> SparkState:
    """The state of a job that was moved, and has not gone on since."""
    given = checked_initial(own)
    if given is None:
        raise PlanError(
            f"the job of {own.folder.removesuffix('/headrace')!r} has no batch yet, so there is no "
            "state to move; start it where it is to run"
        )
    levels = []
    for level in range(len(given["operators"])):
        read = (shard_state(own.folder, level, shard) for shard in range(job["shards"]))
        levels.append(tuple(ShardState(note, dict(bundles)) for note, bundles in read))
    sources = tuple(given["sources"])
    folders = tuple(f"{own.folder}/source-{i}" for i in range(len(sources)))
    finished = bool(control.get("finished"))
    files = tuple(f"headrace/{FOLDER}/{shard_name(n, '*')}" for n in range(len(levels)))
    messages = tuple(messages_of(own))
    return SparkState(
        job, given["epoch"], sources, folders, tuple(levels), finished, messages, files
    )


# Writing


def write_initial(folder: str, state: SparkState) -> None:
    """Make a checkpoint with which a job on Spark goes on from a state.

    A kill leaves a folder that is refused: ``job.json`` comes last.
    """
    own = Control(f"{folder}/headrace")
    refuse_used(folder)
    own.make()
    own.system.create_dir(f"{own.root}/{FOLDER}")
    for number, source in enumerate(state.folders):
        copy_folder(source, f"{own.folder}/source-{number}")
    files = {}
    for level, shards in enumerate(state.levels):
        for shard, held in enumerate(shards):
            files[shard_name(level, shard)] = write_bundles(
                *shard_file(own.folder, level, shard), {"note": held.note}, held.bundles.items()
            )
    sources = list(state.sources)
    given = {"epoch": state.epoch, "sources": sources, "operators": state.operators}
    save_initial(own, given, state.messages, files)
    frontiers = {str(i): source["frontier"] for i, source in enumerate(sources)}
    own.save("control.json", {"stop": None, "sources": frontiers, "finished": state.finished})
    own.save("job.json", {**state.job, "base": state.epoch + 1})


# The same apart from Spark


def job_state(state: SparkState) -> JobState:
    """A state as both engines know it."""
    job, shards = state.job, int(state.job["shards"])
    count = len(job["operators"]) if "operators" in job else 0
    notes: list[list[Note]] = [[{} for _ in range(shards)] for _ in range(count)]
    bundles: list[list[Bundles]] = [[{} for _ in range(shards)] for _ in range(count)]
    promised = [BEGINNING] * count
    turn = 0
    for level in state.levels:
        for shard, held in enumerate(level):
            turn = max(turn, held.note["turn"])
            for name, note in held.note["operators"].items():
                notes[int(name)][shard] = note
            for (operator, *name), data in held.bundles.items():
                bundles[operator][shard][tuple(name)] = data
            for known in held.note["watermarks"].values():
                for name, marks in known["operators"].items():
                    if len(marks) == shards:
                        promised[int(name[1:])] = min(marks.values())
    return JobState(
        job, state.epoch, state.finished, [dict(s) for s in state.sources], list(state.folders),
        notes, bundles, promised, turn, list(state.messages), _pickles(state),
    )  # fmt: skip


def _pickles(state: SparkState) -> list[str]:
    """The files and folders of the checkpoint that hold pickles."""
    kinds = [operator["kinds"] for operator in state.job.get("operators", ())]
    found = [f"headrace/{FOLDER}/messages"] if has_pickles(state.messages) else []
    for level, place in zip(state.levels, state.files, strict=False):
        keys = {key for shard in level for key in shard.bundles}
        if any(kinds[operator][str(kind)]["pickled"] for operator, kind, *_ in keys):
            found.append(place)
    return found


def write_state(folder: str, state: JobState) -> None:
    """Make a checkpoint with which a job on Spark goes on from a state."""
    frontiers = {f"s{i}": source["frontier"] for i, source in enumerate(state.sources)}
    levels = []
    for level in range(1, max((o["level"] for o in state.operators), default=0) + 1):
        mine = [n for n, o in enumerate(state.operators) if o["level"] == level]
        levels.append(tuple(_level_of(state, mine, frontiers, s) for s in range(state.shards)))
    sources = tuple(
        {
            "at": source["at"], "ended": source["ended"], "frontier": source["frontier"],
            "idle": source.get("idle", source["frontier"]["idle"]),
        }
        for source in state.sources
    )  # fmt: skip
    write_initial(
        folder,
        SparkState(
            {**state.job, "engine": "spark"},
            state.epoch,
            sources,
            tuple(state.folders),
            tuple(levels),
            state.finished,
            tuple(state.messages),
        ),
    )


def _level_of(
    state: JobState, operators: list[int], frontiers: dict[str, Any], shard: int
) -> ShardState:
    """What a shard of a level holds: the notes and bundles of its operators, and watermarks."""
    watermarks = {}
    for number in operators:
        feeders = {name for names in state.operators[number]["feeders"] for name in names}
        told = {
            name: {str(s): state.promised[int(name[1:])] for s in range(state.shards)}
            for name in feeders
            if name[0] == "o"
        }
        watermarks[str(number)] = {"sources": frontiers, "operators": told}
    note = {
        "turn": state.turn,
        "operators": {str(number): state.notes[number][shard] for number in operators},
        "watermarks": watermarks,
    }
    bundles = {
        (number, *name): data
        for number in operators
        for name, data in state.bundles[number][shard].items()
    }
    return ShardState(note, bundles)
