"""The functions and methods that a compiled function may call, each as Python computes it."""

from __future__ import annotations

import ast
import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir

from headrace.kernels.compiled import texts, times
from headrace.kernels.compiled.arithmetic import (
    as_float,
    binary,
    compared,
    is_finite,
    is_nan,
    negative,
    truth,
    whole,
)
from headrace.kernels.compiled.code import Code
from headrace.kernels.compiled.values import (
    F64,
    I1,
    I64,
    NUMBERS,
    WHOLE,
    Kind,
    Unfit,
    Value,
)

Arguments = list[Value]
Builder = Callable[[Arguments, Code], Value]

_LIBRARY = (
    "exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "exp2", "cbrt", "atan2", "pow", "fmod",
)  # fmt: skip
_TRIED = (
    *(n / 7 + 1e-3 for n in range(-24, 25)), 1e-300, -1e-300, 1e300, 0.5, -0.5, 0.0, -0.0, 1.0,
    -1.0, 700.0, -745.0, 1e15, math.pi, 100.25,
)  # fmt: skip


def _tried(name: str, function: Any) -> bool:
    """Whether the C library's function is the one that Python calls."""
    ours = getattr(math, name, None)
    if ours is None:
        return False
    two = name in ("atan2", "pow", "fmod")
    for x in _TRIED:
        arguments = (x, 1.75) if two else (x,)
        try:
            wanted = ours(*arguments)
        except (ValueError, OverflowError):
            continue
        found = function(*arguments)
        if wanted != found and not (math.isnan(wanted) and math.isnan(found)):
            return False
    return True


@functools.cache
def library() -> frozenset[str]:
    """The functions of C's mathematical library that are Python's own; LLVM is told of them.

    Under names of their own, so that LLVM does not take a shortcut that Python does not take.
    """
    found = set()
    process = ctypes.CDLL(None)
    for name in _LIBRARY:
        two = name in ("atan2", "pow", "fmod")
        function = getattr(process, name, None)
        if function is None:
            continue
        kind = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_double] * (1 + two))
        function = kind((name, process))
        if _tried(name, function):
            address = ctypes.cast(function, ctypes.c_void_p).value
            binding.add_symbol(f"headrace_{name}", address)
            found.add(name)
    return frozenset(found)


def _numbers(args: Arguments, c: Code, least: int, most: int, name: str) -> Arguments:
    if not least <= len(args) <= most:
        raise Unfit(f"it calls {name} with {len(args)} arguments")
    args = [c.present(each) for each in args]
    for each in args:
        if each.kind not in NUMBERS:
            raise Unfit(f"it calls {name} of {each.kind.value}")
    return args


def _mathematical(name: str) -> Builder:
    """A function of floats: where it has no finite value of finite ones, Python raises."""

    def build(args: Arguments, c: Code) -> Value:
        if name != "sqrt" and name not in library():
            raise Unfit(f"math.{name} is not the C library's here")
        count = 2 if name in ("atan2", "pow", "fmod") else 1
        values = [as_float(each, c) for each in _numbers(args, c, count, count, f"math.{name}")]
        if count == 2:  # Python treats what is not finite in ways of its own
            c.check(c.b.and_(*(is_finite(each, c) for each in values)))
        if name == "sqrt":
            result = c.intrinsic("sqrt", *values)
        else:
            result = c.external(f"headrace_{name}", F64, *values)
        if count == 2:
            c.check(is_finite(result, c))
        else:
            (x,) = values
            nan = c.b.and_(is_nan(result, c), c.b.not_(is_nan(x, c)))
            endless = c.b.and_(c.b.not_(is_finite(result, c)), is_finite(x, c))
            c.check(c.b.not_(c.b.or_(nan, endless)))
        return Value(Kind.FLOAT, (result,))

    return build


def _logarithm(args: Arguments, c: Code) -> Value:
    parts = [_mathematical("log")([each], c).parts[0] for each in args]
    if len(parts) == 1:
        return Value(Kind.FLOAT, (parts[0],))
    if len(parts) != 2:
        raise Unfit(f"it calls math.log with {len(parts)} arguments")
    c.check(c.b.fcmp_unordered("!=", parts[1], ir.Constant(F64, 0.0)))
    return Value(Kind.FLOAT, (c.b.fdiv(*parts),))


