"""Dates and times: parts, truncation, arithmetic, reading and writing."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.errors import ExpressionError, PlanError
from headrace.kernels.columns import Text, from_numbers, numbers, validity
from headrace.kernels.expressions.casts import cast, from_wall, local
from headrace.kernels.expressions.kernel import (
    Kernel,
    Scope,
    apply,
    apply_arrays,
    constant,
    function,
    literal_value,
    node,
)
from headrace.kernels.native import dates
from headrace.types import INTERVAL, TIMESTAMP, type_name

INT = pa.int32()
DATE = pa.date32()
_SECOND = 1_000_000
_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": _SECOND,
    "minute": 60 * _SECOND,
    "hour": 3600 * _SECOND,
    "day": 86400 * _SECOND,
    "week": 7 * 86400 * _SECOND,
}


def moment(scope: Scope, kernel: Kernel, where: str) -> Kernel:
    """An argument that must be a date or a time; text that is a constant is read as one."""
    kind = kernel.type
    if (pa.types.is_string(kind) and kernel.constant) or pa.types.is_null(kind):
        return cast(kernel, TIMESTAMP, scope.zone)
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise PlanError(f"{where} takes a date or a time, not {type_name(kind)}")
    return kernel


def wall(array: pa.Array, zone: str) -> pa.Array:
    """What the zone's wall clock shows, as a timestamp without a zone."""
    if pa.types.is_date(array.type):
        return array.cast(pa.timestamp("us"))
    return local(array, zone)


@node(exp.Interval)
def build_interval(scope: Scope, tree: exp.Interval) -> Kernel:
    unit = tree.unit.name.lower().removesuffix("s") if tree.unit else ""
    amount = tree.this.name if tree.this is not None else ""
    if unit in ("month", "year", "quarter"):
        raise PlanError(f"an interval of {unit}s has no fixed length; use add_months")
    if unit not in _UNITS:
        raise PlanError(f"INTERVAL takes a unit from {', '.join(_UNITS)}, not '{unit}'")
    try:
        micros = round(float(amount) * _UNITS[unit])
        if "." not in amount:
            micros = int(amount) * _UNITS[unit]
    except ValueError:
        raise PlanError(f"INTERVAL '{amount}' is not a number of {unit}s") from None
    return constant(pa.scalar(datetime.timedelta(microseconds=micros), INTERVAL))


