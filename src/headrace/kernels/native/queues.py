"""Records of each key in queues, from which windows of so many records are taken.

A queue is a chain through rows that are kept together: ``following[row]`` is the row after it. A
key's state is how many records its next full window still needs, how many windows it has given,
and the first and the last row of its queue, or -1 where that is empty.
"""

from __future__ import annotations

from typing import Any

from numba import njit

NEEDS, GIVEN, FIRST, LAST = range(4)


@njit(nogil=True, cache=True)
def _append(state: Any, row: int, following: Any) -> None:
    if state[LAST] >= 0:
        following[state[LAST]] = row
    else:
        state[FIRST] = row
    state[LAST] = row


@njit(nogil=True, cache=True)
def arrive(
    slots: Any, base: int, every: int, states: Any, following: Any, full: Any, numbers: Any
) -> int:
    """Put rows from ``base`` on into their queues; how many windows they fill.

    ``full`` gets the row that fills each, from nought, and ``numbers`` which window it is. With an
    empty ``following`` records are only counted.
    """
    count = 0
    for i in range(slots.size):
        state = states[slots[i]]
        if following.size > 0:
            _append(state, base + i, following)
        state[NEEDS] -= 1
        if state[NEEDS] == 0:
            full[count], numbers[count] = i, state[GIVEN]
            count += 1
            state[NEEDS] = every
            state[GIVEN] += 1
    return count


@njit(nogil=True, cache=True)
def append(slots: Any, base: int, states: Any, following: Any) -> None:
    """Put rows from ``base`` on into their queues, and no more."""
    for i in range(slots.size):
        _append(states[slots[i]], base + i, following)


@njit(nogil=True, cache=True)
def take_full(
    slots: Any, begin: int, size: int, every: int, states: Any, following: Any, shares: Any,
    rows: Any, starts: Any,
) -> tuple[int, int]:  # fmt: skip
    """Take full windows from ``begin`` on out of their queues, as many as there is room for.

    Windows of one key overlap in ``rows``; ``starts`` is where each begins. ``shares`` is nought
    for every key before and after. Returns the first window that is left, and the rows used.
    """
    end, room = begin, rows.size
    while end < slots.size:
        room -= size if shares[slots[end], 0] == 0 else every
        if room < 0 and end > begin:
            break
        shares[slots[end], 0] += 1
        end += 1
    used = 0
    for i in range(begin, end):
        state, share = states[slots[i]], shares[slots[i]]
        if share[0] > 0:  # the first of this key
            count = size + (share[0] - 1) * every
            row = state[FIRST]
            for j in range(used, used + count):
                rows[j] = row
                row = following[row]
            past = share[0] * every
            if past < count:
                state[FIRST] = rows[used + past]
            elif rows[used + count - 1] == state[LAST]:
                state[FIRST] = state[LAST] = -1
            else:
                state[FIRST] = row
            share[0], share[1] = -1, used
            used += count
        starts[i - begin] = share[1]
        share[1] += every
    for i in range(begin, end):
        shares[slots[i], 0] = 0
    return end, used


@njit(nogil=True, cache=True)
def walk(slots: Any, states: Any, following: Any, rows: Any) -> int:
    """The rows in the queues of some keys, one queue after the other; how many there are."""
    count = 0
    for slot in slots:
        row = states[slot, FIRST]
        while row >= 0:
            rows[count] = row
            count += 1
            row = following[row] if row != states[slot, LAST] else -1
    return count


@njit(nogil=True, cache=True)
def renumber(slots: Any, states: Any, before: Any, following: Any) -> None:
    """The queues of some keys once their rows stand one after the other, as ``walk`` gave them."""
    count = 0
    for slot in slots:
        row, last = states[slot, FIRST], states[slot, LAST]
        if row < 0:
            continue
        states[slot, FIRST] = count
        while row != last:
            following[count] = count + 1
            count += 1
            row = before[row]
        states[slot, LAST] = count
        count += 1
