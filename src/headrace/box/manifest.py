"""The files of a checkpoint on the box.

In the folder ``headrace/box`` of a checkpoint ``manifest.json`` says how far the sources were read,
what the states note, which outputs are yet to be made visible, and in which files the states'
bundles are. It names the size and the checksum of every file there, and has a checksum itself. It
is replaced at once, so a checkpoint is there whole or is the one before. Bundles
never change, so only new ones are written; files of which little is still needed are rewritten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from headrace.checkpoints.checked import FileSum, damaged, read_checked, write_checked
from headrace.checkpoints.control import Control
from headrace.checkpoints.messages import Message, as_pieces, from_bytes, has_pickles
from headrace.errors import PlanError
from headrace.io.files import load_json, save_json
from headrace.operators.stores import Name, Note, pack

Key = tuple[int, int, int, int, int]
"""A bundle: operator, shard, kind, slice, number."""


class Place(NamedTuple):
    """Where a bundle is."""

    file: str
    start: int
    length: int


_ALIGNED = 64
_MANY_FILES = 16
_TOLD = ("epoch", "finished", "sources", "notes", "promised", "operators")
"""What a manifest says beside its files and what they hold."""


@dataclass
class Saved:
    """What a checkpoint has."""

    epoch: int = -1
    """The last that counts; -1 if there is none."""
    finished: bool = False
    sources: list[dict[str, Any]] = field(default_factory=list)
    notes: list[list[Note]] = field(default_factory=list)
    """Of each operator, by shard."""
    bundles: dict[tuple[int, int], dict[Name, pa.Buffer]] = field(default_factory=dict)
    """Of each operator and shard."""
    promised: list[int] = field(default_factory=list)
    """The watermark that each operator has passed on."""
    messages: list[Message | None] = field(default_factory=list)
    """What each output's writer said of the last epoch, which may not have been committed."""
    operators: list[dict[str, Any]] = field(default_factory=list)
    """The operators as they were when the bundles were written, their columns among others."""


@dataclass
class Snapshot:
    """A job at a moment at which nothing was under way."""

    sources: list[dict[str, Any]]
    notes: list[list[Note]] = field(default_factory=list)
    changes: dict[Key, pa.RecordBatch | pa.Buffer | None] = field(default_factory=dict)
    promised: list[int] = field(default_factory=list)
    writers: list[Any] = field(default_factory=list)
    """Of the outputs, with what they wrote since the last; None if nothing."""
    finished: bool = False
    final: bool = False
    """Whether the job ends with it."""


