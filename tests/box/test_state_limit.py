"""A bounded run whose state outgrows ``memory=`` stops with a reason."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.box.state_limit import StateLimit
from headrace.testing import records, script, seconds
from tests.conftest import PATIENCE


def endless_keys(rank: int, size: int) -> Iterator[pa.RecordBatch]:
    """Records with new keys, for as long as the job lets it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        yield pa.record_batch({"k": np.random.default_rng().integers(0, 2**60, 10_000)})
        time.sleep(0.001)


def test_the_error_names_the_step_its_size_and_the_option() -> None:
    box = hr.Box(workers=2)
    box.state_memory = 1 << 20
    stream = hr.generate(endless_keys, 1, schema={"k": "bigint"})
    with pytest.raises(hr.EngineError, match=r"step 2, agg: its state grew .*Box\(memory="):
        stream.group_by("k").agg(n=hr.count()).collect(on=box)


def test_a_small_state_fits_into_any_memory() -> None:
    counts = hr.from_items(range(1000)).group_by("value").agg(n=hr.count())
    assert counts.collect(on=hr.Box(memory=1)).num_rows == 1000


def test_half_of_the_machine_is_the_limit_unless_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.box.engine.usable_memory", lambda: 10 << 30)
    assert hr.Box().state_memory == 5 << 30
    assert hr.Box(memory="4GB").state_memory == 4 << 30


def test_streams_are_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateLimit, "excess", lambda _: hr.EngineError("never asked"))
    events = [records({"k": i, "at": seconds(i)}) for i in range(5)]
    stream = script(events, bounded=False, ends=True).event_time("at").key_by("k")
    job = stream.window(hr.tumbling("1s")).agg(n=hr.count()).start(on="box")
    job.wait()
    assert job.result().num_rows == 5
