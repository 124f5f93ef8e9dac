"""JSON lines."""

from __future__ import annotations

import json

import pytest

import headrace as hr

LINES = [
    {"id": 1, "tags": ["a", "b"], "at": {"x": 1.5, "y": None}},
    {"id": 2, "tags": [], "at": {"x": 2.0, "y": "é"}, "extra": True},
    {"id": None},
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_columns_come_from_the_records(rows, path):
    stream = hr.read_json(path)
    assert repr(stream) == (
        "Stream(id: bigint, tags: array<string>, at: struct<x:double,y:string>, extra: boolean)"
    )
    assert rows(stream.select("id", "tags", "at.y as y", "extra")) == [
        (1, ["a", "b"], None, None),
        (2, [], "é", True),
        (None, None, None, None),
    ]


def test_a_schema_picks_and_types_columns(rows, path):
    stream = hr.read_json(path, schema={"id": "double", "missing": "string"})
    assert rows(stream) == [(1.0, None), (2.0, None), (None, None)]


@pytest.mark.parametrize("policy", ["raise", "skip", "keep"])
def test_bad_records(engine, tmp_path, policy):
    path = tmp_path / "bad.json"
    path.write_text('{"id": 1}\n{"id": \n{"id": "x"}\nnot json\n{"id": 5}\n')
    stream = hr.read_json(path, schema={"id": "bigint"}, on_error=policy)
    if policy == "raise":
        with pytest.raises(hr.BadRecord, match=r"bad\.json, line 2: "):
            stream.collect(on=engine)
        return
    assert stream.collect(on=engine)["id"].to_pylist() == [1, 5]
    if policy == "keep":
        errors = stream.errors.collect(on=engine).to_pylist()
        assert [(e["line"], e["record"]) for e in errors] == [
            (2, '{"id": '), (3, '{"id": "x"}'), (4, "not json"),
        ]  # fmt: skip
        assert all(e["reason"] for e in errors)


def test_a_file_without_records_needs_a_schema(tmp_path):
    (tmp_path / "a.json").write_text("\n")
    with pytest.raises(hr.PlanError, match="there is no record to learn the columns from"):
        hr.read_json(tmp_path / "a.json")


def test_bytes_that_are_no_text_are_bad_records(engine, tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'{"a": "x"}\n{"a": "\xff"}\n')
    stream = hr.read_json(path, schema={"a": "string"}, on_error="keep")
    assert stream.collect(on=engine)["a"].to_pylist() == ["x"]
    (bad,) = stream.errors.collect(on=engine).to_pylist()
    assert bad["line"] == 2
    assert "not UTF-8" in bad["reason"]


def test_files_of_several_shapes_are_one_schema(rows, tmp_path):
    (tmp_path / "1.json").write_text('{"p": {"x": 1}, "q": []}\n')
    (tmp_path / "2.json").write_text(
        '{"p": {"x": 2, "y": 3}, "q": [1], "t": "2024-01-01T00:00:00Z"}\n'
    )
    stream = hr.read_json(tmp_path)
    assert repr(stream) == ("Stream(p: struct<x:bigint,y:bigint>, q: array<bigint>, t: string)")
    assert rows(stream.select("p.y as y", "q")) == [(None, []), (3, [1])]
