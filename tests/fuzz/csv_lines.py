"""CSV, good and bad, and what its fields mean."""

from __future__ import annotations

import csv
import io
import random
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.types import to_schema
from tests.fuzz.damage import damaged
from tests.fuzz.lines import ANY, BAD, BLANK, Bad, Unsure, plain_value

TYPES = [
    "bigint", "int", "smallint", "double", "float", "boolean", "string", "string", "date",
    "timestamp", "timestamp_ntz", "decimal(10,2)", "binary",
]  # fmt: skip
TEXTS = ["", "a", "NA", "null", "é😀", "\ufeff", " x ", "NaN", 'say "x"', "'", "1", "\u2028", "#"]


@dataclass(frozen=True)
class Style:
    """How a file is written."""

    schema: pa.Schema
    delimiter: str
    quote: str | None
    header: bool
    nulls: tuple[str, ...]
    multiline: bool = False

    def options(self) -> dict[str, Any]:
        return {
            "delimiter": self.delimiter, "quote": self.quote, "header": self.header,
            "null": self.nulls, "multiline": self.multiline,
        }  # fmt: skip


def random_style(rng: random.Random) -> Style:
    names = rng.sample(["a", "b", "c d", "é", "n"], rng.randint(1, 4))
    return Style(
        to_schema({n: rng.choice(TYPES) for n in names}),
        rng.choice(",;\t| "),
        rng.choice(['"', '"', "'", None]),
        rng.random() < 0.6,
        rng.choice([(), ("NA",), ("NA", "null")]),
        rng.random() < 0.2,
    )


# What is written


def fitting(rng: random.Random, kind: pa.DataType, style: Style) -> str:
    """The text of a value that fits a type."""
    t = pa.types
    if rng.random() < 0.15:
        return rng.choice(["", *style.nulls])
    if t.is_integer(kind):
        edge = 1 << (kind.bit_width - 1)
        return str(rng.choice([0, 1, -7, edge - 1, -edge, rng.randrange(-edge, edge)]))
    if t.is_floating(kind):
        return rng.choice(["0", "0.5", "-2.25", "1e10", "12345", "-0.0", "1e-7"])
    if t.is_boolean(kind):
        return rng.choice(["true", "false"])
    if t.is_date(kind):
        return rng.choice(["2024-02-29", "1969-12-31", "0001-01-01", "9999-12-31"])
    if t.is_timestamp(kind):
        return rng.choice(["2024-02-29 23:59:59", "1969-12-31T00:00:00.5", "2024-01-01 00:00:00"])
    if t.is_decimal(kind):
        return rng.choice(["0.10", "-99999999.99", "12.00"])
    if style.multiline and style.quote and rng.random() < 0.3:
        return rng.choice(["two\nlines", "\n", '"\n"', "a\r\nb"])
    return rng.choice([*TEXTS, style.delimiter if style.quote else "x"])


def _field(rng: random.Random, text: str, style: Style) -> str:
    quote = style.quote
    if quote is None:
        return text
    if text.startswith(quote) or any(c in text for c in (style.delimiter, "\n", "\r")):
        return quote + text.replace(quote, quote * 2) + quote
    return quote + text.replace(quote, quote * 2) + quote if rng.random() < 0.15 else text


def random_line(rng: random.Random, style: Style) -> bytes:
    choice = rng.random()
    if choice > 0.95:
        return rng.choice([b"", b" ", b"\r", b"\0", b"a\rb", b"\x0b", style.delimiter.encode() * 9])
    kinds = list(style.schema.types)
    if choice < 0.05:
        kinds = rng.choices(kinds, k=rng.randint(1, 6))
    texts = [fitting(rng, k, style) for k in kinds]
    if 0.05 <= choice < 0.12:
        texts[rng.randrange(len(texts))] = rng.choice([*TEXTS, "9" * 30, "1e999", "0x10", "+1"])
    line = style.delimiter.join(_field(rng, t, style) for t in texts).encode()
    return damaged(rng, line) if 0.12 <= choice < 0.2 else line


