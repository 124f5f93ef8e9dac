"""How a job that is waited for is stopped by signals."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest

from headrace.interrupts import deferred_interrupts
from headrace.signals import Asked, Halt, asked_to_stop
from tests.conftest import until


class Job:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.halt = Halt(lambda: self.done.append("gently"), lambda: self.done.append("at once"))

    def until(self, count: int) -> list[str]:
        until(lambda: len(self.done) >= count)
        return self.done


def asked(count: int) -> Asked:
    found = Asked()
    found.count = count
    return found


def test_once_gently_twice_at_once() -> None:
    job, signals = Job(), asked(0)
    job.halt.look(signals, "30s")
    assert job.done == []
    signals.count = 1
    job.halt.look(signals, "30s")
    job.halt.look(signals, "30s")
    assert job.until(1) == ["gently"]
    signals.count = 2
    job.halt.look(signals, "30s")
    assert job.until(2) == ["gently", "at once"]


def test_a_second_signal_counts_in_a_later_wait() -> None:
    job = Job()
    job.halt.look(asked(1), "30s")
    job.halt.look(asked(0), "30s")
    assert job.until(1) == ["gently"]
    job.halt.look(asked(1), "30s")
    assert job.until(2) == ["gently", "at once"]


def test_the_grace_ends_in_a_later_wait() -> None:
    job = Job()
    job.halt.look(asked(1), "1ms")
    time.sleep(0.01)
    job.halt.look(asked(0), "1ms")
    assert sorted(job.until(2)) == ["at once", "gently"]


def test_handlers_are_there_only_while_a_job_is_waited_for() -> None:
    before: Callable[..., object] | int | None = signal.getsignal(signal.SIGTERM)
    with asked_to_stop() as outer, asked_to_stop() as inner:
        assert inner is outer
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert outer.count == 2
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_interrupt_is_handled_when_the_block_has_ended() -> None:
    before, steps = signal.getsignal(signal.SIGINT), []

    def block() -> None:
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            steps.append("goes on")
            with deferred_interrupts(lambda: steps.append("told")) as received:
                signal.raise_signal(signal.SIGINT)
            assert received
            steps.append("and on")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert steps == ["goes on", "told", "and on"]
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_do_not_touch_handlers() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def block() -> None:
        with deferred_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert seen == [before]
