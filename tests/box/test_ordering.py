"""Reordering and worklists: the theorems, for schedules of every step and for real threads.

A test that says "for any schedule" runs its workers one at a time: at each step on shared data
the seed decides who goes on. So a seed is one schedule, and a fault that it finds, it always finds.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import sys
import threading
import time
import types
from collections import defaultdict, deque

import pytest
from hypothesis import strategies as st

from headrace.box import reordering, worklists
from headrace.box.reordering import LockingReorder, NonBlockingReorder
from headrace.box.worklists import HybridQueue, PartitionedQueue, SharedQueue
from tests.conftest import PATIENCE, for_any, until

REORDERS = ["NonBlockingReorder", "LockingReorder"]
WORKLISTS = ["HybridQueue", "PartitionedQueue", "SharedQueue"]
QUEUES = {"hybrid": HybridQueue, "partitioned": PartitionedQueue, "shared": SharedQueue}
BUFFERS = {
    "locking": LockingReorder,
    "one slot": lambda send: NonBlockingReorder(send, 1),
    "two slots": lambda send: NonBlockingReorder(send, 2),
    "many slots": NonBlockingReorder,
}
SEEDS = range(40)
MANY_SEEDS = range(1000)


def together(*works):
    """Run each in a thread of its own; raises the first error, or when one does not end."""
    errors = []

    def run(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(deadline - time.monotonic())
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a worker hangs"


@contextlib.contextmanager
def frequent_switches():
    """Threads take turns as often as the interpreter can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


