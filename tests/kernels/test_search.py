"""Looking for text before a pattern is tried: the same rows match."""

from __future__ import annotations

import re

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace import col
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.expressions.patterns import compile_pattern

TEXTS = st.lists(st.none() | st.text("htps:/.ab é", max_size=40), max_size=12)
PATTERNS = ["https?://[a-z.]+", "s://", "a(?:b|p)t?://", "(ht)?tp:/", "pt|ab://", "a+b:h", "é:/"]


@given(texts=TEXTS, pattern=st.sampled_from(PATTERNS), skip=st.integers(0, 3))
def test_matches_and_extracts_are_those_of_the_pattern(texts, pattern, skip):
    batch = pa.record_batch({"s": pa.array(texts, pa.string())}).slice(min(skip, len(texts)))
    texts = texts[skip:]
    matches = compile_expression(col("s").matches(pattern).tree, batch.schema)
    want = [None if t is None else re.search(pattern, t) is not None for t in texts]
    assert evaluate(matches, batch).to_pylist() == want
    every = compile_expression(col("s").extract_all(pattern).tree, batch.schema)
    found = [None if t is None else [m.group() for m in re.finditer(pattern, t)] for t in texts]
    assert evaluate(every, batch).to_pylist() == found


def test_what_every_match_must_hold():
    needles = {p: compile_pattern(p, "here").needle for p in PATTERNS}
    assert needles["https?://[a-z.]+"] == "://"
    assert needles["pt|ab://"] is None
    assert needles["(ht)?tp:/"] == "tp:/"
    assert compile_pattern("(?i)https://", "here").needle == "://"
