"""Schedulers: which bundle or watermark an evaluator takes next. One small class each.

A scheduler is asked with the cascade's lock held, and only looks; the cascade does the rest. All
of them give the same results: they differ in latency, and in how many cores find work.
"""

from __future__ import annotations

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


SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "next-externalization": NextExternalization,
    "first-found": FirstFound,
    "in-order": InOrder,
}


def scheduler_of(name: str) -> Scheduler:
    """A fresh scheduler of that name."""
    if name not in SCHEDULERS:
        raise PlanError(f"there is no scheduler '{name}'{nearest(str(name), SCHEDULERS)}")
    return SCHEDULERS[name]()
