"""An automaton finds the matches that a backtracking matcher finds."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import col
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.expressions.automata import automaton_of

ATOMS = st.sampled_from([*"abc", "[ab]", "[^a]", r"\w", r"\W", "[^bc1]", r"[\d-]", "é", "日"])
REPEATS = st.sampled_from(["", "", "?", "*", "+", "??", "*?", "+?", "{2}", "{1,3}", "{0,2}?"])


def repeated(parts):
    pieces = st.lists(st.tuples(parts, REPEATS).map("".join), min_size=1, max_size=3)
    either = st.lists(pieces.map("".join), min_size=1, max_size=3).map("|".join)
    return either.flatmap(lambda e: st.sampled_from([f"(?:{e})", f"({e})"]))


PATTERNS = st.tuples(
    st.sampled_from(["a", "ab", "abc"]), st.recursive(ATOMS, repeated, max_leaves=8), REPEATS
).map("".join)
TEXTS = st.lists(st.text("aabbc1-é日 ", max_size=90), max_size=6)


@given(pattern=PATTERNS, texts=TEXTS)
def test_its_matches_are_those_of_re(pattern, texts):
    automaton = automaton_of(pattern)
    if automaton is None:
        return
    matches = automaton.extract(pa.array(texts, pa.string()), np.arange(len(texts)))
    if matches is None:
        return
    sizes, pieces = matches
    want = [[m.group() for m in re.finditer(pattern, t, re.ASCII)] for t in texts]
    assert sizes.tolist() == [len(w) for w in want]
    assert pieces.to_pylist() == [piece for w in want for piece in w]


@pytest.mark.parametrize(
    "pattern", [".a", "a.", "^ab", "ab$", r"a\b", "a(?=b)", r"a(b)\1", "a(b*)*", "a|b", "[é-日]a"]
)
def test_what_is_not_simple_has_none(pattern):
    assert automaton_of(pattern) is None


def test_a_pattern_that_goes_back_too_often_is_left_to_the_library():
    batch = pa.record_batch({"s": ["c" + "a" * 5000, "aab", None, "xab"]})
    automaton = automaton_of("a[ab]*c")
    assert automaton.extract(batch.column(0), np.array([0])) is None
    kernel = compile_expression(col("s").extract_all("a[ab]*c").tree, batch.schema)
    assert evaluate(kernel, batch).to_pylist() == [[], [], None, []]
    kernel = compile_expression(col("s").extract_all("aa+b?").tree, batch.schema)
    assert evaluate(kernel, batch).to_pylist() == [["a" * 5000], ["aab"], None, []]
