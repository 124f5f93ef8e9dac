"""``Stream`` and ``KeyedStream``: the API. Each call checks itself and adds a step to the plan."""

from __future__ import annotations

import builtins
import pickle
import zoneinfo
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce as fold_left
from typing import Any, ClassVar

import pyarrow as pa
from sqlglot import exp

from headrace.aggregates import Aggregate, count
from headrace.buffers import Buffer, checked
from headrace.building import (
    column_names,
    difference,
    installed,
    named_aggregates,
)
from headrace.engines import resolve
from headrace.errors import PlanError, nearest
from headrace.expressions import Expr, col, literal, to_expr
from headrace.functions import (
    batch_schema,
    folding,
    reduction,
    returned_schema,
    returned_type,
)
from headrace.hints import STREAM, Hinted
from headrace.io.sink import as_sink
from headrace.iterating import HasState, Iterating
from headrace.jobs import Job, Output
from headrace.kernels.aggregate import compile_aggregation
from headrace.kernels.chain import compile_chain, compile_step
from headrace.kernels.expressions import compile_expression
from headrace.kernels.lateness import late_schema
from headrace.kernels.order import sortable
from headrace.kernels.row_steps import why_not_native
from headrace.kernels.rows import VALUE, Keeping, WithValues, rows_of
from headrace.kernels.window import window_schema
from headrace.keyed import KeyedStream, WindowedStream
from headrace.plan import explain as plan_explain
from headrace.plan.iteration import Again
from headrace.plan.nodes import (
    Buffered,
    Custom,
    EventTime,
    Explode,
    External,
    Filter,
    GroupBy,
    Join,
    JoinWithin,
    Late,
    Limit,
    MapBatches,
    MapMemo,
    MapRows,
    MaxParallelism,
    Named,
    Narrow,
    Node,
    Project,
    Read,
    Shuffle,
    Sort,
    TopK,
    Union,
    Zip,
)
from headrace.plan.prune import columns_of
from headrace.plan.table_join import TableJoin
from headrace.plan.time import (
    END,
    START,
    clock_needed,
    clock_of,
    ends,
    is_bounded,
    nodes_of,
    zone_of,
)
from headrace.routing import Routing
from headrace.scanning import Scanning, deduplicated
from headrace.sizes import is_whole
from headrace.tables import refreshed
from headrace.types import normal_batch, to_schema, type_name, unique_names
from headrace.windows import AnyWindow, CountWindow, duration
from headrace.writing import Written

JOINS = {"inner": "inner", "left": "left", "right": "right", "outer": "outer", "full": "outer",
         "semi": "semi", "anti": "anti"}  # fmt: skip


TABLE_JOINS = ("inner", "left", "semi", "anti")


PROCESSING = "processing_time"
"""The column of the time at which records were read, unless it has a name of its own."""
DEFAULT_IDLE = 30_000_000
"""How long a split of an unbounded source may be silent before it stops holding back windows."""
DEFAULT_AHEAD = 86400 * 10**6
"""How far ahead of the clock a record of an unbounded source may be."""


