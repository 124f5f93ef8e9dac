"""Schedulers: which bundle or watermark an evaluator takes next. One small class each.

A scheduler is asked with the cascade's lock held, and only looks; the cascade does the rest. All
of them give the same results: they differ in latency, and in how many cores find work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from headrace.box.cascade import Cascade, Vertex
from headrace.box.container import Container, ContainerState
from headrace.errors import PlanError, nearest
from headrace.windows import BEGINNING

Work = tuple[Container, bool]
"""A container, and whether its watermark is to be taken (or else a bundle of it)."""


class Scheduler(Protocol):
    """Chooses work."""

    def pick(self, cascade: Cascade) -> Work | None:
        """What to do next; None if there is nothing."""

    def externalized(self, watermark: int) -> None:
        """Results up to a watermark have been delivered."""


def ready(container: Container) -> bool:
    """Whether a container has a bundle that may be processed now."""
    return container.lane.vertex.may_take(container)


class NextExternalization:
    """Work that the next output waits for comes first (StreamBox §6).

    The next externalization moment (NEM) is the end watermark of the oldest epoch not yet
    delivered. Watermarks go first, then bundles of epochs that began before the moment, the oldest
    epoch first and those nearest the output first; then bundles of the transform with the most
    open containers.
    """

    def __init__(self) -> None:
        self.moment = BEGINNING

    def externalized(self, watermark: int) -> None:
        self.moment = max(self.moment, watermark)

    def pick(self, cascade: Cascade) -> Work | None:
        for vertex in reversed(cascade.vertices):
            due = cascade.due(vertex)
            if due is not None:
                return due, True
        best: Container | None = None
        for vertex in reversed(cascade.vertices):
            found = self._oldest(vertex, self.moment)
            if found is not None and (best is None or found.since < best.since):
                best = found
        if best is None:
            best = self._crowded(cascade)
        return None if best is None else (best, False)

    @staticmethod
    def _oldest(vertex: Vertex, moment: int) -> Container | None:
        if not vertex.may_run():
            return None
        best: Container | None = None
        for lane in vertex.lanes:
            for container in lane.containers:
                if container.since > moment:
                    break
                if container.bundles:
                    if ready(container) and (best is None or container.since < best.since):
                        best = container
                    break
            for container in lane.unplaced.values():
                if (
                    ready(container)
                    and container.since <= moment
                    and (best is None or container.since < best.since)
                ):
                    best = container
        return best

    @staticmethod
    def _crowded(cascade: Cascade) -> Container | None:
        best: tuple[int, int, Container] | None = None
        for place, vertex in enumerate(cascade.vertices):
            first = next((c for c in vertex.all_containers() if ready(c)), None)
            if first is None:
                continue
            count = sum(len(lane.containers) + len(lane.unplaced) for lane in vertex.lanes)
            if best is None or (count, place) >= best[:2]:
                best = (count, place, first)
        return None if best is None else best[2]


class FirstFound:
    """No priorities: the first work found from the source on (the ablation of §9.2).

    Evaluators rush into one transform, drain it, and move to the next.
    """

    def externalized(self, watermark: int) -> None:
        """It does not matter here."""

    def pick(self, cascade: Cascade) -> Work | None:
        for vertex in cascade.vertices:
            for container in _youngest_first(vertex):
                if ready(container):
                    return container, False
        for vertex in cascade.vertices:
            due = cascade.due(vertex)
            if due is not None:
                return due, True
        return None


def _youngest_first(vertex: Vertex) -> Iterator[Container]:
    for lane in vertex.lanes:
        yield from lane.unplaced.values()
        yield from reversed(lane.containers)


class InOrder:
    """Hold each epoch until it is complete, and take epochs one by one (§9.2, "hold and sort")."""

    def externalized(self, watermark: int) -> None:
        """It does not matter here."""

    def pick(self, cascade: Cascade) -> Work | None:
        for vertex in reversed(cascade.vertices):
            due = cascade.due(vertex)
            if due is not None:
                return due, True
        for vertex in reversed(cascade.vertices):
            for lane in vertex.lanes:
                for container in lane.containers:
                    if container.state is ContainerState.WM_CANCELLED and not container.unconsumed:
                        continue
                    complete = container.state in (
                        ContainerState.WM_ASSIGNED,
                        ContainerState.WM_CANCELLED,
                    )
                    if complete and ready(container):
                        return container, False
                    break
        return None


class Heuristic:
    """Chooses a transform by what is known of all of them, and its oldest bundle (Ordered §6).

    Costs and selectivities are those seen so far. Watermarks go first.
    """

    def externalized(self, watermark: int) -> None:
        """It does not matter here."""

    def pick(self, cascade: Cascade) -> Work | None:
        for vertex in reversed(cascade.vertices):
            due = cascade.due(vertex)
            if due is not None:
                return due, True
        found: list[tuple[Vertex, Container]] = []
        for vertex in cascade.vertices:
            first = next((c for c in vertex.all_containers() if ready(c)), None)
            if first is not None:
                found.append((vertex, first))
        if not found:
            return None
        return self.choose(found, cascade.vertices), False

    def choose(self, found: list[tuple[Vertex, Container]], vertices: list[Vertex]) -> Container:
        """One of the transforms that may be worked on, earliest first, by its bundle."""
        raise NotImplementedError


def cost_of(vertex: Vertex) -> float:
    """The seconds of a worker that a record takes."""
    return vertex.worked / vertex.records if vertex.records else _UNKNOWN


def selectivity_of(vertex: Vertex) -> float:
    """The records that come of one."""
    return vertex.emitted / vertex.records if vertex.records and vertex.outputs else 1.0


def waiting_at(vertex: Vertex) -> int:
    """The records that wait."""
    return sum(b.batch.num_rows for c in vertex.all_containers() for b in list(c.bundles))


_UNKNOWN = 1e-6
"""The cost of a record of which nothing is known yet."""


class LastInPipeline(Heuristic):
    """LP: what is nearest to the output (§6.2)."""

    def choose(self, found: list[tuple[Vertex, Container]], vertices: list[Vertex]) -> Container:
        return found[-1][1]


class EstimatedTime(Heuristic):
    """ET: what would take longest, if it got one more worker (§6.3)."""

    def choose(self, found: list[tuple[Vertex, Container]], vertices: list[Vertex]) -> Container:
        return max(found, key=lambda item: self._time(item[0]))[1]

    @staticmethod
    def _time(vertex: Vertex) -> float:
        return waiting_at(vertex) * cost_of(vertex) / (vertex.running + 1)


class QueueSizeThrottling(Heuristic):
    """QST: the earliest whose output's queue is short (§6.1).

    A queue may hold a share of the capacity that goes by the selectivities before it.
    """

    capacity = 1 << 20

    def choose(self, found: list[tuple[Vertex, Container]], vertices: list[Vertex]) -> Container:
        shares, reached = {}, 1.0
        for vertex in vertices:
            reached *= selectivity_of(vertex)
            shares[id(vertex)] = reached
        total = sum(shares.values()) or 1.0
        for vertex, container in found:
            queued = sum(waiting_at(target) for target, _ in vertex.outputs)
            if queued <= self.capacity * shares[id(vertex)] / total:
                return container
        return found[-1][1]


class CurrentThroughput(Heuristic):
    """CT: what has got through the least in this window of time, by what comes of it (§6.4)."""

    window, slice = 0.1, 0.004
    """Seconds: of a window, and about as long as a worker is given to a bundle."""

    def __init__(self) -> None:
        self.since = 0.0
        self.before: dict[int, float] = {}

    def choose(self, found: list[tuple[Vertex, Container]], vertices: list[Vertex]) -> Container:
        now = time.perf_counter()
        if now - self.since >= self.window:
            self.since = now
            self.before = {id(vertex): vertex.worked for vertex in vertices}
        reached, effective = 1.0, {}
        for vertex in vertices:
            spent = vertex.worked - self.before.get(id(vertex), 0.0) + vertex.running * self.slice
            effective[id(vertex)] = spent / max(cost_of(vertex) * reached, 1e-12)
            reached *= selectivity_of(vertex)
        return min(found, key=lambda item: effective[id(item[0])])[1]


SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "next-externalization": NextExternalization,
    "first-found": FirstFound,
    "in-order": InOrder,
    "ct": CurrentThroughput,
    "lp": LastInPipeline,
    "et": EstimatedTime,
    "qst": QueueSizeThrottling,
}


def scheduler_of(name: str) -> Scheduler:
    """A fresh scheduler of that name."""
    if name not in SCHEDULERS:
        raise PlanError(f"there is no scheduler '{name}'{nearest(str(name), SCHEDULERS)}")
    return SCHEDULERS[name]()
