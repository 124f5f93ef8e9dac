"""CSV: types, quoting, nulls, and records that do not fit."""

from __future__ import annotations

import csv
import datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.io import files

GOOD = 'id,when,amount,name\n1,2020-01-02,1.5,ann\n2,2020-01-03,2,"bob, jr"\n3,,,\n'


def read_all(source, parallelism):
    """The records of all splits, without what else they say."""
    items = [i for s in source.splits(parallelism) for i in s.read(source.schema.names)]
    return [r for b in items if isinstance(b, pa.RecordBatch) for r in b.to_pylist()]


@pytest.fixture
def write(tmp_path):
    def write(text, name="a.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_types_come_from_the_records(rows, write):
    stream = hr.read_csv(write(GOOD))
    assert repr(stream) == "Stream(id: bigint, when: date, amount: double, name: string)"
    assert rows(stream) == [
        (1, datetime.date(2020, 1, 2), 1.5, "ann"),
        (2, datetime.date(2020, 1, 3), 2.0, "bob, jr"),
        (3, None, None, ""),
    ]


def test_options(rows, write):
    path = write("1;'a;b';NA\n2;c;d\n")
    stream = hr.read_csv(path, header=False, delimiter=";", quote="'", null="NA")
    assert stream.columns == ["c0", "c1", "c2"]
    assert rows(stream) == [(1, "a;b", None), (2, "c", "d")]


def test_a_schema_wins_over_the_records(rows, write):
    stream = hr.read_csv(write(GOOD), schema={"id": "string", "amount": "float"})
    assert repr(stream) == "Stream(id: string, when: date, amount: float, name: string)"
    assert rows(stream.select("id")) == [("1",), ("2",), ("3",)]


def test_line_ends_within_quotes(rows, write):
    path = write('a,b\n1,"two\nlines"\n2,x\n')
    assert rows(hr.read_csv(path, multiline=True)) == [(1, "two\nlines"), (2, "x")]


BAD = "id,x\n" + "".join(f"{n},{n * 2}\n" for n in range(1, 400)) + "oops,1\n400,1,2,3\n401,7\n"


def test_a_bad_record_stops_the_job_and_is_named(engine, write):
    path = write(BAD)
    with pytest.raises(hr.BadRecord) as caught:
        hr.read_csv(path, schema={"id": "bigint", "x": "bigint"}).collect(on=engine)
    assert f"{path}, line 401: " in str(caught.value)
    assert "'oops'" in str(caught.value)


def test_bad_records_can_be_skipped(engine, write):
    stream = hr.read_csv(write(BAD), schema={"id": "bigint", "x": "bigint"}, on_error="skip")
    assert stream.agg(n=hr.count(), s=hr.sum("x")).collect(on=engine).to_pylist() == [
        {"n": 400, "s": 399 * 400 + 7}
    ]


def test_bad_records_can_be_kept(engine, write, monkeypatch):
    path = write(BAD)
    stream = hr.read_csv(path, schema={"id": "bigint", "x": "bigint"}, on_error="keep")
    assert stream.count(on=engine) == 400
    errors = stream.filter("x > 3").errors.collect(on=engine).to_pylist()
    assert [(e["file"], e["line"], e["record"]) for e in errors] == [
        (str(path), 401, "oops,1"),
        (str(path), 402, "400,1,2,3"),
    ]
    assert "'oops'" in errors[0]["reason"]
    assert "Expected 2 columns, got 4" in errors[1]["reason"]


def test_lines_of_bad_records_are_right_in_every_split(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MIN_SPLIT", 200)
    monkeypatch.setattr(files, "BLOCK", 64)
    path = tmp_path / "a.csv"
    lines = ["id", *(str(n) if n % 17 else f"bad{n}" for n in range(1, 300))]
    path.write_text("\n".join(lines) + "\n")
    source = hr.read_csv(path, schema={"id": "bigint"}, on_error="keep").node.source
    splits = source.errors().splits(4)
    assert len(splits) > 3
    found = [r for s in splits for b in s.read([]) for r in b.to_pylist()]
    assert [(r["line"], r["record"]) for r in found] == [
        (n + 1, f"bad{n}") for n in range(17, 300, 17)
    ]


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=10),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_what_python_writes_we_read(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["n", "s"])
        writer.writerows(records)
    source = hr.read_csv(path, schema={"n": "bigint", "s": "string"}).node.source
    got = [r for s in source.splits(2) for b in s.read(["n", "s"]) for r in b.to_pylist()]
    assert [(r["n"], r["s"]) for r in got] == records


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"on_error": "ignore"},
            "on_error='ignore' is not a policy; use 'raise', 'skip' or 'keep'",
        ),
        ({"delimiter": "::"}, "delimiter='::' must be one ASCII character"),
        ({"schema": {"idd": "int"}}, "schema= has the column 'idd', which the file does not"),
        ({"schema": {"id": "integr"}}, "'integr' is not a type"),
        ({"schema": {"id": "array<int>"}}, "CSV cannot hold array<int>"),
    ],
)
def test_mistakes_are_refused_when_built(write, options, message):
    with pytest.raises(hr.PlanError, match=message):
        hr.read_csv(write(GOOD), **options)


