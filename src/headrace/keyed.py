"""``KeyedStream``: records by key, from ``key_by`` or ``group_by``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.aggregates import Aggregate, count
from headrace.building import named_aggregates
from headrace.errors import PlanError
from headrace.expressions import Expr, col
from headrace.functions import folding, reduction
from headrace.hints import KEYED, WINDOWED, Hinted, NotACollection
from headrace.kernels.rows import VALUE
from headrace.plan.node import Named, is_same
from headrace.plan.partitions import KeyBy
from headrace.plan.prune import columns_of
from headrace.plan.rows import Explode
from headrace.plan.time import END, NUMBER, START, clock_of
from headrace.scanning import Scanning, counted, deduplicated
from headrace.windows import AnyWindow, CountWindow, Window

if TYPE_CHECKING:
    from headrace.stream import Stream


@dataclass(frozen=True, eq=False)
class Gathered(Hinted, NotACollection):
    """Records by key, by window, or by both: what can be computed of each."""

    stream: Stream
    keys: Named
    fields: tuple[str, ...]
    """The columns of a record as a function sees it, without keys that functions computed."""
    kind: AnyWindow | CountWindow | None = None

    def agg(self, *aggregates: Expr, **named: Expr) -> Stream:
        """Aggregates of each: ``agg(n=hr.count(), mean=hr.mean("fare"))``.

        A result may be an expression of several: ``agg(spread=hr.max("x") - hr.min("x"))``.
        """
        with self.stream._building("agg") as at:
            results = named_aggregates(aggregates, named)
            keys = [n for n, _ in self.keys]
            for name in results.names:
                if name in keys:
                    raise PlanError(f"'{name}' is a key; name the aggregate otherwise")
                if name in self._times:
                    whose = "the window's" if name in (START, END, NUMBER) else "the event time"
                    raise PlanError(f"'{name}' is {whose}; name the aggregate otherwise")
            return results.of(self._grouped(results.aggregates, "agg", at.step))

    def count(self, name: str = "count") -> Stream:
        """How many records each has."""
        return self.agg(**{name: count()})

    def reduce(self, function: Callable[[Any, Any], Any]) -> Stream:
        """The records of each joined two by two into one, in input order."""
        with self.stream._building("reduce") as at:
            self.stream._function(function, returns=True)
            aggregate = reduction(function, self._record(), at.label)
            grouped = self._grouped([("_record", aggregate)], "reduce", at.step)
            plain = self.fields == (VALUE,)
            # A window of so many records happens when its last record does.
            counted = self._times if isinstance(self.kind, CountWindow) else ()
            times = {n: col(n) for n in counted if n in self.fields and n != NUMBER}
            fields = [
                (n, times.get(n, col("_record") if plain else col("_record").field(n)).tree)
                for n in self.fields
            ]
            extra = [n for n, _ in self.keys if n not in self.fields]
            beside = [(n, col(n).tree) for n in (*extra, *self._times) if n not in times]
            return grouped._project([*beside, *fields], "select", at.step + 1)

    def fold(
        self,
        initial: Any,
        function: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any] | None = None,
        *,
        returns: Any = None,
        name: str = VALUE,
    ) -> Stream:
        """A state taken through the records of each in input order; see ``Stream.fold``."""
        with self.stream._building("fold") as at:
            self.stream._function(function, returns=True)
            aggregate = folding(initial, function, merge, returns, self._record(), at.label)
            return self._grouped([(name, aggregate)], "fold", at.step)

    @property
    def _times(self) -> tuple[str, ...]:
        """The columns of a result that say which window it is of, and when that was."""
        if isinstance(self.kind, CountWindow):
            clock, keys = clock_of(self.stream.node), [n for n, _ in self.keys]
            times = () if clock is None else clock.columns
            return (*(n for n in times if n not in keys), NUMBER)
        return () if self.kind is None else (START, END)

    def _record(self) -> pa.Schema:
        return pa.schema([self.stream.schema.field(n) for n in self.fields])

    def _grouped(self, aggregates: list[tuple[str, Aggregate]], method: str, step: int) -> Stream:
        if isinstance(self.kind, CountWindow):
            return counted(self.stream, self.keys, aggregates, self.kind, method, step)
        return self.stream._group(self.keys, tuple(aggregates), method, step, self.kind)


@dataclass(frozen=True, eq=False)
class KeyedStream(Gathered, Scanning):
    """Records by key, from ``key_by`` or ``group_by``."""

    _hints: ClassVar[dict[str, str]] = KEYED

    def __repr__(self) -> str:
        return f"KeyedStream(by {', '.join(n for n, _ in self.keys)}; {self.stream!r})"

    def _repr_html_(self) -> str:
        return f"<b>by {', '.join(n for n, _ in self.keys)}</b>{self.stream._repr_html_()}"

    def window(self, window: AnyWindow | CountWindow) -> WindowedStream:
        """Each key's records by window of time, or so many of them at a time.

        ``window(hr.tumbling("1 minute"))``, ``window(hr.count_window(10, every=5))``
        """
        return self.stream._windowed(window, self.keys, self.fields)

    def top_k(self, k: int, by: Any) -> Stream:
        """The ``k`` records of each key with the largest ``by``."""
        stream, names = self._with_key_columns()
        return stream._top_k(k, by, names)

    def distinct(self) -> Stream:
        """The different keys."""
        with self.stream._building("distinct") as at:
            return self.stream._group(self.keys, (), "distinct", at.step)

    def map(self, function: Any, *, schema: Any = None) -> Stream:
        """``Stream.map`` where all records of a key are in one place, in order."""
        return self.together().map(function, schema=schema)

    def flat_map(self, function: Any, *, schema: Any = None) -> Stream:
        """``Stream.flat_map`` where all records of a key are in one place, in order."""
        return self.together().flat_map(function, schema=schema)

    def filter(self, condition: Any) -> Stream:
        """``Stream.filter`` where all records of a key are in one place, in order."""
        return self.together().filter(condition)

    def map_batches(self, function: Callable[..., Any], *, schema: Any = None) -> Stream:
        """``Stream.map_batches`` where all records of a key are in one place, in order."""
        return self.together().map_batches(function, schema=schema)

    def transform(self, make: Callable[[], Any], *, schema: Any = None) -> Stream:
        """The records through an operator of your own with state by key; see ``Transform``.

        All records of a key go to the same instance of those that ``make()`` gives. ``schema``
        are the columns it emits; the same as before if not given.
        """
        stream, names = self._with_key_columns()
        return stream._transformed(make, schema, names)

    def together(self) -> Stream:
        """The records, all of one key in one partition and in order."""
        stream, names = self._with_key_columns()
        step = stream.node.step + 1
        return stream._with(KeyBy(stream.schema, step, stream.node, names))

    def deduplicate(self, within: Any = None) -> Stream:
        """The first record of each key; see ``Stream.deduplicate``."""
        stream, names = self._with_key_columns()
        return deduplicated(stream, names, within)

    def _scanned(self) -> tuple[Stream, tuple[str, ...], tuple[str, ...]]:
        stream, names = self._with_key_columns()
        return stream, names, tuple(n for n in stream.columns if n in self.fields)

    def _with_key_columns(self) -> tuple[Stream, tuple[str, ...]]:
        """The records and every key as a column of its own."""
        names = tuple(n for n, _ in self.keys)
        if all(is_same(n, t) and n in self.fields for n, t in self.keys):
            return self.stream, names
        columns = {n: col(n) for n in self.fields} | {n: Expr(t) for n, t in self.keys}
        return self.stream.select(**columns), names


@dataclass(frozen=True, eq=False)
class WindowedStream(Gathered):
    """Records by window of event time or by their number, and by key if there is one.

    What it gives has the keys, ``window_start`` and ``window_end`` beside the results, when the
    watermark has passed the window's end. Of a count window it has the keys, the event time of its
    last record, and its number among those of its key as ``window``, when it is full.
    """

    _hints: ClassVar[dict[str, str]] = WINDOWED

    def __repr__(self) -> str:
        keys = f"by {', '.join(n for n, _ in self.keys)}; " if self.keys else ""
        return f"WindowedStream({keys}{self.kind!r}; {self.stream!r})"

    def _repr_html_(self) -> str:
        keys = f"by {', '.join(n for n, _ in self.keys)}, " if self.keys else ""
        return f"<b>{escape(keys)}in {escape(repr(self.kind))}</b>{self.stream._repr_html_()}"

    def distinct(self, *columns: str) -> Stream:
        """The different keys of each window, or the different values of some columns."""
        with self.stream._building("distinct") as at:
            self.stream._known(*columns)
            keys = [k for k in self.keys if k[0] not in columns]
            if not keys and not columns:
                raise PlanError("distinct needs a column, or a key_by before the window")
            if not columns:
                return self._grouped([], "distinct", at.step)
            if isinstance(self.kind, Window):
                keys += [(n, col(n).tree) for n in columns]
                return self.stream._group(tuple(keys), (), "distinct", at.step, self.kind)
            told = [n for n in columns if n in self._times]
            if told:
                raise PlanError(f"'{told[0]}' is the window's; distinct takes other columns")
            # Other windows are those of the keys, whatever the values in them.
            values = Aggregate("distinct_rows", tuple(col(n).tree for n in columns))
            grouped = self._grouped([("_values", values)], "distinct", at.step)
            found = self._unpacked(grouped, "_values", list(columns), at.step + 1)
            names = [*(n for n, _ in keys), *columns, *self._times]
            return found._project([(n, col(n).tree) for n in names], "select", at.step + 3)

    def top_k(self, k: int, by: Any) -> Stream:
        """The ``k`` records of each window (and key) with the largest ``by``.

        Ties go by the other columns, ascending.
        """
        with self.stream._building("top_k") as at:
            stream, order = self.stream._ranking(k, by)
            used = columns_of(t for t, _ in order if t.key == "column")
            # Records that are a window's results get the outer window's times.
            names = [n for n in self.fields if n not in self._times]
            ties = [
                n
                for n in self.fields
                if n not in used
                and n not in (START, END, NUMBER)
                and not pa.types.is_nested(stream.schema.field(n).type)
            ]
            ranks = [t for t, _ in order] + [col(n).tree for n in ties]
            down = (*(d for _, d in order), *[False] * len(ties))
            inputs = (*(col(n).tree for n in names), *ranks)
            best = Aggregate("top_rows", inputs, k=k, down=down)
            grouped = replace(self, stream=stream)._grouped([("_best", best)], "top_k", at.step)
            return self._unpacked(grouped, "_best", names, at.step + 1)

    def _unpacked(self, grouped: Stream, column: str, names: list[str], step: int) -> Stream:
        """A record for each of the records in a list, beside its keys and its window."""
        kept = (*(n for n, _ in self.keys if n not in names), *self._times)
        lists = col(column).tree
        exploded = grouped._narrow(Explode(grouped.schema, step, grouped.node, lists, "_row", kept))
        columns = [(n, col(n).tree) for n in kept]
        columns += [(n, col("_row").field(str(i)).tree) for i, n in enumerate(names)]
        return exploded._project(columns, "select", step + 1)
