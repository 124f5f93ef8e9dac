"""Files of any bytes: every line is a record or a bad record, and nothing else is raised.

Each format's rounds run in a process of their own, so that a crash in native code is a failure.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

import headrace as hr
from headrace.errors import BadRecord, HeadraceError, PlanError
from headrace.io.messages import Decoding
from headrace.io.source import SetAside
from tests.fuzz import csv_lines, json_lines, parquet_files
from tests.fuzz.budget import seeds
from tests.fuzz.child import rounds_in_child
from tests.fuzz.damage import damaged
from tests.fuzz.lines import ANY, BAD, BLANK, Line, any_sizes, check_lines, read, same, split_lines

ENCODINGS = [
    "utf-8", "UTF8", "latin-1", "cp1252", "ascii", "shift_jis", "gb18030", "utf-7", "utf-16",
    "idna", "punycode", "unicode_escape", "undefined", "rot13", "hex", "", "no such",
]  # fmt: skip


@contextlib.contextmanager
def refusals(data: Any) -> Iterator[None]:
    """Headrace may refuse what it is given; nothing else may be raised."""
    try:
        yield
    except HeadraceError:
        pass
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\nfor {data!r}"[:3000]) from error


def refuses_maps(schema: pa.Schema, build: Callable[[], Any]) -> bool:
    """JSON has no maps: a schema with one may be refused, but then when it is given."""
    if not any(pa.types.is_map(kind) for kind in schema.types):
        return False
    try:
        build()
    except PlanError:
        return True
    return False


def refuses_misspelt(data: bytes, build: Callable[[], Any]) -> bool:
    """A schema may be refused for a field that no record has, if one has nearly its name."""
    try:
        build()
    except PlanError as error:
        said = re.search(r"no record has the field '(.*)' of schema=; did you mean", str(error))
        if said is None:
            return False  # what is wrong is seen below
        records = [record for record in map(_parsed, data.split(b"\n")) if isinstance(record, dict)]
        assert not any(said[1] in record for record in records)
        return True
    return False


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def check_json(rng: random.Random, folder: str) -> None:
    schema = json_lines.random_schema(rng)
    data = json_lines.random_file(rng, schema)
    path = Path(folder) / "a.json"
    path.write_bytes(data)
    any_sizes(rng)
    if refuses_maps(schema, lambda: hr.read_json(path, schema=schema)):
        return
    if refuses_misspelt(data, lambda: hr.read_json(path, schema=schema)):
        return
    lines = [
        Line(i + 1, text, json_lines.expected(text, schema))
        for i, text in enumerate(split_lines(data))
    ]
    try:
        check_lines(
            rng,
            lambda policy: hr.read_json(path, schema=schema, on_error=policy),
            lines,
            box=rng.random() < 0.1,
        )
    except HeadraceError as error:
        raise AssertionError(f"{error}\nfor {schema} and {data[:2000]!r}") from error
    with refusals(data):  # the columns learned from the records
        read(hr.read_json(path, on_error="skip").node.source, 2, ["a"])


def check_csv(rng: random.Random, folder: str) -> None:
    style = csv_lines.random_style(rng)
    data = csv_lines.random_file(rng, style)
    path = Path(folder) / "a.csv"
    path.write_bytes(data)
    any_sizes(rng)

    def build(policy: str) -> hr.Stream:
        return hr.read_csv(path, schema=style.schema, on_error=policy, **style.options())

    with refusals(data):  # the types learned from the records
        learned = hr.read_csv(path, on_error="skip", **style.options())
        read(learned.node.source, 2, learned.columns)
    try:
        keep = build("keep")
    except HeadraceError:
        return  # a header that does not fit the schema
    if style.multiline:
        with refusals(data):
            read(keep.node.source, 2, keep.columns)
        return
    lines = [
        Line(i + 1, text, csv_lines.expected(text, style))
        for i, text in enumerate(split_lines(data))
    ]
    if lines and lines[0].text.startswith(b"\xef\xbb\xbf"):
        lines[0] = Line(1, lines[0].text, ANY)  # a byte order mark may be passed over
    check_lines(rng, build, lines[1:] if style.header else lines, box=rng.random() < 0.1)


def check_quoted_csv(rng: random.Random, folder: str) -> None:
    """What Python writes over several lines we read as Python does."""
    style = csv_lines.Style(hr.types.to_schema({}), rng.choice(",;\t|"), '"', False, (), True)
    data, rows = csv_lines.whole_file(rng, style)
    path = Path(folder) / "a.csv"
    path.write_bytes(data)
    any_sizes(rng)
    schema = {f"c{i}": "string" for i in range(len(rows[0]))}
    source = hr.read_csv(path, schema=schema, **style.options()).node.source
    got = [list(r.values()) for r in read(source, 2, list(schema))[0]]
    assert got == rows, data


def check_text(rng: random.Random, folder: str) -> None:
    data = b"".join(
        rng.choice([rng.randbytes(rng.randint(0, 9)), b"plain", "é😀".encode()])
        + rng.choice([b"\n", b"\n", b"\r\n", b"\r", b""])
        for _ in range(rng.choice([0, 1, 5, 50]))
    )
    path = Path(folder) / "a.txt"
    path.write_bytes(data)
    any_sizes(rng)
    encoding = rng.choice(["utf-8", "utf-8", *ENCODINGS])
    with refusals((encoding, data)):
        source = hr.read_text(path, encoding=encoding).node.source
        got = [r["line"] for r in read(source, rng.choice([1, 4]), ["line"])[0]]
        want = [t.removesuffix(b"\r").decode(encoding, "replace") for t in split_lines(data)]
        assert got == want, f"{encoding}: {data!r}"


_PACK: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    ".gz": (gzip.compress, gzip.decompress),
    ".bz2": (bz2.compress, bz2.decompress),
    ".zst": (
        lambda data: zstandard.ZstdCompressor().compress(data),
        lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
    ),
}


def check_compressed(rng: random.Random, folder: str) -> None:
    """A packed file that is damaged is refused, never read in part."""
    suffix = rng.choice(sorted(_PACK))
    pack, unpack = _PACK[suffix]
    size = rng.choice([0, 1, 20, 5000])
    text = b"".join(b"%d %s\n" % (i, rng.randbytes(2).hex().encode()) for i in range(size))
    data = pack(text)
    if suffix != ".zst" and rng.random() < 0.2:  # Python's zstd reads one frame of several
        data, text = data + pack(b"more\n"), text + b"more\n"
    kind = rng.choice(["whole", "cut", "changed"])
    if kind == "cut":
        data = data[: rng.randrange(len(data))]
    if kind == "changed":
        at = rng.randrange(len(data))
        data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    path = Path(folder) / f"a.txt{suffix}"
    path.write_bytes(data)
    any_sizes(rng)
    lines = text.decode().splitlines()
    got: list[str] | None = None
    with refusals(data[:100]):
        got = [r["line"] for r in read(hr.read_text(path).node.source, 2, ["line"])[0]]
    shown = f"{suffix} {kind}, {len(data)} bytes of {len(pack(text))}: {data[:200]!r}"
    if kind == "whole":
        assert got == lines, shown
    elif got is not None and got != lines:
        try:
            theirs = unpack(data).decode("utf-8", "replace").splitlines()
        except (OSError, EOFError, ValueError, zstandard.ZstdError):
            raise AssertionError(
                f"{shown}: {len(got)} of {len(lines)} lines are read of a damaged file"
            ) from None
        assert got == theirs, shown


def check_parquet(rng: random.Random, folder: str) -> None:
    path = Path(folder) / "a.parquet"
    table = parquet_files.random_table(rng)
    parquet_files.write(rng, table, path)
    want = parquet_files.expected(table)
    with refusals(table.schema):
        source = hr.read_parquet(path).node.source
        rows = read(source, rng.choice([1, 3]), list(source.schema.names))[0]
        assert want is not None, f"{table.schema} is read"
        assert same(rows, want), f"{table.schema}: {rows[:5]} is not {want[:5]}"
        want = None
    assert want is None, f"{table.schema} is refused"
    path.write_bytes(damaged(rng, path.read_bytes(), 2))
    with refusals(path.read_bytes()[:2000]):
        source = hr.read_parquet(path).node.source
        for split in source.splits(2):  # values may be any by now, even text that is not UTF-8
            for batch in split.read(source.schema.names):
                batch.validate()


def check_messages(rng: random.Random, folder: str) -> None:
    """Every message is one record or one bad one, in the order of the messages."""
    form = rng.choice(["json", "json", "json", "text", "bytes"])
    schema = json_lines.random_schema(rng) if form == "json" else None
    if schema and refuses_maps(schema, lambda: Decoding.of("read_kafka", form, schema, "keep")):
        return
    shape = schema or json_lines.random_schema(rng)
    texts = []
    for _ in range(rng.choice([1, 2, 5, 30])):
        text = json_lines.random_line(rng, shape)
        if rng.random() < 0.1:
            text = rng.choice([text + b"\n" + text, b"\n" + text + b"\r\n", text[: len(text) // 2]])
        texts.append(text)
    messages = [("topic[0]", 7 + i, text) for i, text in enumerate(texts)]
    faults: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    with refusals(texts):
        keep = Decoding.of("read_kafka", form, schema, "keep")
        for item in keep.records(messages, keep.schema.names):
            if isinstance(item, SetAside):
                aside = item.records
            else:
                rows.extend(item.to_pylist())
        bad = Decoding(form, keep.schema, "keep", bad=True)
        faults = [r for b in bad.records(messages, []) for r in b.to_pylist()]
        if faults:
            assert aside == len(faults)
            strict = Decoding.of("read_kafka", form, schema, "raise")
            with pytest.raises(BadRecord, match=rf"message {faults[0]['line']}: "):
                list(strict.records(messages, keep.schema.names))
        numbers = [f["line"] for f in faults]
        good = iter(rows)
        for _, number, text in messages:
            want = _message(form, text, schema)
            shown = f"{form} message {text[:300]!r} read as {keep.schema}"
            if number in numbers:
                assert want in (BAD, ANY), f"{shown} is bad: {faults[numbers.index(number)]}"
                continue
            row = next(good, None)
            assert row is not None, f"{shown} is lost, or one of {texts}"
            assert want != BAD, f"{shown} gives {row}"
            if want is not ANY:
                assert same(row, want), f"{shown} gives {row}, not {want}"
        assert next(good, None) is None, f"there are more records than messages in {texts}"
        return
    raise AssertionError(f"refused under on_error='keep': {texts}")


def _message(form: str, text: bytes, schema: Any) -> Any:
    if form == "bytes":
        return {"value": text}
    if form == "text":
        try:
            return {"value": text.decode()}
        except UnicodeDecodeError:
            return BAD
    want = json_lines.expected(text, schema)
    return BAD if want is BLANK else want


CHECKS: dict[str, tuple[float, Callable[[random.Random, str], None]]] = {
    "json": (3.0, check_json),
    "csv": (3.0, check_csv),
    "quoted csv": (1.0, check_quoted_csv),
    "text": (1.0, check_text),
    "compressed": (1.5, check_compressed),
    "parquet": (2.0, check_parquet),
    "messages": (2.0, check_messages),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHECKS)
def test_any_bytes_are_records_or_bad_records(kind: str, tmp_path: Path) -> None:
    share, check = CHECKS[kind]
    rounds_in_child(seeds(share), check, str(tmp_path))
