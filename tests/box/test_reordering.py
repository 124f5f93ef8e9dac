"""Reorder buffers: outputs go on in their order, for any schedule and for real threads."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from headrace.box.reordering import LockingReorder, NonBlockingReorder
from tests.box.schedules import SEEDS, Jitter, Schedule, finds_fault, together
from tests.conftest import PATIENCE

REORDERS = ["NonBlockingReorder", "LockingReorder"]
BUFFERS = {
    "locking": LockingReorder,
    "one slot": lambda send: NonBlockingReorder(send, 1),
    "two slots": lambda send: NonBlockingReorder(send, 2),
    "many slots": NonBlockingReorder,
}


def check_reorder(make, schedule, count=12, workers=3, size=4):
    """Workers send all serial numbers, shuffled: they go downstream in order, one at a time."""
    sent, inside = [], []

    def send_downstream(output):
        inside.append(output)
        schedule.step()
        assert len(inside) == 1, "two workers send at a time"
        sent.append(output)
        inside.clear()

    reorder = make(send_downstream, size)
    serials = deque(range(count))

    def work():
        held, tries = [], 0
        while serials or held:
            keep = schedule.random.randint(1, 3)
            while serials and len(held) < keep:
                held.append(serials.popleft())
                schedule.step()
            schedule.random.shuffle(held)
            held = [n for n in held if not reorder.send(n, n if n % 3 else None)]
            tries += 1
            assert tries < schedule.max_tries, f"no room for {held} after {reorder.next}"

    schedule.run(*[work] * workers)
    assert sent == [n if n % 3 else None for n in range(count)]
    assert reorder.next == count


@pytest.mark.parametrize("name", REORDERS)
@pytest.mark.parametrize("size", [1, 4])
def test_theorem_3_1_outputs_are_sent_in_serial_order(name, size):
    for seed in SEEDS:
        schedule = Schedule(seed)
        check_reorder(lambda *a, s=schedule: s.reorder(name, *a), schedule, size=size)


BROKEN_REORDERS = {
    "without the re-check": (
        "NonBlockingReorder",
        "while slots[self.next % size] is not EMPTY and",
        "if slots[self.next % size] is not EMPTY and",
    ),
    "without the flag": (
        "NonBlockingReorder",
        "self._flag = threading.Lock()",
        "self._flag = threading.NoLock()",
    ),
    "next grows before the slot is empty": (
        "NonBlockingReorder",
        "slots[serial % size] = EMPTY\n                    self.next = serial = serial + 1",
        "self.next = serial = serial + 1\n                    slots[(serial - 1) % size] = EMPTY",
    ),
    "one slot too many": ("NonBlockingReorder", "serial < first + size", "serial <= first + size"),
    "without the lock": ("LockingReorder", "with self._lock:", "if True:"),
}


@pytest.mark.parametrize("fault", BROKEN_REORDERS)
def test_a_broken_reorder_is_caught(fault):
    name, old, new = BROKEN_REORDERS[fault]

    def check(schedule):
        for count, size in [(3, 4), (12, 2)]:
            check_reorder(
                lambda *a: schedule.reorder(name, *a, old, new), schedule, count, size=size
            )

    assert finds_fault(check)


@pytest.mark.parametrize("name", REORDERS)
def test_a_reorder_under_stress_with_delays_at_every_step(name):
    for seed in range(3):
        jitter = Jitter(seed)
        make = lambda *a, j=jitter: j.reorder(name, *a)  # noqa: E731
        check_reorder(make, jitter, count=200, workers=6, size=16)


def test_a_full_buffer_refuses_and_later_accepts():
    sent = []
    reorder = NonBlockingReorder(sent.append, 2)
    assert not reorder.send(2, "c")
    assert reorder.send(1, "b")
    assert not reorder.send(3, "d")
    assert sent == []
    assert reorder.send(0, "a")
    assert (sent, reorder.next) == (["a", "b"], 2)
    assert reorder.send(3, "d")
    assert reorder.send(2, "c")
    assert (sent, reorder.next) == (["a", "b", "c", "d"], 4)


@pytest.mark.parametrize("buffer", BUFFERS)
def test_a_serial_number_is_sent_once(buffer):
    reorder = BUFFERS[buffer](lambda output: None)
    reorder.send(0, "a")
    with pytest.raises(ValueError, match="output 0 was sent before; the next is 1"):
        reorder.send(0, "a")


def test_a_send_returns_while_another_worker_is_sending():
    entered, leave, sent = threading.Event(), threading.Event(), []

    def send_downstream(output):
        entered.set()
        assert leave.wait(PATIENCE)
        sent.append(output)

    reorder = NonBlockingReorder(send_downstream, 4)

    def meanwhile():
        assert entered.wait(PATIENCE)
        assert reorder.send(1, 1)
        assert reorder.send(3, 3)
        assert not reorder.send(4, 4)
        assert sent == []
        leave.set()

    together(lambda: reorder.send(0, 0), meanwhile)
    assert (sent, reorder.next) == ([0, 1], 2)


@pytest.mark.parametrize("buffer", BUFFERS)
def test_an_output_that_cannot_be_sent_fails_the_job_and_nothing_passes_it(buffer):
    sent = []

    def send_downstream(output):
        if output == "b" and "b" not in failed:
            failed.append(output)
            raise OSError("the disk is full")
        sent.append(output)

    failed = []
    reorder = BUFFERS[buffer](send_downstream)
    reorder.send(0, "a")
    with pytest.raises(OSError, match="the disk is full"):
        reorder.send(1, "b")
    for serial in (2, 3):
        with pytest.raises(RuntimeError, match="output 1 could not be sent") as caught:
            reorder.send(serial, "later")
        assert isinstance(caught.value.__cause__, OSError)
    assert (sent, reorder.next) == (["a"], 1)


def test_a_buffer_without_slots_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        NonBlockingReorder(print, 0)
