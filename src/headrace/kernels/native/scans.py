"""Scans of numbers: states by slot, taken through records in their order."""

from __future__ import annotations

from typing import Any

from numba import njit

from headrace.windows import BEGINNING

SUM, MIN, MAX = range(3)
_NEVER = BEGINNING


@njit(nogil=True, cache=True)
def once(slots: Any, times: Any, known: Any, within: int, passed: Any) -> int:
    """The rows whose key has not passed within some time of theirs; how many there are.

    ``known`` has the last few times at which each key passed, for records come out of order.
    """
    count = 0
    for i in range(slots.size):
        time, last = times[i], known[slots[i]]
        near, oldest = False, 0
        for j in range(last.size):
            if last[j] < last[oldest]:
                oldest = j
            if last[j] != _NEVER and time - last[j] < within and last[j] - time < within:
                near = True
        if not near:
            last[oldest] = time
            passed[count] = i
            count += 1
    return count


@njit(nogil=True, cache=True)
def long_ago(slots: Any, times: Any, last: Any, ttl: int, late: Any, ends: Any) -> bool:
    """Which rows come after so much time without one of their key; whether there are any.

    ``last`` has the newest time of each key, and then that of these rows as well. ``ends`` is when
    the key was to be forgotten.
    """
    found = False
    for i in range(slots.size):
        before = last[slots[i]]
        late[i] = before != _NEVER and times[i] - ttl >= before
        if late[i]:
            found = True
            ends[i] = before + ttl
        last[slots[i]] = max(before, times[i])
    return found


@njit(nogil=True, cache=True)
def rank(slots: Any, times: Any, resets: Any, known: Any, ranks: Any) -> None:
    """The rank of each row among those of its key; ``known`` has count, last time and rank."""
    for i in range(slots.size):
        state = known[slots[i]]
        if resets.size > 0 and resets[i]:
            state[0], state[1], state[2] = 0, _NEVER, 0
        state[0] += 1
        if state[1] != times[i]:
            state[1], state[2] = times[i], state[0]
        ranks[i] = state[2]


@njit(nogil=True, cache=True)
def running_count(slots: Any, valid: Any, resets: Any, counts: Any, out: Any) -> None:
    """How many rows of each key were there, with each row."""
    for i in range(slots.size):
        slot = slots[i]
        if resets.size > 0 and resets[i]:
            counts[slot] = 0
        if valid.size == 0 or valid[i]:
            counts[slot] += 1
        out[i] = counts[slot]


@njit(nogil=True, cache=True)
def running(
    op: int, exact: bool, slots: Any, values: Any, valid: Any, resets: Any, counts: Any,
    states: Any, out: Any, there: Any,
) -> bool:  # fmt: skip
    """An aggregate of each key so far, with each row; false if a sum of integers is too large.

    ``exact`` for integers; ``counts`` are the values seen, ``states`` what is known of them,
    ``there`` whether there is a result.
    """
    for i in range(slots.size):
        slot = slots[i]
        if resets.size > 0 and resets[i]:
            counts[slot] = 0
            states[slot] = 0
        if valid.size == 0 or valid[i]:
            value = values[i]
            fresh = counts[slot] == 0
            counts[slot] += 1
            if op == SUM:
                before = states[slot]
                after = before + value
                if exact and (before >= 0) == (value >= 0) and (after >= 0) != (before >= 0):
                    return False
                states[slot] = value if fresh else after
            elif op == MIN:
                if fresh or _less(value, states[slot]):
                    states[slot] = value
            elif fresh or _less(states[slot], value):
                states[slot] = value
        out[i] = states[slot]
        there[i] = counts[slot] > 0
    return True


@njit(nogil=True, cache=True)
def _less(a: Any, b: Any) -> bool:
    """Whether one number is less than another; NaN is larger than all, as in a sort."""
    return a < b or (a == a and b != b)


@njit(nogil=True, cache=True)
def running_mean(
    slots: Any, values: Any, valid: Any, resets: Any, counts: Any, sums: Any, out: Any, there: Any
) -> None:
    """The mean of each key so far, with each row."""
    for i in range(slots.size):
        slot = slots[i]
        if resets.size > 0 and resets[i]:
            counts[slot] = 0
            sums[slot] = 0.0
        if valid.size == 0 or valid[i]:
            counts[slot] += 1
            sums[slot] += values[i]
        there[i] = counts[slot] > 0
        out[i] = sums[slot] / counts[slot] if counts[slot] > 0 else 0.0
