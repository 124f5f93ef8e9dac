"""What happens in a run because time goes by: bundles sent on, silence, timers, checkpoints."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace.box.cascade import Vertex
from headrace.box.container import Container
from headrace.box.evaluator import ClockWork
from headrace.box.host import Hosted
from headrace.buffers import Buffer
from headrace.watermarks import least_awake

if TYPE_CHECKING:
    from headrace.box.run import Run


class Ticks:
    """Looks at the clock for a run."""

    def __init__(self, run: Run, buffer: Buffer | None) -> None:
        self.run = run
        buffering = [vertex.buffering for vertex in run.cascade.buffering]
        between = [each.policy for each in buffering if each is not None]
        policies = between if buffer is None else [buffer, *between]
        self.timeouts = [policy.timeout / 1e6 for policy in policies if policy.timeout]
        """How long records may wait to be sent on, wherever they do."""
        self.clocked = [
            vertex
            for vertex in run.cascade.vertices
            if isinstance(vertex.transform, Hosted) and vertex.transform.operator.by_clock
        ]
        """Those with timers that go by the time of day."""

    def keep_ticking(self) -> None:
        """A thread, while there is input that does not end."""
        while not self.run.ended.wait(0.01):
            self.tick()
            try:
                for vertex in self.run.sinks:
                    vertex.transform.tick()
            except BaseException as error:
                with self.run.cascade.lock:
                    self.run.fail(error)
        if self.run.error is not None:
            self.run.abort()  # nobody may ever wait for it

    def keep_sending(self) -> None:
        """A thread, where records wait to be sent on.

        It looks often enough that they wait a tenth longer than they may at most.
        """
        every = max(0.001, min(0.01, min(self.timeouts) / 10))
        while not self.run.ended.wait(every):
            with self.run.cascade.lock:
                try:
                    self._send_waiting()
                except BaseException as error:
                    self.run.fail(error)

    def tick(self) -> None:
        """See what is due."""
        with self.run.cascade.lock:
            try:
                self._send_waiting()
                for ingress in self.run.ingresses if self.run.dispatch.blocked else ():
                    ingress.promises.waits_for_room()
                for ingress in self.run.ingresses:
                    ingress.tick()
                sources = [i.promises for i in self.run.ingresses if i.event is not None]
                timed = [source for source in sources if not source.by_clock]
                least = least_awake(source.frontier for source in timed)
                if least is not None:
                    for source in timed:
                        source.follow(least)
                self.run.stop_if_all_has_come()
                self._ring()
                if self.run.cutting is not None:
                    self.run.cutting.look()
            except BaseException as error:
                self.run.fail(error)

    def _send_waiting(self) -> None:
        for ingress in self.run.ingresses:
            ingress.send_overdue()
        self.run.cascade.send_overdue()

    def _ring(self) -> None:
        """Have timers go off that go by the clock. The lock is held."""
        now = time.time_ns() // 1000
        if self.run.cutting is not None and self.run.cutting.is_on:
            return
        for vertex in self.clocked:
            if vertex.ringing or not vertex.transform.is_due(now):
                continue
            container = self._current(vertex)
            if container is not None:
                vertex.ringing = True
                self.run.cascade.hold(container)
                self.run.urgent.append(ClockWork(self.run, container, now))

    def _current(self, vertex: Vertex) -> Container | None:
        """The container of the epoch that is being read, made if need be."""
        for epochs in (ingress.epochs for ingress in self.run.ingresses):
            for (target, _), container in zip(epochs.outputs, epochs.containers, strict=False):
                if target is vertex:
                    return container
        for above in self.run.cascade.vertices:
            for output, (target, _) in enumerate(above.outputs):
                if target is vertex:
                    source = self._current(above)
                    return None if source is None else self.run.cascade.below(source, output)
        return None
