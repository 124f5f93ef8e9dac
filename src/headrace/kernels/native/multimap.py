"""Records by key, any number of a key: what a temporal join looks matches up in.

A table numbers its records as they come, and has a slot for each key: the number of its last
record, and in the bits that leaves some of the key's hash, so that a key that is not there costs
one cache line. Each record has the number of the one before it of the same key. Keys and times are
not copied: a *run* tells where those of the rows of one bundle are.

There is a table for each side, slice of time and part of the keys. A part has a lock, under which
a bundle's rows look for those of the other side and stay for those to come, so that every pair is
found once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from headrace.kernels.native.locks import (
    give_way,
    pointer,
    try_lock,
    unlock,
    wait_a_little,
)
from headrace.kernels.native.memory import U64, mix, prefetch, trailing_zeros

SLOTS, WIDTH, CHAINS, ROOM, SIZE, LEAST, MOST, RUNS, RUN_ROOM, RUN_COUNT = range(10)
"""A table in a directory: where its slots are and how many, where the numbers before each are, for
how many records there is room and how many there are, their first and last time, and where its
runs are, for how many there is room and how many there are."""
ENTRY = 16
FIRST, KEYS, TIMES, RECORD, RUN = 0, 1, 2, 3, 4
"""A run: the number of its first record, where that one's key and time are, and which record of
all it is."""
GROUP = 8
"""Slots that are looked at together; they are in one cache line."""
LINE = 16
"""Words for each lock: two never share a cache line."""
TURN = 1 << 13
"""After so many rows others get the core, where there are more threads than cores."""
FOUND, WANTED = 0, 1
"""How many pairs are written, and for how many there must be room."""
FOREVER = 2**63 - 1
_AHEAD = 32


@njit(nogil=True, cache=True)
def split_rows(
    hashes: Any, shards: int, panes: Any, low: int, spans: int, starts: Any, rows: Any, of: Any
) -> None:
    """The rows by shard and then by pane, in order within each, and where each bucket begins.

    ``panes`` is empty where all rows are of one pane, ``hashes`` where there is one shard; ``of``
    is room for a number for each row.
    """
    n = rows.size
    starts[:] = 0
    mask = U64(shards - 1)
    by_mask = (shards & (shards - 1)) == 0  # a division takes longer than all the rest
    for row in range(n):
        bucket = 0
        if shards > 1:
            h = hashes[row]
            bucket = np.int64(h & mask if by_mask else h % U64(shards)) * spans
        if spans > 1:
            bucket += panes[row] - low
        of[row] = bucket
        starts[bucket + 1] += 1
    for i in range(1, starts.size):
        starts[i] += starts[i - 1]
    for row in range(n):
        bucket = of[row]
        rows[starts[bucket]] = row
        starts[bucket] += 1
    for i in range(starts.size - 1, 0, -1):
        starts[i] = starts[i - 1]
    starts[0] = 0


@intrinsic
def _compare(typingctx: Any, slots: Any, at: Any, tag: Any, number: Any) -> Any:
    """Of the eight slots from ``at``, a bit for each that has the tag; eight bits higher, for each
    that is empty. All at once, so that there is nothing for the machine to guess wrong."""
    signature = types.uint64(slots, types.int64, types.uint32, types.uint32)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lane, word = ir.IntType(32), ir.IntType(64)
        group = ir.VectorType(lane, GROUP)
        nothing = ir.Constant(group, ir.Undefined)
        everywhere = ir.Constant(group, [0] * GROUP)
        array = context.make_array(sig.args[0])(context, builder, args[0])
        pointer = builder.bitcast(builder.gep(array.data, [args[1]]), ir.PointerType(group))
        found = builder.load(pointer, align=4)

        def spread(value: Any) -> Any:
            one = builder.insert_element(nothing, value, lane(0))
            return builder.shuffle_vector(one, nothing, everywhere)

        def bits(mask: Any) -> Any:
            return builder.zext(builder.bitcast(mask, ir.IntType(GROUP)), word)

        tags = builder.and_(found, spread(builder.not_(args[3])))
        same = bits(builder.icmp_unsigned("==", tags, spread(args[2])))
        empty = bits(builder.icmp_unsigned("==", found, everywhere))
        return builder.or_(same, builder.shl(empty, word(GROUP)))

    return signature, codegen


@njit(nogil=True, cache=True, inline="always")
def _start(slots: Any, h: Any) -> Any:
    """Where the group of slots begins that a key of this hash is in, unless it is full."""
    return np.int64(h & U64(slots.size - 1) & ~U64(GROUP - 1))


@njit(nogil=True, cache=True, inline="always")
def _tag(slots: Any, h: Any) -> Any:
    return np.uint32(np.int64(h >> U64(32)) & ~(slots.size - 1))


@njit(nogil=True, cache=True, inline="always")
def _words(address: int) -> Any:
    return carray(pointer(address), 1 << 32, np.int64)


@njit(nogil=True, cache=True)
def _run_of(runs: Any, count: int, number: int) -> int:
    """Where the run of a record begins."""
    low = 0
    high = count - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if runs[middle * RUN] <= number:
            low = middle
        else:
            high = middle - 1
    return low * RUN


@njit(nogil=True, cache=True)
def _find(slots: Any, runs: Any, count: int, key: int, h: Any) -> Any:
    """The slot of a key, empty if the key is not there. Some slots always are."""
    number = np.uint32(slots.size - 1)  # a record's number is at most half the slots
    tag = _tag(slots, h)
    at = _start(slots, h)
    while True:
        bits = _compare(slots, at, tag, number)
        empty = bits >> U64(GROUP)
        same = bits & ~empty & U64((1 << GROUP) - 1)
        while same != U64(0):
            slot = at + np.int64(trailing_zeros(same))
            known = np.int64(slots[slot] & number) - 1
            run = _run_of(runs, count, known)
            if _words(runs[run + KEYS])[known - runs[run]] == key:
                return slot
            same &= same - U64(1)
        if empty != U64(0):
            return at + np.int64(trailing_zeros(empty))
        at = (at + GROUP) & (slots.size - 1)


@njit(nogil=True, cache=True)
def link_runs(slots: Any, chains: Any, runs: Any, count: int, size: int) -> None:
    """Put the records of all runs into empty slots."""
    for r in range(count):
        first = runs[r * RUN]
        end = runs[(r + 1) * RUN] if r + 1 < count else size
        keys = _words(runs[r * RUN + KEYS])
        for known in range(first, end):
            if known + _AHEAD < end:
                later = mix(U64(keys[known - first + _AHEAD]), U64(0))
                prefetch(slots, _start(slots, later))
            key = keys[known - first]
            h = mix(U64(key), U64(0))
            at = _find(slots, runs, count, key, h)
            chains[known] = slots[at] & np.uint32(slots.size - 1)
            slots[at] = _tag(slots, h) | np.uint32(known + 1)


@njit(cache=True)  # so short that to give up the interpreter lock would take longer
def has_room(directory: Any, starts: Any, span: int, spans: int) -> bool:
    """Whether a slice's tables have room for all that a bundle has for it."""
    for part in range(directory.shape[0]):
        bucket = part * spans + span
        more = starts[bucket + 1] - starts[bucket]
        entry = directory[part]
        if more and (entry[SIZE] + more > entry[ROOM] or entry[RUN_COUNT] >= entry[RUN_ROOM]):
            return False
    return True


