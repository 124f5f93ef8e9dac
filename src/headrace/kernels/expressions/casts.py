"""CAST and TRY_CAST: what fits is converted, what does not stops the job or becomes null."""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.errors import ExpressionError, PlanError
from headrace.kernels.columns import from_numbers, numbers, validity
from headrace.kernels.expressions.kernel import (
    ONE_ROW,
    Kernel,
    Scope,
    apply,
    apply_arrays,
    constant,
    node,
    not_for_spark,
    spread,
)
from headrace.types import from_sqlglot, type_name

# Spark strips these from text before it reads a number, a date or a word out of it.
_BLANKS = "".join(chr(c) for c in range(0x21)) + "\x7f"
_INTEGER = r"^[+-]?[0-9]+$"
_DOUBLE = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_DATE = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.DOTALL | re.ASCII)
_TIME = re.compile(
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(\s*\S.*)?)?)?)?)?)?",
    re.DOTALL | re.ASCII,
)
_SPECIAL = re.compile(r"(epoch|now|today|tomorrow|yesterday)(?:\s+(\S+))?", re.IGNORECASE)
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # after so many years the calendar repeats
_PLAIN_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_PLAIN_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_FIRST, _LAST = -62_135_500_000_000_000, 253_402_200_000_000_000  # what a datetime can say
_LAST_TABLE = 2_114_380_800_000_000  # 2037-01-01
_TRUE, _FALSE = {"t", "true", "y", "yes", "1"}, {"f", "false", "n", "no", "0"}


@node(exp.Cast, exp.TryCast)
def build_cast(scope: Scope, tree: exp.Cast) -> Kernel:
    strict = not isinstance(tree, exp.TryCast)
    return cast(scope.compile(tree.this), from_sqlglot(tree.to), scope.zone, strict=strict)


