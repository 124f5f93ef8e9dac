"""Records that wait until there are enough of them to be sent on (RStream §IV-B).

At the ingress each split has a queue of its own. Between two transforms a container has one for
each part of the input, so that what is put together stays in the order of the input; and since
records never leave their epoch, the end of the epoch sends on what waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headrace.box.bundle import Bundle
from headrace.box.container import Container
from headrace.buffers import Buffer


class Gathered(Bundle):
    """Records of several bundles as one; whoever works on it puts them together."""

    __slots__ = ("parts",)

    def __init__(
        self, parts: list[pa.RecordBatch], order: tuple[int, ...], epoch: int, nbytes: int
    ) -> None:
        self.parts, self.order, self.epoch, self.nbytes = parts, order, epoch, nbytes
        self.serial, self.begun = -1, 0.0

    @property
    def batch(self) -> pa.RecordBatch:
        if len(self.parts) > 1:
            self.parts = [pa.concat_batches(self.parts)]
        return self.parts[0]

    def numbered(self, serial: int) -> Gathered:
        copy = Gathered(self.parts, self.order, self.epoch, self.nbytes)
        copy.serial, copy.begun = serial, self.begun
        return copy


class Waiting:
    """Batches in a row, each with a label, of which so many records at a time are taken."""

    __slots__ = ("batches", "rows")

    def __init__(self) -> None:
        self.batches: deque[tuple[pa.RecordBatch, int, float, Any]] = deque()
        """Records, their bytes, when they came, and their label."""
        self.rows = 0

    @property
    def since(self) -> float:
        """When the first of them came."""
        return self.batches[0][2]

    def add(self, batch: pa.RecordBatch, nbytes: int, now: float, label: Any) -> None:
        self.batches.append((batch, nbytes, now, label))
        self.rows += batch.num_rows

    def take(self, most: int) -> tuple[list[pa.RecordBatch], int, list[Any]]:
        """The first records, at most so many; their bytes, and the labels of the batches of which
        none are left."""
        parts: list[pa.RecordBatch] = []
        labels: list[Any] = []
        size, left = 0, min(most, self.rows)
        self.rows -= left
        while self.batches and (left or not self.batches[0][0].num_rows):
            batch, nbytes, since, label = self.batches.popleft()
            if batch.num_rows <= left:
                parts.append(batch)
                labels.append(label)
                size, left = size + nbytes, left - batch.num_rows
                continue
            share = nbytes * left // batch.num_rows
            parts.append(batch.slice(0, left))
            self.batches.appendleft((batch.slice(left), nbytes - share, since, label))
            size, left = size + share, 0
        return [part for part in parts if part.num_rows], size, labels


class Buffering:
    """What waits between a transform and those below it. The cascade's lock is held."""

    def __init__(self, policy: Buffer) -> None:
        self.policy = policy
        self.waiting: dict[Container, dict[int, Waiting]] = {}
        """For each epoch, by the part of the input that records are of."""
        self.in_turn = False
        """Whether records of one part must not overtake those of another."""

    def add(self, container: Container, bundle: Bundle, now: float) -> Iterator[Bundle]:
        """Have a bundle wait; what there is enough of now."""
        part = bundle.order[0]
        if self.in_turn and part not in self.waiting.get(container, (part,)):
            yield from self.all_of(container)
        waiting = self.waiting.setdefault(container, {}).setdefault(part, Waiting())
        waiting.add(bundle.batch, bundle.nbytes, now, _Label(bundle))
        while waiting.rows >= self.policy.size:
            yield self._taken(waiting, container)
        self._forget(container)

    def all_of(self, container: Container) -> Iterator[Bundle]:
        """What waits of an epoch."""
        for waiting in self.waiting.pop(container, {}).values():
            if waiting.rows:
                yield self._taken(waiting, container)

    def overdue(self, now: float) -> Iterator[tuple[Container, Bundle]]:
        """What has waited for as long as the policy lets it."""
        if self.policy.timeout is None:
            return
        before = now - self.policy.timeout / 1e6
        for container, parts in list(self.waiting.items()):
            for waiting in parts.values():
                if waiting.rows and waiting.since <= before:
                    yield container, self._taken(waiting, container)
            self._forget(container)

    def _taken(self, waiting: Waiting, container: Container) -> Bundle:
        first: _Label = waiting.batches[0][3]
        order, begun = first.order(), first.begun
        parts, nbytes, _ = waiting.take(self.policy.size)
        bundle = Gathered(parts, order, container.epoch, nbytes)
        bundle.begun = begun
        return bundle

    def _forget(self, container: Container) -> None:
        if not any(waiting.rows for waiting in self.waiting[container].values()):
            del self.waiting[container]


class _Label:
    """Where records stand, and when the first transform began with them."""

    __slots__ = ("begun", "cuts", "place")

    def __init__(self, bundle: Bundle) -> None:
        self.place, self.begun, self.cuts = bundle.order, bundle.begun, 0

    def order(self) -> tuple[int, ...]:
        """The place of the next records of a bundle: after those that were cut off before."""
        self.cuts += 1
        return (*self.place, self.cuts)
