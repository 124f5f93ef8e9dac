"""``scan`` and what is made with it: records of a key in order, and a state taken through them."""

from __future__ import annotations

import copy
import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.aggregates import Aggregate
from headrace.building import column_names, named_aggregates
from headrace.errors import PlanError
from headrace.expressions import Expr, col
from headrace.functions import annotated, as_schema, example_rows
from headrace.io.memory import infer_schema
from headrace.kernels.rows import FAILURES, failure
from headrace.kernels.scans import not_compiled
from headrace.plan.node import Named, is_same
from headrace.plan.prune import columns_of
from headrace.plan.rows import NATIVE
from headrace.plan.scans import (
    AnyStep,
    CountStep,
    OnceStep,
    RankStep,
    RunningStep,
    Scan,
    ShiftStep,
    UserStep,
)
from headrace.plan.texts import text_of
from headrace.plan.time import NUMBER, clock_needed, clock_of, zone_of
from headrace.sizes import is_whole
from headrace.types import to_schema, unique_names
from headrace.windows import ORDERS, CountWindow, duration

if TYPE_CHECKING:
    from headrace.stream import Stream


class Scanning:
    """What can be made of records in their order, by key or of all."""

    def _scanned(self) -> tuple[Stream, tuple[str, ...], tuple[str, ...]]:
        """The records, their keys, and the columns that functions see."""
        raise NotImplementedError

    def scan(
        self,
        step: Callable[..., Any],
        state: Any,
        *,
        schema: Any = None,
        order: str | None = None,
        ttl: Any = None,
        keep: str | Sequence[str] = (),
        on_timer: Callable[..., Any] | None = None,
    ) -> Stream:
        """Take a state through the records of each key, one after the other.

        ``step(state, row)`` returns ``(state, output)``: the new state, and None, a record, or a
        list of records. A key begins with ``state`` (a copy of it, or what it gives if it is a
        function without arguments), any value that can be pickled:

            def balance(total, row):
                total += row.amount
                return total, total

            payments.key_by("account").scan(balance, 0.0, schema={"balance": "double"})

        What comes out has the key, the event time and the columns ``keep`` of the record before
        what the step gives, whose columns ``schema`` says, or the function's annotation
        (``-> tuple[float, Balance]``).

        ``order`` is ``"event"``, the order of event time, where there is one: a record waits until
        the watermark has passed it. Or ``"arrival"``, as records come from their source. ``ttl``
        forgets a key after so much event time without a record; without it keys are kept for ever.

        With ``on_timer(state, time, timer)``, which returns the same, the step takes a third
        argument, the key's timer: ``timer.at(moment)``, ``timer.after("5 minutes")``,
        ``timer.cancel()``. It goes off when event time passes the moment; where there is no event
        time, when the clock does, on Spark with the next micro-batch.

        Where the state is numbers (one, a tuple, or a NumPy record that the step changes in place)
        and so is all that the step reads and gives, it is compiled; ``explain()`` says whether.
        """
        return self._user_scan("scan", step, state, schema, order, ttl, keep, on_timer)

    def scan_batches(
        self,
        step: Callable[..., Any],
        state: Any,
        *,
        schema: Any,
        order: str | None = None,
        ttl: Any = None,
    ) -> Stream:
        """``scan`` with a function of Arrow batches: ``step(state, batch)``.

        It gets the records of one key that are due, in order, and returns the new state and a
        table (or None). How many come at once depends on the engine and on the watermark. Where the
        table has no event time of its own, it gets that of the first of the records.
        """
        return self._user_scan("scan_batches", step, state, schema, order, ttl, (), None)

    def running(self, *aggregates: Expr, **named: Expr) -> Stream:
        """Every record with aggregates of its key so far: ``running(total=hr.sum("x"))``.

        By event time where there is one, else as records come. It has ``count``, ``sum``,
        ``mean``, ``min`` and ``max``.
        """
        from headrace.kernels.scans.running import running_type

        stream, keys, _ = self._scanned()
        with stream._building("running") as at:
            if not aggregates and not named:
                raise PlanError("running needs at least one aggregate, such as n=hr.count()")
            results = named_aggregates(aggregates, named)
            for name in results.names:
                if name in stream.schema.names:
                    raise PlanError(f"there is a column '{name}' already; name it otherwise")
            found = results.aggregates
            if any(aggregate.functions for _, aggregate in found):
                raise PlanError("running takes columns and expressions; compute with map before")
            bound = tuple((name, a.bound(stream.schema.names)) for name, a in found)
            zone = zone_of(stream.node)
            new = [pa.field(n, running_type(a, stream.schema, zone)) for n, a in bound]
            step = RunningStep(bound)
            return results.of(_with_columns(stream, keys, step, new, "running", at.step))

    def lag(self, by: int = 1, **columns: str) -> Stream:
        """Every record with columns of the one before it of its key: ``lag(before="price")``.

        ``by`` is how many before. Null where there is none.
        """
        return self._shifted("lag", by, columns, None)

    def lead(self, by: int = 1, *, within: Any = None, **columns: str) -> Stream:
        """Every record with columns of the one after it of its key: ``lead(after="price")``.

        A record waits for that one, and so holds back the watermark; with ``within`` not for
        longer than so much event time, and what comes later than that is not looked at. Null where
        there is none.
        """
        wait = None if within is None else duration(within, "within", 1)
        return self._shifted("lead", by, columns, wait)

    def rank(self, name: str = "rank") -> Stream:
        """Every record with its rank among those of its key by event time, from 1.

        Records of the same time have the same rank, and the next one counts them all.
        """
        stream, keys, _ = self._scanned()
        with stream._building("rank") as at:
            clock_needed(stream.node, "rank")
            new = [pa.field(name, pa.int64())]
            return _with_columns(stream, keys, RankStep(name), new, "rank", at.step)

    def _shifted(self, method: str, by: int, columns: dict[str, str], within: int | None) -> Stream:
        stream, keys, _ = self._scanned()
        with stream._building(method) as at:
            if not is_whole(by):
                raise PlanError(f"{method} takes how many records away, from 1, not {by!r}")
            if not columns:
                raise PlanError(f"{method} needs columns, as in {method}(other='price')")
            stream._known(*columns.values())
            new = [pa.field(n, stream.schema.field(old).type) for n, old in columns.items()]
            if method == "lead":
                clock_needed(stream.node, "lead")
            step = ShiftStep(by, tuple(columns.items()), method == "lead", within)
            return _with_columns(stream, keys, step, new, method, at.step)

    def _user_scan(
        self,
        method: str,
        step: Callable[..., Any],
        state: Any,
        schema: Any,
        order: str | None,
        ttl: Any,
        keep: str | Sequence[str],
        on_timer: Callable[..., Any] | None,
    ) -> Stream:
        stream, keys, fields = self._scanned()
        with stream._building(method) as at:
            stream._function(step, returns=True)
            if on_timer is not None:
                stream._function(on_timer)
            clock, by_time = _order(stream, order)
            names = column_names(keep, "keep=") if keep else []
            stream._known(*names)
            if on_timer is not None and clock is not None and not by_time:
                raise PlanError(
                    "timers count event time where there is one, so records must come in its order"
                )
            if on_timer is not None and names:
                raise PlanError("with on_timer there is no record whose columns keep= could give")
            if ttl is not None and clock is None:
                raise PlanError("ttl counts event time; call event_time('column') before")
            count = _arguments(step)
            timed = on_timer is not None
            if timed and count is not None and count != 3:
                raise PlanError(
                    "with on_timer= the step takes the timer: def step(state, row, timer)"
                )
            if not timed and count is not None and count != 2:
                raise PlanError(
                    "a step takes (state, row); with a timer as the third, pass on_timer= as well"
                )
            if method == "scan_batches":
                gives = to_schema(schema)
            else:
                gives = _gives(step, state, schema, stream, fields, at.label, timed=timed)
            # A user's own columns win over those that are put before them.
            before = [*keys, *(() if clock is None else clock.columns), *names]
            kept = tuple(n for n in dict.fromkeys(before) if n not in gives.names)
            after = pa.schema([*(stream.schema.field(n) for n in kept), *gives])
            what = UserStep(
                step, state, gives, fields, method == "scan_batches", on_timer, timed,
                text_of(step) if isinstance(step, FunctionType) else None,
            )  # fmt: skip
            span = None if ttl is None else duration(ttl, "ttl", 1)
            node = Scan(after, at.step, stream.node, keys, what, clock, by_time, span, kept, method)
            why = not_compiled(node) if getattr(step, NATIVE, False) else None
            if why is not None:
                raise PlanError(f"{what.detail} cannot be native: {why}; leave out hr.native")
            return stream._with(node)