def cast(kernel: Kernel, to: pa.DataType, zone: str = "UTC", strict: bool = True) -> Kernel:
    """The kernel's values as another type."""
    source, t = kernel.type, pa.types
    if source.equals(to):
        return kernel
    if t.is_null(source):
        return apply(to, lambda v: v.cast(to), kernel)

    def arrays(convert: Callable[[pa.Array], pa.Array]) -> Kernel:
        return apply_arrays(to, convert, kernel, raises=strict)

    if t.is_string(to):
        if t.is_boolean(source) or t.is_integer(source) or t.is_date(source):
            return apply(to, lambda v: pc.cast(v, to), kernel)
        if t.is_floating(source) or t.is_decimal(source):
            text = apply_arrays(to, _number_text, kernel)
            return (
                not_for_spark(text) if t.is_floating(source) else text
            )  # Java before 19 adds digits
        if t.is_timestamp(source):
            return apply_arrays(to, lambda a: time_text(a, zone), kernel)
        if t.is_binary(source):
            # Spark keeps bytes that are not UTF-8 in its strings; Arrow's strings cannot.
            return not_for_spark(arrays(lambda a: _decode(a, strict)))
    if t.is_string(source):
        if kernel.constant and (t.is_date(to) or t.is_timestamp(to)):
            kernel = _special_word(kernel, to)
        if t.is_integer(to):
            return arrays(lambda a: _text_integer(a, to, strict))
        if t.is_floating(to):
            return arrays(lambda a: _text_double(a, to, strict))
        if t.is_boolean(to):
            return arrays(lambda a: _each(a, to, _word_truth, strict))
        if t.is_date(to):
            return arrays(lambda a: text_date(a, strict))
        if t.is_timestamp(to):
            read = arrays(lambda a: text_time(a, to, zone, strict))
            return not_for_spark(read) if to.tz and not _is_whole_time(read) else read
        if t.is_decimal(to):
            return arrays(lambda a: _each(a, to, lambda s: _text_decimal(s, to), strict))
        if t.is_binary(to):
            return apply(to, lambda v: pc.cast(v, to), kernel)
    if t.is_boolean(source) and (t.is_integer(to) or t.is_floating(to)):
        return apply(to, lambda v: pc.cast(pc.cast(v, pa.int8()), to), kernel)
    if t.is_boolean(to) and (t.is_integer(source) or t.is_floating(source)):
        return apply(to, lambda v: pc.not_equal(v, 0), kernel)
    if t.is_integer(source):
        if t.is_integer(to):
            if to.bit_width >= source.bit_width:
                return apply(to, lambda v: pc.cast(v, to), kernel)
            return arrays(lambda a: _narrow(a, to, strict))
        if t.is_floating(to):
            return apply_arrays(to, lambda a: _to_float(a, to), kernel)
        if t.is_timestamp(to) and to.tz:
            return arrays(lambda a: _seconds_time(a, to))
        if t.is_decimal(to):
            return arrays(lambda a: _to_decimal(a, to, strict))
    if t.is_floating(source):
        if t.is_floating(to):
            return apply(to, lambda v: pc.cast(v, to, safe=False), kernel)
        if t.is_integer(to):
            return arrays(lambda a: _float_integer(a, to, strict))
        if t.is_timestamp(to) and to.tz:
            return arrays(lambda a: _float_time(a, to, strict))
        if t.is_decimal(to):
            return not_for_spark(
                arrays(lambda a: _each(a, to, lambda x: _float_decimal(x, to), strict))
            )
    if t.is_decimal(source):
        if t.is_floating(to):
            return apply_arrays(to, lambda a: _each(a, to, float, True), kernel)
        if t.is_integer(to):
            return arrays(lambda a: _each(a, to, lambda x: _fit(int(x), to), strict))
        if t.is_decimal(to):
            return arrays(lambda a: _to_decimal(a, to, strict))
    if t.is_date(source) and t.is_timestamp(to):
        return apply_arrays(to, lambda a: _date_time(a, to, zone), kernel)
    if t.is_timestamp(source):
        if t.is_date(to):
            return apply_arrays(to, lambda a: local(a, zone).cast(to, safe=False), kernel)
        if t.is_timestamp(to):
            if to.tz:
                return apply_arrays(to, lambda a: _from_local(a, zone).cast(to), kernel)
            return apply_arrays(to, lambda a: local(a, zone), kernel)
        if source.tz and t.is_integer(to):
            return arrays(lambda a: _narrow(_floor_seconds(a), to, strict))
        if source.tz and t.is_floating(to):
            return apply_arrays(to, lambda a: _time_float(a, to), kernel)
    if t.is_list(source) and t.is_list(to):
        inner = cast(Kernel(source.value_type, lambda b: b.column(0)), to.value_type, zone, strict)

        def elements(a: pa.Array) -> pa.Array:
            if a.offset:  # just what the slice has, from its beginning
                a = pa.concat_arrays([a, a[:0]])
            flat = pa.RecordBatch.from_arrays([a.values], names=["v"])
            return pa.ListArray.from_arrays(
                a.offsets, inner.run(flat), type=to, mask=a.is_null() if a.null_count else None
            )

        listed = apply_arrays(to, elements, kernel, raises=inner.raises)
        return not_for_spark(listed) if inner.differs_in_spark else listed
    raise PlanError(f"a {type_name(source)} cannot be cast to {type_name(to)}")


def _refuse(value: Any, to: pa.DataType) -> ExpressionError:
    return ExpressionError(
        f"{value!r} cannot be cast to {type_name(to)}; use try_cast to get null instead"
    )


def _keep(array: pa.Array, good: pa.Array, to: pa.DataType, strict: bool) -> pa.Array:
    """The array with nulls where a value is not good, or a refusal of the first such value."""
    bad = pc.invert(good.fill_null(True))
    if pc.any(bad).as_py():
        if strict:
            raise _refuse(array.filter(bad)[0].as_py(), to)
        return pc.if_else(good, array, pa.scalar(None, array.type))
    return array


def _each(
    array: pa.Array, to: pa.DataType, convert: Callable[[Any], Any], strict: bool
) -> pa.Array:
    """Convert value by value, for conversions too irregular for a columnar kernel."""
    out: list[Any] = []
    for value in array.to_pylist():
        if value is None:
            out.append(None)
            continue
        try:
            out.append(convert(value))
        except (ValueError, ArithmeticError):
            if strict:
                raise _refuse(value, to) from None
            out.append(None)
    return pa.array(out, to)


