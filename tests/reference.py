"""What windows and temporal joins mean, as plainly as can be: one record at a time, no engine."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from headrace.windows import AnyWindow, Session

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)


def moment(micros: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=micros)


def micros(when: datetime.datetime) -> int:
    return (when - EPOCH) // datetime.timedelta(microseconds=1)


def spans(times: Iterable[int], window: AnyWindow) -> Iterable[tuple[int, int]]:
    """The windows of some times of one key, each once."""
    if isinstance(window, Session):
        found: list[list[int]] = []
        for t in sorted(times):
            if found and t - found[-1][1] < window.gap:
                found[-1][1] = t
            else:
                found.append([t, t])
        return [(a, b + window.gap) for a, b in found]
    all_windows = set()
    for t in times:
        start = (t - window.offset) // window.every * window.every + window.offset
        while start > t - window.size:
            all_windows.add((start, start + window.size))
            start -= window.every
    return all_windows


def windowed(
    rows: list[dict[str, Any]],
    window: AnyWindow,
    key: Callable[[dict[str, Any]], tuple[Any, ...]],
    result: Callable[[list[dict[str, Any]]], tuple[Any, ...]],
) -> set[tuple[Any, ...]]:
    """(key…, start, end, result…) for every window; rows are in input order, with ``at``."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    out = set()
    for k, members in groups.items():
        for start, end in spans([micros(r["at"]) for r in members], window):
            inside = [r for r in members if start <= micros(r["at"]) < end]
            out.add((*k, moment(start), moment(end), *result(inside)))
    return out


def pairs_within(
    left: list[dict[str, Any]], right: list[dict[str, Any]], before: int, after: int
) -> list[tuple[Any, ...]]:
    """Pairs with the same ``k`` whose times are near."""
    found = []
    for a in left:
        for b in right:
            apart = micros(b["at"]) - micros(a["at"])
            if a["k"] is not None and a["k"] == b["k"] and -before <= apart <= after:
                found.append((*a.values(), *(v for n, v in b.items() if n != "k")))
    return found