@njit(nogil=True, cache=True)
def rehouse(
    directory: Any, locks: int, parts: Any, rooms: Any, slots_at: Any, chains_at: Any,
    run_rooms: Any, runs_at: Any, crowded: bool,
) -> None:  # fmt: skip
    """Move the tables of some parts to larger memory, unless others just have.

    A room of 0 is for a table that has room, of records or of runs. Slots must be empty.
    """
    for i in range(parts.size):
        lock = locks + parts[i] * (LINE * 8)
        naps = 0
        while not try_lock(lock):
            wait_a_little(naps, crowded)
            naps += 1
        entry = directory[parts[i]]
        count = entry[RUN_COUNT]
        if run_rooms[i] > entry[RUN_ROOM]:
            new, old = _words(runs_at[i]), _words(entry[RUNS])
            for word in range(count * RUN):
                new[word] = old[word]
            entry[RUNS] = runs_at[i]
            entry[RUN_ROOM] = run_rooms[i]
        if rooms[i] > entry[ROOM]:
            slots = carray(pointer(slots_at[i]), 2 * rooms[i], np.uint32)
            chains = carray(pointer(chains_at[i]), rooms[i], np.uint32)
            link_runs(slots, chains, _words(entry[RUNS]), count, entry[SIZE])
            entry[SLOTS] = slots_at[i]
            entry[WIDTH] = 2 * rooms[i]
            entry[CHAINS] = chains_at[i]
            entry[ROOM] = rooms[i]
        unlock(lock)


