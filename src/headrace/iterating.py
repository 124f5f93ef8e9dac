"""``iterate`` and ``cycle``: a chain of steps repeated until it is enough (RStream §III-B)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyarrow as pa

from headrace.aggregates import Aggregate
from headrace.building import difference
from headrace.collecting import only_value
from headrace.engines import resolve
from headrace.errors import NotYet, PlanError
from headrace.functions import reduction
from headrace.io.memory import TableSource
from headrace.iteration import called, last_state, settled
from headrace.kernels.rows import VALUE
from headrace.plan.iteration import Again, Cycle, Iterate, constants_of
from headrace.plan.node import Node
from headrace.plan.time import is_bounded, nodes_of
from headrace.sizes import is_whole
from headrace.steps import Steps
from headrace.types import type_name

if TYPE_CHECKING:
    from headrace.stream import Stream


class Iterating(Steps):
    """What repeats other steps."""

    def iterate(
        self,
        body: Callable[[Stream], Stream],
        *,
        reduce: Aggregate | Callable[[Any, Any], Any] | None = None,
        until: Callable[..., Any] | None = None,
        at_most: int | None = None,
        report: Callable[[Any], Any] | None = None,
    ) -> Stream:
        """Repeat a chain of steps on its own result: ``iterate(grow, at_most=10)``.

        ``body`` is given a stream and returns one with the same columns: any steps, joins with
        other streams that end included, which are computed once. After each iteration the result
        is reduced to one value by ``reduce``, an aggregate (``hr.count()``, ``hr.sum("x")``) or a
        function that joins two records; ``until(value)`` says whether that is enough, or
        ``until(value, before)``, which is given the value of the iteration before too, None at
        first. ``report`` is called with each iteration's ``Round``; without it a terminal shows
        them.
        """
        with self._building("iterate") as at:
            self._function(body)
            _check_ends(until, at_most, report)
            if (reduce is None) != (until is None):
                raise PlanError(
                    "until= is asked about the value that reduce= gives; pass both, or at_most= "
                    "alone"
                )
            if not is_bounded(self.node):
                raise PlanError("it repeats on all of its input, and this never ends")
            again = self._again()
            first = self._with(again)
            result = called(body, at.label, "body", first)
            after = _stream(result, first)
            if not after.schema.equals(self.schema):
                raise PlanError(
                    f"the body gives other columns than it takes: "
                    f"{difference(self.schema, after.schema)}"
                )
            if not is_bounded(after.node):
                raise PlanError("the body reads a stream that never ends")
            measure, value = _measure(first, again, reduce, at.label)
            node = Iterate(
                self.schema, max(at.step, after.node.step + 1), self.node, until, at_most, report,
                after.node, again, measure, value, constants_of(after.node, again),
            )  # fmt: skip
            return self._with(node)

    def cycle(
        self,
        *,
        state: Any,
        body: Callable[[Stream, Any], Stream],
        update: Callable[[Any, pa.Table], Any],
        until: Callable[..., Any] | None = None,
        at_most: int | None = None,
        give: Callable[[Any], Any] | None = None,
        report: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Repeat a chain of steps on the same input, with a state that their result updates.

        Each iteration calls ``body(stream, state)``, whose steps may use the state in expressions
        and functions wherever they run, computes what it gives, and calls ``update(state, table)``
        once, here, for the next state. ``until(state)``, or ``until(state, before)``, says whether
        that is enough. The input is read once and kept, and so are other streams that the body
        reads. What comes out is a stream of the last state, and ``.state()`` runs the cycle and
        returns the state itself, which may be any value that can be pickled. A state that is a
        table comes out as its rows, a plain value in the column ``value``; of others ``give`` may
        make a table. ``report`` is as in ``iterate``.
        """
        with self._building("cycle") as at:
            for function in (body, update):
                self._function(function)
            _check_ends(until, at_most, report)
            if not is_bounded(self.node):
                raise PlanError("it repeats on all of its input, and this never ends")
            schema, given = _given(state, give)

            def end(leaf: Node, state: Any) -> Node:
                stream = self._with(leaf)
                after: Node = _stream(body(stream, state), stream, at.label).node
                return after

            try:
                first = called(end, at.label, "body", self._again(), state)
            except NotYet:
                first = None
            if first is not None and not is_bounded(first):
                raise PlanError("the body reads a stream that never ends")
            step = at.step if first is None else max(at.step, first.step + 1)
            node = Cycle(
                schema, step, self.node, until, at_most, report, state, end, update, given, first
            )
            return self._cycled(node)

    def _cycled(self, node: Node) -> Any:
        """The stream of a cycle's last state."""
        raise NotImplementedError

    def _again(self) -> Again:
        return Again(self.schema, self.node.step, self.node)


