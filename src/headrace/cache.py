"""Where we keep what can be made again, and what is of one process alone.

The first is compiled kernels, the Java shim, links to Spark, generated input: in the user's cache.
The second has the process's number in its name, so that what a killed one left can be told.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import zlib
from pathlib import Path

import psutil

from headrace.errors import EngineError


def cache_folder(name: str) -> Path:
    """A folder of that name in the user's cache, or else among the temporary files."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    temporary = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
    for root in (Path(home) / "headrace", temporary):
        if not root.is_absolute():
            continue
        folder = root / name
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            root.mkdir(mode=0o700, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK | os.X_OK) and _is_ours(root):
            return folder
    raise EngineError("there is no folder for headrace's cache; set HOME or TMPDIR to one")


def _is_ours(folder: Path) -> bool:
    """Whether nobody else could put programs there."""
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWOTH | stat.S_IWGRP)


def could_be_anothers(folder: str) -> bool:
    """Whether somebody else may have written what is in a folder; root may write anywhere."""
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return found.st_uid not in (os.getuid(), 0) or bool(found.st_mode & stat.S_IWOTH)


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
    """Remove what processes of this user left among the temporary files when they were killed."""
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


def cached_script(kind: str, name: str, text: str) -> Path:
    """A program of a few lines, made once: ``name`` in a folder of its own for just this text."""
    program = cache_folder(f"{kind}-{zlib.crc32(text.encode()):x}/bin") / name
    if not program.exists() or program.read_text() != text:
        draft = program.with_suffix(f".{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(program)
    return program
