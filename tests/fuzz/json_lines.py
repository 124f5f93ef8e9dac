"""JSON lines, good and bad, and what Python's own reader makes of them."""

from __future__ import annotations

import base64
import binascii
import json
import math
import random
import re
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.types import to_schema
from tests.fuzz.damage import damaged
from tests.fuzz.lines import ANY, BAD, BLANK, Bad, Unsure, plain_value

NAMES = ["a", "b", "c d", "é", "n"]
TYPES = [
    "bigint", "int", "smallint", "double", "float", "boolean", "string", "date", "timestamp",
    "timestamp_ntz", "decimal(10,2)", "binary", "array<bigint>", "array<string>",
    "struct<x:bigint,y:string>", "array<struct<x:double>>", "array<date>", "struct<d:timestamp>",
    "array<decimal(10,2)>", "array<binary>", "map<string,bigint>",
]  # fmt: skip
TEXTS = ["", "a", "null", "é😀", "\ufeff", "\x00", "line\nline", "NaN", '"', "\\", "\u2028", "\x7f"]
_SURROGATE = re.compile("[\ud800-\udfff]")
DEEP = 3000
"""Deeper than Python's own reader goes."""


def random_schema(rng: random.Random) -> pa.Schema:
    names = rng.sample(NAMES, rng.randint(1, 4))
    return to_schema({n: rng.choice(TYPES) for n in names})


# What is written


def fitting(rng: random.Random, kind: pa.DataType) -> Any:
    """A JSON value that fits a type."""
    t = pa.types
    if rng.random() < 0.15:
        return None
    if t.is_integer(kind):
        edge = 1 << (kind.bit_width - 1)
        return rng.choice([0, 1, -7, edge - 1, -edge, rng.randrange(-edge, edge)])
    if t.is_floating(kind):
        return rng.choice([0, 0.5, -2.25, 1e10, 12345, -0.0, 1e-7])
    if t.is_boolean(kind):
        return rng.random() < 0.5
    if t.is_string(kind):
        return rng.choice(TEXTS)
    if t.is_date(kind):
        return rng.choice(["2024-02-29", "1969-12-31", "0001-01-01", "9999-12-31"])
    if t.is_timestamp(kind):
        return rng.choice(["2024-02-29 23:59:59", "1969-12-31T00:00:00.5", "2024-01-01 00:00:00"])
    if t.is_decimal(kind):
        return rng.choice(["0.10", "-99999999.99", "12.00"])
    if t.is_binary(kind):
        return base64.b64encode(rng.randbytes(rng.randint(0, 5))).decode()
    if t.is_list(kind):
        return [fitting(rng, kind.value_type) for _ in range(rng.choice([0, 1, 2, 5]))]
    if t.is_struct(kind):
        return {f.name: fitting(rng, f.type) for f in kind if rng.random() < 0.8}
    return None


