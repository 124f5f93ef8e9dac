"""People's functions of one record, over a bundle, with a plain account of what failed where."""

from __future__ import annotations

import dataclasses
import itertools
import linecache
import os
import traceback
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import TracebackType
from typing import Any

import pyarrow as pa

from headrace.errors import StepError
from headrace.types import type_name

VALUE = "value"
"""The column of a stream of plain values; functions get and give the value itself."""


class RowMixin:
    """A record: fields by name (``row.fare``, ``row["fare"]``) and by place."""

    __slots__ = ()
    _names: tuple[str, ...]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            try:
                return tuple.__getitem__(self, self._names.index(key))  # type: ignore[call-overload]
            except ValueError:
                raise KeyError(key) from None
        return tuple.__getitem__(self, key)  # type: ignore[call-overload]

    def asdict(self) -> dict[str, Any]:
        """The record as a dictionary."""
        return dict(zip(self._names, self, strict=True))  # type: ignore[call-overload]

    def __reduce__(self) -> Any:
        return _make_row, (self._names, tuple(self))  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def row_class(names: tuple[str, ...]) -> Any:
    """The class of records with these fields."""
    base = namedtuple("Row", names, rename=True)  # type: ignore[misc]
    return type("Row", (RowMixin, base), {"__slots__": (), "_names": names})


