"""Messages of a broker as records: JSON objects, text, or bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import BadRecord, PlanError
from headrace.io.json import JsonFormat, json_line, refuse_maps
from headrace.io.records import check_on_error, short
from headrace.io.source import ERRORS, SetAside
from headrace.types import to_schema

FORMATS = ("json", "text", "bytes")
Message = tuple[str, int, bytes]
"""Where a message is from, its number there, and what it says."""


@dataclass(frozen=True)
class Decoding:
    """How messages become records."""

    form: str
    schema: pa.Schema
    on_error: str
    bad: bool = False
    """Whether to give the messages that cannot be read, rather than those that can."""

    @staticmethod
    def of(what: str, form: str, schema: Any, on_error: str) -> Decoding:
        check_on_error(on_error, what)
        if form not in FORMATS:
            raise PlanError(f"{what}: format={form!r} is not known; use {', '.join(FORMATS)}")
        if form == "json":
            if schema is None:
                raise PlanError(f"{what}: pass schema=, the columns of the JSON objects")
            return Decoding(form, refuse_maps(to_schema(schema), what), on_error)
        if schema is not None:
            raise PlanError(f"{what}: schema= is for format='json'; {form} has the column value")
        kind = pa.string() if form == "text" else pa.binary()
        return Decoding(form, pa.schema([pa.field("value", kind)]), on_error)

    @property
    def columns(self) -> pa.Schema:
        """The columns of what comes out."""
        return ERRORS if self.bad else self.schema

    def records(self, messages: Sequence[Message], columns: Sequence[str]) -> Iterator[Any]:
        """The records of some messages, and how many were set aside."""
        names = [n for n in self.schema.names if self.bad or n in columns]
        wanted = pa.schema([self.schema.field(n) for n in names])
        good: list[pa.Table] = []
        faults: list[tuple[str, int, str, str]] = []
        self._parse(messages, names, good, faults)
        if self.bad:
            if faults:
                arrays = zip(*faults, strict=True)
                yield pa.RecordBatch.from_arrays(
                    [pa.array(c, f.type) for c, f in zip(arrays, ERRORS, strict=True)],
                    schema=ERRORS,
                )
            return
        if faults and self.on_error == "raise":
            where, number, reason, text = faults[0]
            raise BadRecord(
                f"{where}, message {number}: {reason}; the message is {short(text)}. "
                "Pass on_error='skip' or 'keep', or a schema= that fits"
            )
        if faults:
            yield SetAside(len(faults))
        if good:
            yield from pa.concat_tables(good).cast(wanted).combine_chunks().to_batches()

    def _parse(
        self,
        messages: Sequence[Message],
        names: Sequence[str],
        good: list[pa.Table],
        faults: list[tuple[str, int, str, str]],
    ) -> None:
        if not messages:
            return
        try:
            good.append(self._table([text for _, _, text in messages], names))
        except (pa.ArrowInvalid, ValueError, RecursionError) as error:
            if len(messages) > 1:
                middle = len(messages) // 2
                self._parse(messages[:middle], names, good, faults)
                self._parse(messages[middle:], names, good, faults)
                return
            where, number, text = messages[0]
            reason = " ".join(str(error).split())
            faults.append((where, number, reason, text.decode("utf-8", "replace")))

    def _table(self, texts: list[bytes], names: Sequence[str]) -> pa.Table:
        if self.form != "json":
            values = [t.decode() for t in texts] if self.form == "text" else texts
            array = pa.array(values, self.schema.field(0).type)
            return pa.Table.from_arrays([array], schema=self.schema)
        # A message may be written over several lines, and must be one object.
        lines = [json.dumps(json.loads(t)).encode() if b"\n" in t.strip() else t for t in texts]
        if any(not line.strip() for line in lines):
            raise ValueError("the message is empty")
        table = JsonFormat().parse(pa.py_buffer(b"\n".join(lines) + b"\n"), self.schema, names)
        if table.num_rows != len(texts):
            raise ValueError("the message is not one JSON object")
        return table


def encoded(batch: pa.RecordBatch, value: str | None, skip: Sequence[str] = ()) -> list[bytes]:
    """Records as messages: one column as it is, or all columns as a JSON object."""
    if value is not None:
        return [_bytes(v) for v in batch.column(value).to_pylist()]
    kept = batch.drop_columns(list(skip)) if skip else batch
    return [json_line(row).encode() for row in kept.to_pylist()]


def _bytes(value: Any) -> bytes:
    if value is None:
        return b""
    return value if isinstance(value, bytes) else str(value).encode()
