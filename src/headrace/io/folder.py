"""A folder that grows: files as they appear, each read once."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyarrow import fs

from headrace.errors import BadRecord, EngineError, PlanError
from headrace.io.files import (
    CHECKPOINT_FIX,
    LOCAL,
    absolute,
    filesystem,
    is_glob,
    load_json,
    matching,
    save_json,
    visible,
    writing,
)
from headrace.io.offsets import OffsetSource, Positions, at_most_at_once, most_at_once
from headrace.io.source import ERRORS, Source, Split, at_most

_FORMATS = {
    "text": "TextSource",
    "csv": "CsvSource",
    "json": "JsonSource",
    "parquet": "ParquetSource",
}


def _opened(kind: str, paths: list[str], options: dict[str, Any]) -> Source:
    """Some files in a format; only that format's reader is loaded."""
    module = importlib.import_module(f"headrace.io.{kind}")
    source: Source = getattr(module, _FORMATS[kind]).open(paths, **options)
    return source


_NAME = "files"
"""The one split of a folder: its files are one input, read side by side."""


@dataclass(frozen=True, eq=False)
class FolderSource(OffsetSource):
    """The files of a folder or a glob, in the order in which they appear.

    A file must appear whole: write it elsewhere and move it in, or under a name that begins with
    ``_`` or ``.`` and rename it. A position is how many files have been taken; which ones, in
    which order, is written down before any is read, where an engine gives a place to.
    """

    path: str
    kind: str
    schema: pa.Schema
    options: dict[str, Any] = field(default_factory=dict)
    limit: int | None = None
    until: str | None = None
    """The name of a file in the folder that says that no more will come."""
    bad: bool = False
    """Whether to give the records that cannot be read, rather than those that can."""

    @staticmethod
    def open(
        path: Any,
        kind: str,
        options: dict[str, Any],
        *,
        schema: Any = None,
        limit: int | None = None,
        until: str | None = None,
    ) -> FolderSource:
        """Check a path, and learn the columns from what is there now."""
        what = f"read_{kind}"
        if not isinstance(path, (str, os.PathLike)):
            raise PlanError(f"{what}: follow=True takes one folder or glob, not {path!r}")
        where = absolute(path)
        _refuse_missing(where, what)
        found = Listing(where).refresh()
        if kind == "text":
            known = pa.schema([pa.field("line", pa.string())])
        elif schema is not None:
            from headrace.types import to_schema

            known = to_schema(schema)
        elif found:
            known = _opened(kind, [p for p, _ in found[:64]], options).schema
        else:
            raise PlanError(
                f"{what}: there is no file in {where!r} yet to learn the columns from; pass schema="
            )
        if kind in ("csv", "json"):
            options = {**options, "schema": known}
        if until is not None and (not isinstance(until, str) or not until.startswith(("_", "."))):
            raise PlanError(
                f"{what}: until={until!r} is the name of a file that says the input has ended; "
                "begin it with '_', so that it is not read itself"
            )
        return FolderSource(where, kind, known, options, most_at_once(limit, what), until)

    def __str__(self) -> str:
        bad = "bad records of " if self.bad else ""
        return f"{bad}{self.kind} files that appear in {self.path}"

    @property
    def _listing(self) -> Listing:
        found: Listing | None = self.__dict__.get("_list")
        if found is None:
            found = Listing(self.path)
            object.__setattr__(self, "_list", found)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_list"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def errors(self) -> Source | None:
        """The bad records, where they are kept."""
        if self.options.get("on_error") != "keep":
            return None
        return replace(self, schema=ERRORS, bad=True)

    def with_memory(self, nbytes: int) -> FolderSource:
        if self.kind != "parquet":
            return self
        return replace(self, options={**self.options, "memory": nbytes})

    def keep_in(self, folder: str) -> None:
        self._listing.keep_in(folder)

    def more_after_end(self, folder: str) -> str:
        listing = Listing(self.path)
        listing.keep_in(folder)
        more = [path for path, _ in listing.there() if path not in listing.seen]
        if not more:
            return ""
        files = "1 file was" if len(more) == 1 else f"{len(more)} files were"
        return f"{files} added to {self.path} after {self.until}, {sorted(more)[0]} among them"

    def in_small_steps(self) -> FolderSource:
        return replace(self, limit=at_most_at_once(self.limit, 1))

    def initial(self) -> Positions:
        return {_NAME: 0}

    def available(self, since: Positions) -> Positions:
        self._listing.refuse_shorter(since[_NAME])
        return {_NAME: len(self._listing.refresh())}

    def step(self, since: Positions, end: Positions) -> Positions:
        if self.limit is None:
            return end
        return {_NAME: min(end[_NAME], since[_NAME] + self.limit)}

    def ended(self, at: Positions) -> bool:
        if self.until is None:
            return False
        folder = self.path if not is_glob(self.path) else os.path.dirname(self.path)
        return _is_there(f"{folder}/{self.until}") and at[_NAME] == len(self._listing.refresh())

    def between(
        self, start: Positions, end: Positions, parallelism: int
    ) -> Sequence[tuple[str, Split]]:
        self._listing.refuse_shorter(end[_NAME])
        files = self._listing.files[start[_NAME] : end[_NAME]]
        if not files:
            return []
        paths = [p for p, _ in files]
        try:
            source: Any = _opened(self.kind, paths, self.options)
        except PlanError as error:
            gone = [p for p in paths if not _is_there(p)]
            if gone:
                raise BadRecord(
                    f"{gone[0]} was in {self.path} and is gone before it was read; put it back, or "
                    "begin anew with another checkpoint"
                ) from None
            raise BadRecord(f"{self}: {error}") from None
        if not source.schema.equals(self.schema) and self.kind == "parquet" and not self.bad:
            raise BadRecord(
                f"{self}: a file has other columns ({', '.join(source.schema.names)}) than the "
                f"stream ({', '.join(self.schema.names)})"
            )
        if self.bad:
            source = source.errors()
        return [(_NAME, split) for split in at_most(source.splits(parallelism), parallelism)]