def any_value(rng: random.Random, depth: int = 3) -> Any:
    """Any JSON value, and the numbers that Python writes though JSON has none such."""
    choice = rng.randrange(10 if depth else 7)
    if choice >= 8:
        return {
            rng.choice([*NAMES, "", "x"]): any_value(rng, depth - 1)
            for _ in range(rng.randint(0, 3))
        }
    if choice == 7:
        return [any_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    numbers = [0, -1, 2**31, 2**63, -(2**63) - 1, 10**30, 1e308, 1.5, 1.0, float("nan"), -0.0]
    return rng.choice(
        [
            None,
            True,
            False,
            rng.choice(numbers),
            rng.choice(numbers),
            rng.choice(TEXTS),
            float("inf"),
        ]
    )


def _written(rng: random.Random, value: Any) -> bytes:
    tight = rng.random() < 0.5
    text = json.dumps(
        value, ensure_ascii=rng.random() < 0.3, separators=(",", ":") if tight else (", ", ": ")
    )
    return text.encode("utf-8", "surrogatepass")


def raw(rng: random.Random) -> bytes:
    """Text that is JSON in no usual way, or not at all."""
    name = json.dumps(rng.choice(NAMES), ensure_ascii=False).encode()
    depth = rng.choice([10, 500, DEEP, 100_000])
    return rng.choice(
        [
            b"null", b"1", b'"text"', b"[]", b"true", b"{}", b" {} ", b"[{}]", b"\t{}\r", b"nul",
            b"{}{}", b"{} {}", b"{},", b"{" + name + b":1} {" + name + b":2}", b"{" + name + b":",
            b"1}", b"{" + name + b"}", b"{" + name + b":}", b"{" + name + b":1,}", b"{'a':1}",
            b"{" + name + b":1," + name + b":2}", b"{" + name + b":NaN}",
            b"{" + name + b":-Infinity}",
            b"{" + name + b":" + b"9" * rng.choice([19, 40, 400, 5000]) + b"}",
            b"{" + name + b":0." + b"1" * rng.choice([19, 400]) + b"}",
            b"{" + name + b":1e999}", b"{" + name + b":01}", b"{" + name + b":+1}",
            b"{" + name + b":0x10}", b"{" + name + b":1.}", b"{" + name + b":.5}",
            b"{" + name + b':"\\ud800"}', b"{" + name + b':"\\u0000"}', b"{" + name + b':"\t"}',
            b"{" + name + b':"\xff"}', b"{" + name + b':"\xed\xa0\x80"}', b'{"\xff":1}',
            b"{" + name + b":1}\0", b"\0", b"\0{" + name + b":1}", b"\xef\xbb\xbf{}",
            b"{} // no comment", b"/* */ {}", b"\x0b", b"\x0c", b"\xc2\xa0", b"\xe2\x80\xa8",
            b"[" * depth, b"[" * depth + b"]" * depth,
            b"{" + name + b":" + b"[" * depth + b"]" * depth + b"}",
            b'{"z":' * depth + b"1" + b"}" * depth,
        ]
    )  # fmt: skip


def random_line(rng: random.Random, schema: pa.Schema) -> bytes:
    fields = [f for f in schema if rng.random() < 0.9]
    rng.shuffle(fields)
    record = {f.name: fitting(rng, f.type) for f in fields}
    choice = rng.random()
    if choice < 0.08:
        return raw(rng)
    if choice < 0.12:
        return _written(rng, any_value(rng))
    if choice < 0.18 and record:
        record[rng.choice(list(record))] = any_value(rng)
    if choice < 0.25:
        record["extra"] = any_value(rng)
    line = _written(rng, record)
    if 0.25 <= choice < 0.30:
        return damaged(rng, line)
    if 0.30 <= choice < 0.33:  # a record over two lines, which is no record
        return line.replace(b":", b":\n", 1)
    return rng.choice([b"", b" \t"]) if choice > 0.96 else line


def random_file(rng: random.Random, schema: pa.Schema) -> bytes:
    end = rng.choice([b"\n", b"\n", b"\r\n"])
    lines = [random_line(rng, schema) for _ in range(rng.choice([0, 1, 3, 10, 40]))]
    data = end.join(lines) + (end if rng.random() < 0.7 else b"")
    return b"\xef\xbb\xbf" + data if rng.random() < 0.03 and data.startswith(b"{") else data


# What it means


def expected(line: bytes, schema: pa.Schema) -> Any:
    """The record of a line: a dict, or what else it is."""
    if not line.strip(b" \t\r\n"):
        return BLANK
    if line.startswith(b"\xef\xbb\xbf"):
        return ANY  # a byte order mark may be passed over
    try:
        value = json.loads(
            line.decode(),
            parse_int=_whole,
            parse_float=_fraction,
            parse_constant=_refuse,
            object_pairs_hook=_object,
        )
        if not isinstance(value, dict):
            return BAD
    except (Unsure, RecursionError):
        return ANY
    except ValueError:
        return BAD
    record: Any = {}
    unsure = False
    for field in schema:
        try:
            record[field.name] = _each(value.get(field.name), field.type)
        except Unsure:
            unsure = True
        except Bad:
            return BAD
    return ANY if unsure else record


def _whole(text: str) -> int:
    return int(text) if len(text) < 1000 else 10**1000


def _fraction(text: str) -> float:
    if math.isinf(float(text)):
        raise Unsure("what does not fit may be infinity or bad, even where nobody asks for it")
    return float(text)


def _refuse(word: str) -> Any:
    raise Unsure(f"{word} is not JSON, but Spark and Arrow read it")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if any(_SURROGATE.search(v) for v in (*record, *record.values()) if isinstance(v, str)):
        raise Unsure("half of a pair of surrogates, even where nobody asks for it")
    if len(record) < len(pairs):
        raise Unsure("a key twice: some readers take the first, some the last, some refuse it")
    return record


def _each(value: Any, kind: pa.DataType) -> Any:
    """A JSON value as a type."""
    t = pa.types
    if value is None:
        return None
    if t.is_integer(kind):
        if isinstance(value, float):
            raise Unsure("1.0 may be a whole number")
        if type(value) is not int or not -(1 << (kind.bit_width - 1)) <= value < 1 << (
            kind.bit_width - 1
        ):
            raise Bad
        return value
    if t.is_floating(kind):
        return _floating(value, kind)
    if t.is_boolean(kind):
        if not isinstance(value, bool):
            raise Bad
        return value
    if t.is_string(kind):
        if not isinstance(value, str):
            raise Unsure("other values may be read as text")
        return value
    if t.is_list(kind):
        if not isinstance(value, list):
            raise Bad
        return [_each(v, kind.value_type) for v in value]
    if t.is_struct(kind):
        if not isinstance(value, dict):
            raise Bad
        return {f.name: _each(value.get(f.name), f.type) for f in kind}
    if not isinstance(value, str) or t.is_map(kind):
        raise Unsure("a number may be read as a decimal or a time, and a map is not JSON's")
    return _from_text(value, kind)


def _floating(value: Any, kind: pa.DataType) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Bad
    if abs(value) > 1e38:
        raise Unsure("what does not fit may be infinity or bad")
    return float(np.float32(value)) if kind.bit_width == 32 else float(value)


def _from_text(value: str, kind: pa.DataType) -> Any:
    if (known := plain_value(value, kind)) is not None:
        return known
    try:
        if pa.types.is_binary(kind):
            return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise Unsure("some readers pass over what is not base64") from None
    except ValueError:
        raise Bad from None  # such as text that is not ASCII
    raise Unsure("readers differ in the forms they take")
