"""Text: case, search, cutting and joining."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.errors import PlanError
from headrace.kernels.expressions.casts import cast
from headrace.kernels.expressions.kernel import (
    Kernel,
    Scope,
    apply,
    apply_arrays,
    function,
    is_text,
    literal_value,
    node,
    want,
)
from headrace.kernels.expressions.needles import Needle
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


def nothing(value: Kernel) -> Kernel:
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
        return nothing(value)
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
        return nothing(value)
    return apply(STRING, lambda v: pc.utf8_slice_codeunits(v, 0, max(0, size)), value)


@function("right")
def build_right(scope: Scope, value: Kernel, count: Kernel) -> Kernel:
    value, size = text(value, "right"), whole(count, "the length", "right")
    if size is None:
        return nothing(value)
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
def buildcontains_text(scope: Scope, value: Kernel, part: Kernel) -> Kernel:
    sought = constant_text(part, "the text sought", "contains")
    return contains_text(text(value, "contains"), sought)


def contains_text(value: Kernel, part: str) -> Kernel:
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
        return nothing(value)
    return apply(STRING, lambda v: pc.binary_repeat(v, max(0, count)), value)


@function("reverse")
def build_reverse(scope: Scope, value: Kernel) -> Kernel:
    return apply(STRING, pc.utf8_reverse, text(value, "reverse"))


def _pad(name: str, left: bool) -> None:
    @function(name)
    def build(scope: Scope, value: Kernel, size: Kernel, fill: Kernel | None = None) -> Kernel:
        value, said = text(value, name), whole(size, "the length", name)
        if said is None:
            return nothing(value)
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
