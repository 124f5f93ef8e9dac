"""``KeyedStream``: records by key, from ``key_by`` or ``group_by``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.aggregates import Aggregate, count
from headrace.building import named_aggregates
from headrace.errors import PlanError
from headrace.expressions import Expr, col
from headrace.functions import folding, reduction
from headrace.kernels.rows import VALUE
from headrace.plan.nodes import KeyBy, Named, is_same

if TYPE_CHECKING:
    from headrace.stream import Stream


@dataclass(frozen=True, eq=False)
class KeyedStream:
    """Records by key, from ``key_by`` or ``group_by``."""

    stream: Stream
    keys: Named
    fields: tuple[str, ...]
    """The columns of a record as a function sees it, without keys that functions computed."""

    def __repr__(self) -> str:
        return f"KeyedStream(by {', '.join(n for n, _ in self.keys)}; {self.stream!r})"

    def _repr_html_(self) -> str:
        return f"<b>by {', '.join(n for n, _ in self.keys)}</b>{self.stream._repr_html_()}"

    def agg(self, *aggregates: Aggregate, **named: Aggregate) -> Stream:
        """Aggregates of each key: ``agg(n=hr.count(), mean=hr.mean("fare"))``."""
        with self.stream._building("agg") as at:
            found = named_aggregates(aggregates, named)
            names = [n for n, _ in self.keys]
            for name, _ in found:
                if name in names:
                    raise PlanError(f"'{name}' is a key; name the aggregate otherwise")
            return self.stream._group(self.keys, found, "agg", at.step)

    def count(self, name: str = "count") -> Stream:
        """How many records each key has."""
        return self.agg(**{name: count()})

    def reduce(self, function: Callable[[Any, Any], Any]) -> Stream:
        """Each key's records joined two by two into one, in input order."""
        with self.stream._building("reduce") as at:
            self.stream._function(function)
            aggregate = reduction(function, self._record(), at.label)
            grouped = self.stream._group(self.keys, (("_record", aggregate),), "reduce", at.step)
            plain = self.fields == (VALUE,)
            fields = [
                (n, (col("_record") if plain else col("_record").field(n)).tree)
                for n in self.fields
            ]
            extra = [(n, col(n).tree) for n, _ in self.keys if n not in self.fields]
            return grouped._project([*extra, *fields], "select", at.step + 1)

    def fold(
        self,
        initial: Any,
        function: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any] | None = None,
        *,
        returns: Any = None,
        name: str = VALUE,
    ) -> Stream:
        """A state taken through each key's records in input order; see ``Stream.fold``."""
        with self.stream._building("fold") as at:
            self.stream._function(function)
            aggregate = folding(initial, function, merge, returns, self._record(), at.label)
            return self.stream._group(self.keys, ((name, aggregate),), "fold", at.step)

    def _record(self) -> pa.Schema:
        return pa.schema([self.stream.schema.field(n) for n in self.fields])

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

    def together(self) -> Stream:
        """The records, all of one key in one partition and in order."""
        stream, names = self._with_key_columns()
        step = stream.node.step + 1
        return stream._with(KeyBy(stream.schema, step, stream.node, names))

    def _with_key_columns(self) -> tuple[Stream, tuple[str, ...]]:
        """The records and every key as a column of its own."""
        names = tuple(n for n, _ in self.keys)
        if all(is_same(n, t) and n in self.fields for n, t in self.keys):
            return self.stream, names
        columns = {n: col(n) for n in self.fields} | {n: Expr(t) for n, t in self.keys}
        return self.stream.select(**columns), names
