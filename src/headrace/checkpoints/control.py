"""What we keep of a job beside its state: its plan, its watermarks, a word to stop.

The folder is ``headrace`` in the checkpoint, so it lives and dies with it. ``control.json`` is
replaced after every batch, before Spark commits it: what it says is never older than the last batch
that counts.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from headrace.checkpoints.trust import refuse_foreign
from headrace.errors import EngineError, PlanError
from headrace.io.files import CHECKPOINT_FIX, LOCAL, filesystem, load_json, save_json, writing

SEALED_SINCE = 5
"""The first format of checkpoints whose files have checksums."""


def checkpoint_folder(checkpoint: Any) -> str:
    """The folder that ``checkpoint=`` names, whatever folder a process is in."""
    if not isinstance(checkpoint, (str, Path)) or not str(checkpoint):
        raise PlanError(f"checkpoint={checkpoint!r} is not a path")
    text = str(checkpoint)
    return text if "://" in text else str(Path(text).absolute())


def opened(folder: str) -> Control:
    """The files of a checkpoint, new or not.

    Whoever reads a checkpoint gets them here: one that others may have written is refused before
    any of it is read.
    """
    refuse_foreign(folder)
    return Control(f"{folder}/headrace")


class Control:
    """The files of a job's own."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.system, self.root = filesystem(folder)

    def make(self) -> None:
        """Make the folder, and that of the checkpoint, where there is none: for the user alone."""
        with writing(f"the checkpoint {self.folder!r}", "give a folder that can be written"):
            if self.system is LOCAL:
                checkpoint = os.path.dirname(self.root)
                os.makedirs(os.path.dirname(checkpoint), exist_ok=True)
                for folder in (checkpoint, self.root):
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, 0o700)
            self.system.create_dir(self.root, recursive=True)

    def load(self, name: str) -> dict[str, Any] | None:
        """A file, or None if there is none."""
        why = "the job cannot go on without it"
        found = load_json(self.system, f"{self.root}/{name}", why, _is_older)
        if found is not None and not isinstance(found, dict):
            raise EngineError(
                f"{self.root}/{name} does not say what it should; put it back from a copy, or "
                "begin anew with another checkpoint"
            )
        return found

    def save(self, name: str, what: dict[str, Any]) -> None:
        """Replace a file at once, so that no one sees half of it."""
        with writing(f"the checkpoint {self.folder!r}", CHECKPOINT_FIX):
            save_json(self.system, f"{self.root}/{name}", what)

    def read(self) -> dict[str, Any]:
        """The watermarks after the last batch, and whether to stop."""
        return self.load("control.json") or {}

    def frontiers_before(self, batch: int) -> dict[str, Any]:
        """The watermarks after the batch before this one."""
        return self.frontiers_after(batch - 1) if batch else {}

    def frontiers_after(self, batch: int) -> dict[str, Any]:
        """The watermarks after a batch that is done."""
        found = self.load(f"watermarks-{batch}.json")
        if found is None:
            raise EngineError(
                f"{self.root}/watermarks-{batch}.json is gone, and the job cannot go on without "
                "it; put it back from a copy, or begin anew with another checkpoint"
            )
        frontiers: dict[str, Any] = found["sources"]
        return frontiers

    def forget_frontiers(self, upto: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_file(f"{self.root}/watermarks-{upto}.json")


def _is_older(value: Any) -> bool:
    """Whether a file is the ``job.json`` of a version that wrote no checksums: it is refused with a
    message of its own."""
    return isinstance(value, dict) and "shape" in value and value.get("format", 1) < SEALED_SINCE
