"""What is done with the records of many keys, and the state of each key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.native import panes
from headrace.windows import BEGINNING, FOREVER


@dataclass(slots=True)
class Records:
    """Records in the order in which they are to be taken."""

    batch: pa.RecordBatch
    slots: Any
    """The place of each record's key."""
    times: Any
    """Their event times; None where there are none."""
    resets: Any = None
    """Where true, the state of the key is forgotten before the record; None if nowhere."""
    ends: Any = None
    """With ``resets``: when the state was to be forgotten."""


class Steps:
    """The states of keys, each in its slot, and what records do with them."""

    fields: tuple[pa.Field, ...] = ()
    """The columns in which the states are kept."""
    fires = False
    """Whether there are timers."""
    pickles = False
    """Whether the bundles contain pickles."""

    def __init__(self) -> None:
        self.room = 0
        self.timers: Any = np.zeros(0, np.int64)
        self.now = BEGINNING
        """The time of day, where timers go by it."""
        self.key_columns: Callable[[Any], list[pa.Array]] = lambda slots: []
        """The keys of some slots."""

    @property
    def nbytes(self) -> int:
        """The memory the states hold, about."""
        return 0

    def grow(self, size: int) -> None:
        """Have room for so many keys; each new one begins as the first."""
        if size > self.room:
            room = max(64, 2 * size)
            self.timers = grown(self.timers, room, FOREVER)
            self.enlarge(room)
            self.room = room

    def enlarge(self, room: int) -> None:
        """Make the states' own room larger."""

    def reset(self, slots: Any) -> None:
        """Forget the states of some keys."""
        raise NotImplementedError

    def run(self, records: Records) -> tuple[pa.RecordBatch | None, Any]:
        """Take records; what comes of them, in their order, and of which record each did.

        None instead of those where each came of one, in order.
        """
        raise NotImplementedError

    def fire(
        self, slots: Any, untils: Any, *, once: bool
    ) -> tuple[Any, Any, pa.RecordBatch] | None:
        """Fire the timers of some keys, each up to its time; ``once`` even if it is set again.

        Returns the slot of each output, the timer's time, and the output.
        """
        return None

    def passed(self, watermark: int) -> tuple[pa.RecordBatch | None, Any]:
        """What comes of event time alone: no record before the watermark will come.

        And the keys whose states that has changed.
        """
        return None, NO_SLOTS

    def soonest(self) -> int:
        """When ``passed`` may first give something."""
        return FOREVER

    def promised(self, watermark: int) -> int:
        """What may be promised downstream."""
        return watermark

    def state(self, slots: Any) -> list[pa.Array]:
        """The states of some keys, as columns."""
        raise NotImplementedError

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        """Have some keys in the states of ``state``."""
        raise NotImplementedError


NO_SLOTS = np.zeros(0, np.int64)


def grown(values: Any, room: int, fill: Any) -> Any:
    """An array with more room, filled up with a value."""
    more = np.full((room, *values.shape[1:]), fill, values.dtype)
    more[: values.shape[0]] = values
    return more


def by_slot(slots: Any) -> tuple[Any, Any]:
    """The rows in the order of their slots, each slot's in order; and where a slot begins."""
    most = int(slots.max(initial=-1)) + 1
    if most <= 2 * slots.size:  # few enough to count
        order, starts = np.empty(slots.size, np.int64), np.empty(most + 1, np.int64)
        panes.split_rows(slots, 0, starts, order)
    else:
        order = np.argsort(slots, kind="stable")
    sorted_slots = slots[order]
    first = np.ones(slots.size, np.bool_)
    first[1:] = sorted_slots[1:] != sorted_slots[:-1]
    return order, first
