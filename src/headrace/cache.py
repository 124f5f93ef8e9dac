"""Where we keep what can be made again: compiled kernels, the Java shim, links to Spark."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from headrace.errors import EngineError


def cache_folder(name: str) -> Path:
    """A folder of that name in the user's cache, or else among the temporary files."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    temporary = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
    for root in (Path(home) / "headrace", temporary):
        folder = root / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK | os.X_OK) and root.stat().st_uid == os.getuid():
            return folder
    raise EngineError("there is no folder for headrace's cache; set HOME or TMPDIR to one")
