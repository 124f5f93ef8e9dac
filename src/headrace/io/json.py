"""JSON lines."""

from __future__ import annotations

import datetime
import decimal
import json as plain_json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import json

from headrace.errors import ExpressionError, PlanError
from headrace.io.files import find_files
from headrace.io.records import RecordSource, check_on_error, samples, widest
from headrace.io.sink import FileSink
from headrace.kernels.expressions import Kernel, evaluate
from headrace.kernels.expressions.casts import cast
from headrace.types import normal_type, to_schema


@dataclass(frozen=True)
class JsonFormat:
    """One JSON object a line."""

    name: str = "json"

    def header_lines(self) -> int:
        return 0

    def parse(self, data: pa.Buffer, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
        wanted = pa.schema([schema.field(n) for n in columns])
        if data.size == 0 or not data.to_pybytes().strip():
            return wanted.empty_table()
        as_text = pa.schema([f.with_type(pa.string()) if _is_text(f.type) else f for f in wanted])
        table = json.read_json(
            pa.BufferReader(data),
            json.ReadOptions(use_threads=False, block_size=max(data.size + 1, 1 << 16)),
            json.ParseOptions(
                explicit_schema=as_text,
                unexpected_field_behavior="ignore",
                newlines_in_values=False,
            ),
        )
        arrays = [_typed(table[f.name].combine_chunks(), f.type) for f in wanted]
        return pa.Table.from_arrays(arrays, schema=wanted)


def _is_text(kind: pa.DataType) -> bool:
    """Whether JSON writes values of a type as text that Arrow does not read by itself."""
    t = pa.types
    return bool(t.is_date(kind) or t.is_timestamp(kind) or t.is_decimal(kind) or t.is_binary(kind))


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Text read as our CAST reads it."""
    if array.type.equals(kind):
        return array
    batch = pa.RecordBatch.from_arrays([array], names=["v"])
    try:
        return evaluate(cast(Kernel(pa.string(), lambda b: b.column(0)), kind), batch)
    except ExpressionError as error:
        raise pa.ArrowInvalid(str(error).split(";")[0]) from None


class JsonSource:
    """``hr.read_json``: see there."""

    @staticmethod
    def open(path: Any, *, schema: Any = None, on_error: str = "raise") -> RecordSource:
        check_on_error(on_error, "read_json")
        files = tuple(find_files(path, "read_json"))
        known = _infer(files) if schema is None else to_schema(schema)
        return RecordSource(files, known, JsonFormat(), on_error)


def _infer(files: Sequence[Any]) -> pa.Schema:
    kinds: dict[str, pa.DataType] = {}
    for data in samples(files):
        for field in _sample_fields(data):
            known = kinds.get(field.name)
            kinds[field.name] = field.type if known is None else widest(known, field.type)
    if not kinds:
        raise PlanError("read_json: there is no record to learn the columns from; pass schema=")
    return pa.schema([pa.field(n, normal_type(k)) for n, k in kinds.items()])


def _sample_fields(data: pa.Buffer) -> list[pa.Field]:
    """The fields of a sample; lines that are not JSON are left to the policy of the reader."""
    good = []
    for line in data.to_pybytes().split(b"\n"):
        try:
            if isinstance(plain_json.loads(line), dict):
                good.append(line)
        except ValueError:
            continue
    if not good:
        return []
    text = b"\n".join(good)
    options = json.ReadOptions(use_threads=False, block_size=len(text) + (1 << 16))
    try:
        schema = json.read_json(pa.BufferReader(text), options).schema
    except pa.ArrowInvalid as error:
        raise PlanError(
            f"read_json: a field has values of several types: {' '.join(str(error).split())}; "
            "pass schema="
        ) from None
    return [
        f.with_type(f.type if pa.types.is_null(f.type) else normal_type(f.type)) for f in schema
    ]


class JsonSink(FileSink):
    """JSON lines."""

    suffix = ".json"

    def encoder(self, file: Any, schema: pa.Schema) -> Any:
        return _JsonEncoder(file)


class _JsonEncoder:
    def __init__(self, file: Any) -> None:
        self.file = file

    def write_batch(self, batch: pa.RecordBatch) -> None:
        lines = [
            plain_json.dumps(row, default=_plain, ensure_ascii=False) + "\n"
            for row in batch.to_pylist()
        ]
        self.file.write("".join(lines).encode())

    def close(self) -> None:
        pass


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    raise TypeError(f"JSON cannot hold {value!r}")