@njit(nogil=True, cache=True)
def _probe(
    table: int, keys: Any, times: Any, hashes: Any, first: int, end: int, low: int, high: int,
    found: int, rows: Any, records: Any,
) -> int:  # fmt: skip
    """Add the matches of some rows in a table; how many there are then, written or not."""
    entry = carray(pointer(table), ENTRY, np.int64)
    if entry[SIZE] == 0:
        return found
    slots = carray(pointer(entry[SLOTS]), entry[WIDTH], np.uint32)
    chains = carray(pointer(entry[CHAINS]), entry[ROOM], np.uint32)
    runs = carray(pointer(entry[RUNS]), entry[RUN_ROOM] * RUN, np.int64)
    count = entry[RUN_COUNT]
    least = entry[LEAST] - high
    most = entry[MOST] + low
    near = 0
    for row in range(first, end):
        near += (times[row] >= least) & (times[row] <= most)
    if near == 0:
        return found
    number = np.uint32(slots.size - 1)
    heads = np.empty(_AHEAD, np.int64)
    run_of = np.empty(_AHEAD, np.int64)
    for row in range(first, min(first + _AHEAD, end)):
        prefetch(slots, _start(slots, hashes[row]))
    for block in range(first, end, _AHEAD):
        stop = min(block + _AHEAD, end)
        for row in range(stop, min(stop + _AHEAD, end)):
            prefetch(slots, _start(slots, hashes[row]))
        for row in range(block, stop):
            h = hashes[row]
            at = _start(slots, h)
            bits = _compare(slots, at, _tag(slots, h), number)
            empty = bits >> U64(GROUP)
            same = bits & ~empty & U64((1 << GROUP) - 1)
            head = 0
            if same != U64(0):
                head = np.int64(slots[at + np.int64(trailing_zeros(same))] & number)
                run = _run_of(runs, count, head - 1)
                prefetch(_words(runs[run + KEYS]), head - 1 - runs[run])
                prefetch(_words(runs[run + TIMES]), head - 1 - runs[run])
                prefetch(chains, head - 1)
                run_of[row - block] = run
            elif empty == U64(0):
                head = -1
            heads[row - block] = head
        for row in range(block, stop):
            head = heads[row - block]
            if head == 0 or times[row] < least or times[row] > most:
                continue
            run = run_of[row - block]
            if head < 0 or _words(runs[run + KEYS])[head - 1 - runs[run]] != keys[row]:
                slot = _find(slots, runs, count, keys[row], hashes[row])
                head = np.int64(slots[slot] & number)
                run = _run_of(runs, count, head - 1)
            while head > 0:
                place = head - 1 - runs[run]
                time = _words(runs[run + TIMES])[place]
                if time >= times[row] - low and time <= times[row] + high:
                    if found < rows.size:
                        rows[found] = row
                        records[found] = runs[run + RECORD] + place
                    found += 1
                head = np.int64(chains[head - 1])
                if head > 0 and head - 1 < runs[run]:
                    run = _run_of(runs, count, head - 1)
    return found


@njit(nogil=True, cache=True)
def _insert(
    table: int, keys: Any, times: Any, hashes: Any, first: int, end: int, record: int
) -> None:
    """Remember some rows; there must be room."""
    entry = carray(pointer(table), ENTRY, np.int64)
    slots = carray(pointer(entry[SLOTS]), entry[WIDTH], np.uint32)
    chains = carray(pointer(entry[CHAINS]), entry[ROOM], np.uint32)
    runs = carray(pointer(entry[RUNS]), entry[RUN_ROOM] * RUN, np.int64)
    known = entry[SIZE]
    run = entry[RUN_COUNT] * RUN
    runs[run] = known
    runs[run + KEYS] = keys.ctypes.data + first * 8
    runs[run + TIMES] = times.ctypes.data + first * 8
    runs[run + RECORD] = record + first
    entry[RUN_COUNT] += 1
    count = entry[RUN_COUNT]
    number = np.uint32(slots.size - 1)
    least = entry[LEAST] if known else FOREVER
    most = entry[MOST] if known else -FOREVER
    for row in range(first, end):
        if row + _AHEAD < end:
            prefetch(slots, _start(slots, hashes[row + _AHEAD]))
        h = hashes[row]
        at = _start(slots, h)
        tag = _tag(slots, h)
        bits = _compare(slots, at, tag, number)
        empty = bits >> U64(GROUP)
        before = np.uint32(0)
        if empty == U64(0) or (bits & ~empty & U64((1 << GROUP) - 1)) != U64(0):
            at = _find(slots, runs, count, keys[row], h)
            before = slots[at] & number
        else:
            at += np.int64(trailing_zeros(empty))
        chains[known] = before
        slots[at] = tag | np.uint32(known + 1)
        least = min(least, times[row])
        most = max(most, times[row])
        known += 1
    entry[LEAST] = least
    entry[MOST] = most
    entry[SIZE] = known


