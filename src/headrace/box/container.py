"""A container: one transform's view of one epoch (StreamBox §5.1)."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from headrace.box.bundle import Bundle

if TYPE_CHECKING:
    from headrace.box.cascade import Lane


class ContainerState(Enum):
    """The life of a container (figure 3)."""

    OPEN = "bundles may still come"
    WM_ASSIGNED = "its end watermark is known: no more bundles come"
    WM_RETRIEVED = "its end watermark is being processed"
    WM_CONSUMED = "all done; what it gave is downstream"
    WM_CANCELLED = "it has no end watermark of its own: the next container's ends it too"


class Container:
    """Unclaimed bundles, how many are not yet consumed, the end watermark, the links downstream.

    ``since`` is the watermark that was promised before the epoch began, so no record in it can be
    older; ``arrived`` is when its end watermark reached the ingress. ``ordered`` is false below a
    transform of several inputs until the epoch's place among the others is known (§5.3).
    """

    __slots__ = (
        "arrived", "bundles", "deposited", "down", "epoch", "lane", "ordered", "since", "sorted",
        "state", "unconsumed", "watermark",
    )  # fmt: skip

    def __init__(self, lane: Lane, epoch: int, since: int, ordered: bool) -> None:
        self.lane, self.epoch, self.since, self.ordered = lane, epoch, since, ordered
        self.state = ContainerState.OPEN
        self.bundles: deque[Bundle] = deque()
        self.unconsumed = 0
        self.deposited = 0
        self.watermark: int | None = None
        self.arrived = 0.0
        self.sorted = False
        self.down: list[Container | None] = [None] * len(lane.vertex.outputs)

    @property
    def is_complete(self) -> bool:
        """Whether no more bundles will come."""
        return self.state in (ContainerState.WM_ASSIGNED, ContainerState.WM_CANCELLED)

    def __repr__(self) -> str:
        return (
            f"Container({self.lane.vertex.name}, epoch {self.epoch}, {self.state.name}, "
            f"{self.unconsumed} unconsumed)"
        )
