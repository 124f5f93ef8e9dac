"""The state that a job on Spark begins with, where it was moved there from elsewhere.

It is in ``headrace/initial`` of the checkpoint: ``initial.json`` with the positions of the sources,
and a file for each shard of each level. ``initial.json`` names the size and the checksum of each.
The first batch takes it into Spark's state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.checkpoints.bundle_file import Key, read_bundles, read_header
from headrace.checkpoints.checked import FileSum, read_checked, write_checked
from headrace.checkpoints.control import Control
from headrace.checkpoints.messages import Message, as_pieces, from_bytes
from headrace.io.files import filesystem

FOLDER = "initial"
_FILE = f"{FOLDER}/initial.json"
_MESSAGES = "messages"


def initial_of(own: Control) -> dict[str, Any] | None:
    """What ``initial.json`` says; None where a job begins with nothing, or has gone on since."""
    return own.load(_FILE)


def save_initial(
    own: Control,
    what: dict[str, Any],
    messages: Sequence[Message | None],
    files: Mapping[str, FileSum],
) -> None:
    """Write ``initial.json``, and what outputs were given last, for they may not have it.

    Args:
        own: The files of the job.
        what: What ``initial.json`` says beside its files.
        messages: Of the outputs.
        files: Those that were written, by name.
    """
    files = dict(files)
    if any(message is not None for message in messages):
        path = f"{own.root}/{FOLDER}/{_MESSAGES}"
        files[_MESSAGES] = write_checked(own.system, path, as_pieces(messages))
    own.save(_FILE, {**what, "files": files})


def checked_initial(own: Control) -> dict[str, Any] | None:
    """The same as ``initial_of``, after all of the files that it names were checked."""
    given = initial_of(own)
    if given is not None:
        for name, known in given["files"].items():
            read_checked(own.system, f"{own.root}/{FOLDER}/{name}", FileSum(*known))
    return given


def messages_of(own: Control) -> list[Message | None]:
    """What outputs were given last before the state was moved; nothing if they have it."""
    known = ((initial_of(own) or {}).get("files") or {}).get(_MESSAGES)
    if known is None:
        return []
    data = read_checked(own.system, f"{own.root}/{FOLDER}/{_MESSAGES}", FileSum(*known))
    return from_bytes(data.to_pybytes())


def shard_name(level: int, shard: int | str) -> str:
    """The name of the file with the state of a shard of a level."""
    return f"level-{level}-shard-{shard}.bundles"


def shard_file(folder: str, level: int, shard: int) -> tuple[Any, str]:
    """Where the state of a shard of a level is; ``folder`` is that of our own files."""
    system, root = filesystem(folder)
    return system, f"{root}/{FOLDER}/{shard_name(level, shard)}"


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