def to_whole(x: Any, c: Code) -> Value:
    """A float that has no fraction as an int."""
    fits = c.b.and_(
        c.b.fcmp_ordered(">=", x, ir.Constant(F64, -(2.0**63))),
        c.b.fcmp_ordered("<", x, ir.Constant(F64, 2.0**63)),
    )
    c.check(fits)
    return Value(Kind.INT, (c.b.fptosi(x, I64),))


def _rounding(name: str, intrinsic: str) -> Builder:
    """``math.floor`` and the like: to an int."""

    def build(args: Arguments, c: Code) -> Value:
        (value,) = _numbers(args, c, 1, 1, name)
        if value.kind in WHOLE:
            return Value(Kind.INT, (whole(value, c),))
        return to_whole(c.intrinsic(intrinsic, value.parts[0]), c)

    return build


def _round(args: Arguments, c: Code) -> Value:
    """``round``: half to even; to digits by way of the exact product, as Python's decimals do."""
    if len(args) == 2 and args[1].kind is Kind.NONE:
        args = args[:1]
    values = _numbers(args, c, 1, 2, "round")
    if len(values) == 1:
        return _rounding("round", "rint")(values, c)
    value, digits = values[0], values[1].literal
    if values[1].kind is not Kind.INT or digits is None or not 0 <= digits <= 22:
        raise Unfit("it rounds to a number of digits that is not a constant from 0 to 22")
    if value.kind in WHOLE:
        return Value(Kind.INT, (whole(value, c),))
    if value.kind is Kind.NUMBER:
        raise Unfit("it rounds what may be an int or a float")
    x, scale = value.parts[0], ir.Constant(F64, float(10**digits))
    scaled = c.b.fmul(x, scale)
    c.check(c.b.fcmp_ordered("<", c.intrinsic("fabs", scaled), ir.Constant(F64, 2.0**52)))
    # What the product lost decides where it seems to lie halfway between two.
    lost = c.intrinsic("fma", x, scale, c.b.fneg(scaled))
    near = c.intrinsic("rint", scaled)
    apart = c.b.fsub(scaled, near)
    zero, half, one = (ir.Constant(F64, each) for each in (0.0, 0.5, 1.0))
    up = c.b.and_(c.b.fcmp_ordered("==", apart, half), c.b.fcmp_ordered(">", lost, zero))
    down = c.b.and_(
        c.b.fcmp_ordered("==", apart, c.b.fneg(half)), c.b.fcmp_ordered("<", lost, zero)
    )
    near = c.b.select(up, c.b.fadd(near, one), c.b.select(down, c.b.fsub(near, one), near))
    return Value(Kind.FLOAT, (c.b.fdiv(near, scale),))


def _absolute(args: Arguments, c: Code) -> Value:
    (value,) = args if len(args) == 1 else [Value(Kind.NONE, ())]
    value = c.present(value)
    if value.kind is Kind.FLOAT:
        return Value(Kind.FLOAT, (c.intrinsic("fabs", value.parts[0]),))
    if value.kind is Kind.NUMBER:
        return Value(Kind.NUMBER, (c.intrinsic("fabs", value.parts[0]), value.parts[1]))
    if value.kind not in (*WHOLE, Kind.DELTA):
        raise Unfit(f"it calls abs of {value.kind.value}")
    kind = Kind.DELTA if value.kind is Kind.DELTA else Kind.INT
    plain = Value(kind, (whole(value, c),))
    below = c.b.icmp_signed("<", plain.parts[0], ir.Constant(I64, 0))
    return c.chosen(below, lambda: negative(plain, c), lambda: plain)


def _extreme(op: ast.AST, name: str) -> Builder:
    """``min`` and ``max``: the first of those that no later one is beyond."""

    def build(args: Arguments, c: Code) -> Value:
        if len(args) < 2:
            raise Unfit(f"it calls {name} of one thing")
        best = c.present(args[0])
        for each in args[1:]:
            other, kept = c.present(each), best
            beyond = compared(op, other, kept, c)
            best = c.chosen(beyond, lambda o=other: o, lambda k=kept: k)  # type: ignore[misc]
        return best

    return build


def _int(args: Arguments, c: Code) -> Value:
    if not args:
        return Value(Kind.INT, (ir.Constant(I64, 0),))
    return _rounding("int", "trunc")(args, c)


def _float(args: Arguments, c: Code) -> Value:
    if not args:
        return Value(Kind.FLOAT, (ir.Constant(F64, 0.0),))
    return Value(Kind.FLOAT, (as_float(_numbers(args, c, 1, 1, "float")[0], c),))


