"""Where we keep what can be made again, and what is of one process alone.

The first is compiled kernels, scripts that start Java and Python, generated input: in the user's
cache, where nobody else may write and what is not used for a month is removed. The second has the
process's number in its name, so that what a killed one left can be told.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import stat
import tempfile
import time
import zlib
from pathlib import Path

import psutil

from headrace.errors import EngineError

_KEPT = 30 * 24 * 3600
"""Seconds for which something in the cache stays though nobody uses it."""
_KINDS = ("native-", "python-", "java-", "spark", "input")
"""How the names begin of what is put there; anything else was put there by a person."""


def cache_folder(name: str) -> Path:
    """A folder of that name in the user's cache, or else among the temporary files.

    Nobody else may write to it: a cache of which that is not so is passed over, and a folder in it
    of which that is not so is made anew, for another may have put programs there.
    """
    for root in _roots():
        folder = root
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            root.mkdir(mode=0o700, exist_ok=True)
            if not _is_ours(root):
                continue
            for part in Path(name).parts:
                folder = folder / part
                _make_ours(folder)
        except OSError:
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            mark_used(folder)
            return folder
    raise EngineError("there is no folder for headrace's cache; set HOME or TMPDIR to one")


def _roots() -> list[Path]:
    """Where the cache may be, the best place first."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    temporary = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
    return [root for root in (Path(home) / "headrace", temporary) if root.is_absolute()]


def _make_ours(folder: Path) -> None:
    """Make a folder to which nobody else may write; what was there and is not so is removed."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(folder):
        _remove(folder)
        folder.mkdir(mode=0o700, exist_ok=True)  # another process may have been first
        if not _is_ours(folder):
            raise PermissionError(f"{folder} can be written to by others")


def _is_ours(path: Path) -> bool:
    """Whether nobody else could put programs there."""
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWOTH | stat.S_IWGRP)


def _remove(path: Path) -> None:
    """A file, a link, or a folder with all in it: out of the way at once, then gone."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.old")
    path.rename(aside)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)


def mark_used(path: Path) -> None:
    """Something in the cache is in use: its time is how pruning can tell."""
    for root in _roots():
        if path.is_relative_to(root) and path != root:
            with contextlib.suppress(OSError):
                os.utime(root / path.relative_to(root).parts[0])


def prune() -> None:
    """Remove what was put in the cache and not used for a month."""
    limit = time.time() - _KEPT
    for root in _roots():
        try:
            entries = list(root.iterdir()) if _is_ours(root) else []
        except OSError:  # there is none
            continue
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.name.startswith(_KINDS) and entry.lstat().st_mtime < limit:
                    _remove(entry)


def own_name(kind: str) -> str:
    """How the name of a temporary file or folder of this process begins."""
    return f"headrace-{os.getpid()}-{_where_numbers_count()}-{kind}-"


def _where_numbers_count() -> str:
    """The machine or container in which a process's number says which process it is."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = 0
    return f"{zlib.crc32(f'{socket.gethostname()} {space}'.encode()):08x}"


def temporary_folder(kind: str) -> Path:
    """A new folder of this process's own, which it is to remove."""
    return Path(tempfile.mkdtemp(prefix=own_name(kind)))


def sweep() -> None:
    """Remove what killed processes of this user left among the temporary files, and prune."""
    prune()
    here = _where_numbers_count()  # of other containers that share the folder nothing is known
    for path in Path(tempfile.gettempdir()).glob(f"headrace-*-{here}-*"):
        number = path.name.split("-")[1]
        try:
            if not number.isdigit() or psutil.pid_exists(int(number)):
                continue
            if path.lstat().st_uid != os.getuid():
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            continue


@functools.cache
def sweep_once() -> None:
    """Sweep, the first time in a process."""
    sweep()


def cached_script(kind: str, name: str, text: str) -> Path:
    """A program of a few lines, made once: ``name`` in a folder of its own for just this text."""
    program = cache_folder(f"{kind}-{zlib.crc32(text.encode()):x}/bin") / name
    if not program.exists() or not _is_ours(program) or program.read_text() != text:
        draft = program.with_suffix(f".{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(program)
    return program
