"""A stage of a bounded job as one function that Spark runs in its Python workers.

A ``Program`` is the part of a pipeline between two exchanges: an input that brings bundles, the
stage's narrow steps, and an output that says what leaves the worker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.kernels.chain import Chain, Run, compile_chain
from headrace.kernels.lateness import SplitWatermark
from headrace.operators.operator import Input, Operator
from headrace.plan.node import Narrow
from headrace.plan.time import EventTime
from headrace.spark.last_watermark import LastWatermark
from headrace.spark.python.compiled import once
from headrace.spark.python.failures import carrying
from headrace.spark.python.shipping import Shipped
from headrace.spark.stage_inputs import StageInput
from headrace.spark.stage_outputs import PartialOutput, StageOutput
from headrace.spark.wire import Batches, Place


class StageTask(Shipped):
    """A program as the function that Spark calls."""

    def __call__(self, rows: Batches) -> Batches:
        with carrying():
            yield from self.load().run(rows)


@dataclass(frozen=True)
class Program:
    """A stage as one function of what Spark hands to a Python worker."""

    key: str
    input: StageInput
    steps: tuple[Narrow, ...]
    output: StageOutput
    zone: str
    branch: int = 0

    def run(self, rows: Batches) -> Batches:
        """What leaves the worker, of what Spark hands to it."""
        place, output = Place.of(self.branch), self.output
        if isinstance(output, PartialOutput):
            operator: Operator = once(self.key, lambda: output.compiled([self._input], self.zone))
            last = LastWatermark(place.branch)
            chain = operator.chains[output.side]
            if output.tells_watermark:
                chain = self._watched(chain, last)
            batches = _through(chain, self.input, rows, last)
            yield from output.finish(batches, place, operator, last)
        else:
            chain = once(self.key, self._chain)
            batches = _through(chain, self.input, rows, LastWatermark(place.branch))
            yield from output.finish(batches, place)

    def _watched(self, chain: Chain, last: LastWatermark) -> Chain:
        """The chain, with a look at the records where their event time is declared."""
        event = next((step for step in self.steps if isinstance(step, EventTime)), None)
        if event is None or event.by_clock:
            return chain
        last.split = split = SplitWatermark(event, self.zone)

        def watched(run: Run) -> Run:
            def watch(batch: pa.RecordBatch) -> pa.RecordBatch:
                result = run(batch)
                split.observe(result)
                return result

            return watch

        runs = [(name, watched(run) if name == event.label else run) for name, run in chain.runs]
        return replace(chain, runs=tuple(runs))

    @property
    def _input(self) -> Input:
        return Input(self.steps, self.input.schema)

    def _chain(self) -> Chain:
        return compile_chain(self.steps, self.input.schema, None, self.zone)


def _through(chain: Chain, source: StageInput, rows: Batches, last: LastWatermark) -> Batches:
    for batch in source.read(rows, chain.columns, last):
        yield from chain.bundles(batch)
