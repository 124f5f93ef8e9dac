"""Folders for cached and for temporary files, and the removal of those that are no longer used.

The cache holds compiled kernels, scripts that start Java and Python, and generated input. It
belongs to the user: nobody else may write to it, and entries unused for a month are removed.
Temporary files and folders have the process id in their names, so that ``sweep`` can remove what
killed processes left.

Other users can create files in the shared temporary folder, so nothing there is reached through a
symbolic link: paths are checked with ``lstat``, and folders are opened before entries are removed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import socket
import stat
import tempfile
import time
import zlib
from collections.abc import Iterator
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
        with _opened(folder.parent) as parent:
            _remove(folder.name, parent)
        folder.mkdir(mode=0o700, exist_ok=True)  # another process may have been first
        if not _is_ours(folder):
            raise PermissionError(f"{folder} can be written to by others")


def _is_ours(path: Path) -> bool:
    """Whether nobody else could put programs there; a symbolic link never counts as ours."""
    return _is_private(path.lstat())


def _is_private(status: os.stat_result) -> bool:
    """Whether the entry is this user's, no symbolic link, and others cannot write to it."""
    others = bool(status.st_mode & (stat.S_IWOTH | stat.S_IWGRP))
    return status.st_uid == os.getuid() and not stat.S_ISLNK(status.st_mode) and not others


@contextlib.contextmanager
def _opened(folder: Path, flags: int = 0) -> Iterator[int]:
    """The descriptor of a folder; entries removed through it stay within that folder."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags)
    try:
        yield number
    finally:
        os.close(number)


def _remove(name: str, folder: int) -> None:
    """Remove an entry of an open folder: rename it, so that it is gone at once, then delete it."""
    aside = f"{name}.{os.getpid()}.old"
    os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
    _delete(aside, folder)


def _delete(name: str, folder: int) -> None:
    """Delete a file, a link (never its target) or a folder with its content."""
    if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)


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
        with contextlib.suppress(OSError), _opened(root, os.O_NOFOLLOW) as folder:
            if not _is_private(os.fstat(folder)):
                continue
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    last_use = os.lstat(name, dir_fd=folder).st_mtime
                    if name.startswith(_KINDS) and last_use < limit:
                        _remove(name, folder)


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
    here = _where_numbers_count()  # other containers that share the folder have other processes
    mine = re.compile(rf"headrace-(\d+)-{here}-.")
    with contextlib.suppress(OSError), _opened(Path(tempfile.gettempdir())) as folder:
        owners = {name: int(m.group(1)) for name in os.listdir(folder) if (m := mine.match(name))}
        left = [name for name, owner in owners.items() if not psutil.pid_exists(owner)]
        commands = _command_lines() if left else ""
        for name in left:
            with contextlib.suppress(OSError):
                is_mine = os.lstat(name, dir_fd=folder).st_uid == os.getuid()
                if is_mine and name not in commands:
                    _delete(name, folder)


def _command_lines() -> str:
    """The commands of all processes: Java and the fork server name the folder that they use, and
    may still run when the process that started them is gone."""
    return "\n".join(" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))


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
