"""A job's state, whichever engine it ran on: what it is, and the same in another number of shards.

Both engines keep the same bundles, so a state can be read from a checkpoint of one and written as
a checkpoint of the other.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyarrow import fs

from headrace.checkpoints.messages import Message
from headrace.errors import PlanError
from headrace.io.files import filesystem, sync
from headrace.kernels.aggregate import by_shard
from headrace.operators.stores import MemoryStore, Name, Note, Retained, pack, unpack
from headrace.windows import BEGINNING, FOREVER, Window

Bundles = dict[Name, pa.Buffer]


@dataclass(frozen=True)
class JobState:
    """What a job has at one moment."""

    job: dict[str, Any]
    """As in ``job.json``."""
    epoch: int
    """The last that outputs have, or have messages of; -1 if there is none."""
    finished: bool
    sources: list[dict[str, Any]]
    """Of each source its positions (``at``), its ``frontier``, and whether it has ``ended``."""
    folders: list[str]
    """Where each source keeps what it must not forget; it may not be there."""
    notes: list[list[Note]]
    """Of each step with state, by shard."""
    bundles: list[list[Bundles]]
    """The same."""
    promised: list[int]
    """The watermark that each step has passed on."""
    turn: int
    """No place in the input that the state knows has a larger number."""
    messages: list[Message | None] = field(default_factory=list)
    """Of the last epoch, for each output, where it may not have been committed yet."""
    pickles: list[str] = field(default_factory=list)
    """The files of the checkpoint that hold pickles."""

    @property
    def shards(self) -> int:
        return int(self.job["shards"])

    @property
    def operators(self) -> list[dict[str, Any]]:
        """What is known of the steps with state."""
        if "operators" not in self.job:
            raise PlanError(
                "the checkpoint was begun by a version of headrace that did not write down what "
                "its steps keep; finish it with that version"
            )
        found: list[dict[str, Any]] = self.job["operators"]
        return found


def schema_of(kind: Mapping[str, Any]) -> pa.Schema:
    """The columns of the bundles of a kind."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(kind["schema"])))


def slices_of(kind: Mapping[str, Any]) -> Window | None:
    """The slices of time of a kind, if it has any."""
    return None if kind["slices"] is None else Window(*kind["slices"])


# Another number of shards


def in_shards(state: JobState, shards: int) -> JobState:
    """The same state in another number of shards."""
    if shards == state.shards:
        return state
    notes, bundles = [], []
    for number, operator in enumerate(state.operators):
        old = list(zip(state.notes[number], state.bundles[number], strict=True))
        new = _split(operator, old, shards)
        notes.append([note for note, _ in new])
        bundles.append([each for _, each in new])
    job = {**state.job, "shards": shards}
    return replace(state, job=job, notes=notes, bundles=bundles)


def _split(
    operator: Mapping[str, Any], old: list[tuple[Note, Bundles]], shards: int
) -> list[tuple[Note, Bundles]]:
    stores = [MemoryStore() for _ in range(shards)]
    notes: list[Note] = [_rest(note for note, _ in old) for _ in range(shards)]
    for number, kind in operator["kinds"].items():
        held = [bundles for _, bundles in old if any(name[0] == int(number) for name in bundles)]
        keyed = kind["keys"] is None or bool(kind["keys"])
        if kind["keys"] is None and held:
            raise PlanError(
                f"{operator['name']} keeps {kind['name']}, of which only it knows the keys, so "
                "they cannot be put into another number of shards; leave the number as it is"
            )
        if not held:
            continue
        schema = schema_of(kind)
        retained = [
            Retained(store, note, int(number), schema)
            for store, note in zip(stores, notes, strict=True)
        ]
        for note, bundles in old:
            for slice, listed in note.get(f"kept-{number}", {}).items():
                for part, _, order in listed:
                    batch = unpack(bundles[int(number), int(slice), part], schema)
                    keys = [batch.column(name) for name in kind["keys"]]
                    for shard, rows in by_shard(batch, keys, shards) if keyed else [(0, batch)]:
                        retained[shard].append(int(slice), rows, tuple(order))
    for note in notes:
        if not any(note.get(f"kept-{number}") for number in operator["kinds"]):
            note.pop("due", None)
    packed = [{name: pack(batch) for name, batch in store.batches.items()} for store in stores]
    return list(zip(notes, packed, strict=True))


