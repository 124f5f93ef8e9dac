"""What a sink is, and the sinks that write files.

A sink opens a writer for each task; a writer takes bundles and, when it closes, says what it
wrote. When every task has succeeded the sink commits all that was said, and only then do readers
see anything: a task that fails or runs twice leaves nothing behind. This is a whole sink:

    class Memory:
        kept = []

        def check(self, schema): ...
        def open(self, schema, task): return MemoryWriter()
        def commit(self, messages): Memory.kept.extend(messages)
        def abort(self): ...

    class MemoryWriter:
        def __init__(self): self.batches = []
        def write(self, batch): self.batches.append(batch)
        def close(self): return self.batches

A sink that must prepare something before the tasks begin may have ``begin(schema)`` too.

On a stream that does not end, an engine commits again and again. A sink that can tell whether it
has committed already has ``commit_epoch(job, epoch, messages)``: the same epoch of the same job may
come twice after a failure, with the same records, and must count once. Such a sink says
``guarantee = "exactly once"``; without it every record is written *at least once*.

``stream.write_to(Memory())`` writes to it. Name the class in the entry-point group
``headrace.sinks`` of your package, and ``stream.write("memory")`` finds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa
from pyarrow import fs

from headrace.errors import PlanError, nearest
from headrace.io.files import COMMITS, committed, epoch_file, filesystem, replace_file


class Writer(Protocol):
    """One task's part of the output."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a bundle."""

    def close(self) -> Any:
        """Finish, and return a picklable message for ``commit``; None if nothing was written."""


