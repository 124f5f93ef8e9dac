"""Looking for text before a pattern is tried: the same rows match."""

from __future__ import annotations

import re
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import col
from headrace.kernels.expressions import compile_expression, evaluate, regexes
from headrace.kernels.expressions.needles import Needle
from headrace.kernels.expressions.patterns import compile_pattern

TEXTS = st.lists(st.none() | st.text("htps:/.ab é", max_size=40), max_size=12)
LONG = st.builds(
    lambda texts, gaps: "".join(t + "x" * g for t, g in zip(texts, gaps, strict=True)),
    st.lists(st.sampled_from(["http://a.b", "ab://", "tp:/", "aab:h", "é:/", "ab", "://"]),
             min_size=4, max_size=4),
    st.lists(st.integers(0, 90), min_size=4, max_size=4),
)  # fmt: skip
ARRAYS = TEXTS | st.lists(st.none() | st.just("") | LONG | st.text("x:/ab", max_size=9))
PATTERNS = [
    "https?://[a-z.]+", "s://", "a(?:b|p)t?://", "(ht)?tp:/", "pt|ab://", "a+b:h", "é:/",
    "(?i)HTTPS?://(a)", "^ab://", "(?:ab){2}:", "(a(b))+?:", "[^x]:/", "a*://", "(?=ab)a", ":",
    "x$", "(?i:A)b(?-i::)", "b(?!:)/?", "(?:ab|ap):/",
]  # fmt: skip


def expressions(pattern):
    text = col("s")
    return {
        "matches": text.matches(pattern),
        "extract_all": text.extract_all(pattern),
        "extract": text.extract(pattern, 0),
        "replace": text.replace_regex(pattern, "<>"),
    }


def by_re(pattern, text):
    return {
        "matches": re.search(pattern, text) is not None,
        "extract_all": [m.group() for m in re.finditer(pattern, text)],
        "extract": m.group() if (m := re.search(pattern, text)) else "",
        "replace": re.sub(pattern, "<>", text),
    }


@given(texts=ARRAYS, pattern=st.sampled_from(PATTERNS), skip=st.integers(0, 3))
def test_functions_of_a_pattern_give_what_re_gives(texts, pattern, skip):
    batch = pa.record_batch({"s": pa.array(texts, pa.string())}).slice(min(skip, len(texts)))
    texts = texts[skip:]
    for name, expression in expressions(pattern).items():
        kernel = compile_expression(expression.tree, batch.schema)
        want = [None if t is None else by_re(pattern, t)[name] for t in texts]
        assert evaluate(kernel, batch).to_pylist() == want
        assert (kernel.elements is not None) == (name == "extract_all")
        if kernel.elements is not None:
            rows, pieces = kernel.elements(batch)
            found = [(i, piece) for i, all_of in enumerate(want) for piece in all_of or ()]
            assert list(zip(rows.tolist(), pieces.to_pylist(), strict=True)) == found


@given(texts=ARRAYS, pattern=st.sampled_from(PATTERNS), skip=st.integers(0, 3))
def test_looking_for_a_needle_first_changes_nothing(texts, pattern, skip):
    batch = pa.record_batch({"s": pa.array(texts, pa.string())}).slice(min(skip, len(texts)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regexes, "pattern_of", without_needle)
        plain = {
            n: compile_expression(e.tree, batch.schema) for n, e in expressions(pattern).items()
        }
    for name, expression in expressions(pattern).items():
        kernel = compile_expression(expression.tree, batch.schema)
        got = evaluate(kernel, batch)
        got.validate(full=True)
        assert got.equals(evaluate(plain[name], batch))


def without_needle(kernel, where):
    pattern = compile_pattern(regexes.constant_text(kernel, "the pattern", where), where)
    return replace(pattern, needle=None, literal=None)


@given(texts=ARRAYS, sought=st.text("htp:/abé", min_size=1, max_size=5), skip=st.integers(0, 3))
def test_a_text_is_found_in_the_rows_that_hold_it(texts, sought, skip):
    array = pa.array(texts, pa.string()).slice(min(skip, len(texts)))
    want = [i for i, t in enumerate(texts[skip:]) if t is not None and sought in t]
    assert Needle(sought).rows(array).tolist() == want
    batch = pa.record_batch({"s": array})
    contains = compile_expression(col("s").contains(sought).tree, batch.schema)
    held = [None if t is None else sought in t for t in texts[skip:]]
    assert evaluate(contains, batch).to_pylist() == held


@pytest.mark.parametrize("gap", range(130))
def test_a_text_is_found_wherever_it_lies_and_never_across_rows(gap):
    parts = ["x" * gap + "://", "x:", "//", "x" * gap, ":/", "/x", "y" * 200 + "://"]
    assert Needle("://").rows(pa.array(parts)).tolist() == [0, 6]


def test_what_every_match_must_hold():
    needles = {p: compile_pattern(p, "here").needle for p in PATTERNS}
    assert needles["https?://[a-z.]+"] == "://"
    assert needles["pt|ab://"] is None
    assert needles["(ht)?tp:/"] == "tp:/"
    assert compile_pattern("(?i)https://", "here").needle == "://"
    assert compile_pattern("(a(b))+:c", "here").needle == ":c"
    assert compile_pattern("(?:a-b)+c*", "here").needle == "a-b"
    assert compile_pattern("x{0,2}|-", "here").needle is None
    assert compile_pattern("(?:-|:)b*(?=://)", "here").needle is None
