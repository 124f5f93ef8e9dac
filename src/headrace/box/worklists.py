"""Worklists: the inputs of a partitioned operator, in order within each partition.

No two workers operate on one partition at a time, and each of its items is operated on once, in
the order they were added. (§4)

If ``operate`` raises, its worker gets the error and that item is done with. The partition is free
again, and the items after it are there for the next call: it is for the caller to fail the job.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

Operate = Callable[[int, Any], None]
"""What a worker does with an item of a partition."""


class Worklist(Protocol):
    """Items to operate on, by partition."""

    @property
    def parallelism(self) -> int:
        """How many workers can be useful at once: one for each partition."""

    def add(self, partition: int, item: Any) -> None:
        """Add an item; one producer at a time calls this."""

    def consume(self, operate: Operate, limit: int | None = None) -> int:
        """Operate on items until there is none for this worker, or ``limit`` are done; how many.

        Any number of workers may call this, and none waits for another. An item that was added
        before a call is done by this worker, or by one whose call has not ended when this one does;
        a worker that stops at its limit or with an error leaves the rest for later calls.
        """

    def __len__(self) -> int:
        """About how many items are not begun."""


class _Partition:
    """The items of one partition."""

    __slots__ = ("active", "delegated", "items")

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.active = threading.Lock()
        """Held by the worker that operates on the items; never waited for."""
        self.delegated: deque[None] = deque()
        """One entry for each item that the active worker has yet to operate on."""


class HybridQueue:
    """A queue per partition, and a master queue that keeps the order of arrival (§4.3, fig. 7).

    The master queue has the partition of each item. A worker that takes a partition another one
    is active in delegates the item to it, and goes on.

    The paper counts the delegated items by fetch-and-add, which CPython lacks. Here they are
    entries of a deque, whose append and popleft are atomic, with or without the interpreter lock;
    a try-lock makes one worker active, and it looks again after it lets go.
    """

    def __init__(self, partitions: int) -> None:
        self.parallelism = _checked(partitions)
        self._partitions = [_Partition() for _ in range(partitions)]
        self._master: deque[int] = deque()
        self._left: deque[int] = deque()
        """Partitions whose active worker left delegated items to whoever comes next."""

    def __len__(self) -> int:
        return sum(len(partition.items) for partition in self._partitions)

    def add(self, partition: int, item: Any) -> None:
        self._partitions[partition].items.append(item)
        self._master.append(partition)

    def consume(self, operate: Operate, limit: int | None = None) -> int:
        done, most = 0, sys.maxsize if limit is None else limit
        while done < most and (number := self._take()) is not None:
            done += self._work(number, operate, most - done)
        return done

    def _take(self) -> int | None:
        """A partition that may have delegated items."""
        try:
            # A partition that was left has the oldest items.
            if self._left:
                return self._left.popleft()
        except IndexError:
            pass  # another worker took it
        try:
            number = self._master.popleft()
        except IndexError:
            return None
        self._partitions[number].delegated.append(None)
        return number

    def _work(self, number: int, operate: Operate, most: int) -> int:
        """Do what is delegated, unless another worker is active there; how many items it was."""
        partition = self._partitions[number]
        items, delegated, active = partition.items, partition.delegated, partition.active
        done = 0
        try:
            # Who found us active while we let go relies on the second look.
            while delegated and done < most and active.acquire(blocking=False):
                try:
                    while delegated and done < most:
                        delegated.popleft()
                        operate(number, items.popleft())
                        done += 1
                finally:
                    active.release()
        except BaseException:
            self._left.append(number)
            raise
        if done == most and delegated:
            # Only now that we let go: whoever takes it must be able to become active.
            self._left.append(number)
        return done


class PartitionedQueue:
    """A queue per partition; a worker takes a whole partition and drains it (§4.2).

    Outputs come far out of their serial order, as no worker may be in the partition that has the
    oldest item. So an output the reorder buffer refuses must be put aside, not waited with.
    """

    def __init__(self, partitions: int) -> None:
        self.parallelism = _checked(partitions)
        self._queues: list[deque[Any]] = [deque() for _ in range(partitions)]
        self._locks = [threading.Lock() for _ in range(partitions)]
        self._last = -1
        """Where a worker looked last: the next one starts after it. It need not be exact."""

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def add(self, partition: int, item: Any) -> None:
        self._queues[partition].append(item)

    def consume(self, operate: Operate, limit: int | None = None) -> int:
        done, most = 0, sys.maxsize if limit is None else limit
        number, idle = self._last, 0
        while done < most and idle < self.parallelism:
            self._last = number = (number + 1) % self.parallelism
            queue, lock = self._queues[number], self._locks[number]
            if queue and lock.acquire(blocking=False):
                # The producer may add after we saw the end of the queue, and another worker find
                # the lock taken: it relies on our coming here again.
                idle = 0
                try:
                    while queue and done < most:
                        operate(number, queue.popleft())
                        done += 1
                finally:
                    lock.release()
            else:
                idle += 1
        return done


class SharedQueue:
    """One queue for all partitions (§4.1): the baseline, where workers wait for each other.

    To take an item and to queue up for its partition is one atomic step, or two items of a
    partition could change places. A worker whose partition is busy waits inside ``consume`` until
    those before it are done, and holds up no other worker meanwhile.
    """

    def __init__(self, partitions: int) -> None:
        self.parallelism = _checked(partitions)
        self._lock = threading.Lock()
        self._items: deque[tuple[int, Any]] = deque()
        self._last: list[threading.Lock | None] = [None] * partitions
        """Released when the item taken last from a partition is done."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, partition: int, item: Any) -> None:
        self._items.append((partition, item))

    def consume(self, operate: Operate, limit: int | None = None) -> int:
        done, most = 0, sys.maxsize if limit is None else limit
        while done < most:
            finished = threading.Lock()
            finished.acquire()
            with self._lock:
                if not self._items:
                    break
                number, item = self._items.popleft()
                before, self._last[number] = self._last[number], finished
            if before is not None:
                before.acquire()
            try:
                operate(number, item)
            finally:
                finished.release()
            done += 1
        return done


def _checked(partitions: int) -> int:
    if partitions < 1:
        raise ValueError(f"{partitions} partitions hold no items; give at least 1")
    return partitions
