"""Input that is odd: lines that are no objects, far too long, sliced, or empty."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import BadRecord
from headrace.io.messages import Decoding
from headrace.io.source import SetAside
from headrace.types import type_name

NOT_OBJECTS = ["null", "3", '"x"', "[1]", "true", '{"a": 2} null', '{"a":', "2}", "\x0b", "nul"]


@pytest.mark.parametrize("first", NOT_OBJECTS)
def test_a_line_that_is_no_object_is_a_bad_record(tmp_path: Path, first: str) -> None:
    (tmp_path / "a.json").write_text(f'{first}\n{{"a": 1}}\n')
    kept = hr.read_json(tmp_path / "a.json", schema={"a": "bigint"}, on_error="keep")
    assert kept.to_list(on="box") == [(1,)]
    (bad,) = kept.errors.collect(on="box").to_pylist()
    assert (bad["line"], bad["record"]) == (1, first)
    with pytest.raises(BadRecord, match="line 1"):
        hr.read_json(tmp_path / "a.json", schema={"a": "bigint"}).collect(on="box")


def test_lines_that_are_no_objects_are_bad_records(engine: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("\n".join([*NOT_OBJECTS, '{"a": 1}', ""]))
    kept = hr.read_json(tmp_path / "a.json", schema={"a": "bigint"}, on_error="keep")
    assert kept.to_list(on=engine) == [(1,)]
    bad = kept.errors.collect(on=engine).to_pylist()
    assert [(r["line"], r["record"]) for r in bad] == list(enumerate(NOT_OBJECTS, 1))
    with pytest.raises(BadRecord, match="line 1"):
        hr.read_json(tmp_path / "a.json", schema={"a": "bigint"}).collect(on=engine)


@pytest.mark.parametrize("text", [t for t in NOT_OBJECTS if t != "\x0b"])
def test_a_message_that_is_no_object_is_a_bad_record(text: str) -> None:
    decoding = Decoding.of("read_kafka", "json", {"a": "bigint"}, "skip")
    messages = [("t", 0, text.encode()), ("t", 1, b'{"a": 1}')]
    found = list(decoding.records(messages, ["a"]))
    assert found[0] == SetAside(1)
    assert found[1].to_pylist() == [{"a": 1}]


def test_deep_json_is_a_bad_record_or_read(tmp_path: Path) -> None:
    deep = '{"b":' + "[" * 100_000 + "]" * 100_000 + "}"
    (tmp_path / "a.json").write_text(f'{deep}\n{{"a": 1}}\n')
    found = hr.read_json(tmp_path / "a.json", on_error="skip").to_list(on="box")
    assert found[-1].a == 1
    many = Decoding.of("read_kafka", "json", {"a": "bigint"}, "skip")
    assert list(many.records([("t", 0, deep.replace("[", "[\n").encode())], ["a"]))


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_that_is_too_long_is_a_bad_record(engine: Any, tmp_path: Path, packed: bool) -> None:
    lines = ["short", "x" * 2_000_000, "after", "y" * 5_000_000, "last"]
    path = tmp_path / ("t.txt.gz" if packed else "t.txt")
    text = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    kept = hr.read_text(path, max_line="1MB", on_error="keep")
    assert kept.to_list(on=engine) == [("short",), ("after",), ("last",)]
    bad = kept.errors.collect(on=engine).to_pylist()
    assert [r["line"] for r in bad] == [2, 4]
    assert "1.9 MB, more than max_line=1 MB" in bad[0]["reason"]
    assert len(bad[0]["record"]) < 1000
    with pytest.raises(BadRecord, match=r"line 2: the line has 1.9 MB.*larger max_line="):
        hr.read_text(path, max_line="1MB").collect(on=engine)
    assert hr.read_text(path).count(on=engine) == 5


@pytest.mark.parametrize("cut", [7, 64, 1000])
def test_too_long_lines_are_found_wherever_blocks_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr("headrace.io.files.BLOCK", cut)
    monkeypatch.setattr("headrace.io.files._MIN_SPLIT", 50)
    lines = [("z" * (i * 37 % 120)) or "-" for i in range(200)]
    for text, name in (("\n".join(lines), "t.txt"), ("\n".join(lines) + "\n", "u.txt")):
        (tmp_path / name).write_text(text)
        stream = hr.read_text(tmp_path / name, max_line=60, on_error="keep")
        whole = [line for line in lines if len(line) + 1 <= 60 or (line == lines[-1] and
                 len(line) <= 60 and not text.endswith("\n"))]  # fmt: skip
        assert [r.line for r in stream.to_list(on="box")] == whole
        bad = [r["line"] for r in stream.errors.collect(on="box").to_pylist()]
        assert len(bad) == len(lines) - len(whole)
        assert [lines[n - 1] for n in sorted(bad)] == [line for line in lines if line not in whole]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_record_that_is_too_long_is_a_bad_record(tmp_path: Path, kind: str) -> None:
    long = "z" * 5000
    text = {
        "csv": f"a,b\n1,{long}\n2,ok\n",
        "json": f'{{"a": 1, "b": "{long}"}}\n{{"a": 2, "b": "ok"}}\n',
    }
    (tmp_path / "f").write_text(text[kind])
    read = {"csv": hr.read_csv, "json": hr.read_json}[kind]
    stream = read(tmp_path / "f", schema={"a": "bigint", "b": "string"}, max_line="1KB",
                  on_error="keep")  # fmt: skip
    assert stream.to_list(on="box") == [(2, "ok")]
    assert stream.errors.count(on="box") == 1


def test_text_of_a_slice_is_just_the_slice(engine: Any) -> None:
    whole = pa.table({"s": pa.array(["xyz", "", "ÄB", "Ab"], pa.large_string())})
    stream = hr.from_arrow(whole.slice(1)).select(low="lower(s)", up="upper(s)")
    assert stream.to_list(on=engine) == [("", ""), ("äb", "ÄB"), ("ab", "AB")]
    lists = pa.array([["xyz"], [], ["ÄB", "Ab"]], pa.large_list(pa.large_string()))
    nested = hr.from_arrow(pa.table({"s": lists}).slice(1)).flat_map("s", name="x")
    assert nested.select(low="lower(x)").to_list(on=engine) == [("äb",), ("ab",)]


def test_a_constant_list_over_an_empty_bundle(engine: Any) -> None:
    none = hr.from_items([{"a": 1}]).filter("a = 5")
    for made in (none.with_columns(t=hr.array(hr.lit("x"))),
                 none.with_columns(t="split('a,b', ',')")):  # fmt: skip
        assert made.collect(on=engine).num_rows == 0


def test_many_columns(engine: Any) -> None:
    wide = hr.from_arrow(pa.table({f"c{i}": [1, 2, 2] for i in range(2000)}))
    assert wide.distinct().count(on=engine) == 2
    assert wide.filter("c5 = 1").count(on=engine) == 1


def test_an_error_of_a_self_join_is_there_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\nx,3\n")
    stream = hr.read_csv(tmp_path / "a.csv", schema={"a": "bigint", "b": "bigint"}, on_error="keep")
    assert stream.join(stream.rename(b="c"), on="a").errors.count(on="box") == 1


def test_nested_values_of_json_are_read_as_they_were_written(engine: Any, tmp_path: Path) -> None:
    import datetime

    schema = {"v": "array<binary>", "d": "struct<x: date, y: array<timestamp>>"}
    day = datetime.date(2024, 2, 29)
    at = datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)
    row = {"v": [b"\xe0", None], "d": {"x": day, "y": [at]}}
    hr.from_items([row, {"v": None, "d": None}], schema=schema).write_json(
        tmp_path / "o", on="box"
    ).run()
    read = hr.read_json(tmp_path / "o", schema=schema).collect(on=engine).to_pylist()
    assert read[0]["v"] == row["v"]
    assert read[0]["d"]["x"] == day
    assert read[1] == {"v": None, "d": None}


@pytest.mark.parametrize("text", ["!!!!", "4A==garbage", "4A"])
def test_what_is_not_base64_is_a_bad_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(f'{{"v": "{text}"}}\n')
    with pytest.raises(BadRecord, match="base64"):
        hr.read_json(tmp_path / "a.json", schema={"v": "binary"}).collect(on="box")


def test_a_map_is_refused_when_the_schema_is_given(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}\n")
    with pytest.raises(hr.PlanError, match="not read from JSON"):
        hr.read_json(tmp_path / "a.json", schema={"m": "map<string,int>"})


def test_an_empty_field_is_empty_text_beside_words_for_null(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n1,\n,NA\n3,"NA"\n')
    stream = hr.read_csv(tmp_path / "a.csv", schema={"a": "bigint", "b": "string"}, null="NA")
    assert stream.to_list(on="box") == [(1, ""), (None, None), (3, "NA")]


def test_a_carriage_return_within_a_line_is_a_bad_record(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,b\n1,x\r2,y\n3,z\r\n\r\r\n")
    stream = hr.read_csv(tmp_path / "a.csv", schema={"a": "bigint", "b": "string"}, on_error="keep")
    assert stream.to_list(on="box") == [(3, "z")]
    assert [r["line"] for r in stream.errors.collect(on="box").to_pylist()] == [2, 4]


def test_a_byte_order_mark_counts_at_the_beginning_of_a_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("\ufeffs,n\nxx,1\n\ufeff,2\nyy,3\n")
    for cut in (10, 1 << 20):
        monkeypatch.setattr("headrace.io.files.BLOCK", cut)
        read = hr.read_csv(tmp_path / "a.csv", schema={"s": "string", "n": "bigint"})
        assert [r.s for r in read.to_list(on="box")] == ["xx", "\ufeff", "yy"]


def test_a_sliced_list_with_nulls_can_be_cast(engine: Any) -> None:
    lists = pa.array([["x"], ["1"], None, ["2"]], pa.list_(pa.string()))
    stream = hr.from_arrow(pa.table({"a": lists}).slice(1)).select(v="cast(a as array<double>)")
    assert stream.to_list(on=engine) == [([1.0],), (None,), ([2.0],)]


def test_broken_parquet_is_named(engine: Any, tmp_path: Path) -> None:
    hr.from_items(list(range(5000))).write_parquet(tmp_path / "o", on="box").run()
    (path,) = (tmp_path / "o").glob("part-*")
    stream = hr.read_parquet(path)
    data = bytearray(path.read_bytes())
    data[10:200] = b"\xff" * 190
    path.write_bytes(bytes(data))
    with pytest.raises(hr.HeadraceError, match=path.name):
        stream.collect(on=engine)
    path.write_bytes(b"not parquet")
    with pytest.raises(hr.PlanError, match=path.name):
        hr.read_parquet(path)


def test_crafted_keys_do_not_meet_in_one_place() -> None:
    """Keys made to collide under the constants of the hash before it was seeded."""
    from headrace.kernels.native import memory

    assert memory.hash_seeds() != memory.hash_seeds()
    keys = _colliding(60_000)
    counted = hr.from_arrow(pa.table({"k": keys})).group_by("k").agg(n=hr.count())
    assert counted.count(on="box") == len(keys)
    places = {
        int(memory.mix(np.uint64(key % 2**64), np.uint64(0))) % 2**17 for key in keys.to_pylist()
    }
    assert len(places) > 20_000  # of 131 072; it was one


def _colliding(count: int) -> pa.Array:
    whole = (1 << 64) - 1
    last = pow(0xD6E8FEB86659FD93, -1, 1 << 64)
    first = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    found = []
    for i in range(count):
        h = (i + 1 << 20) & whole
        h = (h ^ h >> 32) * last & whole
        h = (h ^ h >> 32) * first & whole
        h ^= h >> 32
        found.append(h - (1 << 64) if h >> 63 else h)
    return pa.array(found, pa.int64())


def test_unsigned_numbers_beyond_a_bigint_are_decimals_as_in_spark(
    engine: Any, session: Any, tmp_path: Path
) -> None:
    table = pa.table({"u": pa.array([1, 2**63, 2**64 - 1, None], pa.uint64())})
    path = tmp_path / "u.parquet"
    pq.write_table(table, path, row_group_size=1)
    (spark,) = session.read.parquet(str(path)).dtypes
    for stream in (hr.from_arrow(table), hr.read_parquet(path)):
        assert type_name(stream.schema.field("u").type) == spark[1]
        assert stream.collect(on=engine).column("u").to_pylist() == table["u"].to_pylist()
        assert stream.filter("u > 9223372036854775807").count(on=engine) == 2
        assert stream.agg(n=hr.sum("u")).to_list(on=engine) == [(2**64 + 2**63,)]
        (last,) = stream.group_by("u").agg(n=hr.count()).sort("u").to_list(on=engine)[-1:]
        assert last == (2**64 - 1, 1)
