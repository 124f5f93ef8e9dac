"""The types a column may have: Spark's, carried as Arrow's.

A type is named as in Spark SQL (``bigint``, ``array<string>``), as a Python type (``int``,
``datetime``), or as an Arrow type. Inside, every column is one of the Arrow types that Spark has,
so that a value means the same on both engines.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import sys
import types as pytypes
import typing
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import pyarrow as pa

from headrace.errors import PlanError, nearest

if TYPE_CHECKING:
    from sqlglot import exp

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
INTERVAL = pa.duration("us")
CODED = pa.dictionary(pa.int32(), pa.string())
"""Text as a source may give it to the first steps after it; no person sees it."""

_NAMED: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_ALIASES = {
    "bool": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "int32": "int",
    "long": "bigint",
    "int64": "bigint",
    "float32": "float",
    "real": "float",
    "float64": "double",
    "str": "string",
    "text": "string",
    "varchar": "string",
    "bytes": "binary",
    "datetime": "timestamp",
}
_SQLGLOT: dict[str, str] = {
    "BOOLEAN": "boolean",
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INT": "int",
    "BIGINT": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "TEXT": "string",
    "VARCHAR": "string",
    "CHAR": "string",
    "BINARY": "binary",
    "VARBINARY": "binary",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp_ntz",
}
_PYTHON: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: TIMESTAMP,
    datetime.date: pa.date32(),
    decimal.Decimal: pa.decimal128(38, 18),
}


def type_name(kind: pa.DataType) -> str:
    """The name of a type as Spark SQL writes it.

    >>> type_name(pa.list_(pa.int32()))
    'array<int>'
    """
    for name, known in _NAMED.items():
        if kind.equals(known):
            return name
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return "struct<" + ",".join(f"{f.name}:{type_name(f.type)}" for f in kind) + ">"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if pa.types.is_duration(kind):
        return "interval day to second"
    if pa.types.is_null(kind):
        return "void"
    return str(kind)


def from_sqlglot(tree: exp.DataType) -> pa.DataType:
    """The Arrow type of a parsed SQL type."""
    from sqlglot import exp

    name = tree.this.value if isinstance(tree.this, exp.DataType.Type) else str(tree.this)
    if name in _SQLGLOT:
        return _NAMED[_SQLGLOT[name]]
    if name in {"DECIMAL", "NUMERIC"}:
        sizes = [int(p.this.name) for p in tree.expressions]
        precision, scale = (sizes + [10, 0][len(sizes) :])[:2]
        return pa.decimal128(precision, scale)
    if name in {"ARRAY", "LIST"} and tree.expressions:
        return pa.list_(from_sqlglot(tree.expressions[0]))
    if name == "STRUCT" and all(f.args.get("kind") for f in tree.expressions):
        return pa.struct([(f.this.name, from_sqlglot(f.args["kind"])) for f in tree.expressions])
    if name == "MAP":
        key, item = tree.expressions
        return pa.map_(from_sqlglot(key), from_sqlglot(item))
    raise PlanError(f"type '{tree.sql(dialect='spark')}' is not supported")


def to_type(what: Any) -> pa.DataType:
    """The column type that ``what`` names.

    >>> to_type("bigint"), to_type(float), to_type(list[str])
    (DataType(int64), DataType(double), ListType(list<item: string>))
    """
    if isinstance(what, pa.DataType):
        return normal_type(what)
    if isinstance(what, str):
        name = what.strip().lower()
        name = _ALIASES.get(name, name)
        if name in _NAMED:
            return _NAMED[name]
        from sqlglot import exp
        from sqlglot.errors import SqlglotError

        try:
            return from_sqlglot(exp.DataType.build(what, dialect="spark"))
        except (SqlglotError, ValueError, AttributeError, KeyError, PlanError):
            raise PlanError(f"'{what}' is not a type{nearest(name, _NAMED)}") from None
    if isinstance(what, Hashable) and what in _PYTHON:
        return _PYTHON[what]
    origin, args = get_origin(what), get_args(what)
    if origin in (typing.Union, pytypes.UnionType):
        some = [a for a in args if a is not type(None)]
        if len(some) == 1:
            return to_type(some[0])
    if origin is list and args:
        return pa.list_(to_type(args[0]))
    if origin is dict and len(args) == 2:
        return pa.map_(to_type(args[0]), to_type(args[1]))
    fields = record_fields(what)
    if fields is not None:
        return pa.struct(fields)
    raise PlanError(f"no column type stands for {what!r}; name one, such as 'bigint' or 'string'")


def record_fields(what: Any) -> list[pa.Field] | None:
    """The columns of a dataclass, NamedTuple or TypedDict; None for anything else."""
    if not isinstance(what, type):
        return None
    is_tuple = issubclass(what, tuple) and hasattr(what, "_fields")
    is_dict = issubclass(what, dict) and hasattr(what, "__required_keys__")
    if not (dataclasses.is_dataclass(what) or is_tuple or is_dict):
        return None
    try:
        hints = get_type_hints(what)
    except NameError as error:
        raise PlanError(f"the fields of {what.__name__} cannot be read: {error}") from None
    return [pa.field(name, to_type(kind)) for name, kind in hints.items()]


def to_schema(what: Any) -> pa.Schema:
    """A schema from a mapping of names to types, a record class, or an Arrow schema."""
    if isinstance(what, pa.Schema):
        return normal_schema(what)
    if isinstance(what, Mapping):
        return pa.schema([pa.field(str(name), to_type(kind)) for name, kind in what.items()])
    if isinstance(what, (list, tuple)) and all(isinstance(f, pa.Field) for f in what):
        return normal_schema(pa.schema(list(what)))
    fields = record_fields(what)
    if fields is not None:
        return pa.schema(fields)
    raise PlanError(
        f"schema={what!r} is not a schema; give a dict such as {{'id': 'bigint'}}, "
        "a dataclass, or a pyarrow.Schema"
    )


def normal_type(kind: pa.DataType) -> pa.DataType:
    """The type of ours that holds every value of an Arrow type."""
    t = pa.types
    if t.is_dictionary(kind):
        return normal_type(kind.value_type)
    if t.is_large_string(kind) or t.is_string_view(kind) or t.is_null(kind):
        return pa.string()
    if t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind):
        return pa.binary()
    if t.is_uint8(kind):
        return pa.int16()
    if t.is_uint16(kind):
        return pa.int32()
    if t.is_uint32(kind):
        return pa.int64()
    if t.is_uint64(kind):
        return pa.decimal128(20, 0)
    if t.is_float16(kind):
        return pa.float32()
    if t.is_date64(kind):
        return pa.date32()
    if t.is_timestamp(kind):
        return TIMESTAMP if kind.tz else TIMESTAMP_NTZ
    if t.is_duration(kind):
        return INTERVAL
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return pa.list_(normal_type(kind.value_type))
    if t.is_struct(kind):
        return pa.struct([pa.field(f.name, normal_type(f.type)) for f in kind])
    if t.is_map(kind):
        return pa.map_(normal_type(kind.key_type), normal_type(kind.item_type))
    if t.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if t.is_time(kind) or t.is_interval(kind) or t.is_decimal(kind) or t.is_union(kind):
        raise PlanError(f"a column of type {kind} is not supported; cast it before it comes in")
    return kind


def normal_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns in our types."""
    return pa.schema([pa.field(f.name, normal_type(f.type)) for f in schema])