def _bool(args: Arguments, c: Code) -> Value:
    if len(args) > 1:
        raise Unfit("it calls bool with two arguments")
    return Value(Kind.BOOL, (truth(args[0], c) if args else ir.Constant(I1, 0),))


def _len(args: Arguments, c: Code) -> Value:
    value = c.present(args[0]) if len(args) == 1 else None
    if value is None or value.kind is not Kind.TEXT:
        raise Unfit("it calls len of what is not text")
    return Value(Kind.INT, (texts.length(value, c),))


def _str(args: Arguments, c: Code) -> Value:
    if len(args) != 1:
        raise Unfit(f"it calls str with {len(args)} arguments")
    return texts.as_text(args[0], c)


def _power(args: Arguments, c: Code) -> Value:
    if len(args) != 2:
        raise Unfit(f"it calls pow with {len(args)} arguments")
    return binary(ast.Pow(), args[0], args[1], c)


def _test(name: str, build: Callable[[Any, Code], Any]) -> Builder:
    def test(args: Arguments, c: Code) -> Value:
        (value,) = _numbers(args, c, 1, 1, f"math.{name}")
        return Value(Kind.BOOL, (build(as_float(value, c), c),))

    return test


def _is_inf(x: Any, c: Code) -> Any:
    return c.b.fcmp_ordered("==", c.intrinsic("fabs", x), ir.Constant(F64, math.inf))


def _fabs(args: Arguments, c: Code) -> Value:
    (value,) = _numbers(args, c, 1, 1, "math.fabs")
    return Value(Kind.FLOAT, (c.intrinsic("fabs", as_float(value, c)),))


def _copysign(args: Arguments, c: Code) -> Value:
    values = [as_float(each, c) for each in _numbers(args, c, 2, 2, "math.copysign")]
    return Value(Kind.FLOAT, (c.intrinsic("copysign", *values),))


def _scaled(name: str, by: float) -> Builder:
    def build(args: Arguments, c: Code) -> Value:
        (value,) = _numbers(args, c, 1, 1, f"math.{name}")
        return Value(Kind.FLOAT, (c.b.fmul(as_float(value, c), ir.Constant(F64, by)),))

    return build


FUNCTIONS: dict[Any, Builder] = {
    abs: _absolute, min: _extreme(ast.Lt(), "min"), max: _extreme(ast.Gt(), "max"),
    int: _int, float: _float, bool: _bool, round: _round, len: _len, str: _str, pow: _power,
    math.floor: _rounding("math.floor", "floor"), math.ceil: _rounding("math.ceil", "ceil"),
    math.trunc: _rounding("math.trunc", "trunc"), math.fabs: _fabs, math.copysign: _copysign,
    math.isnan: _test("isnan", is_nan), math.isinf: _test("isinf", _is_inf),
    math.isfinite: _test("isfinite", is_finite), math.log: _logarithm,
    math.degrees: _scaled("degrees", 180.0 / math.pi),
    math.radians: _scaled("radians", math.pi / 180.0),
    **{getattr(math, name): _mathematical(name)
       for name in (*_LIBRARY, "sqrt") if name != "log" and hasattr(math, name)},
}  # fmt: skip
"""By the function itself, whatever it is called."""


def method(value: Value, name: str, args: list[Any], c: Code) -> Value:
    """``value.name(…)``; an argument may be a tuple of texts."""
    value = c.present(value)
    if value.kind is not Kind.TEXT:
        if args:
            raise Unfit(f"it calls .{name}(…) of {value.kind.value}")
        return times.method(value, name, c)
    if name in ("startswith", "endswith") and len(args) == 1:
        wanted = args[0] if isinstance(args[0], list) else [args[0]]
        result: Any = ir.Constant(I1, 0)
        for each in wanted:
            text = c.present(each)
            if text.kind is not Kind.TEXT:
                raise Unfit(f"it calls .{name}({text.kind.value})")
            result = c.b.or_(result, texts.affixed(value, text, name == "endswith", c))
        return Value(Kind.BOOL, (result,))
    if args:
        raise Unfit(f"it calls .{name}(…) of text")
    if name in ("strip", "lstrip", "rstrip"):
        return texts.stripped(value, {"s": "lr"}.get(name[0], name[0]), c)
    if name in ("lower", "upper"):
        return texts.cased(value, name == "upper", c)
    raise Unfit(f"it calls .{name}() of text")
