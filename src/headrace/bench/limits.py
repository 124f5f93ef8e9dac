"""How fast it could go: hand-tuned loops for one workload each, with no engine around them.

They know what no engine may: that rows are sorted by time, that no word is longer than 16 letters,
how many different ones there are, that machines are numbered below 2**31. They give the same
result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from headrace.box.engine import Box
from headrace.kernels.columns import numbers
from headrace.kernels.native.memory import (
    HIGHS,
    U64,
    bytes_between,
    first_byte,
    mix,
    prefetch,
    word_at,
)


@njit(nogil=True, inline="always")
def _lowered(word: Any) -> Any:
    """Eight bytes with capitals made small."""
    return word | (bytes_between(word, U64(65), U64(90)) >> U64(2))


@njit(nogil=True, inline="always")
def _ends(word: Any) -> Any:
    """High bits of the bytes of a word that are no small letters."""
    return ~bytes_between(word, U64(97), U64(122)) & HIGHS


@njit(nogil=True)
def _count_words(data: Any, offsets: Any, first: int, end: int, slots: Any) -> int:
    """Words of some lines into slots of (16 bytes, length, count)."""
    mask = U64(slots.shape[0] - 1)
    words = 0
    for row in range(first, end):
        at, stop = np.int64(offsets[row]), np.int64(offsets[row + 1])
        while at < stop:
            w0 = _lowered(word_at(data, at, stop - at))
            w1 = U64(0)
            found = _ends(w0)
            if found != U64(0):
                length = first_byte(found)
                w0 &= (U64(1) << U64(8 * length)) - U64(1)
            else:
                length = 8
                if stop - at > 8:
                    w1 = _lowered(word_at(data, at + 8, stop - at - 8))
                    found = _ends(w1)
                    more = first_byte(found) if found != U64(0) else 8
                    if more < 8:
                        w1 &= (U64(1) << U64(8 * more)) - U64(1)
                    length = 8 + more
            if length > 0:
                slot = mix(w0, w1) & mask
                while True:
                    if slots[slot, 0] == w0 and slots[slot, 1] == w1:
                        slots[slot, 3] += U64(1)
                        break
                    if slots[slot, 3] == U64(0):
                        slots[slot, 0], slots[slot, 1] = w0, w1
                        slots[slot, 2], slots[slot, 3] = U64(length), U64(1)
                        words += 1
                        break
                    slot = (slot + U64(1)) & mask
            at += length + 1
    return words


@njit(nogil=True)
def _words_out(slots: Any, offsets: Any, data: Any, counts: Any) -> None:
    found = 0
    used = 0
    for i in range(slots.shape[0]):
        if slots[i, 3] == U64(0):
            continue
        length = np.int64(slots[i, 2])
        for j in range(length):
            word = slots[i, 0] if j < 8 else slots[i, 1]
            data[used + j] = np.uint8((word >> U64(8 * (j & 7))) & U64(255))
        used += length
        counts[found] = np.int64(slots[i, 3])
        found += 1
        offsets[found] = used


def _in_threads(spans: list[tuple[int, int, int]], work: Callable[..., Any]) -> list[Any]:
    """Seconds shared out among threads, as many as cores; each keeps what ``work`` made."""
    cores = Box().workers
    found: list[list[Any]] = [[] for _ in range(cores)]

    def run(core: int) -> None:
        kept: dict[str, Any] = {}
        for span in spans[core::cores]:
            found[core].append(work(*span, kept))

    threads = [threading.Thread(target=run, args=(c,)) for c in range(cores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [item for part in found for item in part]


def _seconds(table: pa.Table) -> list[tuple[int, int, int]]:
    """(second, first row, end row) of rows sorted by time."""
    at = numbers(table.column("at").chunk(0), np.int64)
    edges = np.arange(at[0] // 1_000_000, at[-1] // 1_000_000 + 2) * 1_000_000
    rows = np.searchsorted(at, edges)
    pairs = zip(edges[:-1].tolist(), rows[:-1].tolist(), rows[1:].tolist(), strict=True)
    return [(s, a, b) for s, a, b in pairs if b > a]


def wordcount(tables: dict[str, pa.Table]) -> pa.Table:
    """Words counted in tumbling windows of a second."""
    table = tables["lines"].combine_chunks()
    _, raw, bytes_ = table.column("line").chunk(0).buffers()
    offsets, data = np.frombuffer(raw, np.int32), np.frombuffer(bytes_, np.uint8)

    def work(second: int, first: int, end: int, kept: dict[str, Any]) -> pa.RecordBatch:
        slots = kept.setdefault("slots", np.zeros((1 << 17, 4), np.uint64))
        slots[:] = 0
        count = _count_words(data, offsets, first, end, slots)
        out, counts = np.zeros(count + 1, np.int32), np.empty(count, np.int64)
        text = np.empty(count * 16, np.uint8)
        _words_out(slots, out, text, counts)
        words = pa.StringArray.from_buffers(count, pa.py_buffer(out), pa.py_buffer(text))
        return _window(second, {"word": words}, {"n": pa.array(counts)})

    return pa.Table.from_batches(_in_threads(_seconds(table), work))


@njit(nogil=True)
def _add_pairs(src: Any, dst: Any, rtt: Any, first: int, end: int, slots: Any, sums: Any) -> int:
    mask = U64(slots.size // 4 - 1)
    found = 0
    for row in range(first, end):
        if row + 12 < end:
            later = (U64(src[row + 12]) << U64(32)) | U64(dst[row + 12])
            prefetch(slots, np.int64(mix(later, U64(0)) & mask) * 4)
        key = ((U64(src[row]) << U64(32)) | U64(dst[row])) + U64(1)
        at = np.int64(mix(key - U64(1), U64(0)) & mask) * 4
        while slots[at] != key:
            if slots[at] == U64(0):
                slots[at] = key
                found += 1
                break
            at = (at + 4) & (slots.size - 1)
        slots[at + 1] += U64(1)
        sums[at + 2] += rtt[row]
    return found


@njit(nogil=True)
def _pairs_out(slots: Any, sums: Any, src: Any, dst: Any, means: Any) -> None:
    found = 0
    for at in range(0, slots.size, 4):
        if slots[at] != U64(0):
            key = slots[at] - U64(1)
            src[found] = np.int64(key >> U64(32))
            dst[found] = np.int64(key & U64(0xFFFFFFFF))
            means[found] = sums[at + 2] / np.float64(slots[at + 1])
            found += 1


def netmon(tables: dict[str, pa.Table]) -> pa.Table:
    """The mean by pair and second."""
    table = tables["pings"].combine_chunks()
    src, dst = (numbers(table.column(n).chunk(0), np.int64) for n in ("src", "dst"))
    rtt = numbers(table.column("rtt").chunk(0), np.float64)

    def work(second: int, first: int, end: int, kept: dict[str, Any]) -> pa.RecordBatch:
        room = 1 << int(end - first).bit_length()
        if "slots" not in kept or kept["slots"].size < room * 4:
            kept["slots"] = np.zeros(room * 4, np.uint64)
        slots = kept["slots"]
        slots[:] = 0
        sums = slots.view(np.float64)
        count = _add_pairs(src, dst, rtt, first, end, slots, sums)
        a, b, means = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count)
        _pairs_out(slots, sums, a, b, means)
        return _window(second, {"src": pa.array(a), "dst": pa.array(b)}, {"rtt": pa.array(means)})

    return pa.Table.from_batches(_in_threads(_seconds(table), work))


def _window(second: int, keys: dict[str, Any], values: dict[str, Any]) -> pa.RecordBatch:
    kind = pa.timestamp("us", tz="UTC")
    rows = len(next(iter(keys.values())))
    times = {
        name: pa.array(np.full(rows, at)).cast(kind)
        for name, at in (("window_start", second), ("window_end", second + 1_000_000))
    }
    return pa.record_batch({**keys, **times, **values})


LIMITS = {"wordcount": wordcount, "netmon": netmon}
