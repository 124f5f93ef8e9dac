"""Laws: neither where bundles are cut, nor how partials are merged, changes a result."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.kernels.aggregate import GeneralTable, Merge, by_shard, compile_aggregation
from headrace.kernels.chain import compile_chain
from headrace.kernels.group import Grouper
from headrace.plan.stages import stages_of

RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.none() | st.sampled_from(["a", "b", "c" * 20]),
            "j": st.none() | st.integers(-2, 2),
            "v": st.none() | st.integers(-100, 100),
            "s": st.none() | st.text("xyz", max_size=3),
        }
    ),
    max_size=40,
)
SCHEMA = pa.schema([("k", pa.string()), ("j", pa.int64()), ("v", pa.int64()), ("s", pa.string())])


@given(records=RECORDS, cut=st.integers(1, 40), parts=st.integers(1, 4), shards=st.integers(1, 5))
def test_cuts_and_merges_do_not_matter(records, cut, parts, shards):
    table = pa.Table.from_pylist(records, schema=SCHEMA)
    stream = hr.from_arrow(table).group_by("k", "j").agg(
        n=hr.count(), s=hr.sum("v"), lo=hr.min("s"), hi=hr.max("v"), f=hr.first("s"),
        l=hr.last("v"), d=hr.count_distinct("s"),
        c=hr.collect("v"), t=hr.top_k("v", 2), a=hr.approx_distinct("s"),
    )  # fmt: skip
    node = stream.node
    aggregation = compile_aggregation(node, SCHEMA)

    def result(batches, parts, shards):
        merges = [Merge(aggregation) for _ in range(shards)]
        step = -(-max(1, len(batches)) // parts)
        for start in range(0, len(batches), step):
            partial = GeneralTable(aggregation)
            for batch in batches[start : start + step]:
                partial.add(batch)
            bundle = partial.bundle()
            for shard, piece in by_shard(bundle, bundle.columns[:2], shards):
                merges[shard].add(piece)
        return sorted(repr(r) for m in merges for r in m.finish().to_pylist())

    whole = result(table.combine_chunks().to_batches(), 1, 1)
    assert result(table.to_batches(max_chunksize=cut), parts, shards) == whole


@given(records=RECORDS, cut=st.integers(1, 7))
def test_a_chain_does_not_see_bundles(records, cut):
    table = pa.Table.from_pylist(records, schema=SCHEMA)
    stream = (
        hr.from_arrow(table)
        .filter("v is null or v > -50")
        .with_columns(w="coalesce(v, 0) * 2", p="split(s, 'y')")
        .flat_map("p", name="piece", keep=["k", "w"])
        .filter("piece <> ''")
    )
    chain = compile_chain(stages_of(stream.node).steps, SCHEMA)

    def run(batches):
        return [r for b in batches for r in chain(b.select(list(chain.columns))).to_pylist()]

    assert run(table.to_batches(max_chunksize=cut)) == run(table.combine_chunks().to_batches())


@given(
    st.lists(
        st.tuples(
            st.none() | st.text("ab\0é", max_size=20),
            st.none() | st.integers(-1, 1),
            st.none() | st.booleans(),
        ),
        max_size=50,
    ),
    st.integers(1, 9),
)
def test_groups_are_numbered_as_they_appear(keys, cut):
    grouper = Grouper([pa.string(), pa.int64(), pa.bool_()])
    numbers = []
    for start in range(0, len(keys), cut):
        part = keys[start : start + cut]
        columns = [
            pa.array(c, t) for c, t in zip(zip(*part, strict=True), grouper.kinds, strict=True)
        ]
        numbers.extend(grouper.groups(columns)[0].tolist())
    order = list(dict.fromkeys(keys))
    assert numbers == [order.index(k) for k in keys]
    seen = grouper.keys()
    assert list(zip(*(c.to_pylist() for c in seen), strict=True)) == order


def test_only_the_columns_in_use_are_read():
    table = pa.table({"a": [1], "b": [2], "c": [3], "d": [4]})
    stream = hr.from_arrow(table).with_columns(e="a + b", f="c * 2").filter("d > 0").select("e")
    chain = compile_chain(stages_of(stream.node).steps, table.schema)
    assert sorted(chain.columns) == ["a", "b", "d"]


def test_a_bundle_that_would_grow_too_large_is_cut(monkeypatch):
    monkeypatch.setattr("headrace.kernels.chain._MOST_BYTES", 1000)
    seen = []
    table = pa.table({"line": ["a b c " * n for n in range(30)]})
    stream = (
        hr.from_arrow(table)
        .inspect(seen.append)
        .flat_map("split(line, ' ')", name="w", keep="line")
    )
    chain = compile_chain(stages_of(stream.node).steps, table.schema)
    parts = list(chain.bundles(table.to_batches()[0]))
    assert len(parts) > 5
    got = [r for p in parts for r in p.to_pylist()]
    assert got == [{"line": s, "w": w} for s in table["line"].to_pylist() for w in s.split(" ")]
    assert len(seen) == 30


def test_very_long_keys_stay_one_group():
    long = "y" * (2**24 + 5)
    grouper = Grouper([pa.string()])
    first = grouper.groups([pa.array([long, "a"])])[0].tolist()
    grouper.groups([pa.array([str(n) for n in range(5000)])])
    assert grouper.groups([pa.array([long])])[0].tolist() == first[:1]
