"""Records of a source that are not on time: counted, the newest kept, the first of them told of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pyarrow as pa

from headrace.box.epochs import Epochs
from headrace.kernels.lateness import first_late, times_of
from headrace.plan.time import EventTime
from headrace.windows import show_time

_KEPT = 10_000


class LateRecords:
    """What a source set aside. Its methods are called with the lock held."""

    def __init__(self, source: str, epochs: Epochs, note: Callable[[str], None]) -> None:
        self.source, self.epochs, self.note = source, epochs, note
        self.count = 0
        """All of them."""
        self.ahead = 0
        """Those that were too far ahead of the clock."""
        self.kept: deque[pa.RecordBatch] = deque()
        self._kept_rows = 0

    def take_ahead(self, event: EventTime, aside: pa.RecordBatch) -> None:
        """Records whose time cannot be right."""
        if not self.ahead:
            times = times_of(event, aside)
            self.note(
                f"{self.source}: a record of {show_time(int(times[0]))} is {aside.columns[-1][0]}; "
                "it does not move the watermark; such records go to .late, and are counted"
            )
        self.ahead += aside.num_rows
        self._take(aside)

    def take_late(self, event: EventTime, late: pa.RecordBatch) -> None:
        """Records below their split's watermark."""
        if self.count == self.ahead:
            moment, watermark = first_late(event, late)
            self.note(
                f"{self.source}: a record of {show_time(moment)} came after the watermark "
                f"{show_time(watermark)}; late records go to .late, and are counted"
            )
        self._take(late)

    def _take(self, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows
        self.kept.append(batch)
        self._kept_rows += batch.num_rows
        while self._kept_rows > _KEPT and len(self.kept) > 1:
            self._kept_rows -= self.kept.popleft().num_rows
        self.epochs.put_late(batch, (self.count,))