@runtime_checkable
class Sink(Protocol):
    """Where records go. It is picklable, and travels to the workers."""

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns it cannot write, while the pipeline is being built."""

    def open(self, schema: pa.Schema, task: str) -> Writer:
        """A writer for one task; ``task`` is different for every attempt of every task."""

    def commit(self, messages: list[Any]) -> None:
        """Make visible what the writers said they wrote."""

    def abort(self) -> None:
        """Remove what was written; the job failed."""


@dataclass
class FileSink:
    """A folder of files, one for each task, moved into place when all are done.

    ``mode`` is ``error`` (refuse a folder that has files), ``overwrite`` or ``append``.
    """

    path: str
    mode: str = "error"
    options: dict[str, Any] = field(default_factory=dict)
    columns: pa.Schema | None = None
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    job: str = ""
    replaces: bool = False
    unsure: bool = False
    """Whether an epoch may have been committed, in part or whole, by a run that was killed."""
    guarantee: ClassVar[str] = "exactly once"
    suffix: ClassVar[str] = ""
    known: ClassVar[tuple[str, ...]] = ()
    """The options a format takes."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)):
            raise PlanError(f"{self.path!r} is not a path")
        self.path = os.fspath(self.path)
        unknown = sorted(set(self.options) - set(self.known))
        if unknown:
            raise PlanError(f"there is no option '{unknown[0]}'{nearest(unknown[0], self.known)}")
        if self.mode not in ("error", "overwrite", "append"):
            raise PlanError(
                f"mode={self.mode!r} is not a way to write; use 'error', 'overwrite' or 'append'"
            )
        system, root = filesystem(self.path)
        info = system.get_file_info(root)
        if info.type == fs.FileType.File:
            raise PlanError(f"{self.path!r} is a file; output is a folder of files")

    def __str__(self) -> str:
        return f"{self.suffix.lstrip('.') or 'data'} files in {self.path}"

    def ready(self, job: str | None = None) -> None:
        """Told before a run, by its name if it commits by epoch: refuse a folder that has files,
        unless this job wrote some of them."""
        system, root = filesystem(self.path)
        files = _files(system, root)
        mine = job is not None and any(f"/part-{job[:12]}-" in path for path in files)
        if self.mode == "error" and files and not mine:
            raise PlanError(
                f"{self.path!r} already has files; write elsewhere, or pass "
                "mode='overwrite' or mode='append'"
            )
        if job is not None:
            self.job, self.unsure = job, True
            self.replaces = self.mode == "overwrite" and not mine

    def check(self, schema: pa.Schema) -> None:
        """Every type can be written unless a format says otherwise."""

    def begin(self, schema: pa.Schema) -> None:
        """Make the folder the tasks write to; without it none can write, not even a late one."""
        run = uuid.uuid4().hex[:12]
        self.columns, self.run = schema, f"{self.job[:12]}-{run}" if self.job else run
        system, root = filesystem(self.path)
        if self.job and system.get_file_info(root).type == fs.FileType.Directory:
            for entry in system.get_file_info(fs.FileSelector(root)):
                if entry.base_name.startswith(f"_temporary-{self.job[:12]}"):
                    system.delete_dir(entry.path)  # of a run that was killed
            for path in _files(system, root) if self.replaces else ():
                system.delete_file(path)
        system.create_dir(self._staging, recursive=True)

    def encoder(self, file: Any, schema: pa.Schema) -> Any:
        """What writes bundles to an open file: ``write_batch`` and ``close``. Formats have it."""
        raise TypeError(f"{type(self).__name__} does not say how it writes")

    @property
    def _staging(self) -> str:
        return f"{filesystem(self.path)[1]}/_temporary-{self.run}"

    def open(self, schema: pa.Schema, task: str) -> Writer:
        return _FileWriter(self, schema, f"part-{task}{self.suffix}")

    def commit(self, messages: list[Any]) -> None:
        system, root = filesystem(self.path)
        old = _files(system, root) if self.mode == "overwrite" else []
        names = sorted(m for m in messages if m is not None)
        if not names and self.columns is not None:
            # A file without records still tells a reader the columns.
            empty = _FileWriter(self, self.columns, f"part-empty{self.suffix}")
            empty.start()
            names = [empty.close()]
        moved: list[str] = []
        try:
            for number, name in enumerate(names):
                final = f"{root}/part-{number:05d}-{self.run}{self.suffix}"
                system.move(f"{self._staging}/{name}", final)
                moved.append(final)
        except BaseException:
            for path in moved:
                system.delete_file(path)
            raise
        for path in old:
            system.delete_file(path)
        self.abort()
        with system.open_output_stream(f"{root}/_SUCCESS") as mark:
            mark.write(b"")

    def commit_epoch(self, job: str, epoch: int, messages: list[Any]) -> None:
        """Make an epoch's files visible, once however often it is called.

        Files are moved into place under names that say their epoch, and only then does a file
        beside them say that the epoch counts. Files of an epoch that does not are removed.
        """
        system, root = filesystem(self.path)
        staged = [f"{self._staging}/{m}" for m in sorted(m for m in messages if m is not None)]
        done = f"{root}/{COMMITS}/{job[:12]}.json"
        if self.unsure:
            self.unsure = False
            last = committed(system, done)
            for path in _files(system, root):
                name = path.rpartition("/")[2]
                if name.startswith(f"part-{job[:12]}-") and int(name.split("-")[2]) > last:
                    system.delete_file(path)
            if epoch <= last:
                for path in staged:
                    system.delete_file(path)
                return
        if not staged:
            return
        for number, path in enumerate(staged):
            system.move(path, f"{root}/{epoch_file(job, epoch, number, self.suffix)}")
        system.create_dir(f"{root}/{COMMITS}", recursive=True)
        replace_file(system, done, json.dumps({"job": job, "epoch": epoch}).encode())

    def abort(self) -> None:
        system, root = filesystem(self.path)
        with contextlib.suppress(FileNotFoundError):
            system.delete_dir(self._staging)
        if system.get_file_info(root).type == fs.FileType.Directory and not system.get_file_info(
            fs.FileSelector(root)
        ):
            system.delete_dir(root)


class _FileWriter:
    """Writes one file, opened when the first bundle comes."""

    def __init__(self, sink: FileSink, schema: pa.Schema, name: str) -> None:
        self.sink, self.schema, self.name = sink, schema, name
        self.file: Any = None
        self.encoder: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self.encoder is None:
            self.start()
        self.encoder.write_batch(batch)

    def start(self) -> None:
        """Open the file."""
        system, _ = filesystem(self.sink.path)
        self.file = system.open_output_stream(f"{self.sink._staging}/{self.name}")
        self.encoder = self.sink.encoder(self.file, self.schema)

    def close(self) -> Any:
        if self.encoder is None:
            return None
        self.encoder.close()
        self.file.close()
        return self.name


def _files(system: Any, root: str) -> list[str]:
    if system.get_file_info(root).type != fs.FileType.Directory:
        return []
    found = system.get_file_info(fs.FileSelector(root, recursive=True))
    return [f.path for f in found if f.type == fs.FileType.File and "/_temporary-" not in f.path]
