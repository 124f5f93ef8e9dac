"""Windows in which nearly every record has a key of its own, and more workers than cores."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr

WINDOWS, RECORDS = 6, 6_000


def records(seed: int) -> pa.Table:
    """Every window has as many records, over more keys than that; every third is all one key."""
    rng = np.random.default_rng(seed)
    count = WINDOWS * RECORDS
    times = np.sort(rng.integers(0, WINDOWS * 1_000_000, count))
    keys = rng.integers(0, 2 * RECORDS, count)
    keys[(times // 1_000_000) % 3 == 2] = 7
    at = pa.array(times, pa.timestamp("us", tz="UTC"))
    return pa.table({"at": at, "k": keys, "v": rng.integers(-9, 9, count)})


def windowed(stream: hr.Stream, window: Any) -> hr.Stream:
    return stream.key_by("k").window(window).agg(n=hr.count(), total=hr.sum("v"))


def expected(table: pa.Table, size: int) -> set[tuple[int, int, int, int]]:
    """Each key's count and sum for windows of so many seconds, one a second."""
    counts: Counter[tuple[int, int]] = Counter()
    totals: Counter[tuple[int, int]] = Counter()
    for at, k, v in zip(*(c.cast(pa.int64()).to_pylist() for c in table.columns), strict=True):
        for start in range(at // 1_000_000 - size + 1, at // 1_000_000 + 1):
            counts[k, start] += 1
            totals[k, start] += v
    return {(k, start, n, totals[k, start]) for (k, start), n in counts.items()}


def found(results: pa.Table) -> list[tuple[int, int, int, int]]:
    starts = [int(start.timestamp()) for start in results["window_start"].to_pylist()]
    columns = (results[name].to_pylist() for name in ("n", "total"))
    return list(zip(results["k"].to_pylist(), starts, *columns, strict=True))


@pytest.mark.parametrize("workers", [1, 2, 16])
@pytest.mark.parametrize("size", [1, 3])
def test_windows_of_many_keys_hold_what_came(size: int, workers: int) -> None:
    table = records(size)
    window = hr.tumbling("1s") if size == 1 else hr.sliding("3s", every="1s")
    stream = windowed(hr.from_arrow(table).event_time("at"), window)
    results = found(stream.collect(on=hr.Box(workers=workers, bundle=1000)))
    assert len(results) == len(set(results))
    assert set(results) == expected(table, size)


def test_windows_that_are_open_at_a_stop_go_on_with_all_their_keys(tmp_path: Path) -> None:
    table = records(5)
    (tmp_path / "in").mkdir()
    box = hr.Box(workers=4, bundle=1000)
    for part in range(4):  # each is cut in the middle of a window
        size = table.num_rows // 4
        pq.write_table(table.slice(part * size, size), tmp_path / "in" / f"{part}.parquet")
        stream = hr.read_parquet(tmp_path / "in", follow=True).event_time("at", delay="1ms")
        output = windowed(stream, hr.tumbling("1s")).write_parquet(tmp_path / "out")
        job = output.start(on=box, checkpoint=tmp_path / "state", trigger="available-now")
        assert job.wait(120)
    results = found(pq.read_table(tmp_path / "out"))
    closed = {row for row in expected(table, 1) if row[1] < WINDOWS - 1}
    assert len(results) == len(set(results))
    assert set(results) == closed