class Files:
    """The files of a checkpoint, and where in them each bundle is."""

    def __init__(self, own: Control) -> None:
        self.system, self.root = own.system, f"{own.root}/box"
        self.folder = own.folder.removesuffix("/headrace")
        self.live: dict[Key, Place] = {}
        self.sums: dict[str, FileSum] = {}
        """Of the files with bundles."""
        self.messages: tuple[str, FileSum] | None = None
        """The file with what outputs were given last, which they may not have committed."""
        self.epoch = -1
        self.told: dict[str, Any] = {}
        self.operators: list[dict[str, Any]] = []
        """Those of the job, as ``job.json`` has them."""

    @property
    def _manifest(self) -> str:
        return f"{self.root}/manifest.json"

    # Reading

    def load(self) -> Saved:
        """What the checkpoint has, its bundles as they are in the files."""
        why = "the job cannot go on without it"
        told: dict[str, Any] | None = load_json(self.system, self._manifest, why)
        if told is None:
            raise PlanError(
                f"the checkpoint {self.folder!r} is of a job that has begun, but "
                "'headrace/box/manifest.json' is gone from it; put it back, or give another "
                "checkpoint to begin anew"
            )
        try:
            return self._loaded(told)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise damaged(self._manifest, "it does not say what it should") from None

    def _loaded(self, told: dict[str, Any]) -> Saved:
        self.told = {name: told[name] for name in _TOLD}
        self.epoch = told["epoch"]
        self.sums = {name: FileSum(*known) for name, known in told["files"].items()}
        files = list(self.sums)
        self.live = {tuple(b[:5]): Place(files[b[5]], *b[6:]) for b in told["bundles"]}
        if told["messages"]:
            file, *known = told["messages"]
            self.messages = file, FileSum(*known)
        saved = Saved(self.epoch, told["finished"], told["sources"], told["notes"])
        saved.promised, saved.operators = told["promised"], told["operators"]
        data = {name: self._data(name) for name in files}
        for (operator, shard, *name), place in self.live.items():
            bundle = data[place.file].slice(place.start, place.length)
            saved.bundles.setdefault((operator, shard), {})[tuple(name)] = bundle  # type: ignore[index]
        if self.messages is not None:
            file, known = self.messages
            packed = read_checked(self.system, f"{self.root}/{file}", known)
            saved.messages = from_bytes(packed.to_pybytes())
        return saved

    def _data(self, name: str) -> pa.Buffer:
        return read_checked(self.system, f"{self.root}/{name}", self.sums[name])

    def pickled(self, saved: Saved, operators: Sequence[Mapping[str, Any]]) -> list[str]:
        """The files that hold pickles; ``operators`` as in ``job.json``."""
        files = {
            place.file
            for (operator, _, kind, *_), place in self.live.items()
            if operators[operator]["kinds"][str(kind)]["pickled"]
        }
        if self.messages is not None and has_pickles(saved.messages):
            files.add(self.messages[0])
        return [f"headrace/box/{name}" for name in sorted(files)]

    def sweep(self) -> None:
        """Remove what a run that was killed has left."""
        known = {"manifest.json", *self.sums}
        if self.messages is not None:
            known.add(self.messages[0])
        for entry in self.system.get_file_info(fs.FileSelector(self.root)):
            if entry.base_name not in known:
                self.system.delete_file(entry.path)

    # Writing

    def begin(self) -> Saved:
        """The checkpoint of a job that has done nothing yet."""
        self.system.create_dir(self.root, recursive=True)
        self._save({"epoch": -1, **vars(Snapshot([])), "operators": []})
        return Saved()

    def _save(self, what: dict[str, Any]) -> None:
        """Replace the manifest."""
        self.told = {name: what[name] for name in _TOLD}
        numbers = {name: i for i, name in enumerate(self.sums)}
        bundles = [[*key, numbers[place[0]], *place[1:]] for key, place in self.live.items()]
        messages = [] if self.messages is None else [self.messages[0], *self.messages[1]]
        files = {"files": self.sums, "messages": messages, "bundles": bundles}
        save_json(self.system, self._manifest, {**self.told, **files})

    def write(self, snapshot: Snapshot, messages: Sequence[Message | None]) -> int:
        """Write the next checkpoint; its epoch."""
        epoch = self.epoch + 1
        live = dict(self.live)
        for key in snapshot.changes:
            live.pop(key, None)
        new = f"data-{epoch:010d}"
        known = {**self.sums, new: self._write_bundles(new, snapshot, live)}
        before, self.messages = self.messages, None
        if any(message is not None for message in messages):
            name = f"messages-{epoch:010d}"
            pieces = as_pieces(messages)
            self.messages = name, write_checked(self.system, f"{self.root}/{name}", pieces)
        used = {place.file for place in live.values()}
        sums = {name: n for name, n in known.items() if name in used}
        gone = known.keys() - sums.keys()
        self.epoch, self.live, self.sums = epoch, live, sums
        self._save({**vars(snapshot), "epoch": epoch, "operators": self.operators})
        self._delete(*gone, *([] if before is None else [before[0]]))
        return epoch

    def _delete(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self.system.delete_file(f"{self.root}/{name}")

    def settle(self) -> None:
        """Forget what outputs were given last."""
        before, self.messages = self.messages, None
        if before is not None:
            self._save(self.told)
            self._delete(before[0])

    def _write_bundles(self, new: str, snapshot: Snapshot, live: dict[Key, Place]) -> FileSum:
        """Write what is new, and what is left of files that are not worth keeping."""
        puts = [(key, batch) for key, batch in snapshot.changes.items() if batch is not None]
        moved = list(self._moved(live, sum(_size(batch) for _, batch in puts)))
        if not puts and not moved:
            return FileSum(0, 0)

        def pieces() -> Iterator[Any]:
            at = 0
            for key, data in [*((k, _packed(b)) for k, b in puts), *moved]:
                live[key] = Place(new, at, data.size)
                padding = bytes(-data.size % _ALIGNED)
                at += data.size + len(padding)
                yield data
                yield padding

        return write_checked(self.system, f"{self.root}/{new}", pieces())

    def _moved(self, live: dict[Key, Place], new: int) -> Iterator[tuple[Key, pa.Buffer]]:
        """The bundles of files that are rewritten: little of them is live, or they are many."""
        left = dict.fromkeys(self.sums, 0)
        for place in live.values():
            left[place.file] += place.length
        rewritten = {name for name, n in left.items() if 0 < 2 * n < self.sums[name].size}
        if len(left) > _MANY_FILES:
            for name in sorted(left, key=lambda name: left[name]):
                if left[name] > 2 * new:
                    break
                rewritten.add(name)
                new += left[name]
        data = {name: self._data(name) for name in rewritten}
        for key, place in list(live.items()):
            if place.file in data:
                yield key, data[place.file].slice(place.start, place.length)


def _packed(bundle: pa.RecordBatch | pa.Buffer) -> pa.Buffer:
    return bundle if isinstance(bundle, pa.Buffer) else pack(bundle)


def _size(bundle: pa.RecordBatch | pa.Buffer) -> int:
    return int(bundle.size if isinstance(bundle, pa.Buffer) else bundle.nbytes)
