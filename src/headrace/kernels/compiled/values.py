"""What a compiled function computes with: values of a kind, as parts in LLVM's registers."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from llvmlite import ir

I1, I8, I32, I64, F32, F64 = (
    ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType(),
)  # fmt: skip
BYTES = I8.as_pointer()


class Unfit(Exception):
    """Why a function cannot be compiled, in a few words."""


class Kind(enum.Enum):
    """What a value is to Python. A value of any kind may be None at times."""

    INT = "an int"
    FLOAT = "a float"
    NUMBER = "an int or a float"
    """As a float, and whether Python has it as an int; such an int is at most 2**53 in size."""
    BOOL = "a bool"
    TEXT = "text"
    TIME = "a datetime"
    NAIVE = "a datetime without a zone"
    DELTA = "a timedelta"
    NONE = "None"


PARTS: dict[Kind, tuple[Any, ...]] = {
    Kind.INT: (I64,),
    Kind.FLOAT: (F64,),
    Kind.NUMBER: (F64, I1),
    Kind.BOOL: (I1,),
    Kind.TEXT: (BYTES, I64),
    Kind.TIME: (I64,),
    Kind.NAIVE: (I64,),
    Kind.DELTA: (I64,),
    Kind.NONE: (),
}
NUMBERS = (Kind.INT, Kind.FLOAT, Kind.NUMBER, Kind.BOOL)
WHOLE = (Kind.INT, Kind.BOOL)
TIMES = (Kind.TIME, Kind.NAIVE)


@dataclass(frozen=True)
class Value:
    """A value at run time; ``there`` says whether it is anything but None (None: it always is)."""

    kind: Kind
    parts: tuple[Any, ...]
    there: Any = None

    @property
    def literal(self) -> Any:
        """Its number, if that is known already; else None."""
        part = self.parts[0] if len(self.parts) == 1 and self.there is None else None
        return part.constant if isinstance(part, ir.Constant) else None

    def sure(self) -> Value:
        """The value, where it is known to be there."""
        return self if self.there is None else replace(self, there=None)


@dataclass(frozen=True)
class Thing:
    """A Python object that is used while compiling only: a module, a function, a class, a tuple."""

    object: Any
    name: str


@dataclass(frozen=True)
class Row:
    """The record itself."""


NOTHING = Value(Kind.NONE, (), ir.Constant(I1, 0))
_EPOCHS = {
    Kind.TIME: datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
    Kind.NAIVE: datetime.datetime(1970, 1, 1),
}
MICROSECOND = datetime.timedelta(microseconds=1)


def number(value: int | bool | float) -> Value:
    """A number that is known already."""
    if isinstance(value, bool):
        return Value(Kind.BOOL, (ir.Constant(I1, int(value)),))
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise Unfit(f"it has the number {value}, which takes more than 64 bits")
        return Value(Kind.INT, (ir.Constant(I64, value),))
    return Value(Kind.FLOAT, (ir.Constant(F64, value),))


def moment(value: datetime.datetime | datetime.timedelta) -> Value | None:
    """A datetime in UTC or without a zone, or a timedelta, that is known already."""
    if isinstance(value, datetime.timedelta):
        kind, span = Kind.DELTA, value
    else:
        zone = value.tzinfo
        if zone is not None and zone is not datetime.UTC:
            return None
        kind = Kind.NAIVE if zone is None else Kind.TIME
        span = value - _EPOCHS[kind]
    micros = span // MICROSECOND
    return Value(kind, (ir.Constant(I64, micros),)) if -(2**63) <= micros < 2**63 else None


def kind_of(kind: pa.DataType) -> Kind | None:
    """What Python sees of a column's values; None for what is not compiled."""
    t = pa.types
    if t.is_boolean(kind):
        return Kind.BOOL
    if t.is_signed_integer(kind):
        return Kind.INT
    if t.is_float32(kind) or t.is_float64(kind):
        return Kind.FLOAT
    if t.is_string(kind):
        return Kind.TEXT
    if t.is_timestamp(kind) and kind.unit == "us":
        return Kind.NAIVE if kind.tz is None else Kind.TIME
    if t.is_duration(kind) and kind.unit == "us":
        return Kind.DELTA
    return None


def joined(a: Kind, b: Kind) -> Kind | None:
    """The kind of what is one or the other; None if there is none."""
    if a is b or b is Kind.NONE:
        return a
    if a is Kind.NONE:
        return b
    numbers = (Kind.INT, Kind.FLOAT, Kind.NUMBER)
    return Kind.NUMBER if a in numbers and b in numbers else None
