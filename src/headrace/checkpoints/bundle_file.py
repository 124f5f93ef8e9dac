"""The state of one shard as a file: a line of JSON, then the bytes of its bundles.

The line says what the shard notes and, for each bundle in the order of the file, its operator,
kind, slice, number and length. It is padded with blanks, so that bundles are aligned as Arrow wants
them, in a memory map too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from headrace.checkpoints.checked import FileSum, write_checked
from headrace.errors import EngineError
from headrace.io.files import LOCAL

Key = tuple[int, int, int, int]
"""Operator, kind, slice and number of a bundle."""
_ALIGNED = 64
_BLOCK = 64 << 10


def write_bundles(
    system: Any, path: str, header: Mapping[str, Any], bundles: Iterable[tuple[Key, Any]]
) -> FileSum:
    """Write a file; its size and checksum."""
    found = [(key, pa.py_buffer(data)) for key, data in bundles]
    index = [[*key, data.size] for key, data in found]
    line = json.dumps({**header, "bundles": index}).encode()
    line += b" " * (-(len(line) + 1) % _ALIGNED) + b"\n"
    return write_checked(system, path, [line, *(data for _, data in found)])


def read_header(system: Any, path: str) -> dict[str, Any]:
    """What the first line says: ``note``, ``bundles``, and whatever else was given."""
    with _open(system, path) as file:
        return _header(file, path)[0]


def read_bundles(
    system: Any, path: str, wanted: Callable[[Key], bool] | None = None
) -> Iterator[tuple[Key, pa.Buffer]]:
    """The bundles, or those that are wanted, in the order of the file; only these are read."""
    with _open(system, path) as file:
        header, at = _header(file, path)
        for operator, kind, slice, number, length in header["bundles"]:
            key = (operator, kind, slice, number)
            if wanted is None or wanted(key):
                file.seek(at)
                data = file.read_buffer(length)
                if data.size != length:
                    raise _damaged(path)
                yield key, data
            at += length


def _open(system: Any, path: str) -> Any:
    try:
        return pa.memory_map(path) if system is LOCAL else system.open_input_file(path)
    except OSError as error:
        raise EngineError(
            f"{path} cannot be read ({error}), and it holds state; put it back from a copy, or "
            "move the state again"
        ) from None


def _header(file: Any, path: str) -> tuple[dict[str, Any], int]:
    """The first line, and where the bytes after it begin."""
    line = b""
    while not line.endswith(b"\n"):
        block = file.read(_BLOCK)
        if not block:
            raise _damaged(path)
        head, end, _ = block.partition(b"\n")
        line += head + end
    try:
        return json.loads(line), len(line)
    except ValueError:
        raise _damaged(path) from None


def _damaged(path: str) -> EngineError:
    return EngineError(
        f"{path} is cut short or damaged, and it holds state; put it back from a copy, or move "
        "the state again"
    )
