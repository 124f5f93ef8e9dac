"""A home for Spark from which its Python processes start in a fraction of the time.

Spark has the Python processes it starts import ``pyspark`` from an archive in its home. What is in
an archive is compiled again by every process, which takes half a second; a streaming query waits
for two such processes. Here the place of the archive is taken by a folder with the very package
that this process has imported, compiled long ago.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from headrace.cache import cache_folder
from headrace.errors import EngineError

_ARCHIVES = Path("python") / "lib"


def quick_home() -> Mapping[str, str]:
    """What to set while Spark is launched: nothing if a person named a home or none can be made."""
    home = None if "SPARK_HOME" in os.environ else make_home()
    return {} if home is None else {"SPARK_HOME": str(home)}


def make_home() -> Path | None:
    """Links to the installed Spark, with folders in the place of its archives."""
    package = _package("pyspark")
    if package is None or not (package / "jars").is_dir():
        return None
    links = _links(package)
    if links is None:
        return None
    text = "\n".join(f"{name} {target}" for name, target in links.items())
    try:
        parent = cache_folder("spark")
        home = parent / f"{zlib.crc32(text.encode()):x}"
        if not _is_whole(home, links):
            _make(home, links)
    except (OSError, EngineError):
        return None
    return home if _is_whole(home, links) else None


def _is_whole(home: Path, links: Mapping[str, Path]) -> bool:
    return all((home / name).exists() for name in links)


def _make(home: Path, links: Mapping[str, Path]) -> None:
    """Make it beside, and put it in its place; others may be doing the same."""
    draft = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=home.parent))
    try:
        for name, target in links.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).symlink_to(target)
        try:
            draft.replace(home)
        except OSError:  # there is one: another process's, or one whose links lead nowhere
            if not _is_whole(home, links):
                shutil.rmtree(home)
                draft.replace(home)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _links(package: Path) -> dict[str, Path] | None:
    own = ("python", "__pycache__")
    links = {entry.name: entry for entry in sorted(package.iterdir()) if entry.name not in own}
    for archive in sorted((package / _ARCHIVES).glob("*.zip")):
        name = archive.name.removesuffix(".zip").partition("-")[0]
        found = _package(name)
        if found is None:
            return None
        links[f"{_ARCHIVES / archive.name / name}"] = found
    return links


def _package(name: str) -> Path | None:
    spec = find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None
