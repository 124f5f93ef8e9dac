"""One run of a pipeline and what it took, and the medians of several."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

from headrace.bench import probes
from headrace.box.run import Run

DISTURBED = 0.1
"""A run counts as disturbed if other processes had more than that share of the cores."""
PATIENCE = 2
"""There are up to so many times as many rounds where other processes disturb some, and those that
they disturbed least count."""
REACHED = 0.97
"""The share of an offered load that must be reached for a latency to be that of the load."""
Row = dict[str, Any]
"""What was measured of one variant, by name."""


@dataclass(frozen=True)
class Sample:
    """One run."""

    seconds: float
    cpu_s: float
    """Seconds of the processor, which other processes hardly change."""
    mean_ms: float | None
    p99_ms: float | None
    workers: float | None
    """How many workers the work was shared among, where that is counted."""
    others: float
    """The share of all cores that other processes had meanwhile."""


@dataclass
class Samples:
    """What the rounds of one variant gave."""

    results: int
    """The records that come out."""
    all: list[Sample] = field(default_factory=list)

    def least_disturbed(self, rounds: int) -> Samples:
        return Samples(self.results, sorted(self.all, key=lambda sample: sample.others)[:rounds])

    def quiet(self) -> int:
        """How many other processes left alone."""
        return sum(sample.others <= DISTURBED for sample in self.all)

    @property
    def seconds(self) -> list[float]:
        return [sample.seconds for sample in self.all]

    @property
    def cpu(self) -> float:
        return statistics.median(sample.cpu_s for sample in self.all)

    def report(self, records: int) -> Row:
        """Medians over the rounds, and the distances between their quartiles."""
        rates = [records / s for s in self.seconds]
        report: Row = {
            "records": records,
            "results": self.results,
            "records_per_s": round(statistics.median(rates)),
            "records_per_s_spread": round(spread(rates)),
            "records_per_cpu_s": round(records / self.cpu),
        }
        for name in ("mean_ms", "p99_ms", "workers", "others"):
            values = [v for v in (getattr(s, name) for s in self.all) if v is not None]
            if values:
                key = "busy_workers" if name == "workers" else name
                report[key] = round(statistics.median(values), 2)
                report[f"{key}_spread"] = round(spread(values), 2)
        return report


def middle(values: list[float]) -> list[float]:
    """The values of the middle 60 % of a run."""
    fifth = len(values) // 5
    return values[fifth : len(values) - fifth]


def sampled(run: Run, windowed: bool) -> Sample:
    """Run to the end, and see what it took."""
    cores, before, own = psutil.cpu_count() or 1, _busy(), time.process_time()
    finished(run)
    took = run.finished_at - run.started
    cpu = time.process_time() - own
    others = _busy() - before - cpu
    kept = middle([d for _, d in run.delays] if windowed else list(run.latencies))
    mean = 1000 * statistics.fmean(kept) if kept else None
    p99 = 1000 * sorted(kept)[min(len(kept) - 1, int(0.99 * len(kept)))] if kept else None
    return Sample(took, cpu, mean, p99, probes.evenness(run), max(0.0, others / took / cores))


def _busy() -> float:
    """The seconds that all cores together have worked."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.softirq


def spread(values: list[float]) -> float:
    """The distance between the quartiles."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low


def finished(run: Run) -> Run:
    """Run to the end."""
    run.waited_for += 1
    run.start()
    run.wait()
    return run
