"""Datetimes and timedeltas: microseconds, since 1970 or of their own."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from headrace.kernels.compiled.code import Code
from headrace.kernels.compiled.integers import checked, divided, quotient
from headrace.kernels.compiled.values import I64, TIMES, Kind, Unfit, Value

_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of which Python has a datetime."""
_SECOND, _DAY = 10**6, 86_400 * 10**6


def in_range(micros: Any, c: Code) -> Any:
    """Whether Python has a datetime of it."""
    moved = c.b.sub(micros, ir.Constant(I64, _FIRST))
    return c.b.icmp_unsigned("<=", moved, ir.Constant(I64, _LAST - _FIRST))


def binary(sign: str, a: Value, b: Value, c: Code) -> Value | None:
    """Arithmetic with times; None where there is none."""
    x, y = a.parts[0], b.parts[0]
    if a.kind in TIMES and a.kind is b.kind and sign == "-":
        return Value(Kind.DELTA, (c.b.sub(x, y),))
    if {a.kind, b.kind} & set(TIMES):
        if (a.kind in TIMES and b.kind is Kind.DELTA and sign in "+-") or (
            a.kind is Kind.DELTA and b.kind in TIMES and sign == "+"
        ):
            moved = checked(sign, x, y, c)
            c.check(in_range(moved, c))
            return Value(a.kind if a.kind in TIMES else b.kind, (moved,))
        return None
    if a.kind is b.kind is Kind.DELTA:
        if sign in ("+", "-"):
            return Value(Kind.DELTA, (checked(sign, x, y, c),))
        if sign == "/":
            return Value(Kind.FLOAT, (quotient(x, y, c),))
        if sign in ("//", "%"):
            floor, rest = divided(x, y, c)
            return Value(Kind.INT, (floor,)) if sign == "//" else Value(Kind.DELTA, (rest,))
    if a.kind is Kind.DELTA and b.kind is Kind.INT and sign in ("*", "//"):
        made = checked("*", x, y, c) if sign == "*" else divided(x, y, c)[0]
        return Value(Kind.DELTA, (made,))
    if a.kind is Kind.INT and b.kind is Kind.DELTA and sign == "*":
        return Value(Kind.DELTA, (checked("*", x, y, c),))
    return None


def _over(micros: Any, unit: int, c: Code) -> tuple[Any, Any]:
    return divided(micros, ir.Constant(I64, unit), c)


def attribute(value: Value, name: str, c: Code) -> Value:
    """``time.hour``, ``delta.days`` and the like."""
    value = c.present(value)
    days, rest = _over(value.parts[0], _DAY, c)
    if value.kind is Kind.DELTA:
        parts = {"days": days, "seconds": None, "microseconds": None}
        if name not in parts:
            raise Unfit(f"it reads .{name} of a timedelta")
        if name != "days":
            seconds, micros = _over(rest, _SECOND, c)
            parts |= {"seconds": seconds, "microseconds": micros}
        return Value(Kind.INT, (parts[name],))
    if name in ("year", "month", "day"):
        return Value(Kind.INT, (_civil(days, c)[name],))
    units = {
        "hour": (3600 * _SECOND, 24), "minute": (60 * _SECOND, 60),
        "second": (_SECOND, 60), "microsecond": (1, _SECOND),
    }  # fmt: skip
    if name not in units:
        raise Unfit(f"it reads .{name} of a datetime")
    unit, turn = units[name]
    return Value(Kind.INT, (_over(_over(rest, unit, c)[0], turn, c)[1],))


def method(value: Value, name: str, c: Code) -> Value:
    """``time.weekday()``, ``delta.total_seconds()`` and the like."""
    value = c.present(value)
    micros = value.parts[0]
    if (value.kind, name) in ((Kind.DELTA, "total_seconds"), (Kind.TIME, "timestamp")):
        return Value(Kind.FLOAT, (quotient(micros, ir.Constant(I64, _SECOND), c),))
    if value.kind in TIMES and name in ("weekday", "isoweekday"):
        days = _over(micros, _DAY, c)[0]
        day = _over(c.b.add(days, ir.Constant(I64, 3)), 7, c)[1]
        first = ir.Constant(I64, 1 if name == "isoweekday" else 0)
        return Value(Kind.INT, (c.b.add(day, first),))
    raise Unfit(f"it calls .{name}() of {value.kind.value}")


def _civil(days: Any, c: Code) -> dict[str, Any]:
    """Year, month and day; years begin in March here, so that a leap day is the last one."""
    b = c.b

    def k(number: int) -> Any:
        return ir.Constant(I64, number)

    era, of_era = _over(b.add(days, k(719_468)), 146_097, c)
    leaps = b.sub(b.udiv(of_era, k(36_524)), b.udiv(of_era, k(1460)))
    leaps = b.sub(leaps, b.udiv(of_era, k(146_096)))
    years = b.udiv(b.add(of_era, leaps), k(365))
    before = b.add(b.mul(years, k(365)), b.sub(b.udiv(years, k(4)), b.udiv(years, k(100))))
    of_year = b.sub(of_era, before)
    march = b.udiv(b.add(b.mul(of_year, k(5)), k(2)), k(153))
    day = b.sub(of_year, b.udiv(b.add(b.mul(march, k(153)), k(2)), k(5)))
    month = b.select(b.icmp_signed("<", march, k(10)), b.add(march, k(3)), b.sub(march, k(9)))
    year = b.add(years, b.mul(era, k(400)))
    january = b.zext(b.icmp_signed("<=", month, k(2)), I64)
    return {"year": b.add(year, january), "month": month, "day": b.add(day, k(1))}