def random_file(rng: random.Random, style: Style) -> bytes:
    end = rng.choice([b"\n", b"\n", b"\r\n"])
    lines = [random_line(rng, style) for _ in range(rng.choice([0, 1, 3, 10, 40]))]
    if style.header:
        names = [_field(rng, n, style) for n in style.schema.names]
        if style.quote is None and any(style.delimiter in n for n in names):
            names = [n.replace(style.delimiter, "_") for n in names]
        lines = [style.delimiter.join(names).encode(), *lines]
    return end.join(lines) + (end if rng.random() < 0.7 else b"")


def whole_file(rng: random.Random, style: Style) -> tuple[bytes, list[list[str]]]:
    """A file of good records as Python's writer makes it, and its fields."""
    out = io.StringIO()
    writer = csv.writer(
        out, delimiter=style.delimiter, quotechar=style.quote, lineterminator="\n",
        quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    )  # fmt: skip
    width = rng.randint(2, 4)
    texts = [*TEXTS[1:], "two\nlines", "a\r\nb", '"\n"', "\n\n", style.delimiter]
    rows = [[rng.choice(texts) for _ in range(width)] for _ in range(rng.choice([1, 5, 40]))]
    rows[0][0] = "a"  # a byte order mark there would be the file's
    writer.writerows(rows)
    return out.getvalue().encode(), rows


# What it means


def expected(line: bytes, style: Style) -> Any:
    """The record of a line: a dict, or what else it is."""
    line = line.removesuffix(b"\r")
    if b"\r" in line:
        return ANY  # the end of a line to some readers
    if not line and len(style.schema) > 1:
        return BLANK
    try:
        fields = _fields(line, style)
    except Bad:
        return BAD
    except Unsure:
        return ANY
    if len(fields) != len(style.schema):
        return BAD
    record: Any = {}
    unsure = False
    for (raw, quoted), column in zip(fields, style.schema, strict=True):
        try:
            record[column.name] = _value(raw, quoted, column.type, style)
        except Unsure:
            unsure = True
        except Bad:
            return BAD
    return ANY if unsure else record


def _fields(line: bytes, style: Style) -> list[tuple[bytes, bool]]:
    """The fields of a line, and which of them are quoted."""
    delimiter = style.delimiter.encode()
    if style.quote is None:
        return [(f, False) for f in line.split(delimiter)]
    quote = style.quote.encode()
    fields: list[tuple[bytes, bool]] = []
    rest: bytes | None = line
    while rest is not None:
        if not rest.startswith(quote):
            text, found, after = rest.partition(delimiter)
            fields.append((text, False))
            rest = after if found else None
            continue
        match = re.match(
            b"%b((?:[^%b]|%b%b)*)%b" % ((re.escape(quote),) * 5), rest, re.DOTALL
        )  # fmt: skip
        if match is None:
            raise Bad  # a quote that is not closed
        fields.append((match[1].replace(quote * 2, quote), True))
        rest = rest[match.end() :]
        if rest and not rest.startswith(delimiter):
            raise Unsure("readers differ in what follows a closing quote")
        rest = rest[1:] if rest else None
    return fields


def _value(raw: bytes, quoted: bool, kind: pa.DataType, style: Style) -> Any:
    """A field as a type."""
    t = pa.types
    if not quoted and raw in [n.encode() for n in style.nulls]:
        return None
    if t.is_binary(kind):
        if not raw and not quoted:
            raise Unsure("an empty field is '' in a column of text, and null in one of numbers")
        return raw
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise Bad from None
    if t.is_string(kind):
        return text
    if not text and not quoted:
        return None
    if quoted:
        raise Unsure("readers differ in quoted numbers and times")
    return _typed(text, kind)


def _typed(text: str, kind: pa.DataType) -> Any:
    t = pa.types
    if t.is_integer(kind) and re.fullmatch(r"-?(0|[1-9]\d*)", text, re.ASCII):
        edge = 1 << (kind.bit_width - 1)
        if not -edge <= int(text) < edge:
            raise Bad
        return int(text)
    if t.is_floating(kind) and re.fullmatch(r"-?\d{1,9}(\.\d{1,6})?(e-?\d)?", text, re.ASCII):
        return float(np.float32(text)) if kind.bit_width == 32 else float(text)
    if t.is_boolean(kind) and text in ("true", "false"):
        return text == "true"
    if (value := plain_value(text, kind)) is not None:
        return value
    if not t.is_boolean(kind) and re.fullmatch(r"[g-lo-z ]+", text):
        raise Bad
    raise Unsure("readers differ in the forms they take")