@dataclass(frozen=True, eq=False)
class Stream(Written, Scanning, Routing, Iterating, Hinted):
    """Records with named columns, computed when a sink asks for them.

    >>> import headrace as hr
    >>> hr.from_items([1, 2, 3, 4]).filter("value % 2 = 0").map("value * 10").to_list(on="spark")
    ... # doctest: +SKIP
    [20, 40]
    """

    _hints: ClassVar[dict[str, str]] = STREAM

    # What it is

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.node.schema.names)

    def __repr__(self) -> str:
        return f"Stream({plan_explain.columns_text(self.schema)})"

    def _repr_html_(self) -> str:
        """Its columns, and its first records where a little of one split gives them."""
        try:
            first = self._sample(splits=1)
        except Exception:  # a notebook shows a stream that cannot be read, too
            first = None
        return plan_explain.html(self.node, first)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The records as an Arrow stream, so that Polars, DuckDB and others can take it."""
        return self.collect().__arrow_c_stream__(requested_schema)

    def explain(self, mode: str = "text", on: Any = None) -> str:
        """The plan, its stages and where each step runs; ``"graph"`` for a Mermaid picture."""
        if mode == "graph":
            return plan_explain.mermaid(self.node)
        if mode != "text":
            raise PlanError(f"explain({mode!r}): use 'text' or 'graph'")
        engine = resolve(on)
        return plan_explain.explain(self.node, engine)

    # Columns

    def select(self, *columns: Any, **named: Any) -> Stream:
        """Some columns, or new ones: ``select("id", "fare * 2 as f", tip=col("tip") / 10)``."""
        with self._building("select") as at:
            stream, items = self._columns(columns, named)
            if not items:
                raise PlanError("select needs at least one column")
            return stream._project(items, "select", at.step)

    def with_columns(self, *columns: Any, **named: Any) -> Stream:
        """All columns, and new or replaced ones."""
        with self._building("with_columns") as at:
            stream, items = self._columns(columns, named)
            new = dict(items)
            kept = [(n, new.pop(n, col(n).tree)) for n in self.columns]
            return stream._project([*kept, *new.items()], "with_columns", at.step)

    def drop(self, *names: str) -> Stream:
        """All columns but these."""
        with self._building("drop") as at:
            self._known(*names)
            kept = [(n, col(n).tree) for n in self.columns if n not in names]
            if not kept:
                raise PlanError("that would drop every column")
            return self._project(kept, "drop", at.step)

    def rename(self, **names: str) -> Stream:
        """Columns under other names: ``rename(fare="price")`` calls ``fare`` ``price``."""
        with self._building("rename") as at:
            self._known(*names)
            for name in names.values():
                if not isinstance(name, str) or not name:
                    raise PlanError(f"a column's name is a non-empty string, not {name!r}")
            return self._project(
                [(names.get(n, n), col(n).tree) for n in self.columns], "rename", at.step
            )

    # Records

    def map(self, function: Any = None, *, schema: Any = None, **named: Any) -> Stream:
        """A record made from each record, by an expression or a Python function.

        A function gets a row (``row.fare``), or the value itself where ``value`` is the only
        column. It returns a dict, a dataclass, a named tuple, or a plain value. Its columns come
        from its annotation, from ``schema=``, or from trying it on the first records.
        """
        with self._building("map") as at:
            if callable(function) and not isinstance(function, Expr):
                if named:
                    raise PlanError(
                        f"map takes a function or named expressions, not both; '{next(iter(named))}"
                        "=' is not an option of it"
                    )
                after = returned_schema(function, schema, self._sample, at.label, many=False)
                return self._rows(MapRows(after, at.step, self.node, function, "map"))
            stream, items = self._columns((), named)
            if function is not None:
                items = [self._named(VALUE, to_expr(function).tree), *items]
            if not items:
                raise PlanError("map needs a function or an expression")
            return stream._project(items, "map", at.step)

    def flat_map(
        self,
        function: Any,
        name: str = VALUE,
        *,
        keep: str | Sequence[str] | bool = (),
        schema: Any = None,
    ) -> Stream:
        """Any number of records made from each record.

        An expression must be a list and a function return an iterable: each element becomes a
        record with the column ``name`` (or its own fields), and the columns of ``keep`` (``True``
        for all) beside it.
        """
        with self._building("flat_map") as at:
            if isinstance(keep, builtins.bool):
                kept = [n for n in self.columns if n != name] if keep else []
            else:
                kept = column_names(keep, "keep=")
            self._known(*kept)
            clock = clock_of(self.node)
            if clock is not None:  # the elements happen when their record does
                kept = [c for c in clock.columns if c not in kept and c != name] + kept
            unique_names(kept)
            if name in kept:
                raise PlanError(f"'{name}' is both kept and new; pass name= another")
            if callable(function) and not isinstance(function, Expr):
                after = returned_schema(function, schema, self._sample, at.label, many=True)
                if after.names == [VALUE]:
                    after = pa.schema([after.field(0).with_name(name)])
                if kept:
                    function = Keeping(function, tuple(kept), tuple(after.names))
                    after = pa.schema([*(self.schema.field(n) for n in kept), *after])
                unique_names(after.names)
                return self._rows(MapRows(after, at.step, self.node, function, "flat_map"))
            tree = to_expr(function).tree
            step = Explode(self.schema, at.step, self.node, tree, name, tuple(kept))
            return self._narrow(step)

    def filter(self, condition: Any) -> Stream:
        """The records for which a condition is true: an expression, or a function of a row."""
        with self._building("filter") as at:
            if callable(condition) and not isinstance(condition, Expr):
                return self._rows(MapRows(self.schema, at.step, self.node, condition, "filter"))
            tree = to_expr(condition).tree
            return self._narrow(Filter(self.schema, at.step, self.node, tree))

    def map_batches(self, function: Callable[..., Any], *, schema: Any = None) -> Stream:
        """A function of a whole bundle: a ``pyarrow.RecordBatch`` in, a batch or table out.

        Much faster than a function of a row. Where bundles are cut is not promised.
        """
        with self._building("map_batches") as at:
            self._function(function)
            after = batch_schema(function, schema, self._sample, at.label)
            return Stream(MapBatches(after, at.step, self.node, function))

    def map_memo(
        self,
        function: Callable[..., Any],
        key: Any = None,
        *,
        size: int = 65_536,
        schema: Any = None,
    ) -> Stream:
        """``map`` with a function whose results are remembered: ``map_memo(look_up, key="zone")``.

        ``key`` says what a result depends on: columns, expressions, or a function of a row; all
        columns unless told. Each worker process remembers ``size`` results, and forgets those that
        were not asked for the longest. The function may be called again for a key, so it must
        always give the same for it.
        """
        with self._building("map_memo") as at:
            self._function(function)
            if not is_whole(size):
                raise PlanError(f"size={size!r} is not a number of results to remember, from 1")
            by = self._memo_key(key)
            after = returned_schema(function, schema, self._sample, at.label, many=False)
            return Stream(MapMemo(after, at.step, self.node, function, "map_memo", by, size))

    def _memo_key(self, key: Any) -> tuple[exp.Expr, ...] | Callable[..., Any]:
        if callable(key) and not isinstance(key, Expr):
            found: Callable[..., Any] = key
            return found
        if key is None:
            key = self.columns
        wanted = list(key) if isinstance(key, (list, tuple)) else [key]
        if not wanted or any(callable(k) and not isinstance(k, Expr) for k in wanted):
            raise PlanError("key= is one function, or columns and expressions")
        _, items = self._columns(wanted, {})
        for name, tree in items:
            kind = compile_expression(tree, self.schema).type
            if pa.types.is_nested(kind):
                raise PlanError(
                    f"'{name}' is {type_name(kind)}, which has no hash to find a result by; pass "
                    "key= the columns that the result depends on, or a function that gives a tuple"
                )
        return tuple(tree for _, tree in items)

    def inspect(self, function: Callable[[Any], Any] = print) -> Stream:
        """Shows each record to a function where it is computed, and passes it on."""
        with self._building("inspect") as at:
            self._function(function)
            return self._rows(MapRows(self.schema, at.step, self.node, function, "inspect"))

    # Keys

    def key_by(self, *keys: Any, **named: Any) -> KeyedStream:
        """Records by key: all of one key come together, in order."""
        return self._keyed("key_by", keys, named)

    def group_by(self, *keys: Any, **named: Any) -> KeyedStream:
        """Records by key, to be aggregated: ``group_by("zone").agg(n=hr.count())``."""
        return self._keyed("group_by", keys, named)

    def _keyed(self, method: str, keys: tuple[Any, ...], named: dict[str, Any]) -> KeyedStream:
        with self._building(method) as at:
            stream, items = self._columns(keys, named)
            if not items:
                raise PlanError(f"{method} needs at least one key")
            keyed = KeyedStream(stream, tuple(items), tuple(self.columns))
            stream._group(tuple(items), (), method, at.step)  # refuses types that have no equality
            return keyed

    def agg(self, *aggregates: Aggregate, **named: Aggregate) -> Stream:
        """Aggregates of all records, as one record."""
        with self._building("agg") as at:
            return self._group((), named_aggregates(aggregates, named), "agg", at.step)

    def distinct(self, *columns: str) -> Stream:
        """The different records, or the different values of some columns."""
        with self._building("distinct") as at:
            self._known(*columns)
            names = columns or tuple(self.columns)
            keys = tuple((n, col(n).tree) for n in names)
            return self._group(keys, (), "distinct", at.step)

    def top_k(self, k: int, by: Any) -> Stream:
        """The ``k`` records with the largest ``by``; ties go by the other columns, ascending."""
        return self._top_k(k, by, ())

    # Order and partitions

    def sort(self, *by: Any, descending: bool | Sequence[bool] = False) -> Stream:
        """All records in order. Nulls come first, or last if descending; NaN is the largest."""
        with self._building("sort") as at:
            if not by:
                raise PlanError("sort needs a column")
            down = (
                list(descending)
                if isinstance(descending, (list, tuple))
                else [bool(descending)] * len(by)
            )
            if len(down) != len(by):
                raise PlanError(f"{len(by)} columns, but descending= has {len(down)}")
            stream, order = self._order(by, down, "sort")
            step = max(at.step, stream.node.step + 1)
            return self._same_columns(Stream(Sort(stream.schema, step, stream.node, order)))

    def limit(self, count: int) -> Stream:
        """The first ``count`` records, in input order or in the order of a ``sort`` before it."""
        with self._building("limit") as at:
            if not is_whole(count, 0, 2**31 - 1):
                raise PlanError(f"a limit is a number of records below 2**31, not {count!r}")
            return Stream(Limit(self.schema, at.step, self.node, count))

    def shuffle(self) -> Stream:
        """The records spread evenly over the partitions."""
        return Stream(Shuffle(self.schema, self.node.step + 1, self.node))

    def max_parallelism(self, count: int) -> Stream:
        """At most ``count`` partitions from here to the next repartitioning."""
        with self._building("max_parallelism") as at:
            if not is_whole(count):
                raise PlanError(f"a parallelism is a positive number, not {count!r}")
            return Stream(MaxParallelism(self.schema, at.step, self.node, count))

    def buffer(self, policy: Buffer) -> Stream:
        """Records gathered before they go on, on the box: ``buffer(hr.adaptive(1024, "50ms"))``.

        A step that keeps few of its records, or makes many, leaves bundles that are too small or
        too large for what follows. ``hr.fixed(n)`` waits for ``n`` records, ``hr.adaptive(n,
        timeout)`` for no longer than a time, and ``hr.immediate`` sends each by itself. A
        watermark, a checkpoint and the end of the input send on what waits before them. It changes
        no result, and on Spark, which takes records by the batch, nothing at all.
        """
        with self._building("buffer") as at:
            return Stream(Buffered(self.schema, at.step, self.node, checked(policy, "policy")))

    # Event time

    def event_time(
        self,
        column: str,
        delay: Any = None,
        *,
        idle: Any = None,
        when_idle: str = "hold",
        ahead: Any = None,
        punctuation: Any = None,
    ) -> Stream:
        """Say which column is the event time, and how late its records may come.

        The watermark is the largest time seen less ``delay``; a record below it goes to ``late``.
        Instead of a delay, ``punctuation`` (an expression, or a function of a row) may give a time
        for records that announce that nothing before it will come, and a source that carries its
        own watermarks needs neither.

        On input that does not end, a split that is silent for longer than ``idle`` (30 seconds
        unless told) stops holding the watermark back. Once all are, the watermark stays where it
        is, or with ``when_idle="advance"`` goes on by the clock, so that the last windows close. A
        record more than ``ahead`` (1 day unless told) ahead of the clock does not move the
        watermark: it goes to ``late``, for a wrong time must not make all that follow late.
        """
        with self._building("event_time") as at:
            if not isinstance(column, str):
                raise PlanError(f"event_time takes the name of a column, not {column!r}")
            self._known(column)
            if delay is not None and punctuation is not None:
                raise PlanError("give delay= or punctuation=, not both")
            node = self._beginning("event_time")
            source = node.source if isinstance(node, Read) else None
            carries = source is not None and bool(source.watermarks)
            bounded = is_bounded(node)
            if delay is None and punctuation is None:
                lag = None if carries else 0
            else:
                lag = None if delay is None else duration(delay, "delay")
            if when_idle not in ("hold", "advance"):
                raise PlanError(f"when_idle={when_idle!r}: use 'hold' or 'advance'")
            if bounded and (when_idle != "hold" or ahead is not None):
                raise PlanError("when_idle= and ahead= are for input that does not end")
            if idle is None:
                quiet = None if bounded or source is None else DEFAULT_IDLE
            else:
                quiet = duration(idle, "idle", 1)
            if punctuation is not None and not (
                callable(punctuation) and not isinstance(punctuation, Expr)
            ):
                punctuation = to_expr(punctuation).tree
                kind = compile_expression(punctuation, self.schema).type
                if not (pa.types.is_timestamp(kind) or pa.types.is_null(kind)):
                    raise PlanError(f"punctuation= gives a {type_name(kind)}, not a timestamp")
            far = DEFAULT_AHEAD if ahead is None else duration(ahead, "ahead")
            return self._narrow(
                EventTime(
                    self.schema, at.step, self.node, column, lag, quiet, punctuation,
                    None if bounded else far, when_idle == "advance",
                )
            )  # fmt: skip

    def processing_time(self, column: str = "processing_time") -> Stream:
        """Give every record the time at which it is read, as a column, and go by that.

        It is the stream's event time from here on: windows, scans and joins go by it, and the
        watermark is the time of day, so that windows close though nothing more comes. No record
        is ever late. ``window(hr.tumbling("1s", time="processing"))`` calls it where it is needed.
        """
        with self._building("processing_time") as at:
            if not isinstance(column, str) or not column:
                raise PlanError(f"processing_time takes the name of a new column, not {column!r}")
            node = self._beginning("processing_time")
            if isinstance(node, External) and not is_bounded(node):
                raise PlanError(
                    "a streaming DataFrame is read by Spark; add the time there, with "
                    "current_timestamp(), and call event_time"
                )
            if column in self.columns:
                raise PlanError(f"there is a column '{column}' already; name it otherwise")
            step = EventTime(self.schema, at.step, self.node, column, 0, None, by_clock=True)
            return self._narrow(step)

    def _beginning(self, method: str) -> Read | External | Again:
        """The source, if only steps that leave each record where it is come after it."""
        node = self.node
        while isinstance(node, Narrow):
            if isinstance(node, EventTime):
                raise PlanError(f"{node.label} has said already where the event time is")
            if isinstance(node, Buffered):
                raise PlanError(
                    f"event time is said where records come in: call it before {node.label}, "
                    "or pass buffer= to hr.Box"
                )
            node = node.input
        if not isinstance(node, (Read, External, Again)):
            raise PlanError(
                f"call {method} right after the source, before {node.label}, which brings records "
                "together"
            )
        return node

    def _by_processing_time(self) -> Stream:
        """This stream with the time at which records are read as its event time."""
        said = [n for n in nodes_of(self.node) if isinstance(n, EventTime)]
        if not said:
            if PROCESSING in self.columns:
                raise PlanError(
                    f"there is a column '{PROCESSING}' already; call processing_time('at') before"
                )
            return self.processing_time(PROCESSING)
        other = [n for n in said if not n.by_clock]
        if other:
            raise PlanError(
                f"{other[0].label} has said already where the event time is; leave it out, or "
                "time='processing'"
            )
        clock_needed(self.node, "a window")
        return self

    def time_zone(self, zone: str) -> Stream:
        """Say in which time zone the pipeline reads the clock: ``time_zone("Europe/Berlin")``.

        It is what ``hour``, ``date_trunc`` and casts between times and text go by, on any engine
        and whatever a Spark session is set to; UTC unless told. Call it right after the source.
        """
        with self._building("time_zone"):
            if not isinstance(self.node, (Read, External)):
                raise PlanError("call time_zone right after the source, for it is the pipeline's")
            try:
                zoneinfo.ZoneInfo(zone)
            except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError):
                names = zoneinfo.available_timezones()
                raise PlanError(
                    f"there is no time zone {zone!r}{nearest(str(zone), sorted(names))}"
                ) from None
            return Stream(replace(self.node, zone=zone))

    def window(self, window: AnyWindow | CountWindow) -> WindowedStream:
        """All records by window of time, or so many of them at a time.

        ``window(hr.tumbling("1s")).agg(n=hr.count())``, ``window(hr.count_window(10))``
        """
        return self._windowed(window, (), tuple(self.columns))

    def _windowed(
        self, window: AnyWindow | CountWindow, keys: Named, fields: tuple[str, ...]
    ) -> WindowedStream:
        with self._building("window"):
            if isinstance(window, CountWindow):
                if window.order == "event":
                    clock_needed(self.node, "order='event'")
            elif not isinstance(window, AnyWindow):
                raise PlanError(
                    f"{window!r} is not a window; use hr.tumbling('1s'), hr.sliding, hr.session or "
                    "hr.count_window(10)"
                )
            elif window.processing:
                timed = self._by_processing_time()
                return WindowedStream(timed, keys, fields, replace(window, processing=False))
            else:
                clock_needed(self.node, "a window")
            return WindowedStream(self, keys, fields, window)

    @property
    def late(self) -> Stream:
        """The records that came below the watermark already promised, with how late they were.

        Beside the record's columns: ``late_by``, the ``watermark`` it fell below, and the
        ``reason``; a record too far ahead of the clock is here too, with neither of the first two.
        A job counts them whether this is used or not. Which records are late depends on how they
        arrive, so a bounded job on Spark, which sees all records at once, has none.
        """
        found = [n for n in nodes_of(self.node) if isinstance(n, EventTime)]
        if not found:
            raise PlanError("no step of this stream says where its event time is: call event_time")
        return fold_left(lambda a, b: a.union(b), [Stream(_late(node)) for node in found])

    def transform(self, make: Callable[[], Any], *, schema: Any = None) -> Stream:
        """The stream through an operator of your own, a ``Transform`` that ``make()`` gives.

        ``schema`` are the columns it emits; the same as before if not given. Its state is one for
        all records; after ``key_by`` there is one for each shard of the keys.
        """
        return self._transformed(make, schema, ())

    def _transformed(self, make: Any, schema: Any, keys: tuple[str, ...]) -> Stream:
        with self._building("transform") as at:
            self._function(make)
            after = self.schema if schema is None else to_schema(schema)
            return Stream(Custom(after, at.step, self.node, make, keys))

    def deduplicate(self, *columns: str, within: Any = None) -> Stream:
        """The first record of each value of some columns: ``deduplicate("id", within="1h")``.

        It passes at once, as it comes; one with the same values passes again when its event time
        is at least ``within`` away from that of the last that passed. Without ``within`` values are
        remembered for ever.
        """
        return deduplicated(self, columns, within)

    def _scanned(self) -> tuple[Stream, tuple[str, ...], tuple[str, ...]]:
        return self, (), tuple(self.columns)

    # Several streams

    def union(self, *others: Stream) -> Stream:
        """The records of this stream and of others with the same columns."""
        with self._building("union") as at:
            for other in others:
                if not isinstance(other, Stream):
                    raise PlanError(f"{other!r} is not a stream")
                if not other.schema.equals(self.schema):
                    raise PlanError(difference(self.schema, other.schema))
            if not others:
                return self
            step = max(at.step, *(o.node.step + 1 for o in others))
            zone_of(self.node, *(o.node for o in others))
            return Stream(Union(self.schema, step, (self.node, *(o.node for o in others))))

    def join(
        self,
        other: Stream,
        on: str | Sequence[str] | None = None,
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        how: str = "inner",
        suffix: str = "_right",
        refresh: Any = None,
    ) -> Stream:
        """Records paired by equal keys.

        ``how`` is inner, left, right, outer, semi (left records with a match) or anti (without).
        The key columns come out once, under the left names; other columns of the right side that
        the left has too get ``suffix``. A null key matches nothing.

        A stream that does not end is joined with a table, input that does, by inner, left, semi or
        anti: the table is read when the job starts, and each record is looked up in it as it
        comes. ``refresh`` has it read again, every so often (``"5 min"``) or ``"on change"`` of its
        files.
        """
        with self._building("join") as at:
            if not isinstance(other, Stream):
                raise PlanError(f"{other!r} is not a stream")
            if not isinstance(how, str) or how not in JOINS:
                raise PlanError(f"how={how!r} is not a join{nearest(str(how), JOINS)}")
            left, right = self._join_keys(other, on, left_on, right_on, suffix)
            fields: list[pa.Field] = list(self.schema)
            renamed: list[tuple[str, str]] = []
            if JOINS[how] not in ("semi", "anti"):
                fields, renamed = self._beside(other, right, suffix)
            if is_bounded(other.node) and not is_bounded(self.node):
                if how not in TABLE_JOINS:
                    raise PlanError(
                        f"how={how!r} waits for the stream to end, and it never does; with a table "
                        f"use {', '.join(TABLE_JOINS)}"
                    )
                every, on_change = refreshed(other.node, refresh)
                return Stream(
                    TableJoin(
                        pa.schema(fields), max(at.step, other.node.step + 1), self.node,
                        other.node, tuple(left), tuple(right), JOINS[how], tuple(renamed),
                        every, on_change,
                    )
                )  # fmt: skip
            if refresh is not None:
                raise PlanError("refresh= is for a stream that never ends, joined with a table")
            return Stream(
                Join(
                    pa.schema(fields),
                    max(at.step, other.node.step + 1),
                    self.node,
                    other.node,
                    tuple(left),
                    tuple(right),
                    JOINS[how],
                    tuple(renamed),
                )
            )

    def join_within(
        self,
        other: Stream,
        on: str | Sequence[str] | None = None,
        *,
        before: Any = "0s",
        after: Any = "0s",
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        suffix: str = "_right",
    ) -> Stream:
        """Pairs of records with equal keys that are near in event time: the temporal join.

        A record of ``other`` matches if its time is from ``before`` earlier to ``after`` later.
        The pair's event time is its later record's. A null key matches nothing.
        """
        with self._building("join_within") as at:
            if not isinstance(other, Stream):
                raise PlanError(f"{other!r} is not a stream")
            left, right = self._join_keys(other, on, left_on, right_on, suffix)
            clocks = [clock_needed(s.node, "join_within") for s in (self, other)]
            fields, renamed = self._beside(other, right, suffix)
            return Stream(
                JoinWithin(
                    pa.schema(fields),
                    max(at.step, other.node.step + 1),
                    self.node,
                    other.node,
                    tuple(left),
                    tuple(right),
                    clocks[0],
                    clocks[1],
                    duration(before, "before"),
                    duration(after, "after"),
                    tuple(renamed),
                )
            )

    def zip(self, other: Stream, *, suffix: str = "_right") -> Stream:
        """Pairs by place: the first record with the first of ``other``, and so on.

        Where both streams have event time, their records are taken by it, those of one time in
        input order; a pair's event time is its later record's. Else both are to end, and are taken
        in input order, or in that of a ``sort`` before. It ends with the shorter. A record waits
        for its partner, so of streams that do not end one must not fall behind for ever. Columns of
        ``other`` that this stream has too get ``suffix``.
        """
        with self._building("zip") as at:
            if not isinstance(other, Stream):
                raise PlanError(f"{other!r} is not a stream")
            if not isinstance(suffix, str):
                raise PlanError(f"suffix={suffix!r} is not text")
            zone_of(self.node, other.node)
            left, right = (clock_of(stream.node) for stream in (self, other))
            if left is None or right is None:
                if not (self.bounded and other.bounded):
                    for stream in (self, other):
                        clock_needed(stream.node, "zip of a stream that does not end")
                left = right = None
            fields, renamed = self._beside(other, [], suffix)
            step = max(at.step, other.node.step + 1)
            schema, clocks = pa.schema(fields), (left, right)
            return Stream(Zip(schema, step, self.node, other.node, clocks, tuple(renamed)))

    def _join_keys(
        self, other: Stream, on: Any, left_on: Any, right_on: Any, suffix: Any
    ) -> tuple[list[str], list[str]]:
        """The keys of both sides of a join, checked."""
        given = (on is None, left_on is None, right_on is None)
        if given not in ((False, True, True), (True, False, False)):
            raise PlanError("give on=, or both left_on= and right_on=")
        if not isinstance(suffix, str):
            raise PlanError(f"suffix={suffix!r} is not text")
        left = column_names(on if on is not None else left_on, "left_on=")
        right = column_names(on if on is not None else right_on, "right_on=")
        if not left or len(left) != len(right):
            raise PlanError("both sides need the same number of keys, at least one")
        zone_of(self.node, other.node)
        self._known(*left)
        other._known(*right)
        for a, b in zip(left, right, strict=True):
            x, y = self.schema.field(a).type, other.schema.field(b).type
            if not x.equals(y):
                raise PlanError(
                    f"'{a}' is {type_name(x)} on the left and '{b}' {type_name(y)} on the "
                    "right; cast one of them"
                )
            if pa.types.is_nested(x):
                raise PlanError(f"'{a}' is {type_name(x)}, which cannot be a key")
        return left, right

    def _beside(
        self, other: Stream, keys: list[str], suffix: str
    ) -> tuple[list[pa.Field], list[tuple[str, str]]]:
        """The columns of both sides, and under which names the right side's come out."""
        fields, renamed = list(self.schema), []
        for field in other.schema:
            if field.name in keys:
                continue
            name = field.name + (suffix if field.name in self.columns else "")
            if name in (f.name for f in fields):
                raise PlanError(f"the column '{name}' would come out twice; pass suffix=")
            renamed.append((field.name, name))
            fields.append(field.with_name(name))
        return fields, renamed

    # Bad records

    @property
    def errors(self) -> Stream:
        """The records that could not be read, for sources opened with ``on_error="keep"``.

        Columns: ``file``, ``line``, ``reason``, ``record``. Bounded input is read again for them.
        """
        kept = [
            Stream(Read(source.schema, 1, source))
            for node in _sources(self.node)
            if (source := node.source.errors()) is not None
        ]
        if not kept:
            raise PlanError("no source of this stream keeps bad records; read with on_error='keep'")
        return fold_left(lambda a, b: a.union(b), kept)

    # Sinks

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

        ends(self.node, "show", "write_console().start()")
        table = self.limit(rows + 1).collect(on)
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
            self._function(function)
            aggregate = reduction(function, self.schema, at.label, pickled=True)
            stream = self._group((), ((VALUE, aggregate),), "reduce", at.step)
        result = _only(stream.collect(on))
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
            self._function(function)
            aggregate = folding(initial, function, merge, None, self.schema, at.label, pickled=True)
            stream = self._group((), ((VALUE, aggregate),), "fold", at.step)
        result = _only(stream.collect(on))
        return initial if result is None else pickle.loads(result)

    def count(self, on: Any = None) -> int:
        """How many records there are."""
        return int(_only(self.agg(**{VALUE: count()}).collect(on)))

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

    def _output(self, to: Any) -> Output:
        with self._building("start"):
            sink = as_sink(to)
            if sink is not None:
                sink.check(self.schema)
            elif to is not None and not callable(to):
                raise PlanError(f"to={to!r} is neither a sink nor a function of a bundle")
            return Output(self.node, to if sink is None else sink)

    # How steps are added

    def _with(self, node: Node) -> Stream:
        return Stream(node)

    def _cycled(self, node: Node) -> Cycled:
        return Cycled(node)

    def _known(self, *names: str) -> None:
        for name in names:
            if name not in self.schema.names:
                raise PlanError(f"there is no column '{name}'{nearest(str(name), self.columns)}")

    def _named(self, default: str, tree: exp.Expr) -> tuple[str, exp.Expr]:
        return (tree.alias, tree.this) if isinstance(tree, exp.Alias) else (default, tree)

    def _columns(
        self, columns: Iterable[Any], named: dict[str, Any]
    ) -> tuple[Stream, list[tuple[str, exp.Expr]]]:
        """Columns a person named: by name, by expression, or computed by a function."""
        items: list[tuple[str, exp.Expr]] = []
        functions: dict[str, Callable[..., Any]] = {}
        for what in columns:
            if isinstance(what, str) and what in self.schema.names:
                items.append((what, col(what).tree))
            elif isinstance(what, str) and what.isidentifier():
                self._known(what)
            elif callable(what) and not isinstance(what, Expr):
                name = getattr(what, "__name__", "key")
                name = "key" if name == "<lambda>" else name
                if name in functions:
                    raise PlanError(f"two functions are called '{name}'; name them: {name}_2=…")
                functions[name] = what
            elif isinstance(what, (str, Expr)):
                tree = to_expr(what).tree
                default = tree.name if isinstance(tree, exp.Column) else tree.sql(dialect="spark")
                items.append(self._named(default, tree))
            else:
                raise PlanError(
                    f"{what!r} is not a column; use its name, an expression, a function"
                )
        for name, what in named.items():
            if callable(what) and not isinstance(what, Expr):
                functions[name] = what
            elif isinstance(what, Expr):
                items.append((name, what.tree))
            elif isinstance(what, str) and what in self.schema.names:
                items.append((name, col(what).tree))
            elif isinstance(what, str):
                items.append((name, to_expr(what).tree))
            else:
                items.append((name, literal(what)))
        # A function's column goes by its own name, unless the stream has that one already.
        computed = {n: f"_{n}" if n in self.schema.names else n for n in functions}
        items += [(n, col(computed[n]).tree) for n in functions]
        twice = [n for n, count in Counter(n for n, _ in items).items() if count > 1]
        if twice:
            raise PlanError(f"the column '{twice[0]}' is named twice")
        stream = self._computed({computed[n]: f for n, f in functions.items()})
        return stream, items

    def _computed(self, functions: dict[str, Callable[..., Any]]) -> Stream:
        """This stream with a column for each Python function of a row."""
        if not functions:
            return self
        step, after = self.node.step + 1, self.schema
        for name, function in functions.items():
            kind = returned_type(function, self._sample, f"step {step}, {name}=")
            unique_names([*after.names, name])
            after = after.append(pa.field(name, kind))
        extend = WithValues(tuple(functions.values()), self.columns == [VALUE])
        return self._rows(MapRows(after, step, self.node, extend, "map"))

    def _rows(self, step: MapRows) -> Stream:
        """Add a step with a function of a record, which must compile if that was asked for."""
        why = why_not_native(step, self.schema) if step.native else None
        if why is not None:
            raise PlanError(
                f"{step.detail} cannot be native: {why}; change that, or leave out hr.native to "
                "run it as Python"
            )
        return Stream(step)

    def _project(self, items: Sequence[tuple[str, Any]], method: str, step: int) -> Stream:
        unique_names([n for n, _ in items])
        return self._narrow(Project(self.schema, step, self.node, tuple(items), method))

    def _narrow(self, step: Narrow) -> Stream:
        """Add a step of expressions, compiled here to check it and to learn its columns."""
        _, after = compile_step(step, self.schema)
        return Stream(replace(step, schema=after, step=max(step.step, self.node.step + 1)))

    def _group(
        self,
        keys: Named,
        aggregates: Any,
        method: str,
        step: int,
        window: AnyWindow | None = None,
    ) -> Stream:
        times = () if window is None else (START, END)
        unique_names([*(n for n, _ in keys), *times, *(n for n, _ in aggregates)])
        functions = {n: f for _, a in aggregates for n, f in a.functions}
        if functions:
            bare = tuple((n, replace(a, functions=())) for n, a in aggregates)
            return self._computed(functions)._group(keys, bare, method, step, window)
        aggregates = tuple((n, a.bound(self.schema.names)) for n, a in aggregates)
        clock = None if window is None else clock_needed(self.node, "a window")
        step = max(step, self.node.step + 1)
        node = GroupBy(self.schema, step, self.node, keys, tuple(aggregates), method, window, clock)
        schema = compile_aggregation(node, self.schema).result_schema
        if clock is not None:
            kind = self.schema.field(clock.columns[0]).type
            schema = window_schema(schema, len(keys), kind)
        return Stream(replace(node, schema=schema))

    def _order(
        self, by: Sequence[Any], down: Sequence[bool], where: str
    ) -> tuple[Stream, tuple[tuple[exp.Expr, bool], ...]]:
        stream, items = self._columns(by, {})
        for _, tree in items:
            sortable(compile_expression(tree, stream.schema).type, where)
        return stream, tuple((tree, flag) for (_, tree), flag in zip(items, down, strict=True))

    def _top_k(self, k: int, by: Any, keys: tuple[str, ...]) -> Stream:
        with self._building("top_k") as at:
            if not is_whole(k):
                raise PlanError(f"top_k takes a positive number of records, not {k!r}")
            wanted = list(by) if isinstance(by, (list, tuple)) else [by]
            if not wanted:
                raise PlanError("top_k needs something to rank by")
            stream, order = self._order(wanted, [True] * len(wanted), "top_k")
            used = columns_of(t for t, _ in order if isinstance(t, exp.Column)) | set(keys)
            ties = [
                (col(f.name).tree, False)
                for f in self.schema
                if f.name not in used and not pa.types.is_nested(f.type)
            ]
            step = max(at.step, stream.node.step + 1)
            order = (*order, *ties)
            return self._same_columns(
                Stream(TopK(stream.schema, step, stream.node, k, order, keys))
            )

    def _same_columns(self, stream: Stream) -> Stream:
        """A stream without columns that were only there to be ordered by."""
        if stream.columns == self.columns:
            return stream
        kept = [(n, col(n).tree) for n in self.columns]
        return stream._project(kept, "select", stream.node.step + 1)

    def _sample(self, splits: int = 4) -> pa.RecordBatch | None:
        """Some records as they leave this step, if they can be had by reading a little."""
        steps: list[Narrow] = []
        node = self.node
        while isinstance(node, Narrow):
            if not (isinstance(node, MapRows) and node.method == "inspect"):
                steps.append(node)
            node = node.input
        if isinstance(node, Again):
            example = Stream(node.like)._sample(splits)
            if example is None or not example.num_rows:
                return None
            return compile_chain(steps[::-1], node.schema, zone=zone_of(node.like))(example)
        if not isinstance(node, Read) or not node.source.bounded:
            return None
        chain = compile_chain(steps[::-1], node.schema, zone=zone_of(node))
        for split in node.source.splits(1)[:splits]:
            for tried, batch in enumerate(split.read(node.schema.names)):
                if not isinstance(batch, pa.RecordBatch):
                    continue
                batch = normal_batch(batch.slice(0, 1000), node.schema)
                batch = chain(batch.select(list(chain.columns)))
                if batch.num_rows:
                    return batch.slice(0, 20)
                if tried >= 4:
                    break
        return None


@dataclass(frozen=True, eq=False)
class Cycled(HasState, Stream):
    """The last state of a cycle as a stream; ``state()`` is the state itself."""


def _late(node: EventTime) -> Late:
    return Late(late_schema(node, node.schema), node.step + 1, node)


def _only(table: pa.Table) -> Any:
    return table.column(table.num_columns - 1)[0].as_py() if table.num_rows else None


def _sources(node: Node) -> Iterator[Read]:
    """The sources of a plan, each once."""
    found = (each for each in nodes_of(node) if isinstance(each, Read))
    return iter({id(each.source): each for each in found}.values())
