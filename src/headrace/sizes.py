"""Numbers and sizes in bytes, as a person writes them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, TypeGuard

import psutil

from headrace.errors import PlanError

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def is_whole(what: Any, least: int = 1, most: float = math.inf) -> TypeGuard[int]:
    """Whether it is a whole number in a range; True and False are not."""
    return isinstance(what, int) and not isinstance(what, bool) and least <= what <= most


def byte_size(what: Any, name: str) -> int:
    """A number of bytes: ``"512MB"``, ``"64 KiB"``, or a plain number."""
    if is_whole(what):
        return what
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", str(what).lower())
    if match is None or isinstance(what, float) or not float(match.group(1)):
        raise PlanError(f"{name}={what!r} is not a number of bytes; write '512MB'")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def default_memory() -> int:
    """A quarter of the machine's memory, at most 2 GB."""
    return min(2 << 30, usable_memory() // 4)


def show_bytes(count: int) -> str:
    """A number of bytes for people."""
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} bytes"


def usable_memory() -> int:
    """The bytes of memory of this machine, or of the container if that has less."""
    total = int(psutil.virtual_memory().total)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
