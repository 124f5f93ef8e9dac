"""Text: case, search, cutting and joining."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.errors import PlanError
from headrace.kernels.expressions.automata import automaton_of
from headrace.kernels.expressions.casts import cast
from headrace.kernels.expressions.kernel import (
    FUNCTIONS,
    Kernel,
    Scope,
    apply,
    apply_arrays,
    as_column,
    function,
    is_text,
    literal_value,
    node,
    not_for_spark,
    want,
)
from headrace.kernels.expressions.needles import (
    Needle,
    candidates,
    text_at,
    text_changed,
    true_at,
)
from headrace.kernels.expressions.patterns import Pattern, compile_pattern, replacement
from headrace.kernels.tokenise import Tokeniser
from headrace.sizes import is_whole

STRING = pa.string()
BOOLEAN = pa.bool_()
INT = pa.int32()


def text(kernel: Kernel, where: str) -> Kernel:
    """An argument that must be a string."""
    want(kernel, is_text, "a string", where)
    return cast(kernel, STRING)


def constant_text(kernel: Kernel, what: str, where: str) -> str:
    value = literal_value(text(kernel, where), what, where)
    if value is None:
        raise PlanError(f"{where}: {what} must not be null")
    return str(value)


_MOST = (1 << 31) - 1
_WIDEST = 1 << 24
"""The longest text that padding may make of any."""


def whole(kernel: Kernel, what: str, where: str) -> int | None:
    """An argument that must be a constant int, or null."""
    value = literal_value(kernel, what, where)
    if value is None:
        return None
    if not is_whole(value, -_MOST - 1, _MOST):
        raise PlanError(f"{where}: {what} must be a whole number that fits an int, not {value!r}")
    return value


def _nothing(value: Kernel) -> Kernel:
    """Null for every row, as any function of a null is."""
    return apply(STRING, lambda v: pc.if_else(pc.is_null(v), v, pa.scalar(None, STRING)), value)


Arrays = Callable[[pa.Array], pa.Array]


def each_text(compute: Callable[[str], Any], kind: pa.DataType) -> Arrays:
    """A Python function of one string, over an array."""
    return lambda array: pa.array(
        [None if s is None else compute(s) for s in array.to_pylist()], kind
    )


def _case(name: str, plain: Callable[[Any], Any], exact: Callable[[str], str]) -> None:
    """Case mapping: Arrow's for ASCII; Python's, which like Spark's may change the length, else."""

    @function(name)
    def build(scope: Scope, value: Kernel) -> Kernel:
        def run(array: pa.Array) -> pa.Array:
            ascii_only = pc.string_is_ascii(array)
            if pc.all(ascii_only, min_count=0).as_py() is not False:
                return plain(array)
            other = pc.invert(ascii_only).fill_null(False)
            mapped = each_text(exact, STRING)(array.filter(other))
            return pc.replace_with_mask(plain(array), other, mapped)

        return apply_arrays(STRING, run, text(value, name))


_case("lower", pc.ascii_lower, str.lower)
_case("lcase", pc.ascii_lower, str.lower)
_case("upper", pc.ascii_upper, str.upper)
_case("ucase", pc.ascii_upper, str.upper)


def _trim(name: str, compute: Callable[..., Any]) -> None:
    @function(name)
    def build(scope: Scope, value: Kernel) -> Kernel:
        return apply(STRING, lambda v: compute(v, characters=" "), text(value, name))


_trim("trim", pc.utf8_trim)
_trim("btrim", pc.utf8_trim)
_trim("ltrim", pc.utf8_ltrim)
_trim("rtrim", pc.utf8_rtrim)


@function("length", "char_length", "character_length", "len")
def build_length(scope: Scope, value: Kernel) -> Kernel:
    if pa.types.is_binary(value.type):
        return apply(INT, lambda v: pc.cast(pc.binary_length(v), INT), value)
    return apply(INT, pc.utf8_length, text(value, "length"))


@function("octet_length")
def build_octets(scope: Scope, value: Kernel) -> Kernel:
    return apply(INT, pc.binary_length, text(value, "octet_length"))