class Schedule:
    """Workers that run one at a time, in an order that only the seed decides."""

    max_tries = 1000
    """How often a worker offers its outputs before they count as refused for ever."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.patience = self.random.choice([0, 0.5, 0.8, 0.95])
        """How likely a worker goes on: some faults need one that stands still for long."""
        self.turns = {}
        """What each worker that has not ended waits at, by the number of its thread."""

    def step(self):
        """Let another worker go on, perhaps."""
        mine = self.turns.get(threading.get_ident())
        if mine is not None and self.random.random() >= self.patience:
            turn = self.random.choice(list(self.turns.values()))
            if turn is not mine:
                turn.release()
                mine.acquire()

    def run(self, *works):
        ready = threading.Barrier(len(works) + 1)
        turns = [threading.Lock() for _ in works]
        slots = [None] * len(works)

        def worker(number, work):
            slots[number] = threading.get_ident()
            turns[number].acquire()
            ready.wait()
            ready.wait()
            turns[number].acquire()
            try:
                work()
            finally:
                del self.turns[slots[number]]
                if self.turns:
                    self.random.choice(list(self.turns.values())).release()

        def begin():
            ready.wait()
            self.turns = dict(zip(slots, turns, strict=True))
            self.random.choice(turns).release()
            ready.wait()

        calls = [lambda n=n, work=work: worker(n, work) for n, work in enumerate(works)]
        together(begin, *calls)

    def load(self, module, old="", new=""):
        """The module with a step before each access to shared data, and a text of it replaced."""
        source = inspect.getsource(module)
        assert old in source
        loaded = types.ModuleType(module.__name__)
        exec(compile(source.replace(old, new), module.__name__, "exec"), loaded.__dict__)
        step = self.step

        class Lock:
            def __init__(self):
                self.lock = threading.Lock()

            def acquire(self, blocking=True):
                step()
                while not self.lock.acquire(blocking=False):
                    if not blocking:
                        return False
                    step()
                return True

            def release(self):
                step()
                self.lock.release()

            def __enter__(self):
                self.acquire()

            def __exit__(self, *exception):
                self.release()

        class NoLock(Lock):
            def acquire(self, blocking=True):
                return True

            def release(self):
                pass

        loaded.threading = types.SimpleNamespace(Lock=Lock, NoLock=NoLock)
        loaded.deque = stepping(deque, step)
        return loaded

    def reorder(self, name, send_downstream, size, old="", new=""):
        """A reorder scheme with a step before each access to shared data."""
        scheme, step = getattr(self.load(reordering, old, new), name), self.step

        class Stepping(scheme):
            @property
            def next(self):
                step()
                return self.__dict__["next"]

            @next.setter
            def next(self, serial):
                step()
                self.__dict__["next"] = serial

        if name == "LockingReorder":
            return Stepping(send_downstream)
        reorder = Stepping(send_downstream, size)
        reorder._slots = stepping(list, step)(reorder._slots)
        return reorder

    def worklist(self, name, partitions, old="", new=""):
        return getattr(self.load(worklists, old, new), name)(partitions)


def stepping(base, step):
    """A list or deque with a step before each access."""

    def before(name):
        def method(self, *args):
            step()
            return getattr(base, name)(self, *args)

        return method

    names = ["__getitem__", "__setitem__", "__len__", "append", "popleft"]
    return type(base.__name__, (base,), {n: before(n) for n in names if hasattr(base, n)})


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


@pytest.mark.parametrize("name", REORDERS)
@pytest.mark.parametrize("size", [1, 4])
def test_theorem_3_1_outputs_are_sent_in_serial_order(name, size):
    for seed in SEEDS:
        schedule = Schedule(seed)
        check_reorder(lambda *a, s=schedule: s.reorder(name, *a), schedule, size=size)


@pytest.mark.parametrize("name", WORKLISTS)
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("limit", [None, 2])
def test_theorem_4_1_no_two_workers_hold_a_key_and_each_is_in_order(name, partitions, limit):
    for seed in SEEDS:
        schedule = Schedule(seed)
        check_worklist(schedule.worklist(name, partitions), schedule, partitions, limit=limit)


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


def finds_fault(check):
    """Whether one of the schedules makes a check fail."""
    for seed in MANY_SEEDS:
        try:
            check(Schedule(seed))
        except (AssertionError, LookupError, ValueError):
            return True
    return False


@pytest.mark.parametrize("fault", BROKEN_REORDERS)
def test_a_broken_reorder_is_caught(fault):
    name, old, new = BROKEN_REORDERS[fault]

    def check(schedule):
        for count, size in [(3, 4), (12, 2)]:
            check_reorder(
                lambda *a: schedule.reorder(name, *a, old, new), schedule, count, size=size
            )

    assert finds_fault(check)


@pytest.mark.parametrize("fault", BROKEN_WORKLISTS)
def test_a_broken_worklist_is_caught(fault):
    name, old, new = BROKEN_WORKLISTS[fault]

    def check(schedule):
        for partitions, count, limit in [(1, 3, None), (2, 8, 2)]:
            worklist = schedule.worklist(name, partitions, old, new)
            check_worklist(worklist, schedule, partitions, count, limit=limit)

    assert finds_fault(check)


class Jitter:
    """Steps of real threads: now and then one gives up its turn, or sleeps for a moment."""

    max_tries = sys.maxsize

    def __init__(self, seed):
        self.random = random.Random(seed)

    def step(self):
        draw = self.random.random()
        if draw < 0.1:
            time.sleep(0)
        elif draw < 0.12:
            time.sleep(draw * 1e-3)

    def run(self, *works):
        with frequent_switches():
            together(*works)

    load, reorder, worklist = Schedule.load, Schedule.reorder, Schedule.worklist


@pytest.mark.parametrize("name", REORDERS)
def test_a_reorder_under_stress_with_delays_at_every_step(name):
    for seed in range(3):
        jitter = Jitter(seed)
        make = lambda *a, j=jitter: j.reorder(name, *a)  # noqa: E731
        check_reorder(make, jitter, count=200, workers=6, size=16)


@pytest.mark.parametrize("name", WORKLISTS)
@pytest.mark.parametrize("limit", [None, 3])
def test_a_worklist_under_stress_with_delays_at_every_step(name, limit):
    for seed in range(2):
        jitter = Jitter(seed)
        worklist = jitter.worklist(name, 5)
        check_worklist(worklist, jitter, 5, count=200, workers=6, limit=limit)


class Pipeline:
    """A stateless stage, a partitioned stateful one and a stateful one, run by many workers."""

    def __init__(self, seed, inputs, queue, buffer, last_queue, partitions):
        self.seed, self.partitions = seed, partitions
        self.inputs = deque(enumerate(inputs))
        self.count = len(inputs)
        self.stateless = buffer(self.to_partitioned)
        self.partitioned, self.reorder = queue(partitions), buffer(self.to_stateful)
        self.stateful = last_queue(1)
        self.numbered = self.queued = self.finished = 0
        self.sums, self.total, self.results = defaultdict(int), 0, []

    def outputs(self, stage, value):
        """Zero to five outputs of a value."""
        draw = random.Random(f"{self.seed} {stage} {value}")
        return [draw.randrange(1000) for _ in range(draw.randint(0, 5))]

    def to_partitioned(self, outputs):
        for value in outputs:
            self.partitioned.add(value % self.partitions, (self.numbered, value))
            self.numbered += 1

    def of_partition(self, value):
        key = value % 7 * self.partitions + value % self.partitions
        self.sums[key] = (self.sums[key] * 31 + value) % 10_007
        return self.outputs("partitioned", self.sums[key])

    def to_stateful(self, outputs):
        for value in outputs:
            self.stateful.add(0, value)
            self.queued += 1

    def last(self, _, value):
        self.total = (self.total * 31 + value) % 10_007
        self.results += self.outputs("stateful", self.total)
        self.finished += 1

    def in_sequence(self):
        for _, value in self.inputs:
            for one in self.outputs("stateless", value):
                for two in self.of_partition(one):
                    self.last(0, two)
        return self.results

    @property
    def through(self):
        return (
            self.stateless.next == self.count
            and self.reorder.next == self.numbered
            and self.finished == self.queued
        )

    def run(self, workers):
        together(*[lambda n=n: self.work(n) for n in range(workers)])
        return self.results

    def work(self, number):
        chance, refused = random.Random(f"{self.seed} {number}"), []

        def send(reorder, serial, outputs):
            if chance.random() < 0.1:
                time.sleep(chance.random() * 1e-4)
            if not reorder.send(serial, outputs):
                refused.append((reorder, serial, outputs))

        def operate(_, numbered):
            serial, value = numbered
            send(self.reorder, serial, self.of_partition(value))

        deadline = time.monotonic() + PATIENCE
        while not self.through:
            assert time.monotonic() < deadline, "the pipeline stands still"
            again, refused[:] = refused[:], []
            for held in again:
                send(*held)
            stage, limit = chance.randrange(3), chance.choice([None, 1, 3])
            if stage == 0 and len(refused) < 4:
                with contextlib.suppress(IndexError):
                    serial, value = self.inputs.popleft()
                    send(self.stateless, serial, self.outputs("stateless", value))
            elif stage == 1:
                self.partitioned.consume(operate, limit)
            elif stage == 2:
                self.stateful.consume(self.last, limit)


@for_any(
    60, 300,
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 8),
    inputs=st.lists(st.integers(0, 99), max_size=20),
    queue=st.sampled_from(sorted(QUEUES)),
    buffer=st.sampled_from(sorted(BUFFERS)),
    last_queue=st.sampled_from(sorted(QUEUES)),
    partitions=st.integers(1, 5),
)  # fmt: skip
def test_theorem_5_2_a_pipeline_is_ordered(
    seed, workers, inputs, queue, buffer, last_queue, partitions
):
    def make():
        return Pipeline(
            seed, inputs, QUEUES[queue], BUFFERS[buffer], QUEUES[last_queue], partitions
        )

    with frequent_switches():
        assert make().run(workers) == make().in_sequence()


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


@pytest.mark.parametrize("queue", ["hybrid", "partitioned"])
def test_a_worker_returns_while_another_has_the_partition(queue):
    worklist, entered, leave, done = QUEUES[queue](2), threading.Event(), threading.Event(), []

    def slow(partition, item):
        entered.set()
        assert leave.wait(PATIENCE)
        done.append(item)

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

    def slow(partition, item):
        entered.set()
        assert leave.wait(PATIENCE)
        done.append(item)

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


@pytest.mark.parametrize("queue", QUEUES)
def test_no_partitions_are_refused(queue):
    with pytest.raises(ValueError, match="at least 1"):
        QUEUES[queue](0)


def test_a_buffer_without_slots_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        NonBlockingReorder(print, 0)
