"""What computes a stream: its records here, one value of them, or a job in the background."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.aggregates import count
from headrace.building import installed
from headrace.engines import resolve
from headrace.errors import PlanError
from headrace.functions import folding, reduction
from headrace.io.sink import as_sink
from headrace.jobs import Job, JobOutput
from headrace.kernels.chain import compile_step
from headrace.kernels.rows import VALUE, rows_of
from headrace.plan.rows import MapRows
from headrace.plan.time import ends
from headrace.sizes import is_whole
from headrace.steps import Steps


class Collecting(Steps):
    """What runs the plan of a stream."""

    def collect(self, on: Any = None) -> pa.Table:
        """All records, as a ``pyarrow.Table``."""
        return resolve(on).collect(self.node)

    def to_pandas(self, on: Any = None) -> Any:
        """All records, as a pandas DataFrame."""
        installed("pandas")
        return self.collect(on).to_pandas()

    def to_polars(self, on: Any = None) -> Any:
        """All records, as a Polars DataFrame."""
        return installed("polars").from_arrow(self.collect(on))

    def to_list(self, on: Any = None) -> list[Any]:
        """All records as rows; plain values where ``value`` is the only column."""
        table = self.collect(on)
        return [row for batch in table.to_batches() for row in rows_of(batch)]

    def show(self, rows: int = 20, on: Any = None) -> None:
        """Print the first records as a table."""
        from headrace.display import print_table

        with self._building("show"):
            if not is_whole(rows, 0, 2**31 - 2):
                raise PlanError(f"show takes how many records to print, not {rows!r}")
        ends(self.node, "show", "write_console().start()")
        table = self._stream.limit(rows + 1).collect(on)
        print_table(table.slice(0, rows), more=table.num_rows > rows)

    def for_each(
        self, function: Callable[[Any], Any], *, parallel: bool = False, on: Any = None
    ) -> None:
        """Call a function with each record, here and in order, or in parallel in the workers."""
        with self._building("for_each") as at:
            self._function(function)
            step = MapRows(self.schema, at.step, self.node, function, "for_each")
            self._rows(step)
        engine = resolve(on)
        if parallel:
            engine.run(step)
            return
        run, _ = compile_step(step, self.schema)
        for batch in engine.bundles(self.node):
            run(batch)

    def reduce(self, function: Callable[[Any, Any], Any], on: Any = None) -> Any:
        """All records joined two by two into one, in input order; None if there are none."""
        with self._building("reduce") as at:
            self._function(function, returns=True)
            aggregate = reduction(function, self.schema, at.label, pickled=True)
            stream = self._group((), ((VALUE, aggregate),), "reduce", at.step)
        result = only_value(stream.collect(on))
        return None if result is None else pickle.loads(result)

    def fold(
        self,
        initial: Any,
        function: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any] | None = None,
        *,
        on: Any = None,
    ) -> Any:
        """A state taken through all records in input order: ``fold(0, lambda s, x: s + x)``.

        With ``merge``, which joins two states, parts are folded in parallel; ``initial`` then
        begins every part. Without it the records go to one place.
        """
        with self._building("fold") as at:
            self._function(function, returns=True)
            aggregate = folding(initial, function, merge, None, self.schema, at.label, pickled=True)
            stream = self._group((), ((VALUE, aggregate),), "fold", at.step)
        result = only_value(stream.collect(on))
        return initial if result is None else pickle.loads(result)

    def count(self, on: Any = None) -> int:
        """How many records there are."""
        return int(only_value(self._stream.agg(**{VALUE: count()}).collect(on)))

    def start(
        self, on: Any = None, *, to: Any = None, checkpoint: Any = None, trigger: Any = None
    ) -> Job:
        """Run in the background: ``job = stream.start()``, then ``job.wait()``.

        Results go to ``to``: a sink, or a function that is given each bundle, one at a time.
        Without it they are kept in memory, for ``job.result()``. ``checkpoint`` is the folder a job
        that was stopped or killed goes on from. ``trigger="available-now"`` reads what is there,
        and no more; on Spark, ``"500ms"`` says how often a batch begins (at once if not given).
        """
        return resolve(on).start([self._output(to)], checkpoint, trigger)

    def _output(self, to: Any) -> JobOutput:
        with self._building("start"):
            sink = as_sink(to)
            if sink is not None:
                sink.check(self.schema)
            elif to is not None and not callable(to):
                raise PlanError(f"to={to!r} is neither a sink nor a function of a bundle")
            elif to is not None:
                self._function(to)
            return JobOutput(self.node, to if sink is None else sink)


def only_value(table: pa.Table) -> Any:
    """The value of a table of one record; None if there is none."""
    return table.column(table.num_columns - 1)[0].as_py() if table.num_rows else None