@function("substring", "substr")
def build_substring(
    scope: Scope, value: Kernel, start: Kernel, length: Kernel | None = None
) -> Kernel:
    value = text(value, "substring")
    begin = whole(start, "the start", "substring")
    count = _MOST if length is None else whole(length, "the length", "substring")
    if begin is None or count is None:
        return _nothing(value)
    begin = begin - 1 if begin > 0 else begin
    if count <= 0:
        return apply(STRING, lambda v: pc.utf8_slice_codeunits(v, 0, 0), value)
    stop: int | None = begin + count
    if begin < 0 and begin + count >= 0:
        stop = None
    return apply(STRING, lambda v: pc.utf8_slice_codeunits(v, begin, stop), value)


@function("left")
def build_left(scope: Scope, value: Kernel, count: Kernel) -> Kernel:
    value, size = text(value, "left"), whole(count, "the length", "left")
    if size is None:
        return _nothing(value)
    return apply(STRING, lambda v: pc.utf8_slice_codeunits(v, 0, max(0, size)), value)


@function("right")
def build_right(scope: Scope, value: Kernel, count: Kernel) -> Kernel:
    value, size = text(value, "right"), whole(count, "the length", "right")
    if size is None:
        return _nothing(value)
    start = (-size, None) if size > 0 else (0, 0)
    return apply(STRING, lambda v: pc.utf8_slice_codeunits(v, *start), value)


def _search(names: tuple[str, ...], compute: Callable[..., Any]) -> None:
    @function(*names)
    def build(scope: Scope, value: Kernel, part: Kernel) -> Kernel:
        sought = constant_text(part, "the text sought", names[0])
        return apply(BOOLEAN, lambda v: compute(v, sought), text(value, names[0]))


_search(("startswith",), pc.starts_with)
_search(("endswith",), pc.ends_with)


@function("contains")
def build_contains(scope: Scope, value: Kernel, part: Kernel) -> Kernel:
    sought = constant_text(part, "the text sought", "contains")
    return _contains(text(value, "contains"), sought)


def _contains(value: Kernel, part: str) -> Kernel:
    if not part:
        return apply(BOOLEAN, lambda v: pc.match_substring(v, part), value)
    return apply_arrays(BOOLEAN, Needle(part).is_in, value)


@function("instr")
def build_instr(scope: Scope, value: Kernel, part: Kernel) -> Kernel:
    return _position(value, part, "instr")


@function("locate")
def build_locate(scope: Scope, part: Kernel, value: Kernel) -> Kernel:
    return _position(value, part, "locate")


def _position(value: Kernel, part: Kernel, name: str) -> Kernel:
    sought = constant_text(part, "the text sought", name)
    find = each_text(lambda s: s.find(sought) + 1, INT)
    return apply_arrays(INT, find, text(value, name))


@function("replace")
def build_replace(scope: Scope, value: Kernel, old: Kernel, new: Kernel | None = None) -> Kernel:
    sought = constant_text(old, "the text sought", "replace")
    put = "" if new is None else constant_text(new, "the replacement", "replace")
    value = text(value, "replace")
    if not sought:
        return value
    return apply(STRING, lambda v: pc.replace_substring(v, sought, put), value)


@function("repeat")
def build_repeat(scope: Scope, value: Kernel, times: Kernel) -> Kernel:
    value, count = text(value, "repeat"), whole(times, "the count", "repeat")
    if count is None:
        return _nothing(value)
    return apply(STRING, lambda v: pc.binary_repeat(v, max(0, count)), value)


@function("reverse")
def build_reverse(scope: Scope, value: Kernel) -> Kernel:
    return apply(STRING, pc.utf8_reverse, text(value, "reverse"))