def deduplicated(stream: Stream, keys: Sequence[str], within: Any) -> Stream:
    """The first record of each key, and again after so much event time."""
    with stream._building("deduplicate") as at:
        if not keys:
            raise PlanError("deduplicate needs the columns that tell records apart: 'id'")
        stream._known(*keys)
        clock = clock_of(stream.node)
        span = None
        if within is not None:
            clock_needed(stream.node, "deduplicate with within=")
            span = duration(within, "within", 1)
        node = Scan(
            stream.schema, at.step, stream.node, tuple(keys), OnceStep(span), clock,
            method="deduplicate",
        )  # fmt: skip
        return stream._with(node)


def counted(
    stream: Stream,
    keys: Named,
    aggregates: Sequence[tuple[str, Aggregate]],
    window: CountWindow,
    method: str,
    step: int,
) -> Stream:
    """Aggregates of every so many records of each key."""
    from headrace.kernels.aggregate import aggregate_trees
    from headrace.kernels.scans.counted import aggregate_fields

    functions = {n: f for _, a in aggregates for n, f in a.functions}
    if functions:
        bare = [(n, replace(a, functions=())) for n, a in aggregates]
        return counted(stream._computed(functions), keys, bare, window, method, step)
    bound = tuple((n, a.bound(stream.schema.names)) for n, a in aggregates)
    clock, by_time = _order(stream, window.order)
    times = () if clock is None else clock.columns
    taken = [n for n, tree in keys if n in times and not is_same(n, tree)]
    if taken:
        raise PlanError(f"the key '{taken[0]}' has the name of the event time; name it otherwise")
    # A key that is computed must not hide a column that is read under its name.
    names = [n if is_same(n, t) else _free(n, stream.schema.names) for n, t in keys]
    new = [(name, t) for name, (n, t) in zip(names, keys, strict=True) if not is_same(n, t)]
    if new:
        columns = [*((n, col(n).tree) for n in stream.columns), *new]
        stream = stream._project(columns, "with_columns", step)
    kept = [*names, *(c for c in times if c not in names)]
    fields = [
        stream.schema.field(c).with_name(n)
        for c, n in zip(kept, [*(n for n, _ in keys), *kept[len(keys) :]], strict=True)
    ]
    results = aggregate_fields(bound, stream.schema, zone_of(stream.node))
    schema = pa.schema([*fields, pa.field(NUMBER, pa.int64()), *results])
    unique_names(schema.names)
    trees = [tree for _, aggregate in bound for tree in aggregate_trees(aggregate)]
    wanted = {*kept, *times, *columns_of(trees)} or {stream.columns[0]}
    read = tuple(n for n in stream.columns if n in wanted)
    step = max(step, stream.node.step + 1)
    what = CountStep(window, bound, read)
    node = Scan(
        schema, step, stream.node, tuple(names), what, clock, by_time, kept=tuple(kept),
        method=method,
    )  # fmt: skip
    return stream._with(node)


