"""Parquet gives what pyarrow reads, whole or in part; a bad file is refused."""

from __future__ import annotations

import contextlib
import datetime
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace import col
from headrace.io.parquet import ParquetSource
from headrace.io.parquet_footer import Damaged, Footer
from headrace.io.parquet_scan import Scan
from headrace.plan.estimate import estimated_bytes
from headrace.plan.node import show
from headrace.plan.optimise import optimised
from headrace.plan.rows import Filter
from headrace.plan.sources import Read
from headrace.plan.time import nodes_of
from headrace.trees import parse
from headrace.types import normal_schema
from tests.conftest import tuples

WORDS = ["", "a", "ab", "b", "é", "zz" * 20]
DAY = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
FLOATS = [0.0, -0.0, 1.5, -2.5, float("nan"), float("inf"), 1e300]


@st.composite
def tables(draw):
    """Columns of all kinds, with statistics that are used or not."""
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    rows = draw(st.sampled_from([0, 1, 5, 40, 300]))
    nulls = draw(st.sampled_from([0.0, 0.0, 0.2, 1.0]))
    few = draw(st.sampled_from([2, 5, 1000]))
    ordered = draw(st.booleans())

    def column(make, kind):
        values = [None if rng.random() < nulls else make(rng.randrange(few)) for _ in range(rows)]
        if ordered:
            values.sort(key=lambda v: (v is None, str(type(v)), 0 if v is None or v != v else v))
        return pa.array(values, kind)

    return pa.table(
        {
            "i": column(lambda n: n - 2, pa.int32()),
            "l": column(lambda n: (n - 1) << 33, pa.int64()),
            "f": column(lambda n: FLOATS[n % 7] if n % 7 < 6 else n, pa.float32()),
            "d": column(lambda n: FLOATS[n % 7] * n, pa.float64()),
            "day": column(lambda n: DAY.date() + datetime.timedelta(n), pa.date32()),
            "at": column(lambda n: DAY + datetime.timedelta(hours=n), pa.timestamp("us", "UTC")),
            "ms": column(lambda n: DAY + datetime.timedelta(hours=n), pa.timestamp("ms", "UTC")),
            "t": column(lambda n: WORDS[n % 6], pa.string()),
            "u": column(lambda n: f"text {n * n}", pa.string()),
            "s": column(lambda n: n % 100, pa.int16()),
            "b": column(lambda n: n % 2 == 0, pa.bool_()),
            "v": column(lambda n: [n, None], pa.list_(pa.int64())),
        }
    )


FORMS = st.fixed_dictionaries(
    {
        "row_group_size": st.sampled_from([1, 7, 64, 1000]),
        "compression": st.sampled_from(["none", "snappy", "snappy", "zstd", "gzip", "lz4"]),
        "use_dictionary": st.sampled_from([True, True, False, ["t", "i"]]),
        "dictionary_pagesize_limit": st.sampled_from([64, 1 << 20]),
        "data_page_size": st.sampled_from([16, 1 << 20]),
        "write_batch_size": st.sampled_from([3, 1024]),
        "max_rows_per_page": st.sampled_from([5, 20_000]),
        "data_page_version": st.sampled_from(["1.0", "1.0", "2.0"]),
        "write_statistics": st.booleans(),
    }
)
CONDITIONS = [
    "i > 0", "l = 8589934592", "i between 0 and 3", "f < 1", "f > 1", "d = 0", "d >= 1e300",
    "day >= date'2024-01-03'", "at < timestamp'2024-01-01 03:00:00'", "ms = timestamp'2024-01-01'",
    "t = 'a'", "t in ('b', 'é', 'none')", "t is null", "t is not null and t < 'b'", "i = l",
    "not (i > 1)", "i < 0 or l > 0", "coalesce(i, 1) = 1", "day > date'2030-01-01'", "t like '%b'",
    "i <=> null", "i = null", "cast(i as bigint) = l", "isnan(d)", "s > 3", "size(v) = 2",
    "i % 2 = 0", "1 / i > 0", "d = double('NaN')", "5 > i", "i in (1, null)", "month(day) = 1",
    "length(u) > 6",
]  # fmt: skip


def written(path, table, form):
    where = path / "t.parquet"
    where.unlink(missing_ok=True)
    pq.write_table(table, where, **form)
    return where


