"""Numbers: the operators, and the functions of mathematics."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.errors import ExpressionError, PlanError
from headrace.kernels.columns import from_numbers, numbers, validity
from headrace.kernels.expressions.casts import cast
from headrace.kernels.expressions.kernel import (
    Kernel,
    Scope,
    apply,
    apply_arrays,
    constant,
    function,
    is_number,
    literal_value,
    node,
    not_for_spark,
    want,
)
from headrace.kernels.expressions.promotion import as_decimal, common
from headrace.kernels.expressions.times import add_interval, between_times
from headrace.types import type_name

DOUBLE = pa.float64()


@node(exp.Literal)
def build_literal(scope: Scope, tree: exp.Literal) -> Kernel:
    text = tree.this
    if tree.is_string:
        return constant(pa.scalar(text, pa.string()))
    if any(mark in text for mark in ".eE"):
        return constant(pa.scalar(float(text), DOUBLE))
    value = int(text)
    if value < 1 << 31:
        return constant(pa.scalar(value, pa.int32()))
    if value < 1 << 63:
        return constant(pa.scalar(value, pa.int64()))
    raise PlanError(f"the number {text} does not fit a bigint")


def operands(scope: Scope, tree: exp.Binary, sign: str) -> tuple[Kernel, Kernel]:
    """Both sides of an operator on numbers, in their own types."""
    left, right = scope.compile(tree.this), scope.compile(tree.expression)
    for side in (left, right):
        if not (is_number(side.type) or pa.types.is_null(side.type)):
            raise PlanError(
                f"'{sign}' takes numbers, not {type_name(left.type)} {sign} "
                f"{type_name(right.type)}; cast it, as in x.cast('double')"
            )
    return left, right


def _is_time(kernel: Kernel) -> bool:
    t = pa.types
    return bool(
        t.is_temporal(kernel.type) or t.is_duration(kernel.type) or t.is_interval(kernel.type)
    )


_CHECKED: dict[type[exp.Expr], tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    exp.Add: ("+", pc.add_checked, pc.add),
    exp.Sub: ("-", pc.subtract_checked, pc.subtract),
    exp.Mul: ("*", pc.multiply_checked, pc.multiply),
}


_DAYS = ("day", "days", "week", "weeks")
_MAX_CHAIN = 250


def _chain(tree: exp.Binary) -> list[exp.Expr]:
    """The operations on the left of this one, the innermost first: ``a + b`` of ``a + b + c``."""
    chain: list[exp.Expr] = []
    part: exp.Expr = tree.this.unnest()
    while type(part) in _CHECKED:
        chain.append(part)
        part = part.this.unnest()
        if len(chain) >= _MAX_CHAIN:
            raise PlanError(
                f"more than {_MAX_CHAIN} terms in one '{_CHECKED[type(tree)][0]}'; compute parts "
                "of it in with_columns steps before"
            )
    return chain[::-1]


@node(exp.Add, exp.Sub, exp.Mul)
def build_arithmetic(scope: Scope, tree: exp.Binary) -> Kernel:
    sign, checked, plain = _CHECKED[type(tree)]
    for part in _chain(tree):  # from the first sum of a long chain on, so that calls do not nest
        scope.compile(part)
    if not isinstance(tree, exp.Mul):
        left, right = scope.compile(tree.this), scope.compile(tree.expression)
        if _is_time(left) or _is_time(right):
            negative = isinstance(tree, exp.Sub)
            if negative and not pa.types.is_duration(right.type) and _is_time(right):
                return between_times(scope, left, right)
            days = any(
                isinstance(side, exp.Interval) and side.unit and side.unit.name.lower() in _DAYS
                for side in (tree.this, tree.expression)
            )
            return add_interval(scope, left, right, negative, days)
    left, right = operands(scope, tree, sign)
    kind = common(left.type, right.type)
    if kind is not None and pa.types.is_null(kind):
        kind = DOUBLE
    if kind is None or pa.types.is_decimal(kind):
        return _decimal(tree, sign, checked, left, right)
    left, right = cast(left, kind), cast(right, kind)
    if pa.types.is_floating(kind):
        return apply(kind, plain, left, right)

    def compute(a: Any, b: Any) -> Any:
        try:
            return checked(a, b)
        except pa.ArrowInvalid:
            raise ExpressionError(
                f"{type_name(kind)} overflow in '{sign}'; cast to a wider type first"
            ) from None

    return apply(kind, compute, left, right, raises=True)


def _sides(tree: exp.Binary, left: Kernel, right: Kernel) -> list[pa.DataType]:
    """Both sides as decimals: a literal is as wide as it is written, a null as the other side."""
    kinds: list[pa.DataType] = []
    for side, written, other in ((left, tree.this, right), (right, tree.expression, left)):
        if pa.types.is_null(side.type):
            kinds.append(as_decimal(other.type))
            continue
        while isinstance(written, exp.Paren):
            written = written.this
        number = written.this if isinstance(written, exp.Neg) else written
        if isinstance(number, exp.Literal) and pa.types.is_integer(side.type):
            kinds.append(pa.decimal128(max(1, len(number.this.lstrip("0"))), 0))
        else:
            kinds.append(as_decimal(side.type))
    return kinds


def _decimal(
    tree: exp.Binary, sign: str, compute: Callable[..., Any], left: Kernel, right: Kernel
) -> Kernel:
    a, b = _sides(tree, left, right)
    if isinstance(tree, exp.Mul):
        precision, scale = a.precision + b.precision + 1, a.scale + b.scale
    else:
        scale = max(a.scale, b.scale)
        precision = max(a.precision - a.scale, b.precision - b.scale) + scale + 1
    if precision > 38:
        raise PlanError(
            f"{type_name(a)} {sign} {type_name(b)} may need more than 38 digits; "
            "cast a side to double, or to a smaller decimal"
        )
    kind = pa.decimal128(precision, scale)
    left, right = cast(left, a), cast(right, b)
    return apply(kind, lambda x, y: compute(x, y).cast(kind), left, right, raises=True)


@node(exp.Neg)
def build_negative(scope: Scope, tree: exp.Neg) -> Kernel:
    if isinstance(tree.this, exp.Literal) and not tree.this.is_string:
        if tree.this.this == str(1 << 63):
            return constant(pa.scalar(-(1 << 63), pa.int64()))
        inner = build_literal(scope, tree.this)
        return constant(pc.negate(inner.run(None)))
    inner = scope.compile(tree.this)
    want(inner, is_number, "a number", "'-'")
    kernel = apply(inner.type, _checked(pc.negate_checked, "-"), inner, raises=True)
    return _exact(kernel)


def _exact(kernel: Kernel) -> Kernel:
    """Spark rounds a decimal of more than 34 digits when it changes its sign: not so we."""
    wide = pa.types.is_decimal(kernel.type) and kernel.type.precision > 34
    return not_for_spark(kernel) if wide else kernel


def _checked(compute: Callable[..., Any], name: str) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        try:
            return compute(value)
        except pa.ArrowInvalid:
            raise ExpressionError(f"{type_name(value.type)} overflow in '{name}'") from None

    return run


def _nonzero(name: str, zero: np.ndarray[Any, Any], *sides: pa.Array) -> None:
    """Refuse a zero divisor where both sides are there."""
    for side in sides:
        valid = validity(side)
        if valid.size:
            zero = zero & valid
    if zero.any():
        raise ExpressionError(f"division by zero in '{name}'; use nullif(x, 0) to get null instead")


def _both(a: pa.Array, b: pa.Array) -> np.ndarray[Any, Any]:
    left, right = validity(a), validity(b)
    if not left.size:
        return right
    return left & right if right.size else left


@node(exp.Div)
def build_divide(scope: Scope, tree: exp.Div) -> Kernel:
    left, right = operands(scope, tree, "/")
    sides = (left.type, right.type)
    if any(map(pa.types.is_decimal, sides)) and not any(map(pa.types.is_floating, sides)):
        raise PlanError("'/' on decimals is not supported; cast a side to double")

    def compute(a: pa.Array, b: pa.Array) -> pa.Array:
        x, y = numbers(a, np.float64), numbers(b, np.float64)
        _nonzero("/", y == 0, a, b)
        with np.errstate(all="ignore"):
            return from_numbers(x / np.where(y == 0, 1.0, y), _both(a, b), DOUBLE)

    return apply_arrays(DOUBLE, compute, cast(left, DOUBLE), cast(right, DOUBLE), raises=True)


@node(exp.Mod)
def build_remainder(scope: Scope, tree: exp.Mod) -> Kernel:
    return remainder(*operands(scope, tree, "%"))


@function("mod")
def build_mod(scope: Scope, left: Kernel, right: Kernel) -> Kernel:
    want(left, is_number, "numbers", "mod")
    want(right, is_number, "numbers", "mod")
    return remainder(left, right)


def remainder(left: Kernel, right: Kernel) -> Kernel:
    kind = common(left.type, right.type)
    if kind is None or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        raise PlanError("'%' takes integers or floating numbers; cast a side to double")
    dtype = kind.to_pandas_dtype()

    def compute(a: pa.Array, b: pa.Array) -> pa.Array:
        x, y = numbers(a, dtype), numbers(b, dtype)
        _nonzero("%", y == 0, a, b)
        safe = np.where(y == 0, dtype(1), y)
        if pa.types.is_integer(kind):
            safe = np.where(safe == -1, dtype(1), safe)  # x % -1 is 0, and so is x % 1
        with np.errstate(all="ignore"):
            return from_numbers(np.fmod(x, safe), _both(a, b), kind)

    return apply_arrays(kind, compute, cast(left, kind), cast(right, kind), raises=True)


@node(exp.IntDiv)
def build_whole_division(scope: Scope, tree: exp.IntDiv) -> Kernel:
    left, right = operands(scope, tree, "div")
    for side in (left, right):
        want(side, pa.types.is_integer, "integers", "div")
    kind = pa.int64()

    def compute(a: pa.Array, b: pa.Array) -> pa.Array:
        x, y = numbers(a, np.int64), numbers(b, np.int64)
        _nonzero("div", y == 0, a, b)
        both = _both(a, b)
        least = (x == np.iinfo(np.int64).min) & (y == -1)
        if (least & both if both.size else least).any():
            raise ExpressionError("bigint overflow in 'div'")
        safe = np.where((y == 0) | least, 1, y)
        quotient = x // safe
        quotient += (quotient < 0) & (quotient * safe != x)
        return from_numbers(quotient, both, kind)

    return apply_arrays(kind, compute, cast(left, kind), cast(right, kind), raises=True)


@function("abs")
def build_abs(scope: Scope, value: Kernel) -> Kernel:
    want(value, is_number, "a number", "abs")
    return _exact(apply(value.type, _checked(pc.abs_checked, "abs"), value, raises=True))


@function("sign", "signum")
def build_sign(scope: Scope, value: Kernel) -> Kernel:
    want(value, is_number, "a number", "sign")
    # Arrow gives 0.0 for -0.0; Java gives the zero it was given.
    return apply(DOUBLE, lambda v: pc.if_else(pc.equal(v, 0.0), v, pc.sign(v)), cast(value, DOUBLE))


def _smooth(name: str, compute: Callable[[Any], Any]) -> None:
    @function(name)
    def build(scope: Scope, value: Kernel) -> Kernel:
        want(value, is_number, "a number", name)
        return apply(DOUBLE, compute, cast(value, DOUBLE))


for _name, _compute in {
    "sqrt": pc.sqrt,
    "exp": pc.exp,
    "expm1": pc.expm1,
    "sin": pc.sin,
    "cos": pc.cos,
    "tan": pc.tan,
    "asin": pc.asin,
    "acos": pc.acos,
    "atan": pc.atan,
    "sinh": pc.sinh,
    "cosh": pc.cosh,
    "tanh": pc.tanh,
}.items():
    _smooth(_name, _compute)


def _logarithm(names: tuple[str, ...], compute: Callable[[Any], Any], edge: float) -> None:
    @function(*names)
    def build(scope: Scope, *args: Kernel) -> Kernel:
        if len(args) == 2 and "log" in names:
            base, value = (build(scope, a) for a in args)
            return apply(DOUBLE, pc.divide, value, base)
        (value,) = args
        want(value, is_number, "a number", names[0])

        def run(v: Any) -> Any:
            outside = pc.less_equal(v, edge)
            return pc.if_else(outside, pa.scalar(None, DOUBLE), compute(v))

        return apply(DOUBLE, run, cast(value, DOUBLE))


_logarithm(("ln", "log"), pc.ln, 0.0)
_logarithm(("log10",), pc.log10, 0.0)
_logarithm(("log2",), pc.log2, 0.0)
_logarithm(("log1p",), pc.log1p, -1.0)


@function("pow", "power")
def build_power(scope: Scope, base: Kernel, exponent: Kernel) -> Kernel:
    want(base, is_number, "numbers", "power")
    want(exponent, is_number, "numbers", "power")

    def compute(a: pa.Array, b: pa.Array) -> pa.Array:
        x, y = numbers(a, np.float64), numbers(b, np.float64)
        with np.errstate(all="ignore"):
            out = np.power(x, y)
        # Java: one to the power of NaN or infinity is not a number.
        out[(np.abs(x) == 1) & ~np.isfinite(y)] = np.nan
        return from_numbers(out, _both(a, b), DOUBLE)

    return apply_arrays(DOUBLE, compute, cast(base, DOUBLE), cast(exponent, DOUBLE))


@function("atan2")
def build_atan2(scope: Scope, y: Kernel, x: Kernel) -> Kernel:
    want(y, is_number, "numbers", "atan2")
    want(x, is_number, "numbers", "atan2")

    def compute(a: Any, b: Any) -> Any:
        return pc.atan2(pc.add(a, 0.0), pc.add(b, 0.0))  # as Spark does: no zero below zero

    return apply(DOUBLE, compute, cast(y, DOUBLE), cast(x, DOUBLE))


@function("pi")
def build_pi(scope: Scope) -> Kernel:
    return constant(pa.scalar(math.pi))


@function("ceil", "ceiling")
def build_ceil(scope: Scope, value: Kernel) -> Kernel:
    return _whole("ceil", np.ceil, value)


@function("floor")
def build_floor(scope: Scope, value: Kernel) -> Kernel:
    return _whole("floor", np.floor, value)


def _whole(name: str, compute: Callable[[Any], Any], value: Kernel) -> Kernel:
    want(value, is_number, "a number", name)
    if pa.types.is_integer(value.type):
        return cast(value, pa.int64())
    if pa.types.is_decimal(value.type):
        raise PlanError(f"{name} of a decimal is not supported; cast it to double")

    def run(array: pa.Array) -> pa.Array:
        values = compute(numbers(array, np.float64))
        valid = validity(array)
        outside = (values >= 2.0**63) | (values < -(2.0**63))
        if (outside & valid if valid.size else outside).any():
            raise ExpressionError(f"bigint overflow in '{name}'")
        whole = np.where(np.isnan(values) | outside, 0, values).astype(np.int64)
        return from_numbers(whole, valid, pa.int64())

    return apply_arrays(pa.int64(), run, cast(value, DOUBLE), raises=True)


@function("round")
def build_round(scope: Scope, value: Kernel, digits: Kernel | None = None) -> Kernel:
    return _rounding("round", decimal.ROUND_HALF_UP, value, digits)


@function("bround")
def build_bankers_round(scope: Scope, value: Kernel, digits: Kernel | None = None) -> Kernel:
    return _rounding("bround", decimal.ROUND_HALF_EVEN, value, digits)


def _rounding(name: str, mode: str, value: Kernel, digits: Kernel | None) -> Kernel:
    want(value, is_number, "a number", name)
    places = 0 if digits is None else literal_value(digits, "the number of digits", name)
    if not isinstance(places, int):
        raise PlanError(f"{name}: the number of digits is a whole number, not {places!r}")
    kind = value.type
    if pa.types.is_null(kind):
        return cast(value, DOUBLE)
    if pa.types.is_decimal(kind):
        raise PlanError(f"{name} of a decimal is not supported; cast it to double")
    if pa.types.is_integer(kind):
        if places >= 0:
            return value
        places = max(places, -_MOST_PLACES)
        return apply_arrays(
            kind, lambda a: _round_integers(a, places, mode, name), value, raises=True
        )
    if places > _MOST_PLACES:  # more than any number has; but no zero below zero
        return apply(kind, lambda v: pc.add(v, pa.scalar(0.0, kind)), value)
    places = max(places, -_MOST_PLACES)
    return apply_arrays(kind, lambda a: _round_floats(a, places, mode), value)


_MOST_PLACES = 350


def _round_integers(array: pa.Array, places: int, mode: str, name: str) -> pa.Array:
    unit = decimal.Decimal(1).scaleb(-places)
    out: list[int | None] = []
    with decimal.localcontext(decimal.Context(prec=400)):
        for value in array.to_pylist():
            scaled = None if value is None else (decimal.Decimal(value) / unit).quantize(1, mode)
            out.append(None if scaled is None else int(scaled * unit))
    try:
        return pa.array(out, array.type)
    except (pa.ArrowInvalid, OverflowError):
        raise ExpressionError(f"{type_name(array.type)} overflow in '{name}'") from None


def _round_floats(array: pa.Array, places: int, mode: str) -> pa.Array:
    """Round the shortest decimal of each number, as Spark does.

    Scaling in binary agrees with that except near a tie, so only those are done in decimal.
    """
    single = pa.types.is_float32(array.type)
    values = numbers(array, np.float32 if single else np.float64)
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        scale = 10.0**places if abs(places) < 300 else math.inf
        scaled = wide * scale
        out = np.rint(scaled) / scale
        distance = np.abs(np.abs(scaled - np.trunc(scaled)) - 0.5)
        exact = (distance < 1e-4) | (np.abs(scaled) > 1e9) | ~np.isfinite(out)
        if places:
            exact |= np.abs(scaled) > 1e6
    out = np.where(np.isfinite(wide), out + 0.0, wide)
    unit = decimal.Decimal(1).scaleb(-places)
    with decimal.localcontext(decimal.Context(prec=700)):
        for i in np.flatnonzero(exact & np.isfinite(wide)):
            number = decimal.Decimal(str(values[i]) if single else repr(float(wide[i])))
            out[i] = float((number / unit).quantize(1, mode) * unit) + 0.0
    return from_numbers(out.astype(values.dtype), validity(array), array.type)