def _refuse_missing(path: str, what: str) -> None:
    """Refuse to wait for files of a folder that is not there."""
    system, inside = filesystem(path)
    folder = os.path.dirname(inside) if is_glob(path) else inside
    while any(c in folder for c in "*?["):  # a glob over folders: the one above them all
        folder = os.path.dirname(folder)
    if system.get_file_info(folder).type == fs.FileType.NotFound:
        raise PlanError(
            f"{what}: there is no folder {folder!r} to follow; make it first, or check the path"
        )


def _is_there(path: str) -> bool:
    system, inside = filesystem(path)
    return bool(system.get_file_info(inside).type == fs.FileType.File)


def check_log(folder: str, at: Positions) -> None:
    """Refuse the damaged log of a source of this kind, without the source; others keep other files.

    Args:
        folder: Where the source keeps its log.
        at: The source's positions.
    """
    system, root = filesystem(folder)
    entries = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    if any(entry.base_name.startswith("files-") for entry in entries):
        log = Listing(root)
        log.keep_in(folder)
        log.refuse_shorter(at.get(_NAME, 0))


class Listing:
    """The files seen so far, in order; a log of them if there is a place for it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.files: list[tuple[str, int]] = []
        self.seen: set[str] = set()
        self.log: tuple[Any, str] | None = None

    def keep_in(self, folder: str) -> None:
        """Go on from a log, and write down what is found from now on."""
        system, root = filesystem(folder)
        with writing(f"the checkpoint folder {root!r}", CHECKPOINT_FIX):
            system.create_dir(root, recursive=True)
        self.log = (system, root)
        self.files, self.seen = [], set()
        entries = system.get_file_info(fs.FileSelector(root))
        for path in sorted(e.path for e in entries if e.path.endswith(".json")):
            if path.rpartition("/")[2] != self._next_name:
                raise self._gone()
            found = load_json(system, path, "it says which files have been read")
            self._take([(p, s) for p, s in found["files"]])

    @property
    def _next_name(self) -> str:
        """The name of the next file of the log: how many files those before it have."""
        return f"files-{len(self.files):012d}.json"

    def _gone(self) -> EngineError:
        assert self.log is not None
        return EngineError(
            f"{self.log[1]}/{self._next_name} is gone, and it says which files have been read; put "
            "it back from a copy, or begin anew with another checkpoint"
        )

    def refuse_shorter(self, files: int) -> None:
        """Refuse a log that has lost its end: it has fewer than ``files`` files."""
        if len(self.files) < files:
            raise self._gone()

    def _take(self, found: list[tuple[str, int]]) -> None:
        self.files.extend(found)
        self.seen.update(path for path, _ in found)

    def refresh(self) -> list[tuple[str, int]]:
        """All files so far, those that have appeared since the last time at the end."""
        new = sorted(
            (entry.mtime_ns or 0, path, entry.size)
            for path, entry in self.there()
            if path not in self.seen
        )
        found = [(path, size) for _, path, size in new]
        if found and self.log is not None:
            system, root = self.log
            name = f"{root}/{self._next_name}"
            with writing(f"the checkpoint's list of files {name!r}", CHECKPOINT_FIX):
                save_json(system, name, {"files": found})
        self._take(found)
        return self.files

    def there(self) -> list[tuple[str, Any]]:
        """The files that are there now."""
        system, inside = filesystem(self.path)
        if is_glob(self.path) and system is LOCAL:
            paths = matching(inside)
            return [(p, e) for p, e in zip(paths, system.get_file_info(paths), strict=True)]
        info = system.get_file_info(inside)
        if info.type == fs.FileType.NotFound:
            return []
        if info.type == fs.FileType.File:
            raise PlanError(f"{self.path!r} is a file; follow=True watches a folder or a glob")
        prefix = "" if system is LOCAL else self.path.partition("://")[0] + "://"
        return [(prefix + f.path, f) for f in visible(system, inside)]
