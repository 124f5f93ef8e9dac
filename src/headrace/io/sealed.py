"""JSON files that begin with a checksum of themselves, so that damage is noticed.

The checksum is the first field, and covers all bytes after it: ``{"checksum": "0badcafe", …}``.
Any JSON reader can read such a file.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

_BEGINS = b'{"checksum": "'
_LENGTH = len(_BEGINS) + 8


def sealed(fields: Mapping[str, Any]) -> bytes:
    """Return a JSON object with its checksum in front."""
    body = json.dumps(dict(fields)).encode()[1:]
    rest = b'", ' + body if fields else b'"' + body
    return _head(rest) + rest


def unsealed(data: bytes, unsealed_too: Callable[[Any], bool] = lambda value: False) -> Any:
    """Return the object of ``sealed``, without its checksum.

    Args:
        data: The bytes of a file.
        unsealed_too: Is asked about the value of a file without a checksum, which an older version
            wrote; whether to take it.

    Raises:
        ValueError: If the bytes are not those that were written.
    """
    if data[:_LENGTH] == _head(data[_LENGTH:]):
        value = json.loads(data)
        del value["checksum"]
        return value
    if not data.startswith(_BEGINS):
        value = json.loads(data)
        if unsealed_too(value):
            return value
    raise ValueError("its checksum does not match")


def _head(rest: bytes) -> bytes:
    return _BEGINS + b"%08x" % zlib.crc32(rest)
