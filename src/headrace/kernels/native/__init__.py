"""Loops over Arrow's own buffers, compiled by Numba and run without the interpreter lock.

Every function here takes NumPy views of Arrow buffers and plain numbers, allocates nothing that
outlives it, and is cached on disk, so that a machine compiles none of them twice.

Numba knows only the file of a function, not the files of what is inlined into it, so a change in
one file could leave stale code of another in its cache, and these functions share tables in
memory. The cache is therefore in a folder named after all files here together.
"""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

from numba import config
from numba.core.registry import cpu_target

from headrace.cache import cache_folder


def _load() -> None:
    # What Numba loads for its first compilation: now, not while a user could interrupt it.
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_folder(f"native-{digest}"))
    try:
        for path in sources:
            if path.stem != "__init__":
                importlib.import_module(f"{__name__}.{path.stem}")
    finally:
        config.CACHE_DIR = before


_load()
