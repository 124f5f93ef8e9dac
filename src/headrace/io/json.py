"""JSON lines."""

from __future__ import annotations

import base64
import datetime
import decimal
import json as plain_json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import json

from headrace.errors import PlanError, refuse_misspelt
from headrace.io.files import MAX_LINE, find_files, line_limit
from headrace.io.filesink import FileSink, LineEncoder
from headrace.io.records import RecordSource, check_on_error, line_edges, samples, typed
from headrace.types import normal_type, to_schema, type_name


@dataclass(frozen=True)
class JsonFormat:
    """One JSON object a line."""

    name: str = "json"
    multiline: bool = False

    def header_records(self) -> int:
        return 0

    def edges(self, data: pa.Buffer) -> np.ndarray[Any, Any]:
        return line_edges(data)

    def parse(self, data: pa.Buffer, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
        from headrace.kernels.native import lines as native

        wanted = pa.schema([schema.field(n) for n in columns])
        # Decided here, for a block whose first value is null ends the process in Arrow's reader.
        objects = native.count_objects(np.frombuffer(data, np.uint8))
        if objects < 0:
            raise pa.ArrowInvalid("the line is not a JSON object")
        if objects == 0:
            return wanted.empty_table()
        check_utf8(data.to_pybytes())
        table = json.read_json(
            pa.BufferReader(data),
            json.ReadOptions(use_threads=False, block_size=max(data.size + 1, 1 << 16)),
            json.ParseOptions(
                explicit_schema=pa.schema([f.with_type(_as_text(f.type)) for f in wanted]),
                unexpected_field_behavior="ignore",
                newlines_in_values=False,
            ),
        )
        if table.num_rows != objects:
            raise pa.ArrowInvalid("the line is not one JSON object")
        arrays = [_typed(table[f.name].combine_chunks(), f.type) for f in wanted]
        return pa.Table.from_arrays(arrays, schema=wanted)


def check_utf8(data: bytes) -> None:
    """Refuse bytes that are not text; Arrow's JSON reader would pass them on."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"the record is not UTF-8: {error}") from None


def _as_text(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow reads for a column: text where JSON writes values of a type as text."""
    t = pa.types
    if t.is_date(kind) or t.is_timestamp(kind) or t.is_decimal(kind) or t.is_binary(kind):
        return pa.string()
    if t.is_list(kind):
        return pa.list_(_as_text(kind.value_type))
    if t.is_struct(kind):
        return pa.struct([f.with_type(_as_text(f.type)) for f in kind])
    return kind


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """What was read as text in its own type, within lists and structs too."""
    if array.type.equals(kind):
        return array
    missing = array.is_null() if array.null_count else None
    if pa.types.is_list(kind):
        values = _typed(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=missing)
    if pa.types.is_struct(kind):
        fields = [_typed(array.field(i), f.type) for i, f in enumerate(kind)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=missing)
    if not pa.types.is_binary(kind):
        return typed(array, kind)
    texts = array.to_pylist()
    try:
        data = [None if v is None else base64.b64decode(v, validate=True) for v in texts]
    except ValueError as error:
        raise pa.ArrowInvalid(f"binary values are base64 in JSON: {error}") from None
    return pa.array(data, kind)


def refuse_maps(schema: pa.Schema, where: str) -> pa.Schema:
    """Refuse columns that JSON has no form for, while the pipeline is being built."""

    def has_none(kind: pa.DataType) -> bool:
        t = pa.types
        if t.is_map(kind) or t.is_duration(kind):
            return True
        inner = [f.type for f in kind] if t.is_struct(kind) else []
        inner += [kind.value_type] if t.is_list(kind) else []
        return any(map(has_none, inner))

    for field in schema:
        if has_none(field.type):
            raise PlanError(
                f"{where}: '{field.name}' is {type_name(field.type)}, which is not read from JSON; "
                "use a struct, or an array of structs"
            )
    return schema


class JsonSource:
    """``hr.read_json``: see there."""

    @staticmethod
    def open(
        path: Any, *, schema: Any = None, on_error: str = "raise", max_line: Any = MAX_LINE
    ) -> RecordSource:
        check_on_error(on_error, "read_json")
        longest = line_limit(max_line, "read_json")
        files = tuple(find_files(path, "read_json"))
        if schema is None:
            known = _infer(files)
        else:
            known = refuse_maps(to_schema(schema), "read_json")
            _refuse_misspelt(files, known)
        return RecordSource(files, known, JsonFormat(), on_error, longest=longest)


def _objects(files: Sequence[Any]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The first lines that are objects of JSON; others are left to the reader's policy."""
    for data in samples(files):
        for line in data.to_pybytes().split(b"\n"):
            try:
                found = plain_json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                yield line, found


def _refuse_misspelt(files: Sequence[Any], schema: pa.Schema) -> None:
    """Refuse a field that no record has while the records have one of nearly its name."""
    present: dict[str, None] = {}
    for number, (_, record) in enumerate(_objects(files)):
        present.update(dict.fromkeys(record))
        if number >= _LOOKED_AT or all(name in present for name in schema.names):
            break
    refuse_misspelt(schema.names, present, "read_json")


_LOOKED_AT = 1000


def _infer(files: Sequence[Any]) -> pa.Schema:
    """The columns of the first records."""
    good = [line for line, _ in _objects(files)]
    if not good:
        raise PlanError("read_json: there is no record to learn the columns from; pass schema=")
    text = b"\n".join(good)
    options = json.ReadOptions(use_threads=False, block_size=len(text) + (1 << 16))
    try:
        schema = json.read_json(pa.BufferReader(text), options).schema
    except pa.ArrowInvalid as error:
        raise PlanError(
            f"read_json: a field has values of several types: {' '.join(str(error).split())}; "
            "pass schema="
        ) from None
    return pa.schema([f.with_type(normal_type(_no_times(f.type))) for f in schema])


def _no_times(kind: pa.DataType) -> pa.DataType:
    """JSON has no times; text that looks like one stays text, for it may have lost its zone."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_no_times(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_no_times(f.type)) for f in kind])
    return kind


class JsonSink(FileSink):
    """JSON lines."""

    suffix = ".json"

    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_map(field.type) or pa.types.is_duration(field.type):
                raise PlanError(
                    f"write_json: '{field.name}' is {type_name(field.type)}, which is not read "
                    "again from JSON; drop it, or use write_parquet"
                )

    def encoder(self, file: Any, schema: pa.Schema) -> Any:
        return LineEncoder(file, lambda batch: map(json_line, batch.to_pylist()))


def json_line(row: dict[str, Any]) -> str:
    """A record as a JSON object."""
    return plain_json.dumps(_finite(row), default=_plain, ensure_ascii=False)


def _finite(value: Any) -> Any:
    """A value without NaN and infinity, which JSON does not have; they are written as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"JSON cannot hold {value!r}")
