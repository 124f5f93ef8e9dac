"""Scans of numbers: states by slot, taken through records in their order."""

from __future__ import annotations

from typing import Any

from numba import njit

from headrace.windows import BEGINNING, FOREVER

SUM, MIN, MAX = range(3)
_NEVER = BEGINNING


SLOT, BUCKET, TIME, NEXT = range(4)
"""The columns of a passed record: its key, the bucket of its time, its time, and the row of another
one of the same key or -1."""
_FEW = 4


@njit(nogil=True, cache=True)
def once(
    slots: Any, times: Any, within: int, after: int, heads: Any, rows: Any, table: Any, sizes: Any,
    start: int, passed: Any,
) -> int:  # fmt: skip
    """Find the records from ``start`` on whose key has not passed within some time of theirs.

    Records that passed are in ``rows``; ``heads`` has the last one of each key, ``table`` is a hash
    table of them by key and bucket. A bucket is a span of ``within``, so it holds at most one of a
    key. Those up to the time ``after`` match no record. ``sizes`` counts ``rows`` and ``passed``.
    Returns how far it came: less than the number of records if ``rows`` is full, or if ``table`` is
    empty and needed.
    """
    for i in range(start, slots.size):
        if sizes[0] == rows.shape[0]:
            return i
        slot, time = slots[i], times[i]
        near = False
        # Most keys have few: the hash table is for the others.
        at, before, few = heads[slot], -1, 0
        while at >= 0 and not near and few < _FEW:
            apart, following = time - rows[at, TIME], rows[at, NEXT]
            near = within == FOREVER or (apart < within and -apart < within)
            if rows[at, TIME] > after:
                before, few = at, few + 1
            elif before < 0:
                heads[slot] = following
            else:
                rows[before, NEXT] = following
            at = following
        if at >= 0 and not near:
            if table.size == 0:
                return i
            bucket = _bucket(time, within)
            for other in range(bucket - 1, bucket + 2):
                at = table[_place(rows, table, slot, other)]
                if at >= 0:
                    apart = time - rows[at, TIME]
                    near = near or (apart < within and -apart < within)
        if not near:
            passed[sizes[1]] = i
            sizes[1] += 1
            _remember(slot, time, within, heads, rows, table, sizes)
    return int(slots.size)


@njit(nogil=True, cache=True)
def remember(
    slots: Any, times: Any, within: int, heads: Any, rows: Any, table: Any, sizes: Any
) -> None:
    """Add records that passed, for which there is room."""
    for i in range(slots.size):
        _remember(slots[i], times[i], within, heads, rows, table, sizes)


@njit(nogil=True, cache=True)
def passed_of(
    slots: Any, after: int, heads: Any, rows: Any, starts: Any, times: Any, fill: bool
) -> None:
    """Where the times of each key begin, and the times; those up to ``after`` are left out."""
    count = 0
    for i in range(slots.size):
        starts[i] = count
        at = heads[slots[i]]
        while at >= 0:
            if rows[at, TIME] > after:
                if fill:
                    times[count] = rows[at, TIME]
                count += 1
            at = rows[at, NEXT]
    starts[slots.size] = count


@njit(nogil=True, cache=True)
def _remember(
    slot: int, time: int, within: int, heads: Any, rows: Any, table: Any, sizes: Any
) -> None:
    row = sizes[0]
    bucket = _bucket(time, within)
    if table.size > 0:
        table[_place(rows, table, slot, bucket)] = row
    rows[row, SLOT], rows[row, BUCKET], rows[row, TIME] = slot, bucket, time
    rows[row, NEXT] = heads[slot]
    heads[slot] = row
    sizes[0] += 1


@njit(nogil=True, cache=True)
def _bucket(time: int, within: int) -> int:
    return time // within if within < FOREVER else 0


@njit(nogil=True, cache=True)
def _place(rows: Any, table: Any, slot: int, bucket: int) -> int:
    """Where a key and a bucket are in the hash table, or would be."""
    mask = table.size - 1
    mixed = (slot * 0x9E3779B97F4A7C1 + bucket) * 0x2545F4914F6CDD1D
    place = (mixed ^ (mixed >> 29)) & mask
    while table[place] >= 0:
        row = table[place]
        if rows[row, SLOT] == slot and rows[row, BUCKET] == bucket:
            break
        place = (place + 1) & mask
    return int(place)


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
