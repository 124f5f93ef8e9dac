"""A pipeline of reorder buffers and worklists gives what one worker would, in that order."""

from __future__ import annotations

import contextlib
import random
import time
from collections import defaultdict, deque

from hypothesis import strategies as st

from tests.box.schedules import frequent_switches, together
from tests.box.test_reordering import BUFFERS
from tests.box.test_worklists import QUEUES
from tests.conftest import PATIENCE, for_any


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
