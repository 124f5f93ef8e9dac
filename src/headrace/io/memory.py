"""Records that are already in memory, and records a function makes."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import PlanError, StepError, refuse_misspelt
from headrace.io.source import BUNDLE_ROWS, SLICE_ROWS, Source, Split
from headrace.kernels.rows import VALUE, failure, pack_rows
from headrace.types import arrow_table, chosen, normal_batch, normal_schema, unique_names

_SPLIT_BYTES = 16 << 20


@dataclass(frozen=True, eq=False)
class TableSource(Source):
    """An Arrow table."""

    table: pa.Table

    @staticmethod
    def of(data: Any) -> TableSource:
        """Anything Arrow can take: a table, a batch, a pandas or Polars frame."""
        try:
            data = arrow_table(data)
            unique_names(data.schema.names)
            schema = normal_schema(data.schema)
            batches = [normal_batch(b, schema) for b in data.to_batches()]
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise PlanError(f"the data cannot be taken: {error}") from None
        return TableSource(pa.Table.from_batches(batches, schema))

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes)

    def splits(self, parallelism: int) -> list[Split]:
        rows = self.table.num_rows
        count = max(-(-self.nbytes // _SPLIT_BYTES), min(2 * parallelism, rows // 1024 + 1))
        edges = [rows * i // count for i in range(count + 1)]
        return [TableSplit(self.table.slice(a, b - a)) for a, b in itertools.pairwise(edges)]

    def __str__(self) -> str:
        return f"a table of {self.table.num_rows:,} records"


@dataclass(frozen=True, eq=False)
class TableSplit(Split):
    """Some rows of a table."""

    table: pa.Table
    sequence = "table"

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = chosen(self.table.schema, columns).names
        yield from self.table.select(names).to_batches(max_chunksize=SLICE_ROWS)

    def only(self, columns: Sequence[str]) -> TableSplit:
        """The same rows with fewer columns, so that less is sent."""
        return TableSplit(self.table.select(chosen(self.table.schema, columns).names))

    def __reduce__(self) -> Any:
        # A slice pickles as the whole table; Arrow's stream format writes just the slice.
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, self.table.schema) as writer:
            writer.write_table(self.table)
        return _read_split, (stream.getvalue().to_pybytes(),)


def _read_split(data: bytes) -> TableSplit:
    return TableSplit(pa.ipc.open_stream(pa.py_buffer(data)).read_all())


def infer_schema(examples: Sequence[Any], where: str) -> pa.Schema:
    """The columns of some records: dicts, dataclasses, named tuples, or plain values."""
    known = [e for e in examples if e is not None]
    if len({_shape(e) for e in known}) > 1:
        raise PlanError(f"{where}: records and plain values are of several types; pass schema=")
    if not known:
        raise PlanError(
            f"{where}: there is no record to learn the columns from; pass schema={{'x': 'bigint'}}"
        )
    first = known[0]
    if isinstance(first, dict):
        names = list(dict.fromkeys(n for e in known for n in e))
        columns = {n: [e.get(n) for e in known] for n in names}
    elif dataclasses.is_dataclass(first):
        names = [f.name for f in dataclasses.fields(first)]
        columns = {n: [getattr(e, n) for e in known] for n in names}
    elif isinstance(first, tuple) and hasattr(first, "_fields"):
        names = list(getattr(first, "_names", first._fields))
        columns = {n: [e[i] for e in known] for i, n in enumerate(names)}
    elif isinstance(first, tuple):
        raise PlanError(
            f"{where}: a plain tuple has no names for its fields; return a dict or a dataclass, "
            "or pass schema="
        )
    else:
        columns = {VALUE: list(examples)}
    fields = []
    for name, values in columns.items():
        _refuse_mixed_zones(name, values, where)
        try:
            kind = pa.array([_as_dict(v) for v in values]).type
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise PlanError(
                f"{where}: the values of '{name}' are of several types: {error}"
            ) from None
        if pa.types.is_null(kind):
            raise PlanError(f"{where}: '{name}' is null in every example; pass schema=")
        if pa.types.is_decimal(kind):  # a few examples seldom have the largest number
            kind = pa.decimal128(min(38, kind.precision + 10), kind.scale)
        fields.append(pa.field(str(name), kind))
    return normal_schema(pa.schema(fields))


def _refuse_mixed_zones(name: str, values: Iterable[Any], where: str) -> None:
    """Refuse times with a zone beside times without: what the others mean would be a guess."""
    times = [v for v in values if isinstance(v, datetime.datetime)]
    if len({t.tzinfo is None for t in times}) > 1:
        naive = next(t for t in times if t.tzinfo is None)
        raise PlanError(
            f"{where}: '{name}' has times with a time zone and without, such as {naive!r}; give "
            "all of them one: replace(tzinfo=datetime.UTC)"
        )


def _as_dict(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [_as_dict(v) for v in value] if isinstance(value, list) else value


def _shape(example: Any) -> str:
    if isinstance(example, dict):
        if not all(isinstance(name, str) for name in example):
            raise PlanError(f"the fields of {example!r} must be named by strings")
        return "dict"
    is_record = dataclasses.is_dataclass(example) or isinstance(example, tuple)
    return "record" if is_record else "value"


def table_of(items: Iterable[Any], schema: pa.Schema | None, where: str) -> pa.Table:
    """A table of records; a long or lazy iterable is taken in bundle by bundle."""
    if not isinstance(items, Iterable):
        raise PlanError(f"{where}: {items!r} cannot be iterated; give a list of records")
    iterator = iter(items)
    head = list(itertools.islice(iterator, BUNDLE_ROWS))
    if schema is None:
        schema = infer_schema(head, where)
    _refuse_misspelt(head, schema, where)
    batches = []
    while head:
        for name in (f.name for f in schema if pa.types.is_timestamp(f.type)):
            _refuse_mixed_zones(name, (_field(item, name) for item in head), where)
        try:
            batches.append(pack_rows(head, schema))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise PlanError(f"{where}: a record does not fit the columns: {error}") from None
        head = list(itertools.islice(iterator, BUNDLE_ROWS))
    return pa.Table.from_batches(batches, schema)


def _field(item: Any, name: str) -> Any:
    if isinstance(item, dict):
        return item.get(name)
    return item if name == VALUE and not hasattr(item, name) else getattr(item, name, None)


def _refuse_misspelt(items: Sequence[Any], schema: pa.Schema, where: str) -> None:
    """Refuse a column that no record has: it would be null throughout, in silence."""
    records = [item for item in items if isinstance(item, dict)]
    if not records or len(records) < len(items):
        return
    present = dict.fromkeys(name for record in records for name in record)
    refuse_misspelt(schema.names, present, where)


@dataclass(frozen=True, eq=False)
class GeneratedSource(Source):
    """Records that a function makes in parallel (RStream's parallel source, §III-A)."""

    function: Callable[[int, int], Iterable[Any]]
    count: int
    schema: pa.Schema

    def splits(self, parallelism: int) -> list[Split]:
        return [
            GeneratedSplit(self.function, rank, self.count, self.schema)
            for rank in range(self.count)
        ]

    def __str__(self) -> str:
        from headrace.plan.node import function_name

        return f"{function_name(self.function)} in {self.count} splits"


@dataclass(frozen=True, eq=False)
class GeneratedSplit(Split):
    """What the function makes for one rank: records, or whole Arrow bundles."""

    function: Callable[[int, int], Iterable[Any]]
    rank: int
    size: int
    schema: pa.Schema

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        label = f"step 1, generate (split {self.rank} of {self.size})"
        pending: list[Any] = []
        try:
            for item in self.function(self.rank, self.size):
                if isinstance(item, (pa.RecordBatch, pa.Table)):
                    table = (
                        pa.Table.from_batches([item]) if isinstance(item, pa.RecordBatch) else item
                    )
                    for batch in table.to_batches(max_chunksize=SLICE_ROWS):
                        yield normal_batch(batch, self.schema)
                    continue
                pending.append(item)
                if len(pending) >= 16 * 1024:
                    yield pack_rows(pending, self.schema)
                    pending = []
            if pending:
                yield pack_rows(pending, self.schema)
        except StepError:
            raise
        except GeneratorExit:
            raise
        except Exception as error:
            raise failure(
                label, error, pending[-1] if pending else None, "the record after"
            ) from error
