"""The last watermark before the end of bounded input, on its way to the steps that need it.

Timers fire up to the last watermark, and once more at the end. In a bounded job all records of a
shard come at once, so the tasks that read them tell the shards how far the watermark came.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.kernels.lateness import SplitWatermark
from headrace.spark.wire import WATERMARK, Row
from headrace.windows import BEGINNING, FOREVER


@dataclass
class LastWatermark:
    """What one task knows of it."""

    branch: int
    split: SplitWatermark | None = None
    """Where the task reads a source."""
    shards: list[int] = field(default_factory=list)
    """What the shards of an operator promised, where the task computes its results."""

    def message(self, side: int) -> dict[str, Any]:
        """For every shard of the operator that the task feeds."""
        if self.split is not None:
            reached, kind = self.split.reached, "split"
        else:
            reached, kind = min(self.shards, default=FOREVER), "operator"
        return {"side": side, "branch": self.branch, "kind": kind, "last": reached}


@dataclass
class ReceivedWatermarks:
    """The watermarks that a shard received from all tasks that feed it."""

    messages: list[dict[str, Any]] = field(default_factory=list)

    def records(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows that have records; the others are messages."""
        for row in rows:
            if row[2] != WATERMARK:
                yield row
            else:
                self.messages.append(json.loads(bytes(row[5])))

    def last(self, side: int) -> int:
        """The last watermark of an input: of its splits the furthest, of shards the least."""
        told = [m for m in self.messages if m.get("side") == side]
        marks = [m["last"] for m in told if m["kind"] == "split"]
        for branch in {m["branch"] for m in told if m["kind"] == "operator"}:
            mine = (m["last"] for m in told if m["branch"] == branch)
            least = min(mine)
            marks.append(BEGINNING if least == FOREVER else least)
        return max(marks, default=BEGINNING)