def _word_truth(text: str) -> bool:
    word = text.strip(_BLANKS).lower()
    if word not in _TRUE and word not in _FALSE:
        raise ValueError(word)
    return word in _TRUE


def _strip(array: pa.Array) -> pa.Array:
    return pc.utf8_trim(array, characters=_BLANKS)


def _text_integer(array: pa.Array, to: pa.DataType, strict: bool) -> pa.Array:
    text = _strip(array)
    good = pc.match_substring_regex(text, _INTEGER)
    text = _keep(text, good, to, strict)
    text = pc.replace_substring_regex(text, r"^\+", "")
    try:
        return text.cast(to)
    except pa.ArrowInvalid:
        return _each(text, to, lambda s: _fit(int(s), to), strict)


def _text_double(array: pa.Array, to: pa.DataType, strict: bool) -> pa.Array:
    text = pc.utf8_trim(array, characters=_BLANKS[:-1])
    plain = pc.match_substring_regex(text, _DOUBLE)
    if pc.all(plain, min_count=0).as_py() is not False:
        return pc.replace_substring_regex(text, r"^\+", "").cast(to)
    return _each(text, to, _java_double, strict)


def _java_double(text: str) -> float:
    word = text.lower()
    if re.fullmatch(r"[+-]?inf(inity)?|nan", word):
        return float(word)
    if re.fullmatch(_DOUBLE[1:-1] + "[dfDF]?", text):
        return float(text.rstrip("dfDF"))
    if re.fullmatch(r"[+-]?0x[0-9a-f]*\.?[0-9a-f]*p[+-]?\d+[df]?", word):
        return float.fromhex(word.rstrip("df") if "p" in word else word)
    raise ValueError(text)


def _fit(value: int, to: pa.DataType) -> int:
    edge = 1 << (to.bit_width - 1)
    if not -edge <= value < edge:
        raise ValueError(value)
    return value


def _narrow(array: pa.Array, to: pa.DataType, strict: bool) -> pa.Array:
    try:
        return array.cast(to)
    except pa.ArrowInvalid:
        edge = 1 << (to.bit_width - 1)
        good = pc.and_(pc.greater_equal(array, -edge), pc.less(array, edge))
        return _keep(array, good, to, strict).cast(to)


def _to_float(array: pa.Array, to: pa.DataType) -> pa.Array:
    dtype = np.float32 if to.bit_width == 32 else np.float64
    values = numbers(array, f"i{array.type.bit_width // 8}")
    return from_numbers(values.astype(dtype), validity(array), to)


def _float_integer(array: pa.Array, to: pa.DataType, strict: bool) -> pa.Array:
    values = numbers(array, f"f{array.type.bit_width // 8}").astype(np.float64)
    edge = float(1 << (to.bit_width - 1))
    cut = np.trunc(values)
    # A bigint's upper edge is not a double: Spark takes 2^63 itself as the largest bigint.
    top = cut <= edge if to.bit_width == 64 else cut < edge
    good = (cut >= -edge) & top
    valid = _valid_where(good, values, validity(array), to, strict)
    high = cut >= edge
    whole = np.where(good & ~high, cut, 0).astype(np.int64)
    whole[high & good] = (1 << (to.bit_width - 1)) - 1
    return from_numbers(whole, valid, to)


def _valid_where(good: Any, values: Any, valid: Any, to: pa.DataType, strict: bool) -> Any:
    """Which values there are once those that do not fit are null, or refused."""
    bad = ~good & valid if valid.size else ~good
    if not bad.any():
        return valid
    if strict:
        raise _refuse(float(values[bad][0]), to)
    return good & valid if valid.size else good


def _seconds_time(array: pa.Array, to: pa.DataType) -> pa.Array:
    """Seconds as an instant; what lies beyond the largest instant becomes it, as in Spark."""
    edge = ((1 << 63) - 1) // 1_000_000
    seconds = array.cast(pa.int64())
    inside = pc.min_element_wise(pc.max_element_wise(seconds, -edge - 1), edge + 1)
    values = numbers(inside, np.int64)
    micros = np.clip(values, -edge, edge) * 1_000_000
    limits = np.iinfo(np.int64)
    micros[values > edge] = limits.max
    micros[values < -edge] = limits.min
    return from_numbers(micros, validity(array), pa.int64()).cast(to)


