"""Schedules of worker threads: of every step, decided by a seed, or of real threads under stress.

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
from collections import deque

from headrace.box import reordering, worklists
from tests.conftest import PATIENCE

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


def finds_fault(check):
    """Whether one of the schedules makes a check fail."""
    for seed in MANY_SEEDS:
        try:
            check(Schedule(seed))
        except (AssertionError, LookupError, ValueError):
            return True
    return False
