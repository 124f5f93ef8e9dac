"""Sinks: what is written is read again, and a job that fails leaves nothing."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr

TABLE = pa.table(
    {
        "n": [1, None, 3],
        "s": ['quo"te', "", "uni é, comma"],
        "x": [0.5, float("nan"), None],
        "d": [datetime.date(2020, 1, 2), None, datetime.date(1999, 12, 31)],
        "b": [True, None, False],
    }
)


def same(a: pa.Table, b: pa.Table) -> bool:
    return repr(a.sort_by("s").to_pylist()) == repr(b.sort_by("s").to_pylist())


def test_parquet_is_read_again(engine, tmp_path):
    hr.from_arrow(TABLE).write_parquet(tmp_path / "out", on=engine).run()
    assert same(hr.read_parquet(tmp_path / "out").collect(on=engine), TABLE)
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_csv_is_read_again(engine, tmp_path):
    hr.from_arrow(TABLE).write_csv(tmp_path / "out", on=engine).run()
    again = hr.read_csv(tmp_path / "out", schema={"n": "bigint", "x": "double"})
    assert same(again.collect(on=engine), TABLE)


def test_json_is_read_again(engine, tmp_path):
    nested = TABLE.drop(["x"]).append_column("xs", pa.array([[1], None, []]))
    hr.from_arrow(nested).write_json(tmp_path / "out", on=engine).run()
    again = hr.read_json(tmp_path / "out", schema=nested.schema)
    assert same(again.collect(on=engine), nested)


def test_text_is_read_again(engine, tmp_path):
    lines = hr.from_items([f"line {n}" for n in range(5000)])
    lines.write_text(tmp_path / "out", on=engine).run()
    got = hr.read_text(tmp_path / "out").collect(on=engine)["line"].to_pylist()
    wanted = lines.to_list(on=engine)
    # The box writes bundles as they are done, so their order in the files is not promised.
    assert (got == wanted) if engine.name == "spark" else (sorted(got) == sorted(wanted))


def test_parquet_reads_only_the_columns_it_needs(engine, tmp_path):
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / "a.parquet")
    node = hr.read_parquet(tmp_path / "a.parquet").node
    (batch,) = node.source.splits(1)[0].read(["b"])
    assert batch.schema.names == ["b"]


def test_parquet_is_split_by_row_groups(engine, tmp_path, monkeypatch):
    table = pa.table({"n": range(200_000), "s": [f"text {n}" for n in range(200_000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10_000)
    source = hr.read_parquet(tmp_path / "a.parquet").node.source
    object.__setattr__(source, "groups", tuple((f, g, 20 << 20) for f, g, _ in source.groups))
    assert len(source.splits(2)) > 2
    total = hr.from_source(source).agg(s=hr.sum("n"), n=hr.count_distinct("s")).collect(on=engine)
    assert total.to_pylist() == [{"s": sum(range(200_000)), "n": 200_000}]


def test_modes(engine, tmp_path):
    one, two = hr.from_items([1]), hr.from_items([2])
    path = tmp_path / "out"
    one.write_parquet(path, on=engine).run()
    with pytest.raises(hr.PlanError, match="already has files; write elsewhere, or pass mode="):
        two.write_parquet(path, on=engine).run()
    two.write_parquet(path, mode="append", on=engine).run()
    assert sorted(hr.read_parquet(path).to_list(on=engine)) == [1, 2]
    two.write_parquet(path, mode="overwrite", on=engine).run()
    assert hr.read_parquet(path).to_list(on=engine) == [2]


def test_a_job_that_fails_leaves_what_was_there(engine, tmp_path):
    path = tmp_path / "out"
    hr.from_items([1]).write_parquet(path, on=engine).run()

    def bad(n: int) -> int:
        return n // (n - 9000)

    with pytest.raises(hr.StepError):
        hr.from_items(range(10_000)).map(bad).write_parquet(path, mode="overwrite", on=engine).run()
    assert hr.read_parquet(path).to_list(on=engine) == [1]
    assert sorted(p.name[:5] for p in path.iterdir()) == ["_SUCC", "part-"]


@pytest.mark.parametrize("form", ["parquet", "csv", "json", "text"])
def test_an_empty_result_is_read_again(engine, tmp_path, form):
    stream = hr.from_items(["x"]).filter("value > 'z'")
    stream.write(form, tmp_path / "out", on=engine).run()
    options = {"schema": {"value": "string"}} if form == "json" else {}
    again = hr.read(form, tmp_path / "out", **options)
    assert again.count(on=engine) == 0


def test_a_union_of_small_streams_is_written_whole(engine, tmp_path):
    union = hr.from_items([1, 2]).union(
        hr.from_items([3]), hr.from_items([4]).agg(value=hr.sum("value"))
    )
    union.write_parquet(tmp_path / "out", on=engine).run()
    assert sorted(hr.read_parquet(tmp_path / "out").to_list(on=engine)) == [1, 2, 3, 4]
    assert union.limit(3).to_list(on=engine) == [1, 2, 3]


def test_overwriting_removes_what_was_in_folders_below(engine, tmp_path):
    below = tmp_path / "out" / "sub"
    below.mkdir(parents=True)
    pq.write_table(pa.table({"value": [9]}), below / "old.parquet")
    with pytest.raises(hr.PlanError, match="already has files"):
        hr.from_items([1]).write_parquet(tmp_path / "out", on=engine).run()
    hr.from_items([1]).write_parquet(tmp_path / "out", mode="overwrite", on=engine).run()
    assert hr.read_parquet(tmp_path / "out").to_list(on=engine) == [1]


def test_a_failed_first_write_leaves_no_folder(engine, tmp_path):
    with pytest.raises(hr.StepError):
        hr.from_items([0]).map("1 / value").write_parquet(tmp_path / "out", on=engine).run()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda s, p: s.write_text(p), "write_text takes one string column"),
        (lambda s, p: s.write_csv(p), "'xs' is array<bigint>, which CSV cannot hold"),
        (lambda s, p: s.write_parquet(p, mode="add"), "mode='add' is not a way to write"),
        (lambda s, p: s.write("avro", p), "there is no sink 'avro'"),
        (lambda s, p: s.write_to(3), "3 is not a sink"),
        (lambda s, p: s.write_parquet(5), "5 is not a path"),
        (
            lambda s, p: s.write_csv(p, delimeter=";"),
            "no option 'delimeter'; did you mean 'delimiter'",
        ),
        (lambda s, p: s.write_parquet(p, compression="zip"), "compression='zip' is not a codec"),
    ],
)
def test_mistakes_are_refused_when_built(tmp_path, write, message):
    with pytest.raises(hr.PlanError, match=message):
        write(hr.from_items([{"a": 1, "xs": [1]}]), tmp_path / "out")


def test_a_sink_may_be_used_again(engine, tmp_path):
    from headrace.io.parquet import ParquetSink

    sink = ParquetSink(tmp_path / "out", "append")
    for n in (1, 2):
        hr.from_items([n]).write_to(sink, on=engine).run()
    assert sorted(hr.read_parquet(tmp_path / "out").to_list(on=engine)) == [1, 2]