def _float_time(array: pa.Array, to: pa.DataType, strict: bool) -> pa.Array:
    values = numbers(array, f"f{array.type.bit_width // 8}").astype(np.float64)
    with np.errstate(over="ignore"):
        good = np.isfinite(values) & (np.abs(values * 1e6) < 2.0**63)
    valid = _valid_where(good, values, validity(array), to, strict)
    micros = np.trunc(np.where(good, values, 0) * 1_000_000).astype(np.int64)
    return from_numbers(micros, valid, pa.int64()).cast(to)


def _floor_seconds(array: pa.Array) -> pa.Array:
    micros = numbers(array, np.int64)
    return from_numbers(micros // 1_000_000, validity(array), pa.int64())


def _time_float(array: pa.Array, to: pa.DataType) -> pa.Array:
    return from_numbers(numbers(array, np.int64) / 1_000_000, validity(array), to)


def _to_decimal(array: pa.Array, to: pa.DataType, strict: bool) -> pa.Array:
    try:
        if pa.types.is_decimal(array.type) and array.type.scale > to.scale:
            raise pa.ArrowInvalid("rounds")
        return array.cast(to)
    except pa.ArrowInvalid:
        return _each(array, to, lambda x: _quantize(decimal.Decimal(x), to), strict)


def _quantize(value: decimal.Decimal, to: pa.DataType) -> decimal.Decimal:
    with decimal.localcontext(decimal.Context(prec=77)):
        rounded = value.quantize(decimal.Decimal(1).scaleb(-to.scale), decimal.ROUND_HALF_UP)
        if abs(rounded.scaleb(to.scale)) >= decimal.Decimal(10) ** to.precision:
            raise ValueError(value)
        return rounded


def _text_decimal(text: str, to: pa.DataType) -> decimal.Decimal:
    word = text.strip(_BLANKS)
    if not re.fullmatch(_DOUBLE[1:-1], word):
        raise ValueError(text)
    return _quantize(decimal.Decimal(word), to)


def _float_decimal(value: float, to: pa.DataType) -> decimal.Decimal | None:
    if value != value or value in (float("inf"), float("-inf")):
        return None
    return _quantize(decimal.Decimal(repr(value)), to)


def _number_text(array: pa.Array) -> pa.Array:
    if pa.types.is_decimal(array.type):
        return pa.array(
            [None if v is None else format(v, "f") for v in array.to_pylist()], pa.string()
        )
    if pa.types.is_float32(array.type):
        values = [None if v is None else np.float32(v) for v in array.to_pylist()]
        return pa.array([None if v is None else java_double(v) for v in values], pa.string())
    return pa.array([None if v is None else java_double(v) for v in array.to_pylist()], pa.string())


def java_double(value: Any) -> str:
    """A floating number as Java prints it: ``1.0``, ``1.5E-5``, ``NaN``."""
    if value != value:
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if np.signbit(value) else "0.0"
    sign = "-" if value < 0 else ""
    mantissa, exponent = np.format_float_scientific(abs(value), unique=True, trim="-").split("e")
    power = int(exponent)
    digits = mantissa.replace(".", "")
    if len(digits) == 1 and power < (-44 if isinstance(value, np.float32) else -320):
        # The smallest numbers have more than one shortest form: Java takes two digits.
        mantissa, exponent = f"{float(abs(value)):.1e}".split("e")
        digits, power = mantissa.replace(".", "").rstrip("0"), int(exponent)
    if -3 <= power < 7:
        if power < 0:
            return f"{sign}0.{'0' * (-power - 1)}{digits}"
        whole = digits[: power + 1].ljust(power + 1, "0")
        return f"{sign}{whole}.{digits[power + 1 :] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"


def _decode(array: pa.Array, strict: bool) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return _each(array, pa.string(), lambda value: value.decode("utf-8"), strict)


def local(array: pa.Array, zone: str) -> pa.Array:
    """A time as the wall clock of a zone shows it, without a zone."""
    if array.type.tz is None:
        return array
    if zone == "UTC":
        return array.cast(pa.int64()).cast(pa.timestamp("us"))
    if not _in_tables(array):
        offsets = _offsets(array, zone, lambda v, where: v.astimezone(where).utcoffset())
        walls = numbers(array, np.int64) + offsets
        return from_numbers(walls, validity(array), pa.int64()).cast(pa.timestamp("us"))
    return pc.local_timestamp(array.cast(pa.timestamp("us", tz=zone)))


def _in_tables(array: pa.Array) -> bool:
    """Whether Arrow knows the zone's clock at all these times.

    It reads a zone's table of changes, which ends in 2037, and not the rule that goes on after it.
    """
    latest = pc.max(array.cast(pa.int64())).as_py()
    return latest is None or latest < _LAST_TABLE


def _from_local(array: pa.Array, zone: str) -> pa.Array:
    if zone == "UTC":
        return array.cast(pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    # Java takes a time in a gap forward by the gap, and a doubled time at its first pass.
    return from_wall(array, zone)


def from_wall(array: pa.Array, zone: str) -> pa.Array:
    """Wall-clock times of a zone as instants, as java.time resolves gaps and overlaps."""
    try:
        if not _in_tables(array):
            raise pa.ArrowInvalid("beyond the tables")
        return pc.assume_timezone(array, zone, ambiguous="earliest", nonexistent="raise").cast(
            pa.timestamp("us", tz="UTC")
        )
    except pa.ArrowInvalid:
        offsets = _offsets(
            array, zone, lambda v, where: v.replace(tzinfo=where, fold=0).utcoffset()
        )
        instants = numbers(array, np.int64) - offsets
        return from_numbers(instants, validity(array), pa.int64()).cast(
            pa.timestamp("us", tz="UTC")
        )


def _offsets(array: pa.Array, zone: str, offset: Callable[[Any, ZoneInfo], Any]) -> Any:
    """The microseconds a zone is ahead of UTC at each time, by the year's rules to the end."""
    inside = np.clip(numbers(array, np.int64), _FIRST, _LAST)
    where, micro = ZoneInfo(zone), datetime.timedelta(microseconds=1)
    times = pa.array(inside).cast(array.type).to_pylist()
    return np.array([offset(v, where) // micro for v in times], np.int64)


def _date_time(array: pa.Array, to: pa.DataType, zone: str) -> pa.Array:
    wall = array.cast(pa.timestamp("us"))
    return wall if to.tz is None else _from_local(wall, zone)


def time_text(array: pa.Array, zone: str) -> pa.Array:
    """Times as text, the fraction without trailing zeros."""
    # Arrow prints all six digits of the fraction.
    text = pc.strftime(local(array, zone), format="%Y-%m-%d %H:%M:%S")
    return pc.replace_substring_regex(text, r"\.?0*$", "")


def text_date(array: pa.Array, strict: bool) -> pa.Array:
    """Dates from text such as ``2020-01-02``; the time of day, if any, is left out."""
    if pc.all(pc.match_substring_regex(array, _PLAIN_DATE), min_count=0).as_py() is not False:
        try:
            return array.cast(pa.date32())
        except pa.ArrowInvalid:
            pass
    return _each(array, pa.date32(), _parse_date, strict)


def _parse_date(text: str) -> int:
    match = _DATE.fullmatch(text.strip(_BLANKS))
    if not match:
        raise ValueError(text)
    return _days(*(int(g) if g else 1 for g in match.groups()))


def _days(year: int, month: int, day: int) -> int:
    """The days from 1970-01-01 to a date of any year; Python's dates end in 9999."""
    cycles, year = divmod(year, _CYCLE_YEARS)
    inside = datetime.date(year + _CYCLE_YEARS, month, day).toordinal()
    days = inside + (cycles - 1) * _CYCLE_DAYS - _EPOCH
    return _fit(days, pa.int32())


def _is_whole_time(kernel: Kernel) -> bool:
    """Whether a time was read from constant text, so that Spark reads the same.

    Spark takes a time of day without a date as one of today, which is another time on each run.
    """
    if not kernel.constant:
        return False
    try:
        return bool(spread(kernel.run(ONE_ROW), 1)[0].is_valid)
    except ExpressionError:
        return False


def _special_word(kernel: Kernel, to: pa.DataType) -> Kernel:
    """Constant text with ``epoch`` replaced by its date; words that ask the clock are refused."""
    text = spread(kernel.run(ONE_ROW), 1)[0].as_py()
    match = None if text is None else _SPECIAL.fullmatch(text.strip(_BLANKS))
    if match is None:
        return kernel
    if match[2]:
        try:
            zone_of(match[2])
        except ValueError:
            return kernel
    if match[1].lower() != "epoch":
        raise PlanError(
            f"'{text}' depends on the clock and differs each time a pipeline runs; use the "
            "record's own time, or a constant: hr.lit(datetime.now())"
        )
    # The instant, or its wall clock without a zone: both read it as that of UTC.
    return constant(pa.scalar("1970-01-01" if pa.types.is_date(to) else "1970-01-01 00:00:00Z"))


def text_time(array: pa.Array, to: pa.DataType, zone: str, strict: bool) -> pa.Array:
    """Times from text; without an offset in it, of the given zone."""
    if pc.all(pc.match_substring_regex(array, _PLAIN_TIME), min_count=0).as_py() is not False:
        try:
            wall = array.cast(pa.timestamp("us"))
            return wall if to.tz is None else _from_local(wall, zone)
        except pa.ArrowInvalid:
            pass
    return _each(array, to, lambda s: _parse_time(s, to, zone), strict)


def _parse_time(text: str, to: pa.DataType, zone: str) -> int:
    """Microseconds since 1970. A time of day without a date is refused: Spark takes today's."""
    match = _TIME.fullmatch(text.strip(_BLANKS))
    if not match:
        raise ValueError(text)
    *parts, fraction, offset = match.groups()
    year, month, day = (int(part or 1) for part in parts[:3])
    hour, minute, second = (int(part or 0) for part in parts[3:])
    clock = datetime.time(hour, minute, second)
    micros = int(((fraction or "") + "000000")[:6])
    days = _days(year, month, day)
    seconds = (hour * 60 + minute) * 60 + second
    where = zone_of(offset.strip()) if offset else zone_of(zone)
    if to.tz is not None:
        # The rules of a zone repeat with the calendar, so any year has its like among Python's.
        like = year if 1 < year < 9999 else year % _CYCLE_YEARS + (400 if year < 2 else 9200)
        wall = datetime.datetime.combine(datetime.date(like, month, day), clock, where)
        ahead = wall.utcoffset()
        assert ahead is not None
        seconds -= ahead // datetime.timedelta(seconds=1)
    total = (days * 86_400 + seconds) * 1_000_000 + micros
    if not -(1 << 63) <= total < 1 << 63:
        raise ValueError(text)
    return total


def zone_of(name: str) -> datetime.tzinfo:
    """A zone from ``Z``, ``+02:00``, ``GMT+1`` or a name such as ``Europe/Paris``, as in Java."""
    if name in {"Z", "UTC", "GMT", "UT"}:
        return datetime.UTC
    match = _OFFSET.fullmatch(name)
    if match:
        sign, hours, minutes, seconds = match.groups()[:4] if match[1] else match.groups()[4:]
        minutes, seconds = int(minutes or 0), int(seconds or 0)
        offset = datetime.timedelta(hours=int(hours), minutes=minutes, seconds=seconds)
        if minutes > 59 or seconds > 59 or offset > datetime.timedelta(hours=18):
            raise ValueError(name)
        return datetime.timezone(-offset if sign == "-" else offset)
    try:
        return ZoneInfo(_SHORT_ZONES.get(name, name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(name) from None


_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::(\d{1,2})(?::(\d{2}))?)?"
    r"|(?:UTC|GMT|UT)?([+-])(\d{2})(\d{2})(\d{2})?",
    re.ASCII,
)
_SHORT_ZONES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo", "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare",
    "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
"""Java's three-letter names of zones that the zone database does not have."""