def _free(name: str, names: Sequence[str]) -> str:
    """A name that no column has."""
    while name in names:
        name = f"_{name}"
    return name


def _order(stream: Stream, order: str | None) -> tuple[Any, bool]:
    """Where the event time is, and whether records are taken by it."""
    clock = clock_of(stream.node)
    if order is None:
        return clock, clock is not None
    if order not in ORDERS:
        raise PlanError(f"order={order!r}: it is 'event' or 'arrival'")
    if order == "event":
        return clock_needed(stream.node, "order='event'"), True
    return clock, False


def _with_columns(
    stream: Stream,
    keys: tuple[str, ...],
    what: AnyStep,
    new: list[pa.Field],
    method: str,
    step: int,
) -> Stream:
    for field in new:
        if field.name in stream.schema.names:
            raise PlanError(f"there is a column '{field.name}' already; name it otherwise")
    clock, by_time = _order(stream, None)
    schema = pa.schema([*stream.schema, *new])
    return stream._with(Scan(schema, step, stream.node, keys, what, clock, by_time, method=method))


def _arguments(function: Callable[..., Any]) -> int | None:
    """How many arguments a function must have; None where it says nothing."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    return sum(p.default is p.empty for p in parameters)


def _gives(
    step: Callable[..., Any],
    state: Any,
    schema: Any,
    stream: Stream,
    fields: tuple[str, ...],
    label: str,
    *,
    timed: bool,
) -> pa.Schema:
    """The columns a step gives: as told, as annotated, or as an example run shows."""
    if schema is not None:
        return as_schema(schema)
    said = annotated(step)
    parts = typing.get_args(said)
    if typing.get_origin(said) is tuple and len(parts) == 2:
        output = _one_of(parts[1])
        if output is not None:
            return as_schema(output)
    if timed:
        raise PlanError(f"{label}: say which columns it gives: schema={{'x': 'bigint'}}")

    def sample() -> pa.RecordBatch | None:
        found = stream._sample()
        return None if found is None else found.select(list(fields))

    given: list[Any] = []
    now = state() if callable(state) else copy.deepcopy(state)
    for row in example_rows(sample, label):
        try:
            result = step(now, row)
        except FAILURES as error:
            raise PlanError(f"{failure(label, error, row)}") from error
        if not (isinstance(result, tuple) and len(result) == 2):
            raise PlanError(f"{label} returned {result!r}; a step returns (state, output)")
        now, output = result
        if output is not None:
            given += output if isinstance(output, list) else [output]
    if not given:
        raise PlanError(
            f"{label}: the columns it gives are not known, for it gave nothing for some first "
            "records; pass schema={'x': 'bigint'}, or annotate it: -> tuple[State, Record]"
        )
    return infer_schema(given, label)


def _one_of(said: Any) -> Any:
    """The record type in ``Record``, ``Record | None`` or ``list[Record]``."""
    parts = [p for p in typing.get_args(said) if p is not type(None)]
    if typing.get_origin(said) is list and parts:
        return _one_of(parts[0])
    if parts and len(parts) < len(typing.get_args(said)):
        return _one_of(parts[0])
    return None if said in (typing.Any, None, type(None), dict, tuple, list) else said