@njit(nogil=True, cache=True)
def join_bundle(
    keys: Any, times: Any, hashes: Any, number: int, starts: Any, spans: int, mine: Any,
    theirs: Any, low: int, high: int, locks: int, first: int, crowded: bool, left: Any, meta: Any,
    rows: Any, records: Any,
) -> int:  # fmt: skip
    """Find the matches of a bundle's rows, which are in order of part and slice, and keep the rows.

    ``mine`` has the addresses of the directories of the bundle's slices, ``theirs`` those of the
    other side from the slice before to the slice after; 0 where there is none. ``hashes`` is room
    for those of the keys, ``left`` tells the parts still to do. Where threads are ``crowded``,
    others get the core now and then, while no part is held. Gives -1 when done, or a part for whose
    rows or pairs there is no room.
    """
    for row in range(keys.size):
        hashes[row] = mix(U64(keys[row]), U64(0))
    parts = left.size
    todo = 0
    for part in range(parts):
        if starts[part * spans] == starts[(part + 1) * spans]:
            left[part] = False
        todo += left[part]
    missed = naps = done = 0
    part = first % parts
    while todo:
        if left[part]:
            lock = locks + part * (LINE * 8)
            if try_lock(lock):
                place = part * (ENTRY * 8)
                begin = part * spans
                room = True
                for i in range(spans):
                    if starts[begin + i + 1] > starts[begin + i] and mine[i] != 0:
                        entry = carray(pointer(mine[i] + place), ENTRY, np.int64)
                        more = starts[begin + i + 1] - starts[begin + i]
                        room = room and entry[SIZE] + more <= entry[ROOM]
                        room = room and entry[RUN_COUNT] < entry[RUN_ROOM]
                if not room:
                    unlock(lock)
                    return part
                found = meta[FOUND]
                for i in range(spans):
                    if starts[begin + i + 1] > starts[begin + i]:
                        for j in range(i, i + 3):
                            if theirs[j] != 0:
                                found = _probe(
                                    theirs[j] + place, keys, times, hashes, starts[begin + i],
                                    starts[begin + i + 1], low, high, found, rows, records,
                                )  # fmt: skip
                if found > rows.size:
                    unlock(lock)
                    meta[WANTED] = found
                    return part
                meta[FOUND] = found
                for i in range(spans):
                    if starts[begin + i + 1] > starts[begin + i] and mine[i] != 0:
                        _insert(
                            mine[i] + place, keys, times, hashes, starts[begin + i],
                            starts[begin + i + 1], number,
                        )  # fmt: skip
                unlock(lock)
                left[part] = False
                todo -= 1
                missed = naps = 0
                done += starts[begin + spans] - starts[begin]
                if crowded and done >= TURN:
                    give_way()
                    done = 0
            else:
                missed += 1
                if missed >= todo:  # all that is left is taken
                    wait_a_little(naps, crowded)
                    naps += 1
                    missed = 0
        part += 1
        if part == parts:
            part = 0
    return -1


@njit(nogil=True, cache=True)
def gather(places: Any, base: int, columns: Any, records: Any, out: Any) -> bool:
    """The values of some records in some columns, all of the width of ``out``'s numbers.

    ``places`` has where each bundle's columns begin; a record is the number of its bundle, from
    ``base``, and in the lower half its row. False if some column of a bundle has no place.
    """
    for c in range(columns.size):
        for i in range(records.size):
            if i + _AHEAD < records.size:
                later = records[i + _AHEAD]
                start = places[(later >> 32) - base, columns[c]]
                if start != 0:
                    values = carray(pointer(start), 1 << 32, out.dtype)
                    prefetch(values, later & 0xFFFFFFFF)
            start = places[(records[i] >> 32) - base, columns[c]]
            if start == 0:
                return False
            values = carray(pointer(start), 1 << 32, out.dtype)
            out[c, i] = values[records[i] & 0xFFFFFFFF]
    return True
