"""How threads share cores."""

from __future__ import annotations

import os
import threading

import pytest

from headrace.box.cores import are_crowded, request_long_slices, usable_cores


def test_workers_are_crowded_where_there_are_more_of_them_than_cores() -> None:
    cores = len(usable_cores())
    assert not are_crowded(cores)
    assert are_crowded(cores + 1)


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="not Linux")
def test_long_slices_leave_policy_and_niceness_as_they_are() -> None:
    found = []

    def look() -> None:
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, 5)
        request_long_slices()
        found.append((os.sched_getscheduler(own), os.getpriority(os.PRIO_PROCESS, own)))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [(os.sched_getscheduler(0), 5)]
