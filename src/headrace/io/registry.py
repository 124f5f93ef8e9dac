"""Formats found by name, ours and those of packages a person installed."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from headrace.errors import PlanError, nearest


def find(group: str, name: str) -> Any:
    """The class registered under ``name`` in an entry-point group."""
    known = {e.name: e for e in entry_points(group=group)}
    if name not in known:
        kind = group.rsplit(".", 1)[-1].removesuffix("s")
        raise PlanError(f"there is no {kind} '{name}'{nearest(name, known)}")
    return known[name].load()