class HasState:
    """What the stream of a cycle has besides."""

    node: Node

    def state(self, on: Any = None) -> Any:
        """Run the cycle, and return the state it ends with."""
        node = self.node
        assert isinstance(node, Cycle)
        for each in nodes_of(node.input):
            if isinstance(each, Again):
                raise NotYet(
                    f"{node.label}: its state is not known before the iteration that it is in "
                    "runs; go on with the stream, or use it in the body of another cycle"
                )
        engine: Any = resolve(on)
        with settled(engine, node.input) as (ready,):
            return last_state(engine, node, ready)


def _given(state: Any, give: Any) -> tuple[pa.Schema, Callable[[Any], pa.Table]]:
    """The columns of a state as a stream, and how it becomes a table."""
    if give is not None and not callable(give):
        raise PlanError(f"give={give!r} is not a function of the state")
    if give is None and isinstance(state, (bool, int, float, str)):
        give = _as_value
    elif give is None and not _is_table(state):
        give = _pickled
    schema = TableSource.of(state if give is None else give(state)).schema

    def table(last: Any) -> pa.Table:
        found = TableSource.of(last if give is None else give(last)).table
        if not found.schema.equals(schema):
            how = difference(schema, found.schema)
            if schema.names == [VALUE]:
                kinds = [type_name(each.field(0).type) for each in (schema, found.schema)]
                how = f"it began as {kinds[0]} and became {kinds[1]}; begin with such a value"
            raise PlanError(f"the last state is not like the first: {how}")
        return found

    return schema, table


def _is_table(state: Any) -> bool:
    return isinstance(state, (pa.Table, pa.RecordBatch)) or hasattr(state, "__arrow_c_stream__")


def _as_value(state: Any) -> pa.Table:
    return pa.table({VALUE: [state]})


def _pickled(state: Any) -> pa.Table:
    return pa.table({"state": pa.array([cloudpickle.dumps(state)], pa.binary())})


def _check_ends(until: Any, at_most: Any, report: Any) -> None:
    if at_most is not None and not is_whole(at_most):
        raise PlanError(f"at_most={at_most!r} is not a number of iterations")
    if until is None and at_most is None:
        raise PlanError("it would never end; pass until= or at_most=")
    for name, function in (("until", until), ("report", report)):
        if function is not None and not callable(function):
            raise PlanError(f"{name}={function!r} is not a function")


def _stream(result: Any, like: Any, step: str = "") -> Any:
    if not isinstance(result, type(like)):
        where = f"{step}: " if step else ""
        raise PlanError(f"{where}the body returned {result!r}, which is not a stream")
    return result


def _measure(
    first: Any, again: Again, reduce: Any, label: str
) -> tuple[Node | None, Callable[[pa.Table], Any]]:
    """How a result is measured, and what to tell of the record that comes out."""
    if reduce is None:
        return None, only_value
    if isinstance(reduce, Aggregate):
        if reduce.kind == "count" and not reduce.inputs:
            return again, only_value
        return first.agg(**{VALUE: reduce}).node, only_value
    if not callable(reduce):
        raise PlanError(f"reduce={reduce!r} is neither an aggregate nor a function of two records")
    whole = reduction(reduce, first.schema, label, pickled=True)
    return first._group((), ((VALUE, whole),), "reduce", again.step + 1).node, _unpickled


def _unpickled(table: pa.Table) -> Any:
    found = only_value(table)
    return None if found is None else pickle.loads(found)