def add_interval(
    scope: Scope, left: Kernel, right: Kernel, negative: bool, days: bool = False
) -> Kernel:
    """A date or time plus or minus an interval, or a date plus or minus whole days.

    ``days`` says that the interval is written in days, which leaves a date a date.
    """
    if pa.types.is_duration(left.type) and not negative and not pa.types.is_duration(right.type):
        left, right = right, left
    if pa.types.is_integer(left.type) and pa.types.is_date(right.type) and not negative:
        left, right = right, left
    if pa.types.is_date(left.type) and pa.types.is_integer(right.type):
        return _shift_days(left, right, -1 if negative else 1)
    if not pa.types.is_duration(right.type):
        raise PlanError(
            f"'{'-' if negative else '+'}' does not join {type_name(left.type)} and "
            f"{type_name(right.type)}; add a timedelta, or INTERVAL '10' SECOND"
        )
    add = _subtracted if negative else _added
    if pa.types.is_duration(left.type):
        return apply(INTERVAL, add, left, right, raises=True)
    kind = left.type
    if pa.types.is_date(kind):
        if days:
            step = right.run(None).as_py() // datetime.timedelta(days=1)
            return _shift_days(left, constant(pa.scalar(step, INT)), -1 if negative else 1)
        left = cast(left, TIMESTAMP, scope.zone)
        kind = TIMESTAMP
    if kind.tz is None or scope.zone == "UTC":
        return apply(kind, add, left, right, raises=True)
    zone, day = scope.zone, _UNITS["day"]

    def run(a: pa.Array, b: pa.Array) -> pa.Array:
        # Whole days by the wall clock, the rest by the instant, as Spark does.
        step = numbers(b, np.int64)
        whole = np.sign(step) * (np.abs(step) // day) * day
        valid = validity(b)
        by_clock, rest = (
            from_numbers(v, valid, pa.int64()).cast(INTERVAL) for v in (whole, step - whole)
        )
        moved = from_wall(add(wall(a, zone), by_clock), zone)
        moved = pc.if_else(pa.array(whole == 0), a, moved)
        return add(moved, rest)

    return apply_arrays(kind, run, left, right, raises=True)


# Arrow's own sums of times fail for what is under nulls too; those of numbers do not.


def _added(a: Any, b: Any) -> Any:
    return pc.add_checked(a.cast(pa.int64()), b.cast(pa.int64())).cast(a.type)


def _subtracted(a: Any, b: Any) -> Any:
    return pc.subtract_checked(a.cast(pa.int64()), b.cast(pa.int64())).cast(a.type)


def _shift_days(value: Kernel, days: Kernel, sign: int) -> Kernel:
    if days.type.bit_width > 32:
        raise PlanError("a date takes whole days of type int; cast them, as in cast(x as int)")

    def run(a: pa.Array, b: pa.Array) -> pa.Array:
        start, step = numbers(a, np.int32), numbers(b.cast(INT), np.int32)
        left, right = validity(a), validity(b)
        valid = left & right if left.size and right.size else left if left.size else right
        with np.errstate(over="ignore"):
            return from_numbers(start + np.int32(sign) * step, valid, INT).cast(DATE)

    return apply_arrays(DATE, run, value, days)


def between_times(scope: Scope, left: Kernel, right: Kernel) -> Kernel:
    """The interval from ``right`` to ``left``."""
    sides = [moment(scope, k, "'-'") for k in (left, right)]
    zone = scope.zone

    def run(a: pa.Array, b: pa.Array) -> pa.Array:
        return pc.subtract(wall(a, zone), wall(b, zone))  # Spark counts by the wall clock too

    return apply_arrays(INTERVAL, run, *sides)


def _part(names: tuple[str, ...], compute: Callable[[Any], Any], clock: bool = False) -> None:
    @function(*names)
    def build(scope: Scope, value: Kernel) -> Kernel:
        value = moment(scope, value, names[0])
        if clock and pa.types.is_date(value.type):
            value = cast(value, TIMESTAMP, scope.zone)
        zone = scope.zone

        def run(array: pa.Array) -> pa.Array:
            return compute(wall(array, zone)).cast(INT)

        return apply_arrays(INT, run, value)


_part(("year",), pc.year)
_part(("quarter",), pc.quarter)
_part(("month",), pc.month)
_part(("day", "dayofmonth"), pc.day)
_part(("dayofyear",), pc.day_of_year)
_part(("weekofyear",), pc.iso_week)
_part(("weekday",), lambda a: pc.day_of_week(a, count_from_zero=True, week_start=1))
_part(("dayofweek",), lambda a: pc.day_of_week(a, count_from_zero=False, week_start=7))
_part(("hour",), pc.hour, clock=True)
_part(("minute",), pc.minute, clock=True)
_part(("second",), pc.second, clock=True)

_TRUNC = {
    "year": "year", "yyyy": "year", "yy": "year",
    "quarter": "quarter",
    "month": "month", "mon": "month", "mm": "month",
    "week": "week",
    "day": "day", "dd": "day",
    "hour": "hour", "minute": "minute", "second": "second",
    "millisecond": "millisecond", "microsecond": "microsecond",
}  # fmt: skip


_COARSE = ("year", "quarter", "month", "week", "day")


@function("date_trunc")
def build_date_trunc(scope: Scope, unit: Kernel, value: Kernel) -> Kernel:
    name = _unit(unit, "date_trunc", _TRUNC)
    value = moment(scope, value, "date_trunc")
    value = cast(value, TIMESTAMP, scope.zone)
    zone = scope.zone

    def run(array: pa.Array) -> pa.Array:
        local = wall(array, zone)
        cut = pc.floor_temporal(local, unit=name)
        if name in _COARSE:
            return from_wall(cut, zone) if zone != "UTC" else _utc(cut)
        # Within a day the offset stays, also in an hour that the clock shows twice.
        off = numbers(local, np.int64) - numbers(cut, np.int64)
        return from_numbers(numbers(array, np.int64) - off, validity(array), pa.int64()).cast(
            TIMESTAMP
        )

    return apply_arrays(TIMESTAMP, run, value)


def _utc(array: pa.Array) -> pa.Array:
    return array.cast(pa.int64()).cast(TIMESTAMP)


@function("trunc")
def build_trunc(scope: Scope, value: Kernel, unit: Kernel) -> Kernel:
    coarse = {k: v for k, v in _TRUNC.items() if v in ("year", "quarter", "month", "week")}
    name = _unit(unit, "trunc", coarse)
    value = cast(moment(scope, value, "trunc"), DATE, scope.zone)
    return apply_arrays(
        DATE,
        lambda a: pc.floor_temporal(a.cast(pa.timestamp("us")), unit=name).cast(DATE),
        value,
    )


def _unit(kernel: Kernel, where: str, known: dict[str, str]) -> str:
    name = str(literal_value(kernel, "the unit", where)).lower()
    if name not in known:
        raise PlanError(f"{where} takes a unit from {', '.join(known)}, not '{name}'")
    return known[name]


def _days(scope: Scope, value: Kernel, days: Kernel, sign: int, where: str) -> Kernel:
    if not pa.types.is_integer(days.type):
        raise PlanError(f"{where} takes a whole number of days, not {type_name(days.type)}")
    return _shift_days(cast(moment(scope, value, where), DATE, scope.zone), days, sign)


@function("date_add", "dateadd")
def build_date_add(scope: Scope, value: Kernel, days: Kernel) -> Kernel:
    return _days(scope, value, days, 1, "date_add")


@function("date_sub")
def build_date_sub(scope: Scope, value: Kernel, days: Kernel) -> Kernel:
    return _days(scope, value, days, -1, "date_sub")


@function("datediff", "date_diff")
def build_datediff(scope: Scope, end: Kernel, start: Kernel) -> Kernel:
    sides = [cast(moment(scope, k, "datediff"), DATE, scope.zone) for k in (end, start)]
    return apply(INT, lambda a, b: pc.subtract(a.cast(INT), b.cast(INT)), *sides)


@function("add_months")
def build_add_months(scope: Scope, value: Kernel, months: Kernel) -> Kernel:
    if not pa.types.is_integer(months.type):
        raise PlanError(f"add_months takes a whole number, not {type_name(months.type)}")
    value = cast(moment(scope, value, "add_months"), DATE, scope.zone)
    months = cast(months, INT) if months.type.bit_width > 32 else months

    def run(a: pa.Array, b: pa.Array) -> pa.Array:
        days = numbers(a, np.int32).astype("datetime64[D]")
        month = days.astype("datetime64[M]")
        target = month + numbers(b.cast(pa.int64()), np.int64)
        last = (target + 1).astype("datetime64[D]") - target.astype("datetime64[D]")
        offset = np.minimum(
            (days - month.astype("datetime64[D]")).astype(np.int64), last.astype(np.int64) - 1
        )
        out = target.astype("datetime64[D]").astype(np.int64) + offset
        left, right = validity(a), validity(b)
        valid = left & right if left.size and right.size else left if left.size else right
        beyond = np.abs(out) >= 1 << 31
        if (beyond & valid if valid.size else beyond).any():
            raise ExpressionError("a date out of range in 'add_months'")
        return from_numbers(out.astype(np.int32), valid, INT).cast(DATE)

    return apply_arrays(DATE, run, value, months, raises=True)


@function("last_day")
def build_last_day(scope: Scope, value: Kernel) -> Kernel:
    value = cast(moment(scope, value, "last_day"), DATE, scope.zone)

    def run(a: pa.Array) -> pa.Array:
        month = numbers(a, np.int32).astype("datetime64[D]").astype("datetime64[M]") + 1
        last = month.astype("datetime64[D]").astype(np.int64) - 1
        return from_numbers(last.astype(np.int32), validity(a), INT).cast(DATE)

    return apply_arrays(DATE, run, value)


def _float_seconds(array: pa.Array) -> pa.Array:
    """Seconds as an instant: null for what is not a number, the edge for what lies beyond it."""
    values = numbers(array, np.float64)
    with np.errstate(all="ignore"):
        micros = np.trunc(values * 1e6)
        high, low = micros >= 2.0**63, micros <= -(2.0**63)
        whole = np.where(np.isfinite(values) & ~high & ~low, micros, 0).astype(np.int64)
    whole[high], whole[low] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    valid, good = validity(array), np.isfinite(values)
    return from_numbers(whole, good & valid if valid.size else good, pa.int64()).cast(TIMESTAMP)


def _epoch(name: str, size: int) -> None:
    @function(f"unix_{name}")
    def since(scope: Scope, value: Kernel) -> Kernel:
        value = moment(scope, value, f"unix_{name}")
        if pa.types.is_date(value.type):
            raise PlanError(f"unix_{name} takes a time, not a date; cast it to timestamp")

        def run(array: pa.Array) -> pa.Array:
            return from_numbers(numbers(array, np.int64) // size, validity(array), pa.int64())

        return apply_arrays(pa.int64(), run, value)

    @function(f"timestamp_{name}")
    def at(scope: Scope, value: Kernel) -> Kernel:
        if pa.types.is_floating(value.type) and name == "seconds":
            return apply_arrays(TIMESTAMP, _float_seconds, cast(value, pa.float64()))
        if not pa.types.is_integer(value.type):
            raise PlanError(f"timestamp_{name} takes whole numbers, not {type_name(value.type)}")

        def run(v: Any) -> Any:
            try:
                return pc.multiply_checked(pc.cast(v, pa.int64()), size).cast(TIMESTAMP)
            except pa.ArrowInvalid:
                raise ExpressionError(f"a time out of range in 'timestamp_{name}'") from None

        return apply(TIMESTAMP, run, value, raises=True)


_epoch("seconds", _SECOND)
_epoch("millis", 1_000)
_epoch("micros", 1)

# Java's pattern letters: the directive of strftime, and what exactly it reads.
_LETTERS = {
    "yyyy": ("%Y", r"\d{4}"),
    "MM": ("%m", r"\d{2}"),
    "M": ("%m", r"\d{1,2}"),
    "MMM": ("%b", r"[A-Za-z]{3}"),
    "dd": ("%d", r"\d{2}"),
    "d": ("%d", r"\d{1,2}"),
    "HH": ("%H", r"\d{2}"),
    "H": ("%H", r"\d{1,2}"),
    "hh": ("%I", r"\d{2}"),
    "h": ("%I", r"\d{1,2}"),
    "mm": ("%M", r"\d{2}"),
    "m": ("%M", r"\d{1,2}"),
    "ss": ("%S", r"\d{2}"),
    "s": ("%S", r"\d{1,2}"),
    "SSS": ("%f", r"\d{3}"),
    "SSSSSS": ("%f", r"\d{6}"),
    "a": ("%p", r"[AaPp][Mm]"),
}


def _java_format(java: str, where: str) -> tuple[str, str]:
    """A Java pattern as a strptime format, and the regular expression of what it takes."""
    directives, regex = [], []
    for match in re.finditer(r"(([A-Za-z])\2*)|'([^']*)'|(.)", java, re.DOTALL):
        letters, _, quoted, other = match.groups()
        if letters:
            if letters not in _LETTERS:
                raise PlanError(
                    f"{where}: '{letters}' in the pattern {java!r} is not supported; "
                    f"there are: {', '.join(_LETTERS)}"
                )
            directive, expected = _LETTERS[letters]
            directives.append(directive)
            regex.append(expected)
        else:
            plain = (quoted or "'") if other is None else other
            directives.append(plain.replace("%", "%%"))
            regex.append(re.escape(plain))
    return "".join(directives), "^" + "".join(regex) + "$"


_FIELDS = {
    "yyyy": (dates.YEAR, 4, 4),
    "MM": (dates.MONTH, 2, 2),
    "M": (dates.MONTH, 1, 2),
    "dd": (dates.DAY, 2, 2),
    "d": (dates.DAY, 1, 2),
    "HH": (dates.HOUR, 2, 2),
    "H": (dates.HOUR, 1, 2),
    "mm": (dates.MINUTE, 2, 2),
    "m": (dates.MINUTE, 1, 2),
    "ss": (dates.SECOND, 2, 2),
    "s": (dates.SECOND, 1, 2),
    "SSS": (dates.MILLI, 3, 3),
    "SSSSSS": (dates.MICRO, 6, 6),
}


def _digits_pattern(java: str) -> tuple[Any, Any, Any] | None:
    """A pattern of digits and plain bytes as native code reads it; None for any other."""
    steps: list[tuple[int, int, int]] = []
    for match in re.finditer(r"(([A-Za-z])\2*)|'([^']*)'|(.)", java, re.DOTALL):
        letters, _, word, other = match.groups()
        if letters:
            if letters not in _FIELDS:
                return None
            steps.append(_FIELDS[letters])
        else:
            plain = (word or "'") if other is None else other
            steps.extend((dates.BYTE, byte, byte) for byte in plain.encode())
    kind, low, high = np.array(steps, np.int64).reshape(-1, 3).T
    return np.ascontiguousarray(kind), np.ascontiguousarray(low), np.ascontiguousarray(high)


def _reader(java: str, where: str) -> Callable[[pa.Array], pa.Array]:
    """What reads times by a Java pattern, to the letter: no other widths, no day 31 of June."""
    directives, regex = _java_format(java, where)
    digits = _digits_pattern(java)

    def refuse(value: Any) -> ExpressionError:
        return ExpressionError(f"{value!r} does not follow the pattern {java!r} in '{where}'")

    def native(array: pa.Array) -> pa.Array:
        text = Text.of(array)
        micros = np.empty(len(array), np.int64)
        kind, low, high = digits or ((), (), ())
        bad = dates.read_times(text.data, text.offsets, text.valid, kind, low, high, micros)
        if bad >= 0:
            raise refuse(array[bad].as_py())
        return from_numbers(micros, text.valid, pa.int64()).cast(pa.timestamp("us"))

    def one_by_one(array: pa.Array) -> pa.Array:
        out: list[datetime.datetime | None] = []
        for value in array.to_pylist():
            try:
                if value is not None and not re.fullmatch(regex[1:-1], value):
                    raise ValueError(value)
                out.append(None if value is None else datetime.datetime.strptime(value, directives))
            except ValueError:
                raise refuse(value) from None
        return pa.array(out, pa.timestamp("us"))

    return native if digits is not None else one_by_one


def _read(
    scope: Scope, value: Kernel, pattern: Kernel | None, kind: pa.DataType, name: str
) -> Kernel:
    if not pa.types.is_string(value.type):
        if pattern is not None:
            kind_name = type_name(value.type)
            raise PlanError(f"{name} takes a pattern for text only, not for {kind_name}")
        return cast(moment(scope, value, name), kind, scope.zone)
    if pattern is None:
        return cast(value, kind, scope.zone)
    read = _reader(str(literal_value(pattern, "the pattern", name)), name)
    naive = apply_arrays(pa.timestamp("us"), read, value, raises=True)
    return cast(naive, kind, scope.zone)


@function("to_date")
def build_to_date(scope: Scope, value: Kernel, pattern: Kernel | None = None) -> Kernel:
    return _read(scope, value, pattern, DATE, "to_date")


@function("to_timestamp")
def build_to_timestamp(scope: Scope, value: Kernel, pattern: Kernel | None = None) -> Kernel:
    return _read(scope, value, pattern, TIMESTAMP, "to_timestamp")


@function("date_format")
def build_date_format(scope: Scope, value: Kernel, pattern: Kernel) -> Kernel:
    java = str(literal_value(pattern, "the pattern", "date_format"))
    directives, _ = _java_format(java, "date_format")
    for letters in ("M", "d", "H", "h", "m", "s", "a", "SSS", "SSSSSS", "MMM"):
        if re.search(rf"(?<![A-Za-z]){letters}(?![A-Za-z])", java):
            raise PlanError(f"date_format: '{letters}' in {java!r} is not supported for writing")
    value = cast(moment(scope, value, "date_format"), TIMESTAMP, scope.zone)
    zone = scope.zone

    def run(array: pa.Array) -> pa.Array:
        text = pc.strftime(wall(array, zone), format=directives)
        # Arrow writes the seconds with their fraction.
        return pc.replace_substring_regex(text, r"\.\d{6}", "") if "%S" in directives else text

    return apply_arrays(pa.string(), run, value)
