"""Text as it lies in Arrow's buffers: UTF-8, compared and cut without being copied.

Equality, prefixes, substrings and order are the same of bytes as of characters. Where they are not
(case, white space, places) a record with characters that are not ASCII is left to the interpreter.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from headrace.kernels.compiled.code import Code
from headrace.kernels.compiled.values import BYTES, I8, I32, I64, Kind, Unfit, Value

_ZERO, _ONE = ir.Constant(I64, 0), ir.Constant(I64, 1)
_SPACES = (*range(9, 14), *range(28, 33))


def equal_texts(a: Value, b: Value, c: Code) -> Any:
    """``a == b``"""
    same = c.b.icmp_signed("==", a.parts[1], b.parts[1])
    return c.flag(same, lambda: _begins(a, b, c), lambda: ir.Constant(same.type, 0))


def _begins(a: Value, b: Value, c: Code) -> Any:
    """Whether the first bytes of a text, of which there are enough, are those of another."""
    differs = c.external("memcmp", I32, a.parts[0], b.parts[0], b.parts[1])
    return c.b.icmp_signed("==", differs, ir.Constant(I32, 0))


def ordered_texts(sign: str, a: Value, b: Value, c: Code) -> Any:
    """``a < b`` and the like, by code points."""
    shorter = c.b.select(c.b.icmp_signed("<", a.parts[1], b.parts[1]), a.parts[1], b.parts[1])
    differs = c.external("memcmp", I32, a.parts[0], b.parts[0], shorter)
    same = c.b.icmp_signed("==", differs, ir.Constant(I32, 0))
    lengths = c.b.icmp_signed(sign, a.parts[1], b.parts[1])
    return c.b.select(same, lengths, c.b.icmp_signed(sign, differs, ir.Constant(I32, 0)))


def contains(a: Value, b: Value, c: Code) -> Any:
    """``b in a``"""
    place = c.external("memmem", BYTES, a.parts[0], a.parts[1], b.parts[0], b.parts[1])
    found = c.b.icmp_unsigned("!=", c.b.ptrtoint(place, I64), _ZERO)
    return c.b.or_(found, c.b.icmp_signed("==", b.parts[1], _ZERO))


def affixed(a: Value, b: Value, at_end: bool, c: Code) -> Any:
    """``a.startswith(b)``, ``a.endswith(b)``"""
    room = c.b.sub(a.parts[1], b.parts[1])
    start = c.b.gep(a.parts[0], [room]) if at_end else a.parts[0]
    fits = c.b.icmp_signed(">=", room, _ZERO)
    part = Value(Kind.TEXT, (start, b.parts[1]))
    return c.flag(fits, lambda: _begins(part, b, c), lambda: ir.Constant(fits.type, 0))


def _byte(text: Value, i: Any, c: Code) -> Any:
    return c.b.load(c.b.gep(text.parts[0], [i]))


def length(text: Value, c: Code) -> Any:
    """``len(text)``: all bytes but those that go on with a character."""
    count = c.slot(I64)
    c.b.store(_ZERO, count)
    with c.counting(_ZERO, text.parts[1]) as (i, _):
        first = c.b.icmp_signed(">", _byte(text, i, c), ir.Constant(I8, -65))
        c.b.store(c.b.add(c.b.load(count), c.b.zext(first, I64)), count)
    return c.b.load(count)


def check_ascii(text: Value, c: Code) -> None:
    """Leave the record to the interpreter unless the text is ASCII."""
    every = c.slot(I8)
    c.b.store(ir.Constant(I8, 0), every)
    with c.counting(_ZERO, text.parts[1]) as (i, _):
        c.b.store(c.b.or_(c.b.load(every), _byte(text, i, c)), every)
    c.check(c.b.icmp_signed(">=", c.b.load(every), ir.Constant(I8, 0)))


def is_space(byte: Any, c: Code) -> Any:
    """Whether an ASCII character is white space to Python."""
    low, high = ((c.b.sub(byte, ir.Constant(I8, n)), m) for n, m in ((9, 4), (28, 4)))
    ways = [c.b.icmp_unsigned("<=", each, ir.Constant(I8, most)) for each, most in (low, high)]
    return c.b.or_(*ways)


def stripped(text: Value, sides: str, c: Code) -> Value:
    """``strip``, ``lstrip`` and ``rstrip`` of white space."""
    start, end = c.slot(I64), c.slot(I64)
    c.b.store(_ZERO, start)
    c.b.store(text.parts[1], end)
    for side in sides:
        place = start if side == "l" else end
        head, look, move, after = (c.block(n) for n in ("strip", "look", "move", "stripped"))
        c.go(head)
        first, last = c.b.load(start), c.b.load(end)
        c.b.cbranch(c.b.icmp_signed("<", first, last), look, after)
        c.b.position_at_end(look)
        byte = _byte(text, first if side == "l" else c.b.sub(last, _ONE), c)
        c.check(c.b.icmp_signed(">=", byte, ir.Constant(I8, 0)))
        c.b.cbranch(is_space(byte, c), move, after)
        c.b.position_at_end(move)
        c.b.store((c.b.add if side == "l" else c.b.sub)(c.b.load(place), _ONE), place)
        c.b.branch(head)
        c.b.position_at_end(after)
    first = c.b.load(start)
    return Value(Kind.TEXT, (c.b.gep(text.parts[0], [first]), c.b.sub(c.b.load(end), first)))


def cased(text: Value, upper: bool, c: Code) -> Value:
    """``lower()`` and ``upper()``"""
    room = c.take(text.parts[1])
    every = c.slot(I8)
    c.b.store(ir.Constant(I8, 0), every)
    first = ir.Constant(I8, ord("a") if upper else ord("A"))
    with c.counting(_ZERO, text.parts[1]) as (i, _):
        byte = _byte(text, i, c)
        c.b.store(c.b.or_(c.b.load(every), byte), every)
        letter = c.b.icmp_unsigned("<", c.b.sub(byte, first), ir.Constant(I8, 26))
        other = c.b.xor(byte, ir.Constant(I8, 32))
        c.b.store(c.b.select(letter, other, byte), c.b.gep(room, [i]))
    c.check(c.b.icmp_signed(">=", c.b.load(every), ir.Constant(I8, 0)))
    return Value(Kind.TEXT, (room, text.parts[1]))


def added(texts: list[Value], c: Code) -> Value:
    """Texts one after the other."""
    size = texts[0].parts[1]
    for text in texts[1:]:
        size = c.b.add(size, text.parts[1])
    room = c.take(size)
    place = room
    for text in texts:
        c.external("memcpy", BYTES, place, *text.parts)
        place = c.b.gep(place, [text.parts[1]])
    return Value(Kind.TEXT, (room, size))


def cut(text: Value, first: Any, last: Any, c: Code) -> Value:
    """``text[first:last]``; None for an end that is not given."""
    check_ascii(text, c)
    size = text.parts[1]

    def place(at: Any, otherwise: Any) -> Any:
        if at is None:
            return otherwise
        below = c.b.icmp_signed("<", at, _ZERO)
        at = c.b.select(below, c.b.add(at, size), at)
        at = c.b.select(c.b.icmp_signed("<", at, _ZERO), _ZERO, at)
        return c.b.select(c.b.icmp_signed(">", at, size), size, at)

    start, end = place(first, _ZERO), place(last, size)
    some = c.b.sub(end, start)
    some = c.b.select(c.b.icmp_signed("<", some, _ZERO), _ZERO, some)
    return Value(Kind.TEXT, (c.b.gep(text.parts[0], [start]), some))


def character(text: Value, at: Any, c: Code) -> Value:
    """``text[at]``"""
    check_ascii(text, c)
    below = c.b.icmp_signed("<", at, _ZERO)
    at = c.b.select(below, c.b.add(at, text.parts[1]), at)
    c.check(c.b.icmp_unsigned("<", at, text.parts[1]))
    return Value(Kind.TEXT, (c.b.gep(text.parts[0], [at]), _ONE))


def digits(whole: Any, c: Code) -> Value:
    """An integer as text."""
    most = ir.Constant(I64, 20)
    room = c.take(most)
    place, left = c.slot(I64), c.slot(I64)
    c.b.store(most, place)
    negative = c.b.icmp_signed("<", whole, _ZERO)
    c.b.store(c.b.select(negative, c.b.neg(whole), whole), left)
    head, after = c.block("digit"), c.block("digits")

    def put(byte: Any) -> None:
        at = c.b.sub(c.b.load(place), _ONE)
        c.b.store(byte, c.b.gep(room, [at]))
        c.b.store(at, place)

    c.go(head)
    ten = ir.Constant(I64, 10)
    rest = c.b.load(left)
    put(c.b.trunc(c.b.add(c.b.urem(rest, ten), ir.Constant(I64, ord("0"))), I8))
    rest = c.b.udiv(rest, ten)
    c.b.store(rest, left)
    c.b.cbranch(c.b.icmp_unsigned("!=", rest, _ZERO), head, after)
    c.b.position_at_end(after)
    with c.b.if_then(negative):
        put(ir.Constant(I8, ord("-")))
    at = c.b.load(place)
    return Value(Kind.TEXT, (c.b.gep(room, [at]), c.b.sub(most, at)))


def as_text(value: Value, c: Code) -> Value:
    """``str(value)``, in a formatted text too."""
    value = c.present(value)
    if value.kind is Kind.TEXT:
        return value
    if value.kind is Kind.INT:
        return digits(value.parts[0], c)
    raise Unfit(f"it makes text of {value.kind.value}")
