"""Event times into panes of time, and into sessions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def _pane_at(time: int, offset: int, every: int, short: int) -> int:
    """The pane of a time: a step, or with ``short`` one of the two that a step has."""
    turn = (time - offset) // every
    if short == 0:
        return turn
    return 2 * turn + (time - offset - turn * every >= short)


@njit(nogil=True, cache=True)
def pane_span(times: Any, offset: int, every: int, short: int, span: Any) -> None:
    """The first and the last pane of some times, into ``span``."""
    least, most = times[0], times[0]
    for i in range(1, times.size):
        least = min(least, times[i])
        most = max(most, times[i])
    span[0] = _pane_at(least, offset, every, short)
    span[1] = _pane_at(most, offset, every, short)


@njit(nogil=True, cache=True)
def pane_of(
    times: Any, offset: int, every: int, short: int, low: int, high: int, panes: Any
) -> None:
    """The pane of each time; when there are few, by comparing, which is cheaper than dividing."""
    if short == 0 and high - low <= 4:
        for i in range(times.size):
            at = low
            edge = (low + 1) * every + offset
            while times[i] >= edge:
                at += 1
                edge += every
            panes[i] = at
        return
    for i in range(times.size):
        panes[i] = _pane_at(times[i], offset, every, short)


@njit(nogil=True, cache=True)
def span(times: Any) -> tuple[int, int]:
    """The least and the largest of some times, of which there is at least one."""
    low = high = times[0]
    for time in times:
        low = min(low, time)
        high = max(high, time)
    return low, high


@njit(nogil=True, cache=True)
def any_late(times: Any, newest: int, delay: int, floor: int) -> tuple[bool, int]:
    """Whether ``late_rows`` may find one, and the latest of the times."""
    low = high = times[0]
    for time in times:
        low = min(low, time)
        high = max(high, time)
    return low < floor or (delay >= 0 and low < max(newest, high) - delay), high


@njit(nogil=True, cache=True)
def late_rows(times: Any, newest: int, delay: int, floor: int, marks: Any) -> int:
    """The watermark that each time fell below, or the time itself where it was not late.

    The watermark is the newest time before the row less ``delay``, and never below ``floor``; with
    a negative delay it is ``floor`` for all. Returns how many rows were late.
    """
    late = 0
    mark = floor
    for i in range(times.size):
        if delay >= 0 and newest - delay > mark and newest >= times[i]:
            mark = newest - delay
        if times[i] < mark:
            marks[i] = mark
            late += 1
        else:
            marks[i] = times[i]
            newest = max(newest, times[i])
    return late


@njit(nogil=True, cache=True)
def split_rows(panes: Any, low: int, starts: Any, rows: Any) -> None:
    """Rows by pane, in order within each; ``starts`` is where each pane's rows begin."""
    for i in range(starts.size):
        starts[i] = 0
    for i in range(panes.size):
        starts[panes[i] - low + 1] += 1
    for i in range(1, starts.size):
        starts[i] += starts[i - 1]
    for i in range(panes.size):
        at = panes[i] - low
        rows[starts[at]] = i
        starts[at] += 1
    for i in range(starts.size - 1, 0, -1):
        starts[i] = starts[i - 1]
    starts[0] = 0


@njit(nogil=True, cache=True)
def cut_sessions(order: Any, groups: Any, starts: Any, lasts: Any, gap: int, sessions: Any) -> int:
    """Number the sessions of spans that ``order`` sorts by group and start; how many there are.

    A span that begins less than ``gap`` after its key's last moment so far is of the same session.
    """
    found = -1
    last = np.int64(0)
    for i in range(order.size):
        row = order[i]
        if i == 0 or groups[row] != groups[order[i - 1]] or starts[row] - last >= gap:
            found += 1
            last = lasts[row]
        else:
            last = max(last, lasts[row])
        sessions[row] = found
    return found + 1


@njit(nogil=True, cache=True)
def session_spans(sessions: Any, starts: Any, lasts: Any, first: Any, last: Any) -> None:
    """The first and the last moment of each session."""
    for i in range(sessions.size):
        s = sessions[i]
        first[s] = min(first[s], starts[i])
        last[s] = max(last[s], lasts[i])
