"""Where we keep what can be made again: compiled kernels, the Java shim, links to Spark."""

from __future__ import annotations

import os
import stat
import tempfile
import zlib
from pathlib import Path

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
    return found.st_uid == os.getuid() and not found.st_mode & stat.S_IWOTH


def cached_script(kind: str, name: str, text: str) -> Path:
    """A program of a few lines, made once: ``name`` in a folder of its own for just this text."""
    program = cache_folder(f"{kind}-{zlib.crc32(text.encode()):x}/bin") / name
    if not program.exists() or program.read_text() != text:
        draft = program.with_suffix(f".{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(program)
    return program
