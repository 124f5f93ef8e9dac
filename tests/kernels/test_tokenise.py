"""Words counted while they are cut are the words that cutting gives."""

from __future__ import annotations

import threading
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace import col
from headrace.kernels.aggregate import GeneralTable, Merge, compile_partial
from headrace.kernels.columns import Text
from headrace.kernels.native import word_tables
from headrace.kernels.tokenise import Tokeniser
from headrace.kernels.words import PartedWords, WordTable, WordTurns
from headrace.operators.operator import Hosting
from headrace.operators.tables import SpareTables, WordTables
from headrace.plan.stages import stages_of

TEXT = st.text(st.sampled_from("abzABZ09_ ,.\t-éİKß日\0"), max_size=60)
LONG = st.integers(10, 60).map(lambda n: "longword" * n)
LINES = st.lists(st.none() | TEXT | LONG, max_size=20)


def run(stream, batches):
    stage = stages_of(stream.node)
    before = stage.inputs[0]
    plan = compile_partial(before.steps, before.head.schema, stage.head)
    partial = plan.start()
    for batch in batches:
        partial.add(plan.chain(batch.select(list(plan.chain.columns))))
    merge = Merge(plan.aggregation)
    merge.add(partial.bundle())
    got = merge.finish()
    return partial, dict(zip(*(c.to_pylist() for c in got.columns), strict=True))


@given(
    lines=LINES,
    pattern=st.sampled_from([r"\W+", "[^a-z]+", ",", r"\s+", "[ .]", r"\.", "-"]),
    lower=st.booleans(),
    keep_empty=st.booleans(),
    cut=st.integers(1, 7),
)
def test_fused_counts_are_the_counts_of_the_pieces(lines, pattern, lower, keep_empty, cut):
    table = pa.table({"line": pa.array(lines, pa.string())})
    text = col("line").lower() if lower else col("line")
    words = hr.from_arrow(table).flat_map(text.split(pattern), name="w")
    words = words if keep_empty else words.filter(col("w") != "")
    fused, got = run(words.group_by("w").agg(n=hr.count()), table.to_batches(max_chunksize=cut))
    assert isinstance(fused, WordTable)
    plain, slow = run(words.group_by(w="concat(w, '')").agg(n=hr.count()), table.to_batches())
    assert isinstance(plain, GeneralTable)
    assert got == slow
    pieces = [
        p
        for lst in Tokeniser.of(pattern)
        .lists(
            pa.array([None if s is None else s.lower() if lower else s for s in lines], pa.string())
        )
        .to_pylist()
        if lst
        for p in lst
        if p or keep_empty
    ]
    assert got == Counter(pieces)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 40])
def test_words_that_end_in_zero_bytes_are_words_of_their_own(length):
    word = "abcdefgh" * 5
    zeros = [word[: length - n] + "\0" * n for n in range(length + 1)]
    lines = [",".join([*zeros, word[:length]]), ",".join(zeros), "\0", "a", "a\0", "\0a"]
    table = pa.table({"line": lines})
    words = hr.from_arrow(table).flat_map(col("line").split(","), name="w")
    fused, got = run(words.group_by("w").count("n"), table.to_batches(max_chunksize=2))
    assert isinstance(fused, WordTable)
    assert got == Counter(w for line in lines for w in line.split(","))


def test_many_words_make_the_table_grow():
    lines = [" ".join(f"w{n}x{m}" for m in range(50)) for n in range(2000)]
    table = pa.table({"line": lines})
    stream = (
        hr.from_arrow(table).flat_map(col("line").split(" "), name="w").group_by("w").count("n")
    )
    fused, got = run(stream, table.to_batches())
    assert isinstance(fused, WordTable)
    assert got == Counter(w for line in lines for w in line.split(" "))


@pytest.mark.parametrize("keep_empty", [False, True])
@pytest.mark.parametrize("crowded", [False, True])
def test_threads_that_take_turns_at_tables_lose_no_word(crowded, keep_empty, monkeypatch):
    monkeypatch.setattr(word_tables, "STRETCH", 1 << 10)
    lines = [
        " ".join(f"w{n % 997}x{m * n % 31} longer{n % 89}word" for m in range(4))
        for n in range(6000)
    ]
    table = pa.table({"line": [*lines, "", " a  b "]})
    words = hr.from_arrow(table).flat_map(col("line").split(" "), name="w")
    words = words if keep_empty else words.filter(col("w") != "")
    stage = stages_of(words.group_by("w").count("n").node)
    before = stage.inputs[0]
    plan = compile_partial(before.steps, before.head.schema, stage.head)
    turns = WordTurns(plan.start, 6, keep_empty, crowded)
    array, tokeniser = plan.split.input(table.combine_chunks().to_batches()[0])
    parts = [
        array[i::6] if i % 2 else array.take(pa.array(range(i, len(array), 6))) for i in range(6)
    ]

    def count(part):
        turns.add_text(Text.of(part), tokeniser)

    threads = [threading.Thread(target=count, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, *others = turns.tables
    assert len(others) < 6
    merged, parted = plan.start(), [PartedWords(each, 4) for each in turns.tables]
    for part in range(4):
        for each in parted:
            each.add_to(merged, part)
    for other in others:
        first.merge(other)
    expected = Counter(w for line in table["line"].to_pylist() for w in line.split(" "))
    if not keep_empty:
        del expected[""]
    for counted in (first, merged):
        columns = (c.to_pylist() for c in counted.bundle().columns)
        assert dict(zip(*columns, strict=True)) == expected


@pytest.mark.parametrize("shards", [1, 4])
def test_a_slice_without_text_has_no_results(shards):
    words = hr.from_arrow(pa.table({"line": ["a"]})).flat_map(col("line").split(" "), name="w")
    stage = stages_of(words.group_by("w").count("n").node)
    before = stage.inputs[0]
    plan = compile_partial(before.steps, before.head.schema, stage.head)
    tables = WordTables(SpareTables(plan.start, 4), plan.keep_empty, Hosting(shards))
    assert [tables.results(shard, shards) for shard in range(shards)] == [None] * shards


@pytest.mark.parametrize(
    "pattern", ["é", "a|b", "(?i)x", "ab", "[^,]", "", "a{2}", "\\b", "[[a]b]"]
)
def test_patterns_that_are_no_class_of_bytes_are_left_alone(pattern):
    assert Tokeniser.of(pattern) is None


def test_other_aggregates_are_not_fused():
    words = hr.from_items([{"line": "a b", "k": 1}]).flat_map(
        col("line").split(" "), name="w", keep="k"
    )
    for keyed in (words.group_by("w").agg(s=hr.sum("k")), words.group_by("w", "k").count("n")):
        partial, _ = run_start(keyed)
        assert isinstance(partial, GeneralTable)


def run_start(stream):
    stage = stages_of(stream.node)
    before = stage.inputs[0]
    plan = compile_partial(before.steps, before.head.schema, stage.head)
    return plan.start(), plan
