"""An hour's worth of input through a sink slower than its source, at constant memory."""

from __future__ import annotations

import time

import numpy as np
import psutil
import pyarrow as pa
import pytest

import headrace as hr

SECONDS, PER_SECOND, WIDTH = 3600, 2000, 100
MEMORY = 32 << 20


class Hour:
    """An hour of event time, as fast as it is taken."""

    schema = pa.schema(
        [("n", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us", tz="UTC"))]
    )
    bounded = False

    def splits(self, parallelism):
        return [self]

    def read(self, columns):
        text = pa.array(["x" * WIDTH] * PER_SECOND)
        for second in range(SECONDS):
            n = np.arange(second * PER_SECOND, (second + 1) * PER_SECOND)
            at = pa.array(n * 1_000_000 // PER_SECOND).cast(self.schema.field("at").type)
            yield pa.record_batch([pa.array(n), pa.concat_arrays([text]), at], schema=self.schema)


@pytest.mark.slow
def test_an_hour_through_a_slow_sink():
    process, seen, samples = psutil.Process(), [0, 0], []

    def slow(batch):
        seen[0] += batch.num_rows
        seen[1] += 1
        time.sleep(batch.num_rows / 400_000)  # about 18 s for all of it, the source takes 2
        if seen[1] % 20 == 0 and job is not None:  # it is not there before start() comes back
            samples.append((process.memory_info().rss, job.progress().bytes_in_flight))

    stream = hr.from_source(Hour()).event_time("at", delay="1s")
    counts = stream.window(hr.tumbling("1s")).count("c")
    job = None
    job = hr.start([(stream, slow), counts], on=hr.Box(memory=MEMORY))
    job.wait()
    assert seen[0] == SECONDS * PER_SECOND
    assert sum(job.result(1)["c"].to_pylist()) == seen[0]
    resident = [rss for rss, _ in samples]
    early = max(resident[: len(resident) // 4])
    assert max(flight for _, flight in samples) < 2 * MEMORY
    assert max(resident) - early < 64 << 20, (early, max(resident))
    print(
        f"resident {early / 1e6:.0f} MB in the first quarter, {max(resident) / 1e6:.0f} MB at most"
    )
