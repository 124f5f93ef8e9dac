"""Worklists: one worker at a time has a partition, for any schedule and for real threads."""

from __future__ import annotations

import threading
from collections import defaultdict

import pytest

from headrace.box.worklists import HybridQueue, PartitionedQueue, SharedQueue
from tests.box.schedules import SEEDS, Jitter, Schedule, finds_fault, together
from tests.conftest import PATIENCE, until

WORKLISTS = ["HybridQueue", "PartitionedQueue", "SharedQueue"]
QUEUES = {"hybrid": HybridQueue, "partitioned": PartitionedQueue, "shared": SharedQueue}


def check_worklist(worklist, schedule, partitions, count=8, workers=3, limit=None):
    """One worker at a time has a partition, its items are in order, and none is forgotten.

    Once the producer has added all, only it calls again, and those whom their limit stopped: what
    it then finds taken, the worker that has it must not leave.
    """
    done, active, added, ended = defaultdict(list), set(), defaultdict(list), threading.Event()

    def operate(partition, item):
        assert partition not in active, "two workers have a partition"
        active.add(partition)
        schedule.step()
        done[partition].append(item)
        active.discard(partition)

    def produce():
        for item in range(count):
            partition = schedule.random.randrange(partitions)
            added[partition].append(item)
            worklist.add(partition, item)
        ended.set()
        while worklist.consume(operate, limit) == limit:
            pass

    def consume():
        while worklist.consume(operate, limit) == limit or not ended.is_set():
            pass

    schedule.run(produce, *[consume] * (workers - 1))
    assert done == added
    assert len(worklist) == 0


@pytest.mark.parametrize("name", WORKLISTS)
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("limit", [None, 2])
def test_theorem_4_1_no_two_workers_hold_a_key_and_each_is_in_order(name, partitions, limit):
    for seed in SEEDS:
        schedule = Schedule(seed)
        check_worklist(schedule.worklist(name, partitions), schedule, partitions, limit=limit)


BROKEN_WORKLISTS = {
    "without the re-check": (
        "HybridQueue",
        "while delegated and done < most and active.acquire",
        "if delegated and done < most and active.acquire",
    ),
    "without exclusion": (
        "HybridQueue",
        "self.active = threading.Lock()",
        "self.active = threading.NoLock()",
    ),
    "delegated items are forgotten at the limit": (
        "HybridQueue",
        "if done == most and delegated:",
        "if False:",
    ),
    "a partition is left while it is still active": (
        "HybridQueue",
        """\
                finally:
                    active.release()
        except BaseException:
            self._left.append(number)
            raise
        if done == most and delegated:
            # Only now that we let go: whoever takes it must be able to become active.
            self._left.append(number)
""",
        """\
                    if done == most and delegated:
                        self._left.append(number)
                finally:
                    active.release()
        except BaseException:
            self._left.append(number)
            raise
""",
    ),
    "the master queue comes first": (
        "HybridQueue",
        "self._partitions[partition].items.append(item)\n        self._master.append(partition)",
        "self._master.append(partition)\n        self._partitions[partition].items.append(item)",
    ),
    "drained without coming again": (
        "PartitionedQueue",
        "idle = 0\n                try",
        "idle += 1\n                try",
    ),
    "drained without exclusion": (
        "PartitionedQueue",
        "self._locks = [threading.Lock()",
        "self._locks = [threading.NoLock()",
    ),
    "taken and locked in two steps": (
        "SharedQueue",
        "before, self._last[number] = self._last[number], finished",
        "pass\n            with self._lock:\n"
        "                before, self._last[number] = self._last[number], finished",
    ),
    "no wait for a busy partition": ("SharedQueue", "before.acquire()", "pass"),
}


