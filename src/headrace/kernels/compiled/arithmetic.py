"""Python's arithmetic on 64-bit integers, floats and bools.

Integers have no bounds in Python, so a record whose integers pass 64 bits is left to the
interpreter; and so is one whose operands Python refuses, so that the error is its own.
"""

from __future__ import annotations

import ast
import sys
from typing import Any

from llvmlite import ir

from headrace.kernels.compiled import integers, times
from headrace.kernels.compiled.code import Code
from headrace.kernels.compiled.texts import added, equal_texts, ordered_texts
from headrace.kernels.compiled.values import (
    F64,
    I1,
    I64,
    NUMBERS,
    TIMES,
    WHOLE,
    Kind,
    Unfit,
    Value,
)

_SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<",
    ast.RShift: ">>", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">",
    ast.GtE: ">=", ast.MatMult: "@",
}  # fmt: skip
_FLOATS = {"+": "fadd", "-": "fsub", "*": "fmul"}
_TINY = sys.float_info.min
_LARGEST_POWER = 64


def whole(value: Value, c: Code) -> Any:
    """An int, or a bool as the int it is."""
    return c.b.zext(value.parts[0], I64) if value.kind is Kind.BOOL else value.parts[0]


def as_float(value: Value, c: Code) -> Any:
    """A number as a float, rounded as Python does."""
    if value.kind in (Kind.FLOAT, Kind.NUMBER):
        return value.parts[0]
    if value.kind not in WHOLE:
        raise Unfit(f"it computes with {value.kind.value}")
    return c.b.sitofp(whole(value, c), F64)


def binary(op: ast.AST, a: Value, b: Value, c: Code) -> Value:
    """``a + b`` and the like."""
    sign = _SIGNS[type(op)]
    a, b = c.present(a), c.present(b)
    if a.kind not in NUMBERS or b.kind not in NUMBERS:
        if a.kind is b.kind is Kind.TEXT and sign == "+":
            return added([a, b], c)
        moved = times.binary(sign, a, b, c)
        if moved is None:
            raise Unfit(f"it computes {a.kind.value} {sign} {b.kind.value}")
        return moved
    if a.kind in WHOLE and b.kind in WHOLE:
        if a.kind is b.kind is Kind.BOOL and sign in "&|^":
            return Value(Kind.BOOL, (_bits(sign, a.parts[0], b.parts[0], c),))
        return _whole(sign, whole(a, c), whole(b, c), c)
    if Kind.FLOAT in (a.kind, b.kind):
        return Value(Kind.FLOAT, (_float(sign, as_float(a, c), as_float(b, c), c),))
    return _number(sign, a, b, c)


def _bits(sign: str, a: Any, b: Any, c: Code) -> Any:
    return {"&": c.b.and_, "|": c.b.or_, "^": c.b.xor}[sign](a, b)


def _whole(sign: str, a: Any, b: Any, c: Code) -> Value:
    if sign in integers.OVERFLOWS:
        return Value(Kind.INT, (integers.checked(sign, a, b, c),))
    if sign in "&|^":
        return Value(Kind.INT, (_bits(sign, a, b, c),))
    if sign == "/":
        return Value(Kind.FLOAT, (integers.quotient(a, b, c),))
    if sign in ("//", "%"):
        return Value(Kind.INT, (integers.divided(a, b, c)[0 if sign == "//" else 1],))
    if sign in ("<<", ">>"):
        return Value(Kind.INT, (integers.shifted(sign, a, b, c),))
    if sign != "**":
        raise Unfit(f"it computes with {sign}")
    if not isinstance(b, ir.Constant):
        raise Unfit("it computes an integer's power by an integer, which may be a float")
    if b.constant > _LARGEST_POWER:
        raise Unfit(f"it computes a power of {b.constant}")
    if b.constant >= 0:
        return Value(Kind.INT, (integers.power(a, b.constant, c),))
    base, exponent = c.b.sitofp(a, F64), ir.Constant(F64, float(b.constant))
    return Value(Kind.FLOAT, (_float("**", base, exponent, c),))


def is_finite(x: Any, c: Code) -> Any:
    return c.b.fcmp_ordered("<", c.intrinsic("fabs", x), ir.Constant(F64, float("inf")))


def is_nan(x: Any, c: Code) -> Any:
    return c.b.fcmp_unordered("uno", x, x)


