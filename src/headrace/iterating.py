"""``iterate`` and ``cycle``: a chain of steps repeated until it is enough (RStream §III-B)."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.aggregates import Aggregate
from headrace.building import Building, difference
from headrace.engines import resolve
from headrace.errors import PlanError
from headrace.functions import reduction
from headrace.iteration import Rounds, asked, called, settled, within
from headrace.kernels.rows import VALUE
from headrace.plan.iteration import Again, Iterate, constants_of
from headrace.plan.nodes import Node
from headrace.plan.time import is_bounded

if TYPE_CHECKING:
    from headrace.stream import Stream


class Iterating:
    """The methods of a stream that repeat other steps."""

    node: Node
    schema: pa.Schema
    _building: Callable[[str], Building]
    _with: Callable[[Node], Stream]
    _function: Callable[[Any], None]

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
            again = Again(self.schema, self.node.step, self.node)
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
                self.schema, max(at.step, after.node.step + 1), self.node, after.node, again,
                measure, value, until, at_most, report, constants_of(after.node, again),
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
        report: Callable[[Any], Any] | None = None,
        on: Any = None,
    ) -> Any:
        """Repeat a chain of steps on the same input with a state, and return the last state.

        Each iteration calls ``body(stream, state)``, whose steps may use the state in expressions
        and functions wherever they run, computes what it gives, and calls ``update(state, table)``
        here, once, for the next state. ``until(state)``, or ``until(state, before)``, says whether
        that is enough. The input is read once and kept. ``report`` is as in ``iterate``.
        """
        with self._building("cycle") as at:
            for function in (body, update):
                self._function(function)
            _check_ends(until, at_most, report)
            if isinstance(self.node, Again):
                raise PlanError(
                    "it gives a value and not a stream, so it cannot be a step of iterate; use it "
                    "in the body of another cycle"
                )
            if not is_bounded(self.node):
                raise PlanError("it repeats on all of its input, and this never ends")
        engine: Any = resolve(on)
        rounds = Rounds(at.label, at_most, report)
        with settled(engine, self.node) as (ready,), within(engine):
            kept = engine.hold(ready)
            try:
                same = self._with(kept.node)
                rounds.begun = time.perf_counter()
                while True:
                    result = _stream(called(body, at.label, "body", same, state), same, at.label)
                    table = engine.collect(result.node)
                    before, state = state, called(update, at.label, "update", state, table)
                    rounds.ended(_told(state))
                    if rounds.is_last:
                        return state
                    if until is not None and asked(until, at.label, state, before):
                        return state
            finally:
                rounds.close()
                kept.release()


def _check_ends(until: Any, at_most: Any, report: Any) -> None:
    if at_most is not None and (
        not isinstance(at_most, int) or isinstance(at_most, bool) or at_most < 1
    ):
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
        return None, _only
    if isinstance(reduce, Aggregate):
        if reduce.kind == "count" and not reduce.inputs:
            return again, _only
        return first.agg(**{VALUE: reduce}).node, _only
    if not callable(reduce):
        raise PlanError(f"reduce={reduce!r} is neither an aggregate nor a function of two records")
    whole = reduction(reduce, first.schema, label, pickled=True)
    return first._group((), ((VALUE, whole),), "reduce", again.step + 1).node, _unpickled


def _only(table: pa.Table) -> Any:
    return table.column(table.num_columns - 1)[0].as_py() if table.num_rows else None


def _unpickled(table: pa.Table) -> Any:
    found = _only(table)
    return None if found is None else pickle.loads(found)


def _told(state: Any) -> Any:
    """A state as progress shows it: numbers and short text as they are."""
    return state if isinstance(state, (bool, int, float, str)) else None
