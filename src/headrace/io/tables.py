"""Where the records of a table are that streams are joined with, as those who look it up find it.

A table has a version; whoever sees another than the one it knows takes the records anew.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.io.files import filesystem, replace_file
from headrace.io.held import HeldSource

_LOOK, _TRIES = 0.25, 8
"""Seconds after which a worker looks whether there is a new version."""
_FORGET = 30.0
"""Seconds after which a worker forgets a table that nobody asks for."""


def table_of(source: HeldSource) -> pa.Table:
    """Records that an engine keeps as one table; those in files are mapped and not copied."""
    names = source.schema.names
    batches = [batch for split in source.splits(1) for batch in split.read(names)]
    return pa.Table.from_batches(batches, source.schema)


class InProcess:
    """A table in this process, for all threads."""

    def __init__(self) -> None:
        self.held: tuple[int, pa.Table] | None = None

    def publish(self, source: HeldSource) -> None:
        """Put another version in place."""
        version = 0 if self.held is None else self.held[0] + 1
        self.held = version, table_of(source)

    def current(self) -> tuple[Any, pa.Table]:
        """The version that there is, and its records."""
        assert self.held is not None
        return self.held


@dataclass(frozen=True)
class Published:
    """A table in a file that workers see; it says where the records are, or has them itself."""

    path: str

    def publish(self, source: HeldSource) -> None:
        """Put another version in place."""
        system, path = filesystem(self.path)
        system.create_dir(os.path.dirname(path), recursive=True)
        replace_file(system, path, pickle.dumps((time.time_ns(), source)))

    def current(self) -> tuple[Any, pa.Table]:
        """The version that there is, and its records; looked for now and then."""
        with _LOCK:
            known = _KNOWN.get(self.path)
            if known is not None and time.monotonic() < known[0]:
                return known[1]
            found = self._found(None if known is None else known[1])
            for path in [p for p, (at, _) in _KNOWN.items() if at < time.monotonic() - _FORGET]:
                del _KNOWN[path]  # of a job that has ended
            _KNOWN[self.path] = time.monotonic() + _LOOK, found
            return found

    def _found(self, before: tuple[Any, pa.Table] | None) -> tuple[Any, pa.Table]:
        system, path = filesystem(self.path)
        for attempt in range(_TRIES):
            info = system.get_file_info(path)
            stamp = (info.mtime_ns, info.size)
            if before is not None and before[0] == stamp:
                return before
            try:
                with system.open_input_file(path) as file:
                    _, source = pickle.loads(file.read())
                return stamp, table_of(source)
            except FileNotFoundError:  # of a version that has just been replaced
                if before is not None:
                    return before
                if attempt == _TRIES - 1:
                    raise
                time.sleep(_LOOK)
        raise AssertionError("unreachable")


_KNOWN: dict[str, tuple[float, tuple[Any, pa.Table]]] = {}
"""Of each table a process has seen: until when not to look again, its version and records."""
_LOCK = threading.Lock()

if hasattr(os, "register_at_fork"):

    def _anew() -> None:
        global _LOCK
        _LOCK = threading.Lock()

    os.register_at_fork(after_in_child=_anew)
