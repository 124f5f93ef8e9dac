"""What we keep of a job beside its state: its plan, its watermarks, a word to stop.

The folder is ``headrace`` in the checkpoint, so it lives and dies with it. ``control.json`` is
replaced after every batch, before Spark commits it: what it says is never older than the last batch
that counts.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from headrace.errors import EngineError, PlanError
from headrace.io.files import filesystem, load_json, replace_file


def checkpoint_folder(checkpoint: Any) -> str:
    """The folder that ``checkpoint=`` names, whatever folder a process is in."""
    if not isinstance(checkpoint, (str, Path)) or not str(checkpoint):
        raise PlanError(f"checkpoint={checkpoint!r} is not a path")
    text = str(checkpoint)
    return text if "://" in text else str(Path(text).absolute())


class Control:
    """The files of a job's own."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.system, self.root = filesystem(folder)

    def make(self) -> None:
        """Make the folder."""
        try:
            self.system.create_dir(self.root, recursive=True)
        except OSError as error:
            raise EngineError(
                f"the checkpoint {self.folder!r} cannot be made: {error}; give another folder"
            ) from error

    def load(self, name: str) -> dict[str, Any] | None:
        """A file, or None if there is none."""
        found = load_json(self.system, f"{self.root}/{name}", "the job cannot go on without it")
        if found is not None and not isinstance(found, dict):
            raise EngineError(
                f"{self.root}/{name} does not say what it should; put it back from a copy, or "
                "begin anew with another checkpoint"
            )
        return found

    def save(self, name: str, what: dict[str, Any]) -> None:
        """Replace a file at once, so that no one sees half of it."""
        try:
            replace_file(self.system, f"{self.root}/{name}", json.dumps(what).encode())
        except OSError as error:
            raise EngineError(
                f"the checkpoint {self.folder!r} cannot be written: {error}; when it can, start "
                "the job again, and it goes on"
            ) from error

    def read(self) -> dict[str, Any]:
        """The watermarks after the last batch, and whether to stop."""
        return self.load("control.json") or {}

    def frontiers_before(self, batch: int) -> dict[str, Any]:
        """The watermarks after the batch before this one."""
        found = self.load(f"watermarks-{batch - 1}.json")
        frontiers: dict[str, Any] = (found or {}).get("sources", {})
        return frontiers

    def forget_frontiers(self, upto: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_file(f"{self.root}/watermarks-{upto}.json")
