"""Expressions as trees: from SQL text, from Python values, and back to text."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from typing import Any

import numpy as np
import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark as _Spark
from sqlglot.errors import SqlglotError

from headrace.errors import PlanError

MAX_DIGITS = 38
"""Of a decimal, as Spark has it."""


class AggregateCall(exp.Expression):
    """An aggregate inside an expression, as in ``hr.max("x") - hr.min("x")``."""

    arg_types = {"this": True}  # noqa: RUF012


class Dialect(_Spark):
    """Spark SQL with functions kept as they were written, so that none is translated on the way."""

    class Parser(_Spark.Parser):  # type: ignore[valid-type, misc]
        FUNCTIONS: dict[str, Any] = {}  # noqa: RUF012
        FUNCTION_PARSERS = {  # noqa: RUF012
            name: parse
            for name, parse in _Spark.Parser.FUNCTION_PARSERS.items()
            if name in {"CAST", "TRY_CAST"}
        }
        NO_PAREN_FUNCTIONS: dict[Any, Any] = {}  # noqa: RUF012
        STRICT_CAST = True

    class Generator(_Spark.Generator):  # type: ignore[valid-type, misc]
        TRANSFORMS = {  # noqa: RUF012
            **_Spark.Generator.TRANSFORMS,
            AggregateCall: lambda self, tree: repr(tree.this),
        }

        def identifier_sql(self, expression: exp.Identifier) -> str:
            name = expression.name
            if self.identify or expression.args.get("quoted"):
                return "`" + name.replace("`", "``") + "`"
            return str(name)

        def literal_sql(self, expression: exp.Literal) -> str:
            text: str = super().literal_sql(expression)
            if not expression.is_string and any(mark in text for mark in ".eE"):
                return text + "D"
            return text


def parse(text: str) -> exp.Expr:
    """The tree of an expression written as SQL."""
    try:
        tree = sqlglot.parse_one(text, dialect=Dialect)
    except SqlglotError as error:
        raise PlanError(f"cannot read the expression {text!r}: {_fault(text, error)}") from None
    except RecursionError:
        raise PlanError(
            f"the expression '{text[:40]}…' is nested too deep to read; compute parts of it in "
            "with_columns steps before"
        ) from None
    if isinstance(tree, (exp.Query, exp.DDL, exp.Command)):
        raise PlanError(f"{text!r} is a statement; an expression was expected, such as 'x + 1'")
    return tree


_RESERVED = {
    "from", "select", "where", "join", "on", "union", "having", "using", "cross", "inner", "left",
    "right", "full", "natural", "lateral", "in", "like", "between", "and", "or", "not", "is",
    "case", "when", "then", "else", "as", "distinct", "with",
}  # fmt: skip


def _fault(text: str, error: SqlglotError) -> str:
    """What is wrong with an expression, without the parser's own words."""
    found = (getattr(error, "errors", None) or [{}])[0]
    before, near = found.get("start_context", ""), found.get("highlight", "")
    after = found.get("end_context", "")
    said = str(found.get("description", ""))
    word = (re.match(r"\s*(\w+)", text) or [""])[0].strip()
    if not found:
        return "a quote is not closed"
    if word.lower() in _RESERVED - {"not", "case"}:
        return (
            f"'{word}' is a word of SQL; if it is the name of a column, write it as `{word}` in "
            f"backticks, or col('{word}')"
        )
    if said.startswith("Required keyword") and not after.strip():
        return f"it ends after '{near}', where more must follow"
    if said == "Expecting )":
        return f"a ')' is missing after '{(before + near).strip()}'"
    return f"'{near}' cannot stand after '{before.strip()}'" if before.strip() else f"at '{near}'"


def to_sql(tree: exp.Expr) -> str:
    """The expression as Spark SQL reads it, every name quoted."""
    return tree.sql(dialect=Dialect, identify=True)


def literal(value: Any) -> exp.Expr:
    """A Python value as a tree; a NumPy number is what Python's would be."""
    if isinstance(value, np.generic):
        value = _plain(value)
    if value is None:
        return exp.Null()
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise PlanError(f"the number {value} does not fit a bigint")
        number = exp.Literal.number(str(abs(value)))
        return exp.Neg(this=number) if value < 0 else number
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            text = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            return cast_to(exp.Literal.string(text), "DOUBLE")
        text = repr(abs(value))
        number = exp.Literal.number(text if any(m in text for m in ".e") else text + ".0")
        return exp.Neg(this=number) if math.copysign(1, value) < 0 else number
    if isinstance(value, str):
        return exp.Literal.string(value)
    if isinstance(value, datetime.datetime):
        kind = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
        return cast_to(exp.Literal.string(value.isoformat(sep=" ")), kind)
    if isinstance(value, datetime.date):
        return cast_to(exp.Literal.string(value.isoformat()), "DATE")
    if isinstance(value, datetime.timedelta):
        micros = value // datetime.timedelta(microseconds=1)
        sign, micros = ("-" if micros < 0 else ""), abs(micros)
        text = f"{sign}{micros // 1_000_000}.{micros % 1_000_000:06d}"
        return exp.Interval(this=exp.Literal.string(text), unit=exp.var("SECOND"))
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            raise PlanError(f"the decimal {value} cannot be a literal; use float('nan') or such")
        digits = value.as_tuple()
        scale = max(0, -int(digits.exponent))
        precision = max(len(digits.digits) + max(0, int(digits.exponent)), scale, 1)
        if precision > MAX_DIGITS:
            raise PlanError(
                f"the decimal {value} has {precision} digits, and none has more than {MAX_DIGITS}; "
                "round it, or use a float"
            )
        return cast_to(exp.Literal.string(format(value, "f")), f"DECIMAL({precision}, {scale})")
    raise PlanError(f"{value!r} cannot be a literal; use a number, text, date, time or None")


def _plain(value: np.generic) -> Any:
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    return float(value) if isinstance(value, np.floating) else value


def cast_to(tree: exp.Expr, kind: str) -> exp.Cast:
    """A cast to a type by its SQL name."""
    return exp.Cast(this=tree, to=exp.DataType.build(kind, dialect="spark"))