def _pad(name: str, left: bool) -> None:
    @function(name)
    def build(scope: Scope, value: Kernel, size: Kernel, fill: Kernel | None = None) -> Kernel:
        value, said = text(value, name), whole(size, "the length", name)
        if said is None:
            return _nothing(value)
        width = max(0, said)
        if width > _WIDEST:
            raise PlanError(f"{name}: texts of {width:,} characters are too long; use {_WIDEST:,}")
        padding = " " if fill is None else constant_text(fill, "the padding", name)

        def pad(s: str) -> str:
            missing = width - len(s)
            if missing <= 0 or not padding:
                return s[:width]
            extra = (padding * (missing // len(padding) + 1))[:missing]
            return extra + s if left else s + extra

        return apply_arrays(STRING, each_text(pad, STRING), value)


_pad("lpad", True)
_pad("rpad", False)


@function("concat")
def build_concat(scope: Scope, *args: Kernel) -> Kernel:
    if not args:
        raise PlanError("concat takes at least one value")
    raw = all(pa.types.is_binary(a.type) for a in args)
    kind, between = (pa.binary(), b"") if raw else (STRING, "")
    parts = [cast(a, kind, scope.zone) for a in args]
    return apply(
        kind,
        lambda *v: pc.binary_join_element_wise(*v, between, null_handling="emit_null"),
        *parts,
    )


@node(exp.DPipe)
def build_pipes(scope: Scope, tree: exp.DPipe) -> Kernel:
    return build_concat(scope, scope.compile(tree.this), scope.compile(tree.expression))


@node(exp.Concat)
def build_adjacent(scope: Scope, tree: exp.Concat) -> Kernel:
    return build_concat(scope, *(scope.compile(e) for e in tree.expressions))


@function("concat_ws")
def build_concat_ws(scope: Scope, separator: Kernel, *args: Kernel) -> Kernel:
    between = constant_text(separator, "the separator", "concat_ws")
    parts = [text(a, "concat_ws") for a in args]
    if not parts:
        raise PlanError("concat_ws takes at least one value")

    def join(first: pa.Array, *rest: pa.Array) -> pa.Array:
        # Arrow's own null_handling="skip" loses rows that are all null.
        for each in rest:
            both = pc.binary_join_element_wise(first, each, between, null_handling="emit_null")
            first = pc.coalesce(both, first, each)
        return pc.coalesce(first, "")

    return apply_arrays(STRING, join, *parts)


# Patterns

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
        return _contains(value, pattern.literal)
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
            return _contains(value, part)
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
        for row, text in enumerate(array.to_pylist()):
            if text is not None:
                found = [m.group(index) or "" for m in finditer(text)]
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

    def extract(array: pa.Array) -> pa.Array:
        rows, found, pieces = by_automaton(array) or by_library(array)
        sizes = np.zeros(len(array), np.int32)
        sizes[slice(None) if rows is None else rows] = found
        offsets = np.zeros(len(array) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(as_column(offsets), pieces, mask=mask)

    return alike(regex, apply_arrays(pa.list_(STRING), extract, value))


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


@function("md5")
def build_md5(scope: Scope, value: Kernel) -> Kernel:
    return _digest(value, "md5", lambda b: hashlib.md5(b).hexdigest())


@function("sha1", "sha")
def build_sha1(scope: Scope, value: Kernel) -> Kernel:
    return _digest(value, "sha1", lambda b: hashlib.sha1(b).hexdigest())


@function("sha2")
def build_sha2(scope: Scope, value: Kernel, bits: Kernel) -> Kernel:
    size = whole(bits, "the number of bits", "sha2")
    if size is None:
        return _nothing(cast(value, STRING))
    size = size or 256
    if size not in (224, 256, 384, 512):
        raise PlanError(f"sha2 takes 224, 256, 384 or 512 bits, not {size}")
    return _digest(value, "sha2", lambda b: hashlib.new(f"sha{size}", b).hexdigest())


@function("crc32")
def build_crc32(scope: Scope, value: Kernel) -> Kernel:
    return _digest(value, "crc32", zlib.crc32, pa.int64())


def _digest(
    value: Kernel, name: str, compute: Callable[[bytes], Any], kind: pa.DataType = STRING
) -> Kernel:
    if not pa.types.is_binary(value.type):
        value = text(value, name)

    def run(array: pa.Array) -> pa.Array:
        raw = array.cast(pa.binary())
        return pa.array([None if b is None else compute(b) for b in raw.to_pylist()], kind)

    return apply_arrays(kind, run, value)
