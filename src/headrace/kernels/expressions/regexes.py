"""Patterns in text: LIKE, and regular expressions as Java has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.errors import PlanError
from headrace.kernels.columns import as_column
from headrace.kernels.expressions.automata import automaton_of
from headrace.kernels.expressions.kernel import (
    FUNCTIONS,
    Kernel,
    Scope,
    apply,
    apply_arrays,
    function,
    literal_value,
    node,
    not_for_spark,
    spread,
)
from headrace.kernels.expressions.needles import Needle, candidates, text_at, text_changed, true_at
from headrace.kernels.expressions.patterns import Pattern, compile_pattern, replacement
from headrace.kernels.expressions.strings import (
    BOOLEAN,
    STRING,
    Arrays,
    constant_text,
    contains_text,
    each_text,
    text,
)
from headrace.kernels.tokenise import Tokeniser

_OPEN, _CLOSE = "\x02\uf8fe", "\x03\uf8ff"
"""Text that marks where matches begin and end; what holds it is cut by Python."""
_MARKS = Needle(_OPEN), Needle(_CLOSE)


def _has_marks(array: pa.Array) -> bool:
    return any(mark.rows(array).size for mark in _MARKS)


def pattern_of(kernel: Kernel, where: str) -> Pattern:
    return compile_pattern(constant_text(kernel, "the pattern", where), where)


@node(exp.RegexpLike)
def build_rlike(scope: Scope, tree: exp.RegexpLike) -> Kernel:
    return rlike(scope.compile(tree.this), scope.compile(tree.expression))


def rlike(value: Kernel, sought: Kernel) -> Kernel:
    pattern = pattern_of(sought, "rlike")
    return alike(pattern, _rlike(text(value, "rlike"), pattern), False)


def alike(pattern: Pattern, kernel: Kernel, cuts: bool = True) -> Kernel:
    """The kernel, kept from Spark where not every Java gives the same answer, or a whole one."""
    return not_for_spark(kernel) if pattern.bounds or (cuts and pattern.empty) else kernel


def _rlike(value: Kernel, pattern: Pattern) -> Kernel:
    if pattern.literal is not None:
        return contains_text(value, pattern.literal)
    if pattern.search is not None:
        re2 = pattern.search
        test: Arrays = lambda array: pc.match_substring_regex(array, re2)  # noqa: E731
    else:
        search = pattern.by_python("rlike").search
        test = each_text(lambda s: search(s) is not None, BOOLEAN)
    needle = _needle(pattern)

    def matches(array: pa.Array) -> pa.Array:
        rows, some = candidates(needle, array)
        found = test(some)
        if rows is None:
            return found
        return true_at(rows[found.to_numpy(zero_copy_only=False)], array)

    return apply_arrays(BOOLEAN, matches, value)


def _needle(pattern: Pattern) -> Needle | None:
    return None if pattern.needle is None else Needle(pattern.needle)


@function("rlike", "regexp_like", "regexp")
def build_rlike_call(scope: Scope, value: Kernel, pattern: Kernel) -> Kernel:
    return rlike(value, pattern)


@node(exp.Like, exp.ILike)
def build_like(scope: Scope, tree: exp.Binary) -> Kernel:
    kernel = _like(scope, tree, "\\")
    return apply(BOOLEAN, pc.invert, kernel) if tree.args.get("negate") else kernel


@node(exp.Escape)
def build_escape(scope: Scope, tree: exp.Escape) -> Kernel:
    kernel = _like(scope, tree.this, tree.expression.this)
    return apply(BOOLEAN, pc.invert, kernel) if tree.this.args.get("negate") else kernel


def _like(scope: Scope, tree: exp.Binary, escape: str) -> Kernel:
    value = text(scope.compile(tree.this), "LIKE")
    pattern = constant_text(scope.compile(tree.expression), "the pattern", "LIKE")
    if isinstance(tree, exp.ILike):
        value, pattern = FUNCTIONS["lower"](scope, value), pattern.lower()
    out: list[str] = []
    i = 0
    while i < len(pattern):
        c = pattern[i]
        if c == escape:
            i += 1
            if i >= len(pattern) or pattern[i] not in ("%", "_", escape):
                raise PlanError(f"LIKE {pattern!r}: only %, _ and the escape may be escaped")
            out.append(_quote(pattern[i]))
        elif c in "%_":
            out.append(".*" if c == "%" else ".")
        else:
            out.append(_quote(c))
        i += 1
    re2 = "(?s)^" + "".join(out) + "$"
    plain = _plain_like(pattern, escape)
    if plain is not None:
        compute, part = plain
        if compute is pc.match_substring:
            return contains_text(value, part)
        return apply(BOOLEAN, lambda v: compute(v, part), value)
    return apply(BOOLEAN, lambda v: pc.match_substring_regex(v, re2), value)


def _plain_like(pattern: str, escape: str) -> tuple[Callable[..., Any], str] | None:
    """A search that does without a regular expression: ``%x%``, ``x%``, ``%x``, ``x``."""
    body = pattern.strip("%")
    if escape in pattern or "_" in pattern or "%" in body:
        return None
    starts, ends = pattern.startswith("%"), pattern.endswith("%")
    if not body:
        return None
    if starts and ends:
        return pc.match_substring, body
    if ends:
        return pc.starts_with, body
    return (pc.ends_with if starts else pc.equal), body


def _quote(c: str) -> str:
    return "\\" + c if c in "\\^$.|?*+()[]{}" else c


def _group_of(regex: Pattern, group: Kernel | None, where: str) -> int:
    """The number of the group to extract, 1 unless told."""
    index = 1 if group is None else literal_value(group, "the group", where)
    if not isinstance(index, int) or not 0 <= index <= regex.groups:
        raise PlanError(
            f"{where}: {regex.java!r} has {regex.groups} groups; there is no group {index}"
        )
    return index


@function("regexp_extract")
def build_extract(
    scope: Scope, value: Kernel, pattern: Kernel, group: Kernel | None = None
) -> Kernel:
    regex = pattern_of(pattern, "regexp_extract")
    index = _group_of(regex, group, "regexp_extract")
    value = text(value, "regexp_extract")
    needle = _needle(regex)
    linear = regex.re2 is not None and not (index and regex.endless)
    search = (regex.python if linear else regex.by_python("regexp_extract")).search

    def by_re2(array: pa.Array) -> pa.Array:
        found = pc.struct_field(pc.extract_regex(array, f"(?P<g0>{regex.re2})"), index)
        return pc.if_else(pc.is_null(array), pa.scalar(None, STRING), pc.coalesce(found, ""))

    def first(s: str) -> str:
        match = search(s)
        return "" if match is None else (match.group(index) or "")

    pull = by_re2 if linear else each_text(first, STRING)

    def extract(array: pa.Array) -> pa.Array:
        rows, some = candidates(needle, array)
        pieces = pull(some)
        return pieces if rows is None else text_at(rows, pieces, array)

    return alike(regex, apply_arrays(STRING, extract, value), False)


@function("regexp_extract_all")
def build_extract_all(
    scope: Scope, value: Kernel, pattern: Kernel, group: Kernel | None = None
) -> Kernel:
    regex = pattern_of(pattern, "regexp_extract_all")
    index = _group_of(regex, group, "regexp_extract_all")
    value = text(value, "regexp_extract_all")
    needle = _needle(regex)
    linear = regex.re2 is not None and not regex.empty and index < 10
    finditer = (regex.python if linear else regex.by_python("regexp_extract_all")).finditer

    def by_python(array: pa.Array) -> tuple[Any, pa.Array]:
        sizes, pieces = np.zeros(len(array), np.int32), list[str]()
        for row, value in enumerate(array.to_pylist()):
            if value is not None:
                found = [m.group(index) or "" for m in finditer(value)]
                sizes[row] = len(found)
                pieces.extend(found)
        return sizes, pa.array(pieces, STRING)

    def by_re2(array: pa.Array) -> tuple[Any, pa.Array]:
        put = f"{_OPEN}\\{index}{_CLOSE}"
        cut = pc.split_pattern(pc.replace_substring_regex(array, regex.re2, put), _OPEN)
        offsets = np.asarray(cut.offsets)
        kept = np.ones(len(cut.values), np.bool_)
        kept[offsets[:-1][np.diff(offsets) > 0]] = False  # what stands before the first match
        pieces = pc.split_pattern(cut.values.filter(pa.array(kept)), _CLOSE, max_splits=1)
        return np.diff(np.concatenate([[0], np.cumsum(kept)])[offsets]), pc.list_element(pieces, 0)

    automaton = automaton_of(regex.python.pattern) if linear and index == 0 else None

    def by_automaton(array: pa.Array) -> tuple[Any, Any, pa.Array] | None:
        if automaton is None or needle is None:
            return None
        rows = needle.rows(array)
        matches = automaton.extract(array, rows)
        return None if matches is None else (rows, *matches)

    def by_library(array: pa.Array) -> tuple[Any, Any, pa.Array]:
        rows, some = candidates(needle, array)
        return rows, *(by_re2 if linear and not _has_marks(some) else by_python)(some)

    def elements(batch: pa.RecordBatch) -> tuple[Any, pa.Array]:
        array = spread(value.run(batch), batch.num_rows)
        rows, found, pieces = by_automaton(array) or by_library(array)
        return np.repeat(np.arange(len(array)) if rows is None else rows, found), pieces

    def extract(array: pa.Array) -> pa.Array:
        rows, found, pieces = by_automaton(array) or by_library(array)
        sizes = np.zeros(len(array), np.int32)
        sizes[slice(None) if rows is None else rows] = found
        offsets = np.zeros(len(array) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(as_column(offsets), pieces, mask=mask)

    kernel = alike(regex, apply_arrays(pa.list_(STRING), extract, value))
    return kernel if kernel.constant else replace(kernel, elements=elements)


@function("regexp_replace")
def build_regexp_replace(scope: Scope, value: Kernel, pattern: Kernel, new: Kernel) -> Kernel:
    regex = pattern_of(pattern, "regexp_replace")
    java = constant_text(new, "the replacement", "regexp_replace")
    re2_put, python_put = replacement(java, regex.groups, "regexp_replace")
    value = text(value, "regexp_replace")
    # The two libraries treat a match of nothing next to a match of something differently.
    if regex.re2 is not None and re2_put is not None and not regex.empty:
        re2 = regex.re2
        change: Arrays = lambda array: pc.replace_substring_regex(array, re2, re2_put)  # noqa: E731
    else:
        sub = regex.by_python("regexp_replace").sub
        change = each_text(lambda s: sub(python_put, s), STRING)
    needle = _needle(regex)

    def replace(array: pa.Array) -> pa.Array:
        rows, some = candidates(needle, array)
        return change(some) if rows is None else text_changed(rows, change(some), array)

    return alike(regex, apply_arrays(STRING, replace, value))


@function("split")
def build_split(
    scope: Scope, value: Kernel, pattern: Kernel, limit: Kernel | None = None
) -> Kernel:
    if limit is not None:
        raise PlanError("split with a limit is not supported")
    java = constant_text(pattern, "the pattern", "split")
    kind = pa.list_(STRING)
    value = text(value, "split")
    if not java:
        chars = each_text(lambda s: list(s) or [""], kind)
        return apply_arrays(kind, chars, value)
    tokeniser = Tokeniser.of(java)
    if tokeniser is not None:
        return apply_arrays(kind, tokeniser.lists, value)
    regex = compile_pattern(java, "split")
    linear = regex.re2 is not None and not regex.empty
    finditer = (regex.python if linear else regex.by_python("split")).finditer

    def cut(s: str) -> list[str]:
        pieces, at = [], 0
        for match in finditer(s):
            start, end = match.span()
            if end == 0:
                continue  # Java: an empty match at the start cuts nothing
            pieces.append(s[at:start])
            at = end
        pieces.append(s[at:])
        return pieces

    def fast(array: pa.Array) -> pa.Array:
        if _has_marks(array):
            return each_text(cut, kind)(array)
        return pc.split_pattern(pc.replace_substring_regex(array, regex.re2, _OPEN), _OPEN)

    return alike(regex, apply_arrays(kind, fast if linear else each_text(cut, kind), value))