def test_errors_need_a_source_that_keeps_them(write):
    with pytest.raises(hr.PlanError, match="read with on_error='keep'"):
        _ = hr.read_csv(write(GOOD)).errors


def test_a_column_named_twice_is_refused(write):
    with pytest.raises(hr.PlanError, match="has the column 'a' twice"):
        hr.read_csv(write("a,a\n1,2\n"))


@pytest.mark.parametrize("block", [8, 10, 12, 1 << 20])
def test_an_open_quote_spoils_its_own_line_only(engine, write, monkeypatch, block):
    """Wherever blocks are cut: Arrow alone would take the following lines into the field."""
    path = write('a,b\n1,"x\n2,y\n3,z\n4,"w"\n5,v "q"\n6,"a ""b"""\n')
    monkeypatch.setattr(files, "BLOCK", block)
    source = hr.read_csv(path, schema={"a": "bigint", "b": "string"}, on_error="keep").node.source
    got = read_all(source, 1)
    assert [(r["a"], r["b"]) for r in got] == [
        (2, "y"), (3, "z"), (4, "w"), (5, 'v "q"'), (6, 'a "b"'),
    ]  # fmt: skip
    bad = [r for s in source.errors().splits(1) for b in s.read([]) for r in b.to_pylist()]
    assert [(r["line"], r["record"]) for r in bad] == [(2, '1,"x')]


def test_records_of_several_lines_are_kept_whole(engine, write, monkeypatch):
    monkeypatch.setattr("headrace.io.records.BLOCK", 64)
    text = '"a\nname",b\n' + "".join(f'{n},"line\nline {n}"\n' for n in range(50)) + 'bad,"x\ny"\n'
    schema = {"a\nname": "bigint", "b": "string"}
    source = hr.read_csv(write(text), schema=schema, multiline=True, on_error="keep").node.source
    got = read_all(source, 4)
    assert [r["b"] for r in got] == [f"line\nline {n}" for n in range(50)]
    (bad,) = [r for s in source.errors().splits(4) for b in s.read([]) for r in b.to_pylist()]
    assert (bad["line"], bad["record"]) == (103, 'bad,"x\ny"')


def test_an_empty_line_is_a_record_of_one_column(rows, write):
    assert rows(hr.read_csv(write("a\n1\n\n3\n"))) == [(1,), (None,), (3,)]


def test_files_must_have_the_same_header(write, tmp_path):
    write("a,b\n1,2\n", "1.csv")
    write("b,a\n3,4\n", "2.csv")
    with pytest.raises(hr.PlanError, match=r"2.csv' has other columns .* or in another order"):
        hr.read_csv(tmp_path / "*.csv")


def test_times_are_read_as_cast_reads_them(rows, write):
    path = write("at,day\n2024-01-01 10:00:00.123456789,2024-1-2\n,\n2024-01-01T10:00:00,2024\n")
    at = datetime.datetime(2024, 1, 1, 10, tzinfo=datetime.UTC)
    assert rows(hr.read_csv(path, schema={"at": "timestamp", "day": "date"})) == [
        (at.replace(microsecond=123456), datetime.date(2024, 1, 2)),
        (None, None),
        (at, datetime.date(2024, 1, 1)),
    ]


def test_an_empty_first_file_does_not_matter(rows, write, tmp_path):
    write("", "1.csv")
    write("a\n5\n", "2.csv")
    assert rows(hr.read_csv(tmp_path / "*.csv")) == [(5,)]
