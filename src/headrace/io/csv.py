"""CSV."""

from __future__ import annotations

import csv as reader
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace.errors import PlanError
from headrace.io.files import MAX_LINE, File, find_files, line_limit
from headrace.io.filesink import FileSink
from headrace.io.records import (
    BYTE_ORDER_MARK,
    RecordSource,
    check_on_error,
    line_edges,
    samples,
    typed,
    widest,
)
from headrace.types import normal_type, to_schema, type_name


@dataclass(frozen=True)
class CsvFormat:
    """How fields are set apart, and what stands for null."""

    names: tuple[str, ...]
    delimiter: str
    quote: str | None
    header: bool
    nulls: tuple[str, ...]
    multiline: bool
    name: str = "csv"

    def header_records(self) -> int:
        return 1 if self.header else 0

    def edges(self, data: pa.Buffer) -> np.ndarray[Any, Any]:
        return self._records(data) if self.multiline else line_edges(data)

    def _records(self, data: pa.Buffer) -> np.ndarray[Any, Any]:
        """Where each record begins, and the end of the last, by the quotes."""
        from headrace.kernels.native import lines as native

        raw = np.frombuffer(data, np.uint8)
        ends = np.empty(native.count_lines(raw) + 1, np.int64)
        quote = ord(self.quote) if self.quote else -1
        count = native.csv_records(raw, ord(self.delimiter), quote, ends)
        return np.append(0, ends[:count])

    def parse(self, data: pa.Buffer, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
        wanted = pa.schema([schema.field(n) for n in columns])
        if data.size == 0:
            return wanted.empty_table()
        self._check_quotes(data)
        self._check_line_ends(data)
        table = self._read(data, schema, columns, bool(self.nulls))
        texts = [n for n in columns if _is_words(schema.field(n).type)]
        if self.nulls and texts:
            # Arrow takes an empty field for null too then; in a column of text it is ''.
            plain = self._read(data, schema, texts, False)
            for name in texts:
                missing = pc.and_(table[name].is_null(), pc.not_equal(plain[name], ""))
                place = table.schema.get_field_index(name)
                none = pa.scalar(None, schema.field(name).type)
                table = table.set_column(place, name, pc.if_else(missing, none, plain[name]))
        arrays = [self._timed(table[f.name].combine_chunks(), f) for f in wanted]
        return pa.Table.from_arrays(arrays, schema=wanted)

    def _read(
        self, data: pa.Buffer, schema: pa.Schema, columns: Sequence[str], null_words: bool
    ) -> pa.Table:
        skip = bytes(memoryview(data)[:3]) == BYTE_ORDER_MARK  # Arrow would leave it out
        if skip:
            data = pa.py_buffer(b"\n" + data.to_pybytes())
        try:
            return csv.read_csv(
                pa.BufferReader(data),
                csv.ReadOptions(
                    column_names=list(self.names),
                    use_threads=False,
                    block_size=max(data.size + 1, 1 << 16),
                    skip_rows=int(skip),
                ),
                self._parse_options(),
                csv.ConvertOptions(
                    column_types=pa.schema(
                        [f.with_type(pa.string()) if _is_time(f.type) else f for f in schema]
                    ),
                    include_columns=list(columns),
                    null_values=["", *self.nulls],
                    strings_can_be_null=null_words,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(self._by_name(str(error), schema)) from None

    def _by_name(self, text: str, schema: pa.Schema) -> str:
        """Arrow's message about a value, with the column's name and type as a user knows them."""
        match = re.search(r"In CSV column #(\d+): .*?invalid value (.*)", text, re.DOTALL)
        if match is None:
            return re.sub(
                r"In CSV column #(\d+)", lambda m: f"column '{self.names[int(m.group(1))]}'", text
            )
        name = self.names[int(match.group(1))]
        return f"column '{name}': {match.group(2)} is not a {type_name(schema.field(name).type)}"

    def _check_line_ends(self, data: pa.Buffer) -> None:
        """Refuse a carriage return within a line: Arrow would end the record there."""
        if self.multiline or b"\r" not in memoryview(data).tobytes():
            return
        raw = np.frombuffer(data, np.uint8)
        places = np.flatnonzero(raw == 13)
        inside = places[places < raw.size - 1]
        if (raw[inside + 1] != 10).any():
            raise pa.ArrowInvalid("a carriage return stands within the line")

    def _timed(self, array: pa.Array, field: pa.Field) -> pa.Array:
        """Times are read as our CAST reads them, in more forms than Arrow's CSV reader takes."""
        if not _is_time(field.type):
            return array
        texts = pc.if_else(pc.equal(array, ""), pa.scalar(None, pa.string()), array)
        try:
            return typed(texts, field.type)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"column '{field.name}': {error}") from None

    def _check_quotes(self, data: pa.Buffer) -> None:
        """Refuse a quote that is not closed: Arrow would take the lines that follow into it."""
        if not self.quote or self.quote.encode() not in memoryview(data).tobytes():
            return
        records = self._records(data)
        if not self.multiline and records.size != line_edges(data).size:
            raise pa.ArrowInvalid("a quote is not closed in its line; see multiline=True")
        last = bytes(memoryview(data)[int(records[-2]) :])
        if self._records(pa.py_buffer(last.rstrip(b"\r\n") + b"\n\n")).size != 3:
            raise pa.ArrowInvalid("a quote is not closed")

    def _parse_options(self, skip_bad: bool = False) -> Any:
        return csv.ParseOptions(
            delimiter=self.delimiter,
            quote_char=self.quote or False,
            newlines_in_values=self.multiline,
            # In a file of one column an empty line is a record.
            ignore_empty_lines=len(self.names) > 1,
            invalid_row_handler=(lambda row: "skip") if skip_bad else None,
        )

    def infer(self, data: pa.Buffer) -> pa.Schema:
        """The columns of a sample, as Arrow guesses them."""
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(
                column_names=list(self.names), use_threads=False, block_size=data.size + 1
            ),
            self._parse_options(skip_bad=True),
            csv.ConvertOptions(null_values=["", *self.nulls], strings_can_be_null=True),
        )
        return table.schema


class CsvSource:
    """``hr.read_csv``: see there."""

    @staticmethod
    def open(
        path: Any,
        *,
        schema: Any = None,
        header: bool = True,
        delimiter: str = ",",
        quote: str | None = '"',
        null: str | Sequence[str] = (),
        multiline: bool = False,
        on_error: str = "raise",
        max_line: Any = MAX_LINE,
    ) -> RecordSource:
        where = "read_csv"
        longest = line_limit(max_line, where)
        check_on_error(on_error, where)
        for option, value in (("delimiter", delimiter), ("quote", quote)):
            one = isinstance(value, str) and len(value.encode()) == 1
            if not one and not (value is None and option == "quote"):
                raise PlanError(f"{where}: {option}={value!r} must be one ASCII character")
        nulls = (null,) if isinstance(null, str) else tuple(null or ())
        if not all(isinstance(n, str) for n in nulls):
            raise PlanError(f"{where}: null={null!r} must be words that stand for null")
        files = tuple(find_files(path, where))
        given = None if schema is None else to_schema(schema)
        style = CsvFormat((), delimiter, quote, header, nulls, multiline)
        fields = _header(style, files, where)
        if not fields and given is None:
            raise PlanError(f"{where}: {files[0].path!r} is empty; pass schema= to read it anyway")
        if header and fields:
            names = tuple(fields)
        elif given is not None:
            names = tuple(given.names)
        else:
            names = tuple(f"c{i}" for i in range(len(fields)))
        _check_names(names, files[0].path, where)
        style = replace(style, names=names)
        known = _known(style, files, given, where)
        return RecordSource(files, known, style, on_error, not multiline, longest)


def _header(style: CsvFormat, files: Sequence[File], where: str) -> list[str]:
    """The fields of the files' first records, which must be the same where they are a header."""
    found: list[str] = []
    for file in files:
        for data in samples([file], most=1):
            fields = _first_record(style, data, file, where)
            if not found:
                found = fields
            elif style.header and fields != found:
                raise PlanError(
                    f"{where}: {file.path!r} has other columns than the files before it, or in "
                    f"another order ({', '.join(fields)}); read it apart"
                )
        if found and not style.header:
            break
    return found


def _first_record(style: CsvFormat, data: pa.Buffer, file: File, where: str) -> list[str]:
    edges = style.edges(data)
    text = data.slice(0, int(edges[1])).to_pybytes().rstrip(b"\r\n").decode("utf-8-sig", "replace")
    try:
        return next(
            reader.reader([text], delimiter=style.delimiter, quotechar=style.quote or "\0"), []
        )
    except reader.Error as error:
        raise PlanError(f"{where}: the first line of {file.path!r} is not CSV: {error}") from None


def _is_words(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _check_names(names: tuple[str, ...], path: str, where: str) -> None:
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise PlanError(
            f"{where}: {path!r} has the column '{twice[0]}' twice; pass header=False "
            "and a schema= with other names"
        )


def _known(
    style: CsvFormat, files: Sequence[Any], given: pa.Schema | None, where: str
) -> pa.Schema:
    """The columns: as given where they were, else as the samples show them."""
    if given is not None:
        unknown = [n for n in given.names if n not in style.names]
        if unknown:
            raise PlanError(
                f"{where}: schema= has the column '{unknown[0]}', which the file does not; "
                f"it has {', '.join(style.names)}"
            )
        for field in given:
            if pa.types.is_nested(field.type):
                raise PlanError(
                    f"{where}: CSV cannot hold {type_name(field.type)} ('{field.name}')"
                )
        if len(given) == len(style.names):
            return pa.schema([given.field(n) for n in style.names])
    kinds: dict[str, pa.DataType] = dict.fromkeys(style.names, pa.null())
    for data in samples(files):
        body = data.slice(int(style.edges(data)[1])) if style.header else data
        if body.size == 0:
            continue
        try:
            found = style.infer(body)
        except pa.ArrowInvalid as error:
            raise PlanError(f"{where}: cannot learn the columns: {error}; pass schema=") from None
        for field in found:
            kinds[field.name] = widest(kinds[field.name], _plain(field.type))
    fields = [pa.field(n, normal_type(kinds[n])) for n in style.names]
    if given is not None:
        fields = [given.field(f.name) if f.name in given.names else f for f in fields]
    return pa.schema(fields)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return kind
    if pa.types.is_time(kind) or pa.types.is_duration(kind) or pa.types.is_binary(kind):
        return pa.string()
    return normal_type(kind)


class CsvSink(FileSink):
    """CSV files with a header."""

    suffix = ".csv"
    known = ("header", "delimiter")

    def check(self, schema: pa.Schema) -> None:
        delimiter = self.options.get("delimiter", ",")
        if not isinstance(delimiter, str) or len(delimiter.encode()) != 1:
            raise PlanError(f"write_csv: delimiter={delimiter!r} must be one ASCII character")
        for field in schema:
            if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
                raise PlanError(
                    f"write_csv: '{field.name}' is {type_name(field.type)}, which CSV cannot hold; "
                    "drop it, or use write_parquet"
                )

    def encoder(self, file: Any, schema: pa.Schema) -> Any:
        options = csv.WriteOptions(
            include_header=self.options.get("header", True),
            delimiter=self.options.get("delimiter", ","),
            quoting_style="needed",
        )
        return csv.CSVWriter(file, schema, write_options=options)