def _make_row(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return row_class(names)(*values)


def rows_of(batch: pa.RecordBatch) -> Iterator[Any]:
    """The records of a bundle: plain values if its only column is ``value``, rows otherwise."""
    names = tuple(batch.schema.names)
    if names == (VALUE,):
        return iter(batch.column(0).to_pylist())
    if not names:
        return iter([row_class(names)()] * batch.num_rows)
    columns = [c.to_pylist() for c in batch.columns]
    return map(row_class(names)._make, zip(*columns, strict=True))


def pack_rows(results: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """A bundle of what a function returned: dicts, dataclasses, tuples, or plain values."""
    names = schema.names
    if names == [VALUE]:
        nested = pa.types.is_nested(schema.field(0).type)
        columns: list[Sequence[Any]] = [
            results if nested else [_unwrapped(result) for result in results]
        ]
    else:
        records = [record_values(r, names) for r in results]
        columns = list(zip(*records, strict=True)) if records else [[] for _ in names]
    arrays = [typed_array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _unwrapped(result: Any) -> Any:
    """A plain value, out of a record whose only field is ``value`` if it is one."""
    if isinstance(result, Mapping) or dataclasses.is_dataclass(result) or isinstance(result, tuple):
        return record_values(result, [VALUE])[0]
    return result


def typed_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Python values as a column, refusing what would be cut to fit: ``1.5`` is no bigint."""
    if pa.types.is_integer(kind) or pa.types.is_date(kind):
        found = pa.array(values)
        same = pa.types.is_integer if pa.types.is_integer(kind) else pa.types.is_date
        if not (same(found.type) or pa.types.is_null(found.type)):
            wrong = next(v for v in values if v is not None and not same(pa.scalar(v).type))
            raise pa.ArrowInvalid(f"{wrong!r} is not a {type_name(kind)}")
        return found.cast(kind)
    if pa.types.is_nested(kind):
        values = [_deep(v, kind) for v in values]
    return pa.array(values, kind, from_pandas=False)


def _deep(value: Any, kind: pa.DataType) -> Any:
    """A nested value as Arrow takes it: dataclasses as dicts, dicts as a map's items."""
    if value is None:
        return None
    if pa.types.is_map(kind) and isinstance(value, Mapping):
        return [(k, _deep(v, kind.item_type)) for k, v in value.items()]
    if pa.types.is_list(kind) and isinstance(value, (list, tuple)):
        return [_deep(v, kind.value_type) for v in value]
    if pa.types.is_struct(kind):
        names = [f.name for f in kind]
        fields = record_values(value, names)
        return {n: _deep(v, kind.field(n).type) for n, v in zip(names, fields, strict=True)}
    return value


def record_values(result: Any, names: list[str]) -> Sequence[Any]:
    if isinstance(result, Mapping):
        unknown = set(result) - set(names)
        if unknown:
            raise TypeError(
                f"the function returned the field {sorted(unknown)[0]!r}, which the "
                f"output schema ({', '.join(names)}) does not have"
            )
        return [result.get(n) for n in names]
    if dataclasses.is_dataclass(result):
        return [getattr(result, n) for n in names]
    if isinstance(result, tuple) and len(result) == len(names):
        return result
    if len(names) == 1:
        return [result]
    if result is None:
        raise TypeError(
            f"the function returned None instead of a record of {', '.join(names)}; return one, or "
            "use filter or flat_map to leave records out"
        )
    raise TypeError(
        f"the function returned {result!r}, which is not a record of {', '.join(names)}"
    )


def describe(row: Any) -> str:
    """A record as a message shows it."""
    try:
        shown = repr(row.asdict() if isinstance(row, RowMixin) else row)
    except Exception:  # an integer of thousands of digits, or an object that cannot be shown
        shown = object.__repr__(row)
    return shown if len(shown) <= 300 else shown[:297] + "…"


_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""The folder of this package: its own lines are nobody else's."""


def user_line(trace: TracebackType | None) -> str:
    """The innermost line of a person's own code in a traceback."""
    for frame in reversed(traceback.extract_tb(trace)):
        if not os.path.abspath(frame.filename).startswith(_OURS):
            source = frame.line or linecache.getline(frame.filename, frame.lineno or 0).strip()
            line = f"{frame.filename}:{frame.lineno} in {frame.name}"
            return f"{line}: {source}" if source else line
    return ""


FAILURES = (Exception, SystemExit)
"""What a user's function may raise. ``sys.exit`` would end a worker, or the program, in silence."""


def reason_of(error: BaseException) -> str:
    """An error's type and message in one line."""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return f"it called sys.exit({code}); raise an exception to fail the job, or call job.stop()"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def failure(label: str, error: BaseException, row: Any = None, what: str = "record") -> StepError:
    """The error of a step on a record, with the person's own line."""
    if isinstance(error, StepError):
        return error
    reason = reason_of(error)
    line = user_line(error.__traceback__)
    return StepError(
        f"{label} failed on {what} {describe(row)}: {reason}" + (f"\n  at {line}" if line else "")
    )


def results_of(
    function: Callable[..., Any], batch: pa.RecordBatch, label: str
) -> Iterator[tuple[Any, Any]]:
    """Each record and what the function gives for it."""
    for row in rows_of(batch):
        try:
            yield row, function(row)
        except FAILURES as error:
            raise failure(label, error, row) from error


@dataclasses.dataclass(frozen=True, eq=False)
class WithValues:
    """A function of a record that gives the record with one more field for each function."""

    row_functions: tuple[Callable[..., Any], ...]
    plain: bool
    """Whether the record is a plain value."""

    def __call__(self, row: Any) -> tuple[Any, ...]:
        more = [function(row) for function in self.row_functions]
        return (row, *more) if self.plain else (*row, *more)

    @property
    def __name__(self) -> str:
        return ", ".join(getattr(f, "__name__", "function") for f in self.row_functions)


@dataclasses.dataclass(frozen=True, eq=False)
class Keeping:
    """A function that yields records, each with some fields of the record it came from."""

    function: Callable[..., Any]
    kept: tuple[str, ...]
    names: tuple[str, ...]

    def __call__(self, row: Any) -> Iterator[tuple[Any, ...]]:
        before = [row[n] if isinstance(row, RowMixin) else row for n in self.kept]
        for item in self.function(row):
            yield (*before, *record_values(item, list(self.names)))

    @property
    def row_functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.function,)

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", "function")


@dataclasses.dataclass(frozen=True, eq=False)
class Interpreter:
    """A step with a function of a record, run as Python; here, or where it is sent."""

    function: Callable[..., Any]
    method: str
    schema: pa.Schema
    """What it gives."""
    label: str

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What comes of a bundle."""
        if self.method == "map":
            return self.mapped(batch)
        if self.method == "flat_map":
            return self.flat_mapped(batch)[0]
        return batch.filter(self.mask(batch))

    def mapped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """``map``: one record out for each record in."""
        results = [r for _, r in results_of(self.function, batch, self.label)]
        return packed(results, self.schema, self.label)

    def flat_mapped(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
        """``flat_map``: any number of records out for each record in, and how many of each."""
        lists = [r for _, r in results_of(self._listed, batch, self.label)]
        records = list(itertools.chain.from_iterable(lists))
        return packed(records, self.schema, self.label), [len(each) for each in lists]

    def _listed(self, row: Any) -> list[Any]:
        return list(self.function(row))  # so that a generator's error is told with its record

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """``filter``: for which records the function is true."""
        true = [bool(r) for _, r in results_of(self.function, batch, self.label)]
        return pa.array(true, pa.bool_())


def inspect_rows(
    function: Callable[..., Any], label: str
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """``inspect``: every record shown to the function, and passed on."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        for _ in results_of(function, batch, label):
            pass
        return batch

    return run


def packed(results: list[Any], schema: pa.Schema, label: str) -> pa.RecordBatch:
    """What a function returned as a bundle; a result that does not fit is named."""
    try:
        return pack_rows(results, schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
        for result in results:
            try:
                pack_rows([result], schema)
            except Exception as error:
                raise failure(label, error, result, "result") from None
        raise
