"""Text stored once for each distinct value, as Parquet has it: what rows hold are codes.

A source may give columns so (``Source.coded``). Filters leave them as they are, what reads one such
column and nothing else is computed once for each value, keys are numbered by their codes; whatever
else takes such a column gets it as plain text.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.columns import as_column, numbers, validity
from headrace.kernels.native import codes as native
from headrace.types import CODED


def is_coded(kind: pa.DataType) -> bool:
    return bool(kind.equals(CODED))


def coded_schema(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """A schema in which some columns are coded."""
    return pa.schema([pa.field(f.name, CODED) if f.name in names else f for f in schema])


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema in which none is."""
    return pa.schema([pa.field(f.name, pa.string()) if is_coded(f.type) else f for f in schema])


def decoded(array: pa.Array) -> pa.Array:
    """A column as plain text, if it is coded."""
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def codes_of(array: pa.DictionaryArray) -> tuple[Any, Any]:
    """The code of each row, and which are there."""
    indices = array.indices
    return numbers(indices, np.int32), validity(indices)


def by_code(array: pa.DictionaryArray) -> tuple[pa.Array, Any]:
    """The values that rows have, in the order in which they first appear, and a place for each row
    to find its own."""
    codes, valid = codes_of(array)
    places = np.full(len(array.dictionary) + 1, -1, np.int64)
    seen = np.empty(places.size, np.int64)
    seen = seen[: native.codes_seen(codes, valid, places, seen)]
    null = seen == places.size - 1
    rows = pa.array(seen, mask=null) if null.any() else as_column(seen)
    return array.dictionary.take(rows), places


def mapped(array: pa.DictionaryArray, values: Any) -> Any:
    """A number for each row, by its code; that of null is the last."""
    codes, valid = codes_of(array)
    out = np.empty(len(array), values.dtype)
    native.map_codes(codes, valid, values, out)
    return out