def _rest(notes: Iterable[Note]) -> Note:
    """What shards note beside their bundles, for one that takes some from all of them."""
    together: Note = {}
    for note in notes:
        for name, value in note.items():
            if name.startswith("kept-") or value is None:
                continue
            if name == "lows":  # of bundles, which are others in other shards
                name, value = "low", min(value.values(), default=FOREVER)
            if name == "grown":
                together[name] = value  # the same in all
                continue
            before = together.get(name)
            if before is None:
                together[name] = value
            elif isinstance(value, list):
                together[name] = [max(pair) for pair in zip(before, value, strict=True)]
            elif isinstance(value, int):
                together[name] = min(before, value) if name in _EARLIEST else max(before, value)
    return together


_EARLIEST = ("due", "low")
"""What shards note of which the earliest is that of all."""


def old_first(state: JobState) -> JobState:
    """The same for the other engine: what a step got from other steps is before what it will get.

    Places in a source's input are the same on both engines; those in other steps' output are not.
    """
    notes = []
    for operator, shards in zip(state.operators, state.notes, strict=True):
        fed = any(name[0] == "o" for names in operator["feeders"] for name in names)
        notes.append(_before_all(shards) if fed else shards)
    return replace(state, notes=notes)


def _before_all(notes: list[Note]) -> list[Note]:
    copied: list[Note] = json.loads(json.dumps(notes))
    lists = [
        listed
        for note in copied
        for name, slices in note.items()
        if name.startswith("kept-")
        for listed in slices.values()
    ]
    parts = sorted({order[0] for listed in lists for _, _, order in listed if order})
    places = {part: place - len(parts) for place, part in enumerate(parts)}
    for listed in lists:
        for bundle in listed:
            order = bundle[2]
            bundle[2] = [places[order[0]], *order[1:]] if order else order
    return copied


# Files beside it


def copy_folder(source: str, target: str) -> None:
    """What a source keeps, in a checkpoint of another place."""
    system, root = filesystem(source)
    other, folder = filesystem(target)
    found = system.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    for entry in found:
        if entry.type != fs.FileType.File or entry.path.endswith(".tmp"):
            continue
        path = f"{folder}/{entry.path[len(root) :].strip('/')}"
        other.create_dir(path.rpartition("/")[0], recursive=True)
        fs.copy_files(entry.path, path, source_filesystem=system, destination_filesystem=other)
        sync(other, path)


def refuse_used(folder: str) -> None:
    """Refuse to write a state where something is."""
    system, root = filesystem(folder)
    if system.get_file_info(fs.FileSelector(root, allow_not_found=True)):
        raise PlanError(f"{folder!r} is not empty; move the state to a folder that is not there")


# To look at


@dataclass(frozen=True)
class Holding:
    """What a step with state holds of one kind."""

    step: str
    what: str
    slices: int
    records: int
    nbytes: int
    bundles: int
    oldest: int | None
    newest: int | None
    shards: list[int]
    """How many records each has."""
    watermark: int


def holdings(state: JobState) -> list[Holding]:
    """What each step with state holds."""
    found = []
    for number, operator in enumerate(state.operators):
        marks = [note.get("watermark", BEGINNING) for note in state.notes[number]]
        for text, kind in operator["kinds"].items():
            window = slices_of(kind)
            slices: set[int] = set()
            records, sizes, count = [], 0, 0
            for note, bundles in zip(state.notes[number], state.bundles[number], strict=True):
                listed = note.get(f"kept-{text}", {})
                slices |= {int(slice) for slice in listed}
                records.append(sum(rows for each in listed.values() for _, rows, _ in each))
                mine = [data.size for name, data in bundles.items() if name[0] == int(text)]
                sizes, count = sizes + sum(mine), count + len(mine)
            timed = window is not None and slices
            found.append(
                Holding(
                    operator["name"], kind["name"], len(slices), sum(records), sizes, count,
                    window.pane_end(min(slices) - 1) if timed and window else None,
                    window.pane_end(max(slices)) if timed and window else None,
                    records, max(marks, default=BEGINNING),
                )
            )  # fmt: skip
    return found