def same(a, b):
    """Equal records, NaN like NaN, and zero like zero of any sign."""
    assert a.schema.equals(b.schema)
    for x, y in zip(a.columns, b.columns, strict=True):
        if pa.types.is_floating(x.type):
            assert x.is_null().equals(y.is_null())
            np.testing.assert_array_equal(*(c.to_numpy() for c in (x, y)))
        else:
            assert x.to_pylist() == y.to_pylist()


def scanned(where, names, trees=(), memory=1 << 30, coded=()):
    """What is read of a file, with conditions."""
    source = ParquetSource.open(where, memory)
    for tree in trees:
        source = replace(source, conditions=(*source.conditions, tree))
    splits = [split.with_codes(coded) for split in source.splits(1)]
    wanted = pa.schema([source.schema.field(n) for n in names])
    batches = [batch for split in splits for batch in split.read(names)]
    return pa.Table.from_batches([b.select(names) for b in batches], wanted)


@given(
    tables(), FORMS, st.lists(st.sampled_from(CONDITIONS[:20]), max_size=3),
    st.sampled_from([50_000, 1 << 30]), st.data(),
)  # fmt: skip
def test_what_is_read_is_what_arrow_reads(tmp_path_factory, table, form, texts, memory, data):
    where = written(tmp_path_factory.getbasetemp(), table, form)
    names = data.draw(st.lists(st.sampled_from(table.column_names), min_size=1, unique=True))
    trees = [parse(text) for text in texts]
    whole = pq.read_table(where).cast(normal_schema(table.schema))
    expected = hr.from_arrow(whole)
    for text in texts:
        expected = expected.filter(text)
    same(scanned(where, names, trees, memory), expected.select(*names).collect(on="box"))


def test_statistics_rule_out_row_groups_and_nothing_of_those_is_read(tmp_path, monkeypatch):
    n = range(1000)
    table = pa.table(
        {
            "n": n,
            "day": [DAY.date() + datetime.timedelta(i) for i in n],
            "t": [f"{i:04}" + "x" * 100 for i in n],
            "f": [float("nan") if i == 150 else float(i) for i in n],
            "none": pa.array([None if i < 500 else i for i in n], pa.int64()),
        }
    )
    where = written(tmp_path, table, {"row_group_size": 100})
    opened = []
    read_group = Scan._read_group
    monkeypatch.setattr(
        Scan, "_read_group", lambda *args: opened.append(args[1]) or read_group(*args)
    )
    for text, groups in {
        "n = 250": 1, "n >= 899": 2, "n < 0": 0, "n between 99 and 100": 2, "n in (5, 950)": 2,
        "n > 100 and n < 200": 1, "n < 100 or n > 899": 2, "300 > n": 3, "n = 250.0": 1,
        "day = date'2024-01-01'": 1, "t < '0100'": 1, "t = '0950'": 1, "t > '0899y'": 1,
        "f > 5000": 10, "f < 100": 1, "f = 150": 2, "none is null": 5, "none is not null": 5,
        "none < 600": 1, "n != 5": 10, "n + 1 = 5": 10, "n = none": 10, "n > null": 0,
    }.items():  # fmt: skip
        opened.clear()
        expected = hr.from_arrow(table).filter(text).select("n").collect(on="box")
        assert scanned(where, ["n"], [parse(text)]).equals(expected), text
        assert len(opened) == groups, text


def plan_of(stream):
    nodes = list(nodes_of(optimised([stream.node])[0]))
    conditions = [show(c) for n in nodes if isinstance(n, Read) for c in n.source.conditions]
    return conditions, [show(n.condition) for n in nodes if isinstance(n, Filter)]


