"""The two invariants of StreamBox §3: a checker sees each of them broken."""

from __future__ import annotations

import time

import pytest

import headrace as hr
from headrace.box.arrival import Arrivals
from headrace.box.cascade import Cascade
from headrace.box.invariants import InvariantError
from headrace.testing import records, script, seconds, watermark
from headrace.windows import BEGINNING

EVENTS = [
    event
    for s in range(20)
    for event in (
        records(*({"k": f"{i}", "at": seconds(s + i / 10)} for i in range(8))),
        watermark(seconds(s + 1)),
    )
]


def counts():
    stream = script(EVENTS, schema={"k": "string", "at": "timestamp"}).event_time("at")
    kept = stream.filter(lambda r: time.sleep(0.0005) is None).max_parallelism(8)
    return kept.window(hr.tumbling("1s")).count("c")


def test_a_right_engine_passes_and_is_really_checked():
    from headrace.jobs import JobOutput

    box = hr.Box(workers=4, bundle=1, debug=True)
    run = box._run([JobOutput(counts().node)])
    run.start()
    run.wait()
    checker = run.cascade.checker
    assert checker is not None
    assert checker.deposits >= 160
    assert checker.watermarks >= 40


def test_records_that_leave_their_epoch_are_seen(monkeypatch):
    below = Cascade.below

    def newest(self, container, output):
        below(self, container, output)
        lane = self._target(container, output)[0].lanes[0]
        return lane.containers[-1]  # the alternative of §9.2: always the youngest container

    monkeypatch.setattr(Cascade, "below", newest)
    with pytest.raises(InvariantError, match=r"left their epoch|after its end watermark|lied"):
        counts().collect(on=hr.Box(workers=4, bundle=1, debug=True, scheduler="first-found"))


def test_a_watermark_taken_before_its_records_is_seen(monkeypatch):
    def hasty(self, vertex):
        for lane in vertex.lanes:
            if lane.containers and lane.containers[0].watermark is not None:
                front = lane.containers[0]
                return front if front.state.name == "WM_ASSIGNED" else None
        return None

    monkeypatch.setattr(Cascade, "due", hasty)
    with pytest.raises(InvariantError, match=r"was taken before \d+ bundles|lied"):
        counts().collect(on=hr.Box(workers=2, bundle=1, debug=True))


def test_a_watermark_that_lies_is_seen(monkeypatch):
    monkeypatch.setattr(
        Arrivals, "on_time", lambda self, reader, batch, arrived: (batch, BEGINNING)
    )
    late = [records({"k": "a", "at": seconds(5)}), watermark(seconds(5)),
            records({"k": "a", "at": seconds(1)})]  # fmt: skip
    stream = script(late, schema={"k": "string", "at": "timestamp"}).event_time("at")
    with pytest.raises(InvariantError, match="the watermark lied"):
        stream.window(hr.tumbling("1s")).count().collect(on=hr.Box(workers=1, debug=True))
