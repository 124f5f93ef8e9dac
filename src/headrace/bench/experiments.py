"""What sets of experiments on the box share: their size, runs by turns, and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.bench.runner import same_tables
from headrace.bench.samples import PATIENCE, REACHED, Row, Samples, finished, sampled
from headrace.box.engine import Box
from headrace.box.run import Run
from headrace.box.sinks import Collected, Discarded
from headrace.jobs import JobOutput

Made = Callable[[Any], Run]
"""Makes a run that gives its results to a sink."""


@dataclass
class Scale:
    """How large experiments are, and whether their results have been equal so far."""

    rounds: int = 5
    workers: int | None = None
    records: int | None = None
    """Records of a run; by default as many as each experiment finds enough."""
    seconds: float = 4.0
    """Length of a run under a given load."""
    seed: int = 1
    progress: Callable[[str], None] = lambda text: None
    equal: bool = True

    def measure(
        self, what: str, variants: Mapping[str, Made], schema: pa.Schema,
        *, exact: bool = True, windowed: bool = False,
    ) -> dict[str, Samples]:  # fmt: skip
        """Measure variants by turns, after a first time whose results are compared."""
        results = self.compare(what, variants, schema, exact=exact)
        return self.by_turns(what, variants, results, windowed=windowed)

    def compare(
        self, what: str, variants: Mapping[str, Made], schema: pa.Schema, *, exact: bool = True
    ) -> dict[str, int]:
        """Run variants for a first time, which compiles, and see whether their results are equal.

        They must be the same sequence if ``exact``, or else the same records; how many of them
        each variant gives.
        """
        first: pa.Table | None = None
        results = {}
        for name, made in variants.items():
            self.progress(f"{what}: warming up {name}")
            sink = Collected(schema)
            finished(made(sink))
            table = sink.table()
            if first is None:
                first = table
            same = table.equals(first) if exact else same_tables({"": first}, {"": table})
            self.equal = self.equal and same
            results[name] = table.num_rows
        return results

    def by_turns(
        self, what: str, variants: Mapping[str, Made], results: Mapping[str, int],
        *, windowed: bool = False,
    ) -> dict[str, Samples]:  # fmt: skip
        """Measure variants by turns; ``results`` are how many records come out of each."""
        samples = {name: Samples(results[name]) for name in variants}
        for turn in range(PATIENCE * self.rounds):
            if turn >= self.rounds and all(s.quiet() >= self.rounds for s in samples.values()):
                break
            for name, made in variants.items():
                self.progress(f"{what}: round {turn + 1}, {name}")
                samples[name].all.append(sampled(made(Discarded()), windowed))
        return {name: s.least_disturbed(self.rounds) for name, s in samples.items()}


Experiment = Callable[[Scale], list[Row]]


@dataclass(frozen=True)
class Experiments:
    """A set of experiments by name, and what is asked of their rows."""

    each: Mapping[str, Experiment]
    targets: Callable[[Mapping[str, list[Row]]], list[Row]]

    def run(self, names: Sequence[str], scale: Scale) -> dict[str, Any]:
        """The report of some experiments."""
        rows = {name: self.each[name](scale) for name in names}
        return {
            "workers": Box(workers=scale.workers).workers,
            "rounds": scale.rounds,
            "equal": scale.equal,
            "experiments": rows,
            "targets": self.judged(rows),
        }

    def judged(self, rows: Mapping[str, list[Row]]) -> list[Row]:
        """What is asked, and whether it is so."""
        return [{**target, "met": _is_met(target)} for target in self.targets(rows)]


def _is_met(target: Row) -> bool:
    value = target["value"]
    met = target.get("at_least", -1.0) <= value < target.get("below", float("inf"))
    # A latency is that of a load only if the load was kept up with.
    return bool(met and target.get("reached", 1.0) >= REACHED)


def on(box: Box, stream: hr.Stream) -> Made:
    """Runs of a pipeline on a box."""
    return lambda sink: box._run([JobOutput(stream.node, sink=(sink, False))])