@pytest.mark.parametrize("fault", BROKEN_WORKLISTS)
def test_a_broken_worklist_is_caught(fault):
    name, old, new = BROKEN_WORKLISTS[fault]

    def check(schedule):
        for partitions, count, limit in [(1, 3, None), (2, 8, 2)]:
            worklist = schedule.worklist(name, partitions, old, new)
            check_worklist(worklist, schedule, partitions, count, limit=limit)

    assert finds_fault(check)


@pytest.mark.parametrize("name", WORKLISTS)
@pytest.mark.parametrize("limit", [None, 3])
def test_a_worklist_under_stress_with_delays_at_every_step(name, limit):
    for seed in range(2):
        jitter = Jitter(seed)
        worklist = jitter.worklist(name, 5)
        check_worklist(worklist, jitter, 5, count=200, workers=6, limit=limit)


def held_up(entered, leave, done):
    """An operation that tells it has begun, and waits until it may end."""

    def slow(partition, item):
        entered.set()
        assert leave.wait(PATIENCE)
        done.append(item)

    return slow


@pytest.mark.parametrize("queue", ["hybrid", "partitioned"])
def test_a_worker_returns_while_another_has_the_partition(queue):
    worklist, entered, leave, done = QUEUES[queue](2), threading.Event(), threading.Event(), []

    slow = held_up(entered, leave, done)

    def meanwhile():
        assert entered.wait(PATIENCE)
        for item in (1, 2):
            worklist.add(0, item)
        worklist.add(1, 3)
        assert worklist.consume(lambda partition, item: done.append(item)) == 1
        assert worklist.consume(slow) == 0
        assert done == [3]
        leave.set()

    worklist.add(0, 0)
    together(lambda: worklist.consume(slow), meanwhile)
    assert done == [3, 0, 1, 2]


def test_a_worker_at_its_limit_leaves_what_was_delegated_to_it():
    worklist, entered, leave, done = HybridQueue(1), threading.Event(), threading.Event(), []

    slow = held_up(entered, leave, done)

    def meanwhile():
        assert entered.wait(PATIENCE)
        assert worklist.consume(slow) == 0
        leave.set()

    for item in range(5):
        worklist.add(0, item)
    together(lambda: worklist.consume(slow, 2), meanwhile)
    assert done == [0, 1]
    assert len(worklist) == 3
    assert worklist.consume(slow) == 3
    assert done == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("queue", QUEUES)
def test_a_limit_is_kept_and_reaches_every_partition_in_time(queue):
    worklist, done = QUEUES[queue](3), []
    for item in range(30):
        worklist.add(item % 3, item)
    counts = [worklist.consume(lambda p, item: done.append(item), 7) for _ in range(6)]
    assert counts == [7, 7, 7, 7, 2, 0]
    assert sorted(done) == list(range(30))
    assert {item % 3 for item in done[:21]} == {0, 1, 2}
    assert worklist.parallelism == 3


@pytest.mark.parametrize("queue", QUEUES)
def test_an_error_of_one_worker_leaves_the_rest_to_the_others(queue):
    worklist, entered, done = QUEUES[queue](2), threading.Event(), []

    def fails(partition, item):
        if item == 0:
            entered.set()
            # The others have come by, and delegated or queued up, as soon as these are begun.
            until(lambda: 3 in done)
            raise KeyError("no such thing")
        done.append(item)

    def failing():
        with pytest.raises(KeyError, match="no such thing"):
            worklist.consume(fails)

    def others():
        assert entered.wait(PATIENCE)
        worklist.consume(lambda partition, item: done.append(item))

    for partition, item in [(0, 0), (1, 3), (0, 1), (0, 2)]:
        worklist.add(partition, item)
    together(failing, others)
    worklist.consume(lambda partition, item: done.append(item))
    assert done == [3, 1, 2]
    assert len(worklist) == 0


@pytest.mark.parametrize("queue", QUEUES)
def test_no_partitions_are_refused(queue):
    with pytest.raises(ValueError, match="at least 1"):
        QUEUES[queue](0)
