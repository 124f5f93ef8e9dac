"""Jobs: pipelines that run in the background, the same on every engine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol

import pyarrow as pa

from headrace.plan.node import Node
from headrace.plan.time import is_bounded
from headrace.signals import GRACE
from headrace.windows import show_time

AVAILABLE_NOW = "available-now"
"""The trigger that reads what there is, and stops."""


@dataclass(frozen=True)
class JobOutput:
    """A step's records on their way out: to a sink, to a function of a bundle, or kept."""

    node: Node
    to: Any = None
    sink: Any = None
    """What an engine itself puts there."""

    @property
    def bounded(self) -> bool:
        return is_bounded(self.node)


@dataclass(frozen=True)
class SourceProgress:
    """How far a source has been read. ``watermark`` is in microseconds since 1970."""

    name: str
    records: int
    late: int
    watermark: int | None
    idle: tuple[int, ...]
    ended: bool
    ahead: int = 0
    """How many of the late ones were set aside as too far ahead of the clock."""
    waits: str = ""
    """What the watermark waits for, where it stands still."""

    def __str__(self) -> str:
        mark = "" if self.watermark is None else f", watermark {show_time(self.watermark)}"
        late = f", {self.late:,} late" if self.late else ""
        idle = f", idle splits: {', '.join(map(str, self.idle))}" if self.idle else ""
        late += f" ({self.ahead:,} of them ahead of the clock)" if self.ahead else ""
        waits = f"\n    {self.waits}" if self.waits else ""
        return f"{self.name}: {self.records:,} records{mark}{late}{idle}{waits}"


@dataclass(frozen=True)
class StageProgress:
    """What one part of the pipeline has done, and the state it holds.

    On Spark the records are those that reached it, partial aggregates where there are any, and the
    state is that of all steps of its level.
    """

    name: str
    records_in: int
    records_out: int
    bundles: int
    busy: float
    watermark: int
    state_bytes: int
    keys: int = 0
    """The keys that a scan remembers."""


@dataclass(frozen=True)
class Progress:
    """A job at one moment.

    Rates are records a second over the last ten seconds, or of the whole job once it has ended.
    ``watermark`` is up to which event time results have been delivered. The output delay is the
    time from a watermark's arrival to the delivery of what it closed, in seconds; on Spark, how
    long the micro-batches took that gave something.
    """

    seconds: float
    records_in: int
    records_out: int
    rate_in: float
    rate_out: float
    sources: tuple[SourceProgress, ...]
    stages: tuple[StageProgress, ...]
    watermark: int
    delay_p50: float | None
    delay_p99: float | None
    bundles_in_flight: int
    bytes_in_flight: int
    late: int
    bad: int
    notes: tuple[str, ...]
    running: bool
    error: str | None = None

    def __str__(self) -> str:
        delay = ""
        if self.delay_p50 is not None and self.delay_p99 is not None:
            delay = f", delay {1000 * self.delay_p50:.0f} ms (p99 {1000 * self.delay_p99:.0f} ms)"
        lines = [
            f"{self.seconds:.1f} s: {self.records_in:,} in ({self.rate_in:,.0f}/s), "
            f"{self.records_out:,} out ({self.rate_out:,.0f}/s), late {self.late:,}, "
            f"bad {self.bad:,}{delay}, {self.bundles_in_flight} bundles "
            f"({self.bytes_in_flight / 1e6:.1f} MB) in flight"
        ]
        if self.error is not None:
            lines.append(f"  failed: {self.error}")
        return "\n".join([*lines, *(f"  {source}" for source in self.sources)])


class Rates:
    """Records a second, in and out, over the last ten seconds.

    On Spark records are counted batch by batch, so that a rate since the last report would be
    zero most of the time.
    """

    def __init__(self, start: float) -> None:
        self._seen: deque[tuple[float, int, int]] = deque([(start, 0, 0)])

    def at(self, now: float, records_in: int, records_out: int) -> tuple[float, float]:
        """Note the counts of a moment, and return both rates."""
        seen = self._seen
        while len(seen) > 1 and seen[1][0] <= now - _RATE_SECONDS:
            seen.popleft()
        then, before_in, before_out = seen[0]
        if now - seen[-1][0] >= _RATE_STEP:
            seen.append((now, records_in, records_out))
        span = max(now - then, 1e-9)
        return (records_in - before_in) / span, (records_out - before_out) / span


_RATE_SECONDS, _RATE_STEP = 10.0, 0.2


class Shown:
    """How a job shows itself at a prompt and in a notebook."""

    def progress(self) -> Progress:
        raise NotImplementedError

    def __repr__(self) -> str:
        told = self.progress()
        state = "running" if told.running else "failed" if told.error else "ended"
        return f"{type(self).__name__}({state} after {told})"

    def _repr_html_(self) -> str:
        told = self.progress()
        state = "running" if told.running else "failed" if told.error else "ended"
        rates = {
            "records in": f"{told.records_in:,} ({told.rate_in:,.0f}/s)",
            "records out": f"{told.records_out:,} ({told.rate_out:,.0f}/s)",
            "watermark": show_time(told.watermark),
            "late": f"{told.late:,}",
            "bad": f"{told.bad:,}",
        }
        if told.error is not None:
            rates["error"] = told.error
        rates |= {source.name: source.waits for source in told.sources if source.waits}
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td style='text-align:left'>{escape(value)}</td></tr>"
            for name, value in rates.items()
        )
        head = f"<b>{escape(type(self).__name__)}</b>, {state} after {told.seconds:.1f} s"
        return f"<div>{head}<table><tbody>{rows}</tbody></table></div>"


class Job(Protocol):
    """A pipeline that runs in the background."""

    @property
    def running(self) -> bool:
        """Whether it is still going."""

    def wait(self, timeout: float | None = None, *, grace: Any = GRACE) -> bool:
        """Wait for the end; false if it has not come in time. Raises what went wrong.

        Ctrl-C or SIGTERM while waiting stops the job as ``stop`` does, for ``grace`` at the most;
        a second one stops it at once.
        """

    def stop(self, *, drain: bool | None = None, timeout: float | None = None) -> bool:
        """Stop reading and finish what was read; with ``drain=False``, stop at once.

        Windows that are open are closed with what they have, unless the job has a checkpoint:
        there they stay open for the next start.
        """

    def progress(self) -> Progress:
        """How far it is, and how fast."""

    def late(self, source: int = 0) -> pa.Table | None:
        """The newest late records of a source; None if there were none."""

    def result(self, output: int = 0) -> pa.Table:
        """What a job started without ``to=`` has given so far."""
