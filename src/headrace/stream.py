"""``Stream``: the API. Each call checks itself and adds a step to the plan.

What a call does to columns, records, keys and partitions is here; the rest is in the files of the
classes that ``Stream`` is made of, and what follows a key or a window in ``keyed.py``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce as fold_left
from typing import Any, ClassVar

import pyarrow as pa

from headrace.buffers import Buffer, checked
from headrace.building import column_names, named_aggregates
from headrace.collecting import Collecting
from headrace.engines import resolve
from headrace.errors import PlanError
from headrace.expressions import Expr, col, to_expr
from headrace.functions import batch_schema, returned_schema
from headrace.hints import STREAM, Hinted, NotACollection
from headrace.iterating import HasState, Iterating
from headrace.joining import Joining
from headrace.kernels.expressions import compile_expression
from headrace.kernels.rows import VALUE, Keeping
from headrace.keyed import KeyedStream
from headrace.plan import explain as plan_explain
from headrace.plan.custom import Custom
from headrace.plan.node import Named, Node
from headrace.plan.partitions import Buffered, MaxParallelism, Shuffle
from headrace.plan.rows import Explode, Filter, MapBatches, MapMemo, MapRows
from headrace.plan.sources import Read
from headrace.plan.time import clock_of, nodes_of
from headrace.routing import Routing
from headrace.scanning import Scanning, deduplicated
from headrace.sizes import is_whole
from headrace.sorting import Sorting
from headrace.timing import Timing
from headrace.types import to_schema, type_name, unique_names
from headrace.windows import duration
from headrace.writing import Writing


@dataclass(frozen=True, eq=False)
class Stream(
    Sorting, Timing, Joining, Scanning, Routing, Iterating, Collecting, Writing, Hinted,
    NotACollection,
):  # fmt: skip
    """Records with named columns, computed when a sink asks for them.

    >>> import headrace as hr
    >>> hr.from_items([1, 2, 3, 4]).filter("value % 2 = 0").map("value * 10").to_list(on="spark")
    ... # doctest: +SKIP
    [20, 40]
    """

    _hints: ClassVar[dict[str, str]] = STREAM

    # What it is

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
                self._function(function, returns=True)
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
                self._function(function, returns=True)
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
                self._function(condition, returns=True)
                return self._rows(MapRows(self.schema, at.step, self.node, condition, "filter"))
            tree = to_expr(condition).tree
            return self._narrow(Filter(self.schema, at.step, self.node, tree))

    def map_batches(self, function: Callable[..., Any], *, schema: Any = None) -> Stream:
        """A function of a whole bundle: a ``pyarrow.RecordBatch`` in, a batch or table out.

        Much faster than a function of a row. Where bundles are cut is not promised.
        """
        with self._building("map_batches") as at:
            self._function(function, returns=True)
            after = batch_schema(function, schema, self._sample, at.label)
            return Stream(MapBatches(after, at.step, self.node, function))

    def map_memo(
        self,
        function: Callable[..., Any],
        key: Any = None,
        *,
        name: str = VALUE,
        ttl: Any = None,
        max_size: int = 65_536,
        schema: Any = None,
    ) -> Stream:
        """Add columns computed by a function whose results are cached by key.

        ``map_memo(look_up, key="zone")`` calls ``look_up`` once for each zone and adds what it
        returns to every record of that zone. A column that exists already is replaced, as in
        ``with_columns``.

        Args:
            function: Gets a row with the columns of ``key`` and no others, so the result cannot
                depend on anything else. It returns a dict, a dataclass or a named tuple with the
                new columns, or a single value. It may be called more than once for a key.
            key: Columns or expressions; all columns by default.
            name: The column of a single value.
            ttl: How long a result is used after it was computed, by the clock: ``"5 min"``. For
                ever by default.
            max_size: How many results each worker process keeps. When there are more, those that
                were used least recently are dropped.
            schema: The columns that the function returns, where it has no annotation.

        Example:
            >>> import headrace as hr
            >>> rates = {"de": 0.19, "fr": 0.2}
            >>> sales = hr.from_items([{"id": 1, "country": "de"}, {"id": 2, "country": "fr"}])
            >>> sales.map_memo(lambda row: rates[row.country], key="country", name="vat").to_list(
            ...     on="box"
            ... )
            [Row(id=1, country='de', vat=0.19), Row(id=2, country='fr', vat=0.2)]
        """
        with self._building("map_memo") as at:
            self._function(function, returns=True)
            if not is_whole(max_size):
                raise PlanError(f"max_size={max_size!r} is not a number of results to keep, from 1")
            if not isinstance(name, str) or not name:
                raise PlanError(f"name={name!r} is not the name of a column")
            span = None if ttl is None else duration(ttl, "ttl", 1)
            by = self._memo_key(key)
            keyed = self._project(by, "map_memo", at.step)
            returns = returned_schema(function, schema, keyed._sample, at.label, many=False)
            names = (name,) if returns.names == [VALUE] else tuple(returns.names)
            step = MapMemo(
                self.schema, at.step, self.node, function, "map_memo", by, returns, names, max_size,
                span,
            )  # fmt: skip
            return self._narrow(step)

    def _memo_key(self, key: Any) -> Named:
        wanted = self.columns if key is None else key
        wanted = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
        if not wanted:
            raise PlanError("key= needs at least one column")
        if any(callable(k) and not isinstance(k, Expr) for k in wanted):
            raise PlanError(
                "key= takes columns and expressions, not functions; add a column with "
                "with_columns and use its name"
            )
        _, items = self._columns(wanted, {})
        for name, tree in items:
            kind = compile_expression(tree, self.schema).type
            if pa.types.is_nested(kind) or pa.types.is_null(kind):
                raise PlanError(
                    f"'{name}' is {type_name(kind)}, which cannot be a key; pass key= the columns "
                    "that the result depends on"
                )
        return tuple(items)

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

    def agg(self, *aggregates: Expr, **named: Expr) -> Stream:
        """Aggregates of all records, as one record.

        A result may be an expression of several: ``agg(spread=hr.max("x") - hr.min("x"))``.
        """
        with self._building("agg") as at:
            results = named_aggregates(aggregates, named)
            return results.of(self._group((), results.aggregates, "agg", at.step))

    def distinct(self, *columns: str) -> Stream:
        """The different records, or the different values of some columns."""
        with self._building("distinct") as at:
            self._known(*columns)
            names = columns or tuple(self.columns)
            keys = tuple((n, col(n).tree) for n in names)
            return self._group(keys, (), "distinct", at.step)

    # Partitions

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

    # State

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

        Records are taken as they arrive, and the first passes at once. With ``within``, a record
        with the same values passes if its event time is at least ``within`` away from that of
        every record that passed before, earlier or later. The time of a record that passed is kept
        until the watermark is ``within`` past it, which is as long as another record can be near
        it. Without ``within`` values are kept for ever.
        """
        return deduplicated(self, columns, within)

    def _scanned(self) -> tuple[Stream, tuple[str, ...], tuple[str, ...]]:
        return self, (), tuple(self.columns)

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

    # How steps are added

    @property
    def _stream(self) -> Stream:
        return self

    def _with(self, node: Node) -> Stream:
        return Stream(node)

    def _cycled(self, node: Node) -> Cycled:
        return Cycled(node)


@dataclass(frozen=True, eq=False)
class Cycled(HasState, Stream):
    """The last state of a cycle as a stream; ``state()`` is the state itself."""


def _sources(node: Node) -> Iterator[Read]:
    """The sources of a plan, each once."""
    found = (each for each in nodes_of(node) if isinstance(each, Read))
    return iter({id(each.source): each for each in found}.values())
