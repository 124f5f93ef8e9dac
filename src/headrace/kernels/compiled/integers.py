"""Integers of 64 bits that never wrap: what passes them is left to the interpreter."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from headrace.kernels.compiled.code import Code
from headrace.kernels.compiled.values import F64, I64

OVERFLOWS = {"+": "sadd_with_overflow", "-": "ssub_with_overflow", "*": "smul_with_overflow"}
_LEAST = ir.Constant(I64, -(2**63))


def checked(sign: str, a: Any, b: Any, c: Code) -> Any:
    """A sum, difference or product."""
    both = getattr(c.b, OVERFLOWS[sign])(a, b)
    c.check(c.b.not_(c.b.extract_value(both, 1)))
    return c.b.extract_value(both, 0)


def divided(a: Any, b: Any, c: Code) -> tuple[Any, Any]:
    """The floor of a quotient, and the rest, whose sign is the divisor's."""
    zero, one = ir.Constant(I64, 0), ir.Constant(I64, 1)
    if not isinstance(b, ir.Constant) or b.constant in (0, -1):
        c.check(c.b.icmp_signed("!=", b, zero))
        least = c.b.icmp_signed("==", a, _LEAST)
        minus = c.b.icmp_signed("==", b, ir.Constant(I64, -1))
        c.check(c.b.not_(c.b.and_(least, minus)))
    quotient, rest = c.b.sdiv(a, b), c.b.srem(a, b)
    apart = c.b.icmp_signed("<", c.b.xor(rest, b), zero)
    below = c.b.and_(apart, c.b.icmp_signed("!=", rest, zero))
    return (
        c.b.select(below, c.b.sub(quotient, one), quotient),
        c.b.select(below, c.b.add(rest, b), rest),
    )


def quotient(a: Any, b: Any, c: Code) -> Any:
    """``a / b``: both are floats exactly, so that it is rounded once, as Python rounds it."""
    c.check(c.b.and_(c.is_exact(a), c.is_exact(b)))
    c.check(c.b.icmp_signed("!=", b, ir.Constant(I64, 0)))
    return c.b.fdiv(c.b.sitofp(a, F64), c.b.sitofp(b, F64))


def shifted(sign: str, a: Any, b: Any, c: Code) -> Any:
    """``a << b`` or ``a >> b``"""
    c.check(c.b.icmp_unsigned("<", b, ir.Constant(I64, 64)))
    if sign == ">>":
        return c.b.ashr(a, b)
    moved = c.b.shl(a, b)
    c.check(c.b.icmp_signed("==", c.b.ashr(moved, b), a))
    return moved


def power(a: Any, exponent: int, c: Code) -> Any:
    """A power by a number that is known, by squaring."""
    result, square = None, a
    while exponent:
        if exponent & 1:
            result = square if result is None else checked("*", result, square, c)
        exponent >>= 1
        if exponent:
            square = checked("*", square, square, c)
    return ir.Constant(I64, 1) if result is None else result
