"""Large files of a checkpoint, of which a manifest names the size and the checksum."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.errors import EngineError
from headrace.io.files import LOCAL, sync


class FileSum(NamedTuple):
    """What a manifest says of a file."""

    size: int
    checksum: int


def write_checked(system: Any, path: str, pieces: Iterable[Any]) -> FileSum:
    """Write a file, and have it on the disk.

    Args:
        system: The file system.
        path: The path in it.
        pieces: The contents, as bytes or buffers.
    """
    size = checksum = 0
    with system.open_output_stream(path) as out:
        for piece in pieces:
            out.write(piece)
            size += len(piece)
            checksum = zlib.crc32(piece, checksum)
    sync(system, path)
    return FileSum(size, checksum)


def read_checked(system: Any, path: str, known: FileSum) -> pa.Buffer:
    """Return the contents of a file, as a memory map where it is local.

    Raises:
        EngineError: If the file is not as it was written.
    """
    try:
        if system is LOCAL:
            data = pa.memory_map(path).read_buffer()
        else:
            with system.open_input_file(path) as file:
                data = file.read_buffer()
    except OSError as error:
        raise damaged(path, str(error)) from None
    if data.size != known.size:
        raise damaged(path, f"it has {data.size} bytes, not {known.size}")
    if zlib.crc32(data) != known.checksum:
        raise damaged(path, "its bytes are not what was written")
    return data


def damaged(path: str, why: str) -> EngineError:
    """The refusal of a checkpoint with a damaged file."""
    return EngineError(
        f"{path} cannot be read: {why}; put it back from a copy, or begin anew with another "
        "checkpoint"
    )
