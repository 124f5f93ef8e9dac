"""The files of a checkpoint on the box.

In the folder ``headrace/box`` of a checkpoint ``manifest.json`` says how far the sources were read,
what the states note, which outputs are yet to be made visible, and in which files the states'
bundles are. It is replaced at once, so a checkpoint is there whole or is the one before. Bundles
never change, so only new ones are written; files of which little is still needed are rewritten.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from headrace.checkpoints.control import Control
from headrace.errors import EngineError, PlanError
from headrace.io.files import LOCAL, load_json, replace_file, sync
from headrace.operators.stores import Name, Note, pack

Key = tuple[int, int, int, int, int]
"""A bundle: operator, shard, kind, slice, number."""


class Place(NamedTuple):
    """Where a bundle is."""

    file: str
    start: int
    length: int
    checksum: int


_ALIGNED = 64
_MANY_FILES = 16
_TOLD = ("epoch", "finished", "sources", "notes", "promised", "messages", "operators")
"""What a manifest says beside where bundles are."""


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
    messages: list[Any] = field(default_factory=list)
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
        self.sizes: dict[str, int] = {}
        self.epoch = -1
        self.told: dict[str, Any] = {"messages": ""}
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
            raise self._damaged("manifest.json", "it does not say what it should") from None

    def _loaded(self, told: dict[str, Any]) -> Saved:
        self.told = {name: told[name] for name in _TOLD}
        self.epoch, self.sizes = told["epoch"], dict(told["files"])
        files = list(self.sizes)
        self.live = {tuple(b[:5]): Place(files[b[5]], *b[6:]) for b in told["bundles"]}
        saved = Saved(self.epoch, told["finished"], told["sources"], told["notes"])
        saved.promised, saved.operators = told["promised"], told["operators"]
        data = {name: self._data(name) for name in files}
        for (operator, shard, *name), place in self.live.items():
            bundle = data[place.file].slice(place.start, place.length)
            if zlib.crc32(bundle) != place.checksum:
                raise self._damaged(place.file, "its bytes are not what was written")
            saved.bundles.setdefault((operator, shard), {})[tuple(name)] = bundle  # type: ignore[index]
        if told["messages"]:
            try:
                with self.system.open_input_stream(f"{self.root}/{told['messages']}") as file:
                    saved.messages = pickle.loads(file.read())
            except Exception as error:
                raise self._damaged(told["messages"], error) from None
        return saved

    def _data(self, name: str) -> pa.Buffer:
        path = f"{self.root}/{name}"
        try:
            if self.system is LOCAL:
                data = pa.memory_map(path).read_buffer()
            else:
                with self.system.open_input_file(path) as file:
                    data = file.read_buffer()
        except OSError as error:
            raise self._damaged(name, error) from None
        if data.size != self.sizes[name]:
            raise self._damaged(name, f"it has {data.size} bytes, not {self.sizes[name]}")
        return data

    def _damaged(self, name: str, why: Any) -> EngineError:
        return EngineError(
            f"the checkpoint {self.folder!r} cannot be read: headrace/box/{name}: {why}; put it "
            "back from a copy, or begin anew with another checkpoint"
        )

    def sweep(self) -> None:
        """Remove what a run that was killed has left."""
        known = {"manifest.json", self.told["messages"], *self.sizes}
        for entry in self.system.get_file_info(fs.FileSelector(self.root)):
            if entry.base_name not in known:
                self.system.delete_file(entry.path)

    # Writing

    def begin(self) -> Saved:
        """The checkpoint of a job that has done nothing yet."""
        self.system.create_dir(self.root, recursive=True)
        self._save({"epoch": -1, **vars(Snapshot([])), "messages": "", "operators": []})
        return Saved()

    def _save(self, what: dict[str, Any]) -> None:
        """Replace the manifest."""
        self.told = {name: what[name] for name in _TOLD}
        numbers = {name: i for i, name in enumerate(self.sizes)}
        bundles = [[*key, numbers[place[0]], *place[1:]] for key, place in self.live.items()]
        manifest = {**self.told, "files": self.sizes, "bundles": bundles}
        replace_file(self.system, self._manifest, json.dumps(manifest).encode())

    def write(self, snapshot: Snapshot, messages: list[Any]) -> int:
        """Write the next checkpoint; its epoch."""
        epoch = self.epoch + 1
        live = dict(self.live)
        for key in snapshot.changes:
            live.pop(key, None)
        new = f"data-{epoch:010d}"
        size = self._write_bundles(new, snapshot, live)
        said = f"messages-{epoch:010d}" if any(m is not None for m in messages) else ""
        if said:
            with self.system.open_output_stream(f"{self.root}/{said}") as out:
                out.write(pickle.dumps(messages))
            sync(self.system, f"{self.root}/{said}")
        used = {place.file for place in live.values()}
        sizes = {name: n for name, n in {**self.sizes, new: size}.items() if name in used}
        gone = {*self.sizes, new} - sizes.keys()
        self.epoch, self.live, self.sizes = epoch, live, sizes
        told = {"epoch": epoch, "messages": said, "operators": self.operators}
        self._save({**vars(snapshot), **told})
        for name in (*gone, f"messages-{epoch - 1:010d}"):
            with contextlib.suppress(FileNotFoundError):
                self.system.delete_file(f"{self.root}/{name}")
        return epoch

    def settle(self) -> None:
        """Forget what outputs were given last."""
        if self.told["messages"]:
            self._save({**self.told, "messages": ""})
            with contextlib.suppress(FileNotFoundError):
                self.system.delete_file(f"{self.root}/messages-{self.epoch:010d}")

    def _write_bundles(self, new: str, snapshot: Snapshot, live: dict[Key, Place]) -> int:
        """Write what is new, and what is left of files that are not worth keeping."""
        puts = [(key, batch) for key, batch in snapshot.changes.items() if batch is not None]
        moved = list(self._moved(live, sum(_size(batch) for _, batch in puts)))
        if not puts and not moved:
            return 0
        at = 0
        with self.system.open_output_stream(f"{self.root}/{new}") as out:
            for key, data in [*((k, _packed(b)) for k, b in puts), *moved]:
                out.write(data)
                live[key] = Place(new, at, data.size, zlib.crc32(data))
                padding = -data.size % _ALIGNED
                out.write(bytes(padding))
                at += data.size + padding
        sync(self.system, f"{self.root}/{new}")
        return at

    def _moved(self, live: dict[Key, Place], new: int) -> Iterator[tuple[Key, pa.Buffer]]:
        """The bundles of files that are rewritten: little of them is live, or they are many."""
        left = dict.fromkeys(self.sizes, 0)
        for place in live.values():
            left[place.file] += place.length
        rewritten = {name for name, n in left.items() if 0 < 2 * n < self.sizes[name]}
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