def _float(sign: str, a: Any, b: Any, c: Code) -> Any:
    if sign in _FLOATS:
        return getattr(c.b, _FLOATS[sign])(a, b)
    zero = ir.Constant(F64, 0.0)
    if sign == "/":
        c.check(c.b.fcmp_unordered("!=", b, zero))
        return c.b.fdiv(a, b)
    if sign in ("//", "%"):
        c.check(c.b.fcmp_unordered("!=", b, zero))
        return _float_divided(a, b, c)[0 if sign == "//" else 1]
    if sign == "**":
        return _float_power(a, b, c)
    raise Unfit(f"it computes with {sign} on floats")


def _float_divided(a: Any, b: Any, c: Code) -> tuple[Any, Any]:
    """The floor of a quotient of floats, and the rest, as CPython computes them."""
    zero, one, half = (ir.Constant(F64, each) for each in (0.0, 1.0, 0.5))
    rest = c.external("headrace_fmod", F64, a, b)
    quotient = c.b.fdiv(c.b.fsub(a, rest), b)
    some = c.b.fcmp_unordered("!=", rest, zero)
    apart = c.b.xor(c.b.fcmp_ordered("<", b, zero), c.b.fcmp_ordered("<", rest, zero))
    apart = c.b.and_(some, apart)
    moved = c.b.select(apart, c.b.fadd(rest, b), rest)
    modulo = c.b.select(some, moved, c.intrinsic("copysign", zero, b))
    quotient = c.b.select(apart, c.b.fsub(quotient, one), quotient)
    floor = c.intrinsic("floor", quotient)
    above = c.b.fcmp_ordered(">", c.b.fsub(quotient, floor), half)
    floor = c.b.select(above, c.b.fadd(floor, one), floor)
    signed = c.intrinsic("copysign", zero, c.b.fdiv(a, b))
    return c.b.select(c.b.fcmp_unordered("!=", quotient, zero), floor, signed), modulo


def _float_power(a: Any, b: Any, c: Code) -> Any:
    """A power of finite floats whose result is neither infinite, nor complex, nor tiny."""
    zero, one, two = (ir.Constant(F64, each) for each in (0.0, 1.0, 2.0))
    c.check(c.b.and_(is_finite(a, c), is_finite(b, c)))
    null = c.b.fcmp_ordered("==", a, zero)
    c.check(c.b.or_(c.b.not_(null), c.b.fcmp_ordered(">=", b, zero)))
    negative = c.b.fcmp_ordered("<", c.intrinsic("copysign", one, a), zero)
    integral = c.b.fcmp_ordered("==", c.intrinsic("floor", b), b)
    c.check(c.b.or_(c.b.not_(negative), integral))
    size = c.external("headrace_pow", F64, c.intrinsic("fabs", a), b)
    c.check(is_finite(size, c))
    c.check(c.b.or_(null, c.b.fcmp_ordered(">=", size, ir.Constant(F64, _TINY))))
    odd = c.external("headrace_fmod", F64, c.intrinsic("fabs", b), two)
    odd = c.b.fcmp_ordered("==", odd, one)
    return c.b.select(c.b.and_(negative, odd), c.b.fneg(size), size)


def _number(sign: str, a: Value, b: Value, c: Code) -> Value:
    """Arithmetic of which one may be an int or a float: the result is an int where both are."""
    a, b = (
        c.converted(Value(Kind.INT, (whole(v, c),)) if v.kind in WHOLE else v, Kind.NUMBER)
        for v in (a, b)
    )
    (x, a_whole), (y, b_whole) = a.parts, b.parts
    if sign == "/":
        return Value(Kind.FLOAT, (_float(sign, x, y, c),))
    both = c.b.and_(a_whole, b_whole)
    if sign in _FLOATS:
        return _settled(_float(sign, x, y, c), both, c)
    if sign not in ("//", "%"):
        raise Unfit(f"it computes {sign} of what may be an int or a float")
    return c.chosen(
        both,
        lambda: c.converted(_whole(sign, c.b.fptosi(x, I64), c.b.fptosi(y, I64), c), Kind.NUMBER),
        lambda: c.converted(Value(Kind.FLOAT, (_float(sign, x, y, c),)), Kind.NUMBER),
    )


def _settled(result: Any, is_whole: Any, c: Code) -> Value:
    """A number: an int is not too large to be exact, and has no zero below zero."""
    small = c.b.fcmp_ordered("<=", c.intrinsic("fabs", result), ir.Constant(F64, float(2**53)))
    c.check(c.b.or_(c.b.not_(is_whole), small))
    positive = c.b.fadd(result, ir.Constant(F64, 0.0))
    return Value(Kind.NUMBER, (c.b.select(is_whole, positive, result), is_whole))