def chosen(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """The columns of a schema that have some names, in its order."""
    wanted = set(names)
    return pa.schema([field for field in schema if field.name in wanted])


def normal_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema`` out of ``batch``, in its types and its order.

    All input comes through here. Text begins at the beginning of its buffer afterwards, unless it
    is a slice: some of Arrow's kernels read from there whatever the offsets say.
    """
    if batch.schema.equals(schema) and all(map(_is_based, batch.columns)):
        return batch
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if pa.types.is_dictionary(field.type):
            if not column.type.equals(field.type):
                column = normal_batch(batch, pa.schema([(field.name, pa.string())])).column(0)
                column = column.dictionary_encode()
        elif pa.types.is_dictionary(column.type):
            words = column.dictionary.cast(normal_type(column.type.value_type))
            column = pa.DictionaryArray.from_arrays(column.indices, words).dictionary_decode()
        if not column.type.equals(field.type):
            column = column.cast(field.type, safe=not _loses_nanoseconds(column.type))
        columns.append(column if _is_based(column) else pa.concat_arrays([column, column[:0]]))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_based(array: pa.Array) -> bool:
    """Whether text begins where its buffer does, or the array says by its own offset that not."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        if array.offset or not len(array):
            return True
        return int.from_bytes(memoryview(array.buffers()[1])[:4], sys.byteorder) == 0
    if not pa.types.is_nested(kind):
        return True
    if pa.types.is_struct(kind):
        return all(_is_based(array.field(i)) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _is_based(array.keys) and _is_based(array.items)
    return not pa.types.is_list(kind) or _is_based(array.values)


def _loses_nanoseconds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")


def arrow_table(data: Any) -> pa.Table:
    """A table of anything Arrow can take: a table, a batch, a pandas or Polars frame."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if type(data).__module__.split(".")[0] == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "__arrow_c_stream__") or isinstance(data, Mapping):
        return pa.table(data)
    raise TypeError(
        f"a {type(data).__name__} is not Arrow data; give a pyarrow, pandas or Polars table"
    )


def unique_names(names: Sequence[str], what: str = "the column") -> None:
    """Refuse a name that stands for two columns."""
    twice = [n for n, count in Counter(names).items() if count > 1]
    if twice:
        raise PlanError(f"{what} '{twice[0]}' would be there twice; give one another name")
