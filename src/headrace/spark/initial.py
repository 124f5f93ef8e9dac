"""The state that a job on Spark begins with, where it was moved there from elsewhere.

It is in ``headrace/initial`` of the checkpoint: ``initial.json`` with the positions of the sources,
and a file for each shard of each level. The first batch takes it into Spark's state.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.checkpoints.bundle_file import Key, read_bundles, read_header
from headrace.checkpoints.control import Control
from headrace.io.files import filesystem, replace_file

FOLDER = "initial"
_FILE = f"{FOLDER}/initial.json"
_MESSAGES = f"{FOLDER}/messages"


def initial_of(own: Control) -> dict[str, Any] | None:
    """What ``initial.json`` says; None where a job begins with nothing, or has gone on since."""
    return own.load(_FILE)


def save_initial(own: Control, what: dict[str, Any]) -> None:
    """Write ``initial.json``."""
    own.save(_FILE, what)


def save_messages(own: Control, messages: Sequence[Any]) -> None:
    """Write what outputs were given last, for they may not have it."""
    replace_file(own.system, f"{own.root}/{_MESSAGES}", pickle.dumps(list(messages)))


def messages_of(own: Control) -> list[Any]:
    """What outputs were given last before the state was moved; nothing if they have it."""
    try:
        with own.system.open_input_stream(f"{own.root}/{_MESSAGES}") as file:
            found: list[Any] = pickle.loads(file.read())
            return found
    except FileNotFoundError:
        return []


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
