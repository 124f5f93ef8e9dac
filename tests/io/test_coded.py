"""Text that Parquet stores once for each value goes by its codes, and nobody can tell."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace import col
from headrace.kernels.aggregate import GeneralTable, compile_partial
from headrace.kernels.chain import compile_chain
from headrace.kernels.expressions.codes import coded_schema
from headrace.plan.stages import stages_of

PLAIN = pa.schema([("t", pa.string()), ("u", pa.string()), ("n", pa.int64())])
CODED = coded_schema(PLAIN, {"t", "u"})
TEXT = st.none() | st.sampled_from(["", "a", "b", "é", "long " * 5])
ROWS = st.lists(st.tuples(TEXT, TEXT, st.integers(0, 3)), max_size=30)
STEPS = [
    lambda s: s.filter(col("t").is_in(["a", "é"])),
    lambda s: s.filter("t is null or length(t) > 1 and n > 0"),
    lambda s: s.select("u", "n", t=col("t").upper()),
    lambda s: s.select("n", t="u", u="t"),
    lambda s: s.with_columns(t="coalesce(t, u, 'none')"),
    lambda s: s.with_columns(u="concat(t, t)"),
    lambda s: s.flat_map("split(t, '')", name="t", keep=["u", "n"]),
    lambda s: s.filter(lambda r: r.t != "b"),
]


def coded(rows, odd):
    """A bundle whose dictionaries have values that no row has, in another order, some twice."""
    words = [*(["zz", "b", "a", "b"] if odd else []), "long " * 5, "é", "", "b", "a"]
    columns = []
    for i in (0, 1):
        at = [None if row[i] is None else words.index(row[i]) for row in rows]
        columns.append(pa.DictionaryArray.from_arrays(pa.array(at, pa.int32()), pa.array(words)))
    return pa.RecordBatch.from_arrays([*columns, pa.array([r[2] for r in rows], pa.int64())],
                                      schema=CODED)  # fmt: skip


BUNDLES = st.lists(st.tuples(ROWS, st.booleans()), max_size=4)


@given(BUNDLES, st.lists(st.sampled_from(STEPS), max_size=3), st.integers(0, 3))
def test_steps_and_groups_do_not_see_the_codes(bundles, steps, cut):
    stream = hr.from_arrow(PLAIN.empty_table())
    for step in steps:
        stream = step(stream)
    narrow = stages_of(stream.node).steps
    chains = [compile_chain(narrow, schema) for schema in (PLAIN, CODED)]
    grouped = stream.group_by("t", "n").agg(c=hr.count(), m=hr.max("u"), d=hr.count_distinct("u"))
    plans = [compile_partial(narrow, schema, grouped.node) for schema in (PLAIN, CODED)]
    tables = [GeneralTable(plan.aggregation) for plan in plans]
    for rows, odd in bundles:
        both = coded(rows, odd)[cut:]
        plain = pa.RecordBatch.from_pylist(both.to_pylist(), PLAIN)
        got = [c(b.select(list(c.columns))) for c, b in zip(chains, (plain, both), strict=True)]
        assert got[0].equals(got[1])
        for plan, table, batch in zip(plans, tables, (plain, both), strict=True):
            table.add(plan.chain(batch.select(list(plan.chain.columns))))
    assert tables[0].bundle().equals(tables[1].bundle())


@pytest.fixture
def files(tmp_path):
    """Files in which the same column is stored by codes, plainly, and by codes for a while."""
    words = [None if i % 7 == 0 else f"w{i % 5}" for i in range(4000)]
    most = [*words[:2000], *(f"only once {i}" for i in range(2000))]
    for name, column, options in (
        ("a", words, {"row_group_size": 1500}),
        ("b", words[::-1], {"use_dictionary": False}),
        ("c", most, {"dictionary_pagesize_limit": 200}),
    ):
        table = pa.table({"w": column, "v": [w and w.upper() for w in column], "n": range(4000)})
        pq.write_table(table, tmp_path / f"{name}.parquet", **options)
    return tmp_path


@pytest.mark.parametrize("name", ["a", "*"])
def test_files_that_hold_codes_give_text(engine, files, name):
    stream = hr.read_parquet(f"{files}/{name}.parquet")
    assert bool(stream.node.source.coded) == (name == "a")
    some = stream.filter(col("w") < "w3")
    counts = some.group_by("w").agg(n=hr.count(), v=hr.max("v"))
    joined = some.join(counts, on="w").select("w", "n_right", u=col("v").lower())
    got = joined.group_by("u", "w").agg(n=hr.count(), most=hr.max("n_right")).collect(on=engine)
    table = pq.read_table(sorted(files.glob(f"{name}.parquet")), columns=["w"])
    kept = [w for w in table["w"].to_pylist() if w is not None and w < "w3"]
    want = {(w.lower(), w, kept.count(w), kept.count(w)) for w in set(kept)}
    assert set(zip(*(c.to_pylist() for c in got.columns), strict=True)) == want
