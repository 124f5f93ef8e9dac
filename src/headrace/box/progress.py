"""What a run tells of itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from headrace.box.host import Hosted
from headrace.io.offsets import AWAY
from headrace.jobs import Progress, Rates, SourceProgress, StageProgress

if TYPE_CHECKING:
    from headrace.box.ingress import Ingress
    from headrace.box.run import Run


class Reports:
    """How far a run is, and how fast."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._rates = Rates(0.0)

    def begin(self, now: float) -> None:
        """The run has started."""
        self._rates = Rates(now)

    def progress(self) -> Progress:
        """How far it is, and how fast."""
        run = self.run
        with run.cascade.lock:
            end = run.finished_at or time.perf_counter()
            records = sum(i.records for i in run.ingresses)
            out = sum(v.records for v in run.sinks)
            rate_in, rate_out = self._rates.at(end, records, out)
            delays = np.array([d for _, d in run.delays])
            p50, p99 = (
                (float(np.percentile(delays, q)) for q in (50, 99)) if delays.size else (None, None)
            )
            seconds = end - run.started
            return Progress(
                seconds=seconds,
                records_in=records,
                records_out=out,
                rate_in=rate_in if not run.over else records / max(seconds, 1e-9),
                rate_out=rate_out if not run.over else out / max(seconds, 1e-9),
                sources=tuple(
                    SourceProgress(
                        name=i.name,
                        records=i.records,
                        late=i.late.count,
                        ahead=i.late.ahead,
                        waits=self._waits(i),
                        watermark=i.promises.promised if i.event is not None else None,
                        idle=i.promises.idle,
                        ended=i.ended,
                    )
                    for i in run.ingresses
                ),
                stages=tuple(
                    StageProgress(
                        name=v.name,
                        records_in=v.records,
                        records_out=0 if not v.outputs else v.emitted,
                        bundles=v.bundles,
                        busy=v.busy,
                        watermark=v.watermark,
                        state_bytes=int(v.transform.nbytes) if v.outputs else 0,
                        keys=v.transform.keys_held if isinstance(v.transform, Hosted) else 0,
                    )
                    for v in run.cascade.vertices
                ),
                watermark=run.delivered,
                delay_p50=p50,
                delay_p99=p99,
                bundles_in_flight=run.cascade.in_flight,
                bytes_in_flight=run.cascade.bytes,
                late=sum(i.late.count for i in run.ingresses),
                bad=sum(i.bad for i in run.ingresses),
                notes=(*(note for i in run.ingresses for note in i.notes), *run.tables.notes),
                running=not run.over,
                error=None if run.error is None else str(run.error),
            )

    def _waits(self, ingress: Ingress) -> str:
        """What a source waits for: its server, or what holds its watermark back.

        Bounded input is never silent.
        """
        if ingress.is_away:
            return AWAY
        others = [i.promises for i in self.run.ingresses if i is not ingress and i.event]
        return "" if ingress.bounded else ingress.promises.waits(others)
