"""Sinks that write a folder of files; formats say how one is encoded."""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, ParamSpec, TypeVar

import pyarrow as pa
from pyarrow import fs

from headrace.errors import EngineError, PlanError, nearest
from headrace.io.files import (
    COMMITS,
    absolute,
    committed,
    epoch_file,
    epoch_of,
    filesystem,
    save_json,
    sync,
    visible,
    writing,
)
from headrace.io.sink import Sink, Writer
from headrace.types import type_name

P = ParamSpec("P")
R = TypeVar("R")


def _reported(method: Callable[P, R]) -> Callable[P, R]:
    """A method of a sink or a writer that reports a full or read-only disk with the folder."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        owner: Any = args[0]
        path = owner.path if isinstance(owner, FileSink) else owner.sink.path
        fix = "make room or give write access, then start the job again"
        with writing(f"the output folder {path!r}", fix):
            return method(*args, **kwargs)

    return run


@dataclass
class FileSink(Sink):
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
    has_committed: bool = False
    """Whether this run has committed: then what is there is its own, and not overwritten."""
    guarantee = "exactly once"
    by_interval = True
    suffix: ClassVar[str] = ""
    known: ClassVar[tuple[str, ...]] = ()
    """The options a format takes."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)):
            raise PlanError(f"{self.path!r} is not a path")
        self.path = absolute(self.path)  # workers may be in other folders
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

    def identity(self, schema: pa.Schema) -> str:
        """What a checkpoint remembers it by: files of one folder have the same columns."""
        columns = ", ".join(f"{f.name} {type_name(f.type)}" for f in schema)
        return f"{self} with {columns}"

    def ready(self, job: str | None = None) -> None:
        """Told before a run, by its name if it commits by epoch: refuse a folder that has files,
        unless this job wrote some of them, or says there how far it is."""
        system, root = filesystem(self.path)
        files = _files(system, root)
        names = () if job is None else (f"/part-{job[:12]}-", f"/{COMMITS}/{job[:12]}.json")
        mine = any(name in path for path in files for name in names)
        if self.mode == "error" and files and not mine:
            raise PlanError(
                f"{self.path!r} already has files; write elsewhere, or pass "
                "mode='overwrite' or mode='append'"
            )
        self.has_committed = False
        if job is not None:
            self.job, self.unsure = job, True
            self.replaces = self.mode == "overwrite" and not mine

    def goes_on(self) -> None:
        """What the folder has was looked at when the job began; another output may write there."""
        self.mode = "append"

    def resume(self, epoch: int) -> None:
        """Told after ``ready`` that this job has committed up to an epoch.

        Refuses a folder whose note of that is gone: without it nobody can tell which files count.
        """
        system, _ = filesystem(self.path)
        if committed(system, self._note) < 0:
            raise PlanError(
                f"the checkpoint has committed epochs up to {epoch}, but {self._note} is gone, so "
                f"it cannot be told which files in {self.path!r} count; put it back, or begin anew "
                "with another checkpoint and another folder"
            )

    @_reported
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
    def _note(self) -> str:
        return f"{filesystem(self.path)[1]}/{COMMITS}/{self.job[:12]}.json"

    @property
    def _staging(self) -> str:
        return f"{filesystem(self.path)[1]}/_temporary-{self.run}"

    def open(self, schema: pa.Schema, task: str) -> Writer:
        return _FileWriter(self, schema, f"part-{task}{self.suffix}")

    @_reported
    def commit(self, messages: list[Any]) -> None:
        system, root = filesystem(self.path)
        overwrites = self.mode == "overwrite" and not self.has_committed
        old = _files(system, root) if overwrites else []
        names = sorted(m for m in messages if m is not None)
        if not names and self.columns is not None:
            names = [self._empty(self.columns)]
        moved: list[str] = []
        try:
            for number, name in enumerate(names):
                final = f"{root}/part-{number:05d}-{self.run}{self.suffix}"
                system.move(f"{root}/{name}", final)
                moved.append(final)
        except BaseException:
            for path in moved:
                system.delete_file(path)
            raise
        sync(system, root)
        for path in old:
            system.delete_file(path)
        self.has_committed = True
        self.abort()
        with system.open_output_stream(f"{root}/_SUCCESS") as mark:
            mark.write(b"")

    @_reported
    def commit_epoch(self, job: str, epoch: int, messages: list[Any]) -> None:
        """Make an epoch's files visible, once however often it is called.

        Files are moved into place under names that say their epoch, and only then does a file
        beside them say that the epoch counts. Files of an epoch that does not are removed.
        """
        system, root = filesystem(self.path)
        names = sorted(m for m in messages if m is not None)
        moves = {
            f"{root}/{epoch_file(job, epoch, number, self.suffix)}": f"{root}/{name}"
            for number, name in enumerate(names)
        }
        done = self._note
        if self.unsure:
            self.unsure = False
            last = committed(system, done)
            staged = {to: path for to, path in moves.items() if _is_there(system, path)}
            for path in _files(system, root):
                written = epoch_of(path, job)
                if written is None or written <= last:
                    continue
                if path in moves and path not in staged:
                    continue  # moved already, by a run that was killed
                if last >= 0 or written >= epoch:
                    system.delete_file(path)  # by a run that was killed
            if epoch <= last:
                for path in staged.values():
                    system.delete_file(path)
                return
            gone = [to for to in moves if to not in staged and not _is_there(system, to)]
            if gone:
                raise EngineError(
                    f"{moves[gone[0]]} is gone, which is to become {gone[0]}; put it back, or "
                    "begin anew with another checkpoint and another folder"
                )
            moves = staged
        elif not moves:
            return
        for to, path in moves.items():
            system.move(path, to)
        sync(system, root)
        system.create_dir(f"{root}/{COMMITS}", recursive=True)
        save_json(system, done, {"job": job, "epoch": epoch})

    @_reported
    def finish(self) -> None:
        """Told when a job that commits by epoch has ended well."""
        system, root = filesystem(self.path)
        if self.columns is not None and not visible(system, root):
            name = f"part-{self.job[:12]}-empty{self.suffix}"
            system.move(f"{root}/{self._empty(self.columns)}", f"{root}/{name}")

    def _empty(self, schema: pa.Schema) -> str:
        """A file without records, which still tells a reader the columns; its name."""
        empty = _FileWriter(self, schema, f"part-empty{self.suffix}")
        empty.start()
        return str(empty.close())

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

    @_reported
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

    @_reported
    def close(self) -> Any:
        if self.encoder is None:
            return None
        self.encoder.close()
        self.file.close()
        sync(filesystem(self.sink.path)[0], f"{self.sink._staging}/{self.name}")
        return f"{self.sink._staging.rpartition('/')[2]}/{self.name}"


class LineEncoder:
    """Writes each record as a line of text; ``lines`` gives those of a batch."""

    def __init__(self, file: Any, lines: Callable[[pa.RecordBatch], Iterable[str]]) -> None:
        self.file, self.lines = file, lines

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self.file.write("".join(f"{line}\n" for line in self.lines(batch)).encode())

    def close(self) -> None:
        """Every line is written when it comes."""


def _is_there(system: Any, path: str) -> bool:
    return bool(system.get_file_info(path).type == fs.FileType.File)


def _files(system: Any, root: str) -> list[str]:
    if system.get_file_info(root).type != fs.FileType.Directory:
        return []
    found = system.get_file_info(fs.FileSelector(root, recursive=True))
    return [f.path for f in found if f.type == fs.FileType.File and "/_temporary-" not in f.path]