def test_a_source_is_given_what_it_can_decide_and_no_more(tmp_path):
    rows = {"i": 1, "t": "a", "v": [1], "u": "x"}
    table = pa.Table.from_pylist([rows] * 100)
    read = hr.read_parquet(written(tmp_path, table, {"use_dictionary": ["t"]}))
    few = col("i") > 1
    assert plan_of(read.filter(few & (col("t") == "a"))) == (["i > 1", "t = 'a'"], [])
    assert plan_of(read.filter(few).filter(col("t") == "a")) == (["i > 1", "t = 'a'"], [])
    # What may fail, or has no statistics, stays, and so does all that is after it.
    assert plan_of(read.filter("i > 1 and 1 / i > 0 and i < 9"))[1] == ["1 / i > 0 AND i < 9"]
    assert plan_of(read.filter("size(v) > 0 and i > 1")) == ([], ["SIZE(v) > 0 AND i > 1"])
    assert plan_of(read.filter("i > 1 and u = 'x'")) == (["i > 1", "u = 'x'"], [])
    # Through steps that rename, and no others.
    assert plan_of(read.select(k="i", t="u").filter("k > 1")) == (["i > 1"], [])
    assert plan_of(read.with_columns(k="1 / i").filter(few)) == ([], ["i > 1"])
    assert plan_of(read.filter("i > 1 or v is null"))[0] == []
    assert plan_of(read.filter(lambda r: r.i > 1).filter(few)) == ([], ["i > 1"])
    # A source that several read is read once.
    assert plan_of(read.filter(few).union(read))[0] == []
    both = read.filter(few).join(read.filter("i < 3"), on="i")
    assert plan_of(both)[0] == []
    # Watermarks are those of all records.
    timed = hr.read_parquet(written(tmp_path, pa.table({"at": [DAY], "i": [1]}), {}))
    assert plan_of(timed.event_time("at", delay="1s").filter(few))[0] == []


def test_a_side_of_a_join_is_guessed_by_its_conditions_wherever_they_are_decided(tmp_path):
    table = pa.table({"i": range(1000), "v": [[n] for n in range(1000)]})
    read = hr.read_parquet(written(tmp_path, table, {}))

    def size(stream):
        return estimated_bytes(optimised([stream.node])[0]) / read.node.source.nbytes

    here, after = read.filter("i > 5"), read.filter("v[0] > 5")
    assert plan_of(here)[0]
    assert not plan_of(after)[0]
    assert size(here) == pytest.approx(size(after), rel=0.01) == pytest.approx(0.5, rel=0.01)
    assert size(read.filter("i = 5 and i < 9")) == pytest.approx(0.05, rel=0.01)
    assert size(read.filter("i in (1, 2) or i > 7")) == pytest.approx(0.7, rel=0.01)


def test_explain_says_what_a_source_decides(tmp_path):
    read = hr.read_parquet(written(tmp_path, pa.table({"i": [1] * 50, "t": ["a"] * 50}), {}))
    stream = read.filter((col("i") > 1) & (col("t") == "b")).select("i")
    for engine, place in {"box": "ingress", "spark": "read in the Python worker"}.items():
        text = stream.explain(on=engine)
        assert f"[{place}; only records with i > 1 and t = 'b']" in text
        assert "└─ filter (i > 1) AND (t = 'b')" in text
    sorted_by_spark = stream.sort("i").explain(on="spark")
    assert "[read by Spark; only records with i > 1 and t = 'b']" in sorted_by_spark


