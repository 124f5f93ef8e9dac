"""What a file of a record a line must give, and a check that a source gives it."""

from __future__ import annotations

import datetime
import decimal
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import BadRecord
from headrace.io import files, records
from headrace.io.source import SetAside

BLANK, BAD, ANY = "blank", "bad", "any"
"""A line that is no record; one that cannot be read; one of which only the count is known."""


class Bad(Exception):
    """A value that does not fit its column."""


class Unsure(Exception):
    """A value that readers understand differently."""


def plain_value(text: str, kind: pa.DataType) -> Any:
    """A date, time or decimal in the form that all readers take; None if it is something else."""
    t = pa.types
    try:
        if t.is_date(kind) and re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
            return datetime.date.fromisoformat(text)
        if t.is_timestamp(kind) and re.fullmatch(
            r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?", text, re.ASCII
        ):
            moment = datetime.datetime.fromisoformat(text)
            return moment.replace(tzinfo=datetime.UTC) if kind.tz else moment
    except ValueError:
        raise Bad from None  # such as 2023-02-29
    if t.is_decimal(kind) and re.fullmatch(r"-?\d{1,8}\.\d\d", text, re.ASCII):
        return decimal.Decimal(text)
    return None


@dataclass(frozen=True)
class Line:
    """A line of a file, and the record it must give: a dict, or one of the words above."""

    number: int
    text: bytes
    want: Any


def split_lines(data: bytes) -> list[bytes]:
    """The lines of a file without their line feeds."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def any_sizes(rng: random.Random) -> None:
    """Small splits and blocks, so that small files are cut in many places."""
    files._MIN_SPLIT = rng.choice([8, 64, 300, 4 << 20])
    files.BLOCK = records.BLOCK = rng.choice([8, 64, 300, 4 << 20])


def same(a: Any, b: Any) -> bool:
    """Equal, where NaN is NaN and a float is not an int."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and bool(a == b)


def read(source: Any, parallelism: int, columns: list[str]) -> tuple[list[dict[str, Any]], int]:
    """All records of a source, and how many it left out."""
    rows: list[dict[str, Any]] = []
    left_out = 0
    for split in source.splits(parallelism):
        for item in split.read(columns):
            if isinstance(item, SetAside):
                left_out += item.records
            else:
                item.validate(full=True)
                rows.extend(item.to_pylist())
    return rows, left_out


def check_lines(
    rng: random.Random, build: Callable[[str], hr.Stream], lines: list[Line], box: bool
) -> None:
    """Every line is a record, a bad record or blank, under each policy and by each way to read."""
    cores = rng.choice([1, 2, 5])
    keep = build("keep").node.source  # type: ignore[attr-defined]
    names = list(keep.schema.names)
    rows, left_out = read(keep, cores, names)
    kept = [r for s in keep.errors().splits(cores) for b in s.read([]) for r in b.to_pylist()]
    assert left_out == len(kept)
    _check_each(lines, rows, {r["line"]: r for r in kept}, keep.schema)
    assert [r["line"] for r in kept] == sorted({r["line"] for r in kept})

    skipped = read(build("skip").node.source, cores, names)  # type: ignore[attr-defined]
    assert same(skipped[0], rows)
    assert skipped[1] == len(kept)

    some = rng.sample(names, rng.randint(1, len(names)))
    narrow, _ = read(keep, cores, some)
    assert same(narrow, [{n: r[n] for n in names if n in some} for r in rows])

    strict = build("raise").node.source  # type: ignore[attr-defined]
    if kept:
        with pytest.raises(BadRecord, match=rf"line {kept[0]['line']}: "):
            read(strict, cores, names)
    else:
        assert same(read(strict, cores, names)[0], rows)

    if box:
        engine = hr.Box(workers=2)
        assert same(build("keep").collect(on=engine).to_pylist(), rows)
        errors = build("keep").errors.collect(on=engine).to_pylist()
        assert [r["line"] for r in errors] == [r["line"] for r in kept]


def _check_each(
    lines: list[Line], rows: list[dict[str, Any]], bad: dict[int, Any], schema: pa.Schema
) -> None:
    there = [line for line in lines if line.want is not BLANK]
    assert set(bad) <= {line.number for line in there}, "a line that is none is bad"
    counts = f"{len(rows)} records and {len(bad)} bad ones of {len(there)} lines"
    good = iter(rows)
    for line in there:
        if line.number in bad:
            fault = bad[line.number]["reason"]
            assert line.want in (BAD, ANY), f"{_show(line, schema)} is bad: {fault}; {counts}"
            continue
        row = next(good, None)
        assert row is not None, f"{_show(line, schema)} is lost; {counts}"
        assert line.want is not BAD, f"{_show(line, schema)} gives {row}; {counts}"
        if line.want is not ANY:
            assert same(row, line.want), f"{_show(line, schema)} gives {row}, not {line.want}"
    assert next(good, None) is None, f"there are more records than lines: {counts}"


def _show(line: Line, schema: pa.Schema) -> str:
    kinds = {f.name: str(f.type) for f in schema}
    return f"line {line.number}, {line.text[:200]!r} ({len(line.text)} bytes) read as {kinds},"
