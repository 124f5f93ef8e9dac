"""The state that a job on Spark begins with, where it was moved there from elsewhere.

It is in ``headrace/initial`` of the checkpoint: ``initial.json`` with the positions of the sources,
and a file for each shard of each level. The first batch takes it into Spark's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headrace.checkpoints.bundle_file import Key, read_bundles, read_header
from headrace.io.files import filesystem
from headrace.spark.control import Control

FOLDER = "initial"
_FILE = f"{FOLDER}/initial.json"


def initial_of(own: Control) -> dict[str, Any] | None:
    """What ``initial.json`` says; None where a job begins with nothing, or has gone on since."""
    return own.load(_FILE)


def save_initial(own: Control, what: dict[str, Any]) -> None:
    """Write ``initial.json``."""
    own.save(_FILE, what)


def shard_file(folder: str, level: int, shard: int) -> tuple[Any, str]:
    """Where the state of a shard of a level is; ``folder`` is that of our own files."""
    system, root = filesystem(folder)
    return system, f"{root}/{FOLDER}/level-{level}-shard-{shard}.bundles"


def shard_state(
    folder: str, level: int, shard: int
) -> tuple[dict[str, Any], Iterator[tuple[Key, pa.Buffer]]]:
    """What a shard of a level begins with: its note and its bundles."""
    system, path = shard_file(folder, level, shard)
    note: dict[str, Any] = read_header(system, path)["note"]
    return note, read_bundles(system, path)


def forget_initial(own: Control) -> None:
    """Spark's own state has all of it."""
    own.system.delete_dir(f"{own.root}/{FOLDER}")