def test_engines_give_the_same_with_and_without_conditions(engine, tmp_path):
    rng = random.Random(5)
    rows = range(3000)
    table = pa.table(
        {
            "k": [i % 7 for i in rows],
            "day": [DAY.date() + datetime.timedelta(i // 100) for i in rows],
            "t": [rng.choice(["a", "b", None]) for _ in rows],
            "f": [rng.choice([1.5, float("nan"), None, -0.0]) for _ in rows],
            "at": [DAY + datetime.timedelta(minutes=i) for i in rows],
        }
    )
    read = hr.read_parquet(written(tmp_path, table, {"row_group_size": 500}))
    some = "day < date'2024-01-20' and (t = 'a' or t is null) and f >= 1.5 and k in (1, 2, 3)"
    late = col("at") >= hr.lit(DAY + datetime.timedelta(hours=30))

    def answers(source, on):
        few = source.filter(some).filter(late)
        grouped = few.group_by("k", "t").agg(n=hr.count(), last=hr.max("at"))
        first = source.filter("t = 'b' and f = 1.5").sort("-k", "day", "at").limit(20)
        joined = few.join(source.filter("k = 2").group_by("day").agg(m=hr.count()), on="day")
        named = [grouped, first.select("k", "at"), joined.group_by("k").agg(m=hr.sum("m"))]
        return [sorted(tuples(s.collect(on=on)), key=repr) for s in named]

    assert answers(read, engine) == answers(hr.from_arrow(table), "box")


def test_the_time_zone_of_the_pipeline_counts_in_the_reader(tmp_path):
    table = pa.table({"at": pa.array([DAY + datetime.timedelta(hours=h) for h in range(-3, 4)])})
    read = hr.read_parquet(written(tmp_path, table, {})).time_zone("Asia/Tokyo")
    for text in ("at >= timestamp'2024-01-01 09:00:00'", "hour(at) < 9"):
        stream = read.filter(text)
        assert plan_of(stream)[1] == []
        assert stream.collect(on="box").equals(
            hr.from_arrow(table).time_zone("Asia/Tokyo").filter(text).collect(on="box")
        )


def bombs(rows=4_000_000):
    """Small files that hold much: name, table, how to write it, and whether it can be read."""
    zeros = pa.table({"x": np.zeros(rows, np.int64)})
    one_page = {"data_page_size": 1 << 30, "max_rows_per_page": rows, "write_batch_size": rows}
    packed = {"use_dictionary": False, "compression": "zstd"}
    codes = pa.array(np.zeros(500, np.int32))
    long_text = pa.table({"x": pa.DictionaryArray.from_arrays(codes, ["y" * 1_000_000])})
    lists = pa.ListArray.from_arrays([0, rows], zeros["x"].combine_chunks())
    return {
        "pages": (zeros, packed, True),
        "runs": (zeros, {}, True),
        "one page": (zeros, packed | one_page, False),
        "long text": (long_text, {"compression": "none", "store_schema": False}, True),
        "one list": (pa.table({"x": lists}), {}, False),
    }


@pytest.mark.parametrize("name", bombs(1))
def test_a_small_file_takes_no_more_memory_than_it_may(tmp_path, name):
    table, form, readable = bombs()[name]
    where = written(tmp_path, table, {"row_group_size": 1 << 30, **form})
    source = ParquetSource.open(where, memory := 16 << 20)
    del table
    assert where.stat().st_size < memory < pq.read_table(where).get_total_buffer_size()
    if not readable:
        parts = [r"t\.parquet", "row group 0", "uncompressed", "memory=16 MB; raise memory="]
        with pytest.raises(hr.BadRecord, match=".*".join(parts)):
            list(source.splits(1)[0].read(["x"]))
        return
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for split in source.splits(1):
        for batch in split.read(["x"]):
            most = max(most, pa.total_allocated_bytes() - before)
            rows += batch.num_rows
    assert rows == pq.ParquetFile(where).metadata.num_rows
    assert most < memory


def test_the_memory_of_the_box_bounds_what_a_row_group_takes(tmp_path):
    table, form, _ = bombs()["one page"]
    read = hr.read_parquet(written(tmp_path, table, {"row_group_size": 1 << 30, **form}))
    with pytest.raises(hr.BadRecord, match=r"takes? .* at once, more than memory=16 MB"):
        read.filter("x >= 0").collect(on=hr.Box(memory="16MB"))
    assert read.group_by("x").agg(n=hr.count()).to_list(on=hr.Box(memory="64MB"))[0].n == 4_000_000


def test_an_encrypted_column_is_refused(tmp_path):
    """pyarrow's metadata accessors abort the process for such a file."""
    pe = pytest.importorskip("pyarrow.parquet.encryption")

    class Plain(pe.KmsClient):
        def wrap_key(self, key, name):
            return b"0" * 16

        def unwrap_key(self, key, name):
            return b"0" * 16

    factory = pe.CryptoFactory(lambda _: Plain())
    config = pe.EncryptionConfiguration("f", column_keys={"c": ["i"]}, plaintext_footer=True)
    keys = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    where = written(tmp_path, pa.table({"i": [1]}), {"encryption_properties": keys})
    with pytest.raises(hr.PlanError, match=r"t.parquet' is not Parquet: .*encrypted"):
        hr.read_parquet(where)


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\x19\xf7\xff\xff\xff\xff\x7f", b"\x49\xfc"])
)
def test_a_footer_of_any_bytes_is_read_or_refused(data, head):
    footer = head + data
    file = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    with contextlib.suppress(Damaged):
        groups = Footer(pa.BufferReader(file))
        for number in range(len(groups)):
            group = groups.row_group(number)
            for i in range(len(group)):
                group.column(i)