def negative(value: Value, c: Code) -> Value:
    """``-value``"""
    value = c.present(value)
    if value.literal is not None and value.kind is Kind.INT and value.literal != -(2**63):
        return Value(Kind.INT, (ir.Constant(I64, -value.literal),))
    if value.kind is Kind.FLOAT:
        if value.literal is not None:
            return Value(Kind.FLOAT, (ir.Constant(F64, -value.literal),))
        return Value(Kind.FLOAT, (c.b.fneg(value.parts[0]),))
    if value.kind is Kind.NUMBER:
        return _settled(c.b.fneg(value.parts[0]), value.parts[1], c)
    if value.kind in WHOLE or value.kind is Kind.DELTA:
        kind = Kind.DELTA if value.kind is Kind.DELTA else Kind.INT
        return Value(kind, (integers.checked("-", ir.Constant(I64, 0), whole(value, c), c),))
    raise Unfit(f"it computes -{value.kind.value}")


def inverted(value: Value, c: Code) -> Value:
    """``~value``"""
    value = c.present(value)
    if value.kind is not Kind.INT:
        raise Unfit(f"it computes ~ of {value.kind.value}")
    return Value(Kind.INT, (c.b.not_(value.parts[0]),))


def truth(value: Value, c: Code) -> Any:
    """Whether a value counts as true."""
    kind = value.kind
    if kind is Kind.NONE:
        return ir.Constant(I1, 0)
    if kind in (Kind.FLOAT, Kind.NUMBER):
        true = c.b.fcmp_unordered("!=", value.parts[0], ir.Constant(F64, 0.0))
    elif kind is Kind.BOOL:
        true = value.parts[0]
    elif kind in TIMES:
        true = ir.Constant(I1, 1)
    else:
        count = value.parts[1] if kind is Kind.TEXT else value.parts[0]
        true = c.b.icmp_signed("!=", count, ir.Constant(I64, 0))
    return true if value.there is None else c.b.and_(value.there, true)


def compared(op: ast.AST, a: Value, b: Value, c: Code) -> Any:
    """``a < b`` and the like, as a condition."""
    sign = _SIGNS[type(op)]
    if sign == "==":
        return _equal(a, b, c)
    if sign == "!=":
        return c.b.not_(_equal(a, b, c))
    a, b = c.present(a), c.present(b)
    if a.kind in NUMBERS and b.kind in NUMBERS:
        return _compared_numbers(sign, a, b, c)
    if a.kind is b.kind is Kind.TEXT:
        return ordered_texts(sign, a, b, c)
    if a.kind is b.kind and a.kind in (*TIMES, Kind.DELTA):
        return c.b.icmp_signed(sign, a.parts[0], b.parts[0])
    raise Unfit(f"it compares {a.kind.value} {sign} {b.kind.value}")


def _equal(a: Value, b: Value, c: Code) -> Any:
    """``a == b``, where None equals None and nothing else."""
    yes = ir.Constant(I1, 1)
    here = yes if a.there is None else a.there
    also = yes if b.there is None else b.there
    if Kind.NONE in (a.kind, b.kind):
        return c.b.not_(c.b.or_(here, also))
    if a.there is None and b.there is None:
        return _same(a, b, c)
    both, one = c.b.and_(here, also), c.b.or_(here, also)
    return c.flag(both, lambda: _same(a.sure(), b.sure(), c), lambda: c.b.not_(one))


def _same(a: Value, b: Value, c: Code) -> Any:
    if a.kind in NUMBERS and b.kind in NUMBERS:
        return _compared_numbers("==", a, b, c)
    if a.kind is b.kind is Kind.TEXT:
        return equal_texts(a, b, c)
    if a.kind is b.kind:
        return c.b.icmp_signed("==", a.parts[0], b.parts[0])
    return ir.Constant(I1, 0)


def _compared_numbers(sign: str, a: Value, b: Value, c: Code) -> Any:
    if a.kind in WHOLE and b.kind in WHOLE:
        return c.b.icmp_signed(sign, whole(a, c), whole(b, c))
    for value in (a, b):  # Python compares an int with a float exactly
        if value.kind is Kind.INT:
            c.check(c.is_exact(value.parts[0]))
    return c.b.fcmp_ordered(sign, as_float(a, c), as_float(b, c))
