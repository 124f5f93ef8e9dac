"""CSV."""

from __future__ import annotations

import csv as reader
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import csv

from headrace.errors import PlanError
from headrace.io.files import find_files
from headrace.io.records import RecordSource, check_on_error, samples, widest
from headrace.io.sink import FileSink
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

    def header_lines(self) -> int:
        return 1 if self.header else 0

    def parse(self, data: pa.Buffer, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
        if data.size == 0:
            return pa.schema([schema.field(n) for n in columns]).empty_table()
        return csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(
                column_names=list(self.names),
                use_threads=False,
                block_size=max(data.size + 1, 1 << 16),
            ),
            self._parse_options(),
            csv.ConvertOptions(
                column_types=schema,
                include_columns=list(columns),
                null_values=["", *self.nulls],
                strings_can_be_null=bool(self.nulls),
                quoted_strings_can_be_null=False,
            ),
        )

    def _parse_options(self) -> Any:
        return csv.ParseOptions(
            delimiter=self.delimiter,
            quote_char=self.quote or False,
            newlines_in_values=self.multiline,
        )

    def infer(self, data: pa.Buffer) -> pa.Schema:
        """The columns of a sample, as Arrow guesses them."""
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(
                column_names=list(self.names), use_threads=False, block_size=data.size + 1
            ),
            csv.ParseOptions(
                delimiter=self.delimiter,
                quote_char=self.quote or False,
                newlines_in_values=self.multiline,
                invalid_row_handler=lambda row: "skip",
            ),
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
    ) -> RecordSource:
        where = "read_csv"
        check_on_error(on_error, where)
        for option, value in (("delimiter", delimiter), ("quote", quote)):
            if value is not None and (not isinstance(value, str) or len(value) != 1):
                raise PlanError(f"{where}: {option}={value!r} must be one character")
        files = tuple(find_files(path, where))
        nulls = (null,) if isinstance(null, str) else tuple(null)
        head = next((s for s in samples(files, most=1)), None)
        first = b"" if head is None else head.to_pybytes().split(b"\n", 1)[0].rstrip(b"\r")
        fields = next(
            reader.reader(
                [first.decode("utf-8-sig", "replace")], delimiter=delimiter, quotechar=quote or "\0"
            ),
            [],
        )
        if not fields and schema is None:
            raise PlanError(f"{where}: {files[0].path!r} is empty; pass schema= to read it anyway")
        given = None if schema is None else to_schema(schema)
        if header and fields:
            names = tuple(fields)
        elif given is not None:
            names = tuple(given.names)
        else:
            names = tuple(f"c{i}" for i in range(len(fields)))
        _check_names(names, files[0].path, where)
        style = CsvFormat(names, delimiter, quote, header, nulls, multiline)
        known = _known(style, files, given, where)
        return RecordSource(files, known, style, on_error, splittable=not multiline)


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
        body = data
        if style.header:
            cut = data.to_pybytes().find(b"\n") + 1
            body = data.slice(cut) if cut else data.slice(data.size)
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
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return pa.string()
    return normal_type(kind)


class CsvSink(FileSink):
    """CSV files with a header."""

    suffix = ".csv"

    def check(self, schema: pa.Schema) -> None:
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
