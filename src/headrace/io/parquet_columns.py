"""Which columns of a Parquet file are read page by page, and not by Arrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.errors import PlanError
from headrace.types import normal_type

_PHYSICAL: dict[str, Callable[[pa.DataType], Any]] = {
    "INT32": lambda kind: kind.equals(pa.int32()) or kind.equals(pa.date32()),
    "INT64": lambda kind: kind.equals(pa.int64()) or pa.types.is_timestamp(kind),
    "FLOAT": pa.types.is_float32,
    "DOUBLE": pa.types.is_float64,
    "BYTE_ARRAY": lambda kind: is_text(kind),
}
"""The types of columns that are stored as they are in memory, by how Parquet calls them."""

Stored = tuple[int, bool, pa.DataType]
"""A column of a file: its place, whether it may have nulls, and its type as it is stored."""


class Damaged(Exception):
    """Pages that do not make sense."""


def paged_columns(parquet: Any) -> dict[str, Stored]:
    """The columns of a file that are read page by page, by name: flat ones of plain types."""
    schema, places = parquet.schema, range(parquet.metadata.num_columns)
    columns = {schema.column(place).path: (place, schema.column(place)) for place in places}
    found: dict[str, Stored] = {}
    if len(columns) < len(places):  # a name stands for two
        return found
    for given, plain in zip(parquet.schema_arrow, schema.to_arrow_schema(), strict=True):
        place, stored = columns.get(plain.name, (0, None))
        fits = None if stored is None else _PHYSICAL.get(stored.physical_type)
        if (
            stored is not None
            and fits is not None
            and fits(plain.type)
            and stored.path == stored.name
            and "." not in stored.name
            and stored.max_repetition_level == 0
            and stored.max_definition_level <= 1
            and _is_same(given.type, plain.type)
        ):
            kind = pa.string() if is_text(plain.type) else plain.type
            found[plain.name] = place, stored.max_definition_level == 1, kind
    return found


def is_text(kind: pa.DataType) -> bool:
    """Whether it is text, however Arrow would hold it."""
    t = pa.types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def _is_same(given: pa.DataType, stored: pa.DataType) -> bool:
    """Whether a column means what is stored, and no note beside it says otherwise."""
    try:
        return bool(normal_type(given).equals(normal_type(stored)))
    except PlanError:
        return False
