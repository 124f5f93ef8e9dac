"""Column expressions: a thin skin over SQLGlot trees in Spark's dialect.

``col("x") * 2`` and ``"x * 2"`` are the same tree. Spark gets it as SQL text; our kernels compile
it once a pipeline. What a function means is what Spark SQL (ANSI mode) says it means, with one
difference: a literal with a point, such as ``1.5``, is a double; ``1.5BD`` is a decimal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from sqlglot import exp

from headrace.errors import PlanError
from headrace.hints import EXPRESSION, Hinted
from headrace.trees import Dialect, cast_to, literal, parse

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_PARENTHESES = (
    "& and | bind more tightly than comparisons in Python; add parentheses around each comparison: "
    '(col("x") > 1) & (col("y") > 0)'
)


def call(name: str, *args: Any) -> Expr:
    """A function by its Spark SQL name: ``call("date_format", col("at"), "yyyy")``."""
    return Expr(exp.Anonymous(this=name, expressions=[_tree(a) for a in args]))


def _tree(value: Any) -> exp.Expr:
    if isinstance(value, Condition):
        raise PlanError(_NO_THEN)
    if not isinstance(value, Expr):
        return literal(value)
    # A tree has one parent. The first expression made of it takes it as it is, so that a chain of
    # thousands of terms is not copied at each of them.
    return value.tree if value.tree.parent is None else value.tree.copy()


def _wrap(tree: exp.Expr) -> exp.Expr:
    """Parenthesise what binds looser than an operator's operand."""
    return (
        exp.Paren(this=tree)
        if isinstance(tree, (exp.Binary, exp.Not, exp.Between, exp.In, exp.Case, exp.Neg))
        else tree
    )


def to_expr(what: Any) -> Expr:
    """An expression from an ``Expr``, or from text in SQL."""
    if isinstance(what, Expr):
        return what
    if isinstance(what, str):
        return Expr(parse(what))
    if isinstance(what, Condition):
        raise PlanError(_NO_THEN)
    raise PlanError(f"an expression was expected, not {what!r}; use col('x') or SQL text")


def to_column(what: Any) -> Expr:
    """A column by its name, or any expression. Plain names need not be valid SQL."""
    return col(what) if isinstance(what, str) and what.isidentifier() else to_expr(what)


class Expr(Hinted):
    """A value computed for each record; build one from ``col`` and ``lit``.

    >>> (col("fare") * 2 > 10) & col("zone").starts_with("A")
    Expr(((fare * 2) > 10) AND STARTSWITH(zone, 'A'))
    """

    __slots__ = ("tree",)
    _hints = EXPRESSION

    def __init__(self, tree: exp.Expr) -> None:
        self.tree = tree

    def __repr__(self) -> str:
        return f"Expr({self.tree.sql(dialect=Dialect)})"

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        if isinstance(self.tree, _COMPARISONS) and any(
            isinstance(side.unnest(), (exp.And, exp.Or))
            for side in (self.tree.this, self.tree.expression)
        ):
            raise PlanError(_PARENTHESES)
        raise PlanError(
            "an expression has no truth value here; use & | ~ instead of and, or, not, and "
            "is_in([…]) instead of in"
        )

    def __iter__(self) -> Any:
        raise PlanError("an expression cannot be iterated; flat_map makes a record of each element")

    def _binary(self, kind: type[exp.Binary], other: Any, swap: bool = False) -> Expr:
        left, right = _tree(self), _tree(other)
        if swap:
            left, right = right, left
        # A chain of the same connective needs no parentheses, and so does not nest.
        chained = kind in (exp.And, exp.Or) and type(left) is kind
        return Expr(kind(this=left if chained else _wrap(left), expression=_wrap(right)))

    def _connect(self, kind: type[exp.Connector], other: Any, swap: bool = False) -> Expr:
        if not (other is None or isinstance(other, (Expr, bool, np.bool_))):
            raise PlanError(_PARENTHESES)
        return self._binary(kind, other, swap)

    def _call(self, name: str, *args: Any) -> Expr:
        return call(name, self, *args)

    # arithmetic
    def __add__(self, other: Any) -> Expr:
        return self._binary(exp.Add, other)

    def __radd__(self, other: Any) -> Expr:
        return self._binary(exp.Add, other, swap=True)

    def __sub__(self, other: Any) -> Expr:
        return self._binary(exp.Sub, other)

    def __rsub__(self, other: Any) -> Expr:
        return self._binary(exp.Sub, other, swap=True)

    def __mul__(self, other: Any) -> Expr:
        return self._binary(exp.Mul, other)

    def __rmul__(self, other: Any) -> Expr:
        return self._binary(exp.Mul, other, swap=True)

    def __truediv__(self, other: Any) -> Expr:
        return self._binary(exp.Div, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return self._binary(exp.Div, other, swap=True)

    def __floordiv__(self, other: Any) -> Expr:
        """Integer division, towards zero, as SQL's ``div``."""
        return self._binary(exp.IntDiv, other)

    def __mod__(self, other: Any) -> Expr:
        """The remainder with the dividend's sign, as SQL's ``%``."""
        return self._binary(exp.Mod, other)

    def __pow__(self, other: Any) -> Expr:
        return self._call("power", other)

    def __neg__(self) -> Expr:
        return Expr(exp.Neg(this=_wrap(self.tree.copy())))

    # comparison
    def __eq__(self, other: Any) -> Expr:  # type: ignore[override]
        return self._binary(exp.EQ, other)

    def __ne__(self, other: Any) -> Expr:  # type: ignore[override]
        return self._binary(exp.NEQ, other)

    def __lt__(self, other: Any) -> Expr:
        return self._binary(exp.LT, other)

    def __le__(self, other: Any) -> Expr:
        return self._binary(exp.LTE, other)

    def __gt__(self, other: Any) -> Expr:
        return self._binary(exp.GT, other)

    def __ge__(self, other: Any) -> Expr:
        return self._binary(exp.GTE, other)

    def same_as(self, other: Any) -> Expr:
        """Equality in which null equals null (SQL's ``<=>``)."""
        return self._binary(exp.NullSafeEQ, other)

    def between(self, low: Any, high: Any) -> Expr:
        """Whether the value lies in ``[low, high]``, both ends included."""
        return Expr(exp.Between(this=_wrap(self.tree.copy()), low=_tree(low), high=_tree(high)))

    def is_in(self, values: Iterable[Any]) -> Expr:
        """Whether the value is one of ``values``."""
        trees = [_tree(v) for v in values]
        if not trees:
            raise PlanError("is_in([]) is never true; give it at least one value")
        return Expr(exp.In(this=_wrap(self.tree.copy()), expressions=trees))

    # logic
    def __and__(self, other: Any) -> Expr:
        return self._connect(exp.And, other)

    def __rand__(self, other: Any) -> Expr:
        return self._connect(exp.And, other, swap=True)

    def __or__(self, other: Any) -> Expr:
        return self._connect(exp.Or, other)

    def __ror__(self, other: Any) -> Expr:
        return self._connect(exp.Or, other, swap=True)

    def __invert__(self) -> Expr:
        return Expr(exp.Not(this=_wrap(self.tree.copy())))

    # nulls
    def is_null(self) -> Expr:
        return Expr(exp.Is(this=_wrap(self.tree.copy()), expression=exp.Null()))

    def is_not_null(self) -> Expr:
        return ~self.is_null()

    def is_nan(self) -> Expr:
        return self._call("isnan")

    def fill_null(self, value: Any) -> Expr:
        """The value, or ``value`` where it is null."""
        return self._call("coalesce", value)

    def null_if(self, value: Any) -> Expr:
        """Null where the value equals ``value``."""
        return self._call("nullif", value)

    # types and names
    def cast(self, kind: Any) -> Expr:
        """The value as another type; a value that does not fit stops the job."""
        return Expr(cast_to(self.tree.copy(), _sql_type(kind)))

    def try_cast(self, kind: Any) -> Expr:
        """The value as another type, or null where it does not fit."""
        to = exp.DataType.build(_sql_type(kind), dialect="spark")
        return Expr(exp.TryCast(this=self.tree.copy(), to=to))

    def alias(self, name: str) -> Expr:
        """The same value under another name."""
        return Expr(exp.alias_(self.tree.copy(), name, quoted=True))

    # strings
    def lower(self) -> Expr:
        return self._call("lower")

    def upper(self) -> Expr:
        return self._call("upper")

    def trim(self) -> Expr:
        """Without the spaces at both ends."""
        return self._call("trim")

    def trim_start(self) -> Expr:
        return self._call("ltrim")

    def trim_end(self) -> Expr:
        return self._call("rtrim")

    def length(self) -> Expr:
        """Characters in a string, bytes in a binary."""
        return self._call("length")

    def substring(self, start: int, length: int | None = None) -> Expr:
        """From the ``start``-th character, counting from 1, or from the end if negative."""
        return self._call("substring", start, *([] if length is None else [length]))

    def contains(self, text: Any) -> Expr:
        return self._call("contains", text)

    def starts_with(self, text: Any) -> Expr:
        return self._call("startswith", text)

    def ends_with(self, text: Any) -> Expr:
        return self._call("endswith", text)

    def like(self, pattern: str) -> Expr:
        """SQL's LIKE: ``%`` for any text, ``_`` for one character."""
        return self._binary(exp.Like, pattern)

    def replace(self, old: str, new: str) -> Expr:
        return self._call("replace", old, new)

    def matches(self, pattern: str) -> Expr:
        """Whether a regular expression matches anywhere in the string (SQL's ``rlike``)."""
        return self._binary(exp.RegexpLike, pattern)

    def extract(self, pattern: str, group: int = 1) -> Expr:
        """The group of the first match of a regular expression, or ``''``."""
        return self._call("regexp_extract", pattern, group)

    def extract_all(self, pattern: str, group: int = 0) -> Expr:
        """Every match of a regular expression (or of one of its groups), as a list."""
        return self._call("regexp_extract_all", pattern, group)

    def replace_regex(self, pattern: str, replacement: str) -> Expr:
        """Every match replaced; ``$1`` stands for the first group."""
        return self._call("regexp_replace", pattern, replacement)

    def split(self, pattern: str) -> Expr:
        """The pieces between matches of a regular expression, as a list."""
        return self._call("split", pattern)

    # dates and times
    def year(self) -> Expr:
        return self._call("year")

    def quarter(self) -> Expr:
        return self._call("quarter")

    def month(self) -> Expr:
        return self._call("month")

    def day(self) -> Expr:
        return self._call("day")

    def day_of_week(self) -> Expr:
        """1 for Sunday to 7 for Saturday."""
        return self._call("dayofweek")

    def day_of_year(self) -> Expr:
        return self._call("dayofyear")

    def week(self) -> Expr:
        """The ISO week of the year."""
        return self._call("weekofyear")

    def hour(self) -> Expr:
        return self._call("hour")

    def minute(self) -> Expr:
        return self._call("minute")

    def second(self) -> Expr:
        return self._call("second")

    def truncate(self, unit: str) -> Expr:
        """A time cut down to a unit, from ``microsecond`` to ``year``."""
        return call("date_trunc", unit, self)

    def add_days(self, days: Any) -> Expr:
        return self._call("date_add", days)

    def add_months(self, months: Any) -> Expr:
        return self._call("add_months", months)

    def days_since(self, other: Any) -> Expr:
        """Whole days from ``other`` to this date."""
        return self._call("datediff", other)

    def to_date(self, pattern: str | None = None) -> Expr:
        """Read a date from text, by a pattern such as ``MM/dd/yyyy``."""
        return self._call("to_date", *([] if pattern is None else [pattern]))

    def to_time(self, pattern: str | None = None) -> Expr:
        """Read a time from text, by a pattern such as ``yyyy-MM-dd HH:mm``."""
        return self._call("to_timestamp", *([] if pattern is None else [pattern]))

    def format_time(self, pattern: str) -> Expr:
        """A date or time as text."""
        return self._call("date_format", pattern)

    # mathematics
    def abs(self) -> Expr:
        return self._call("abs")

    def sqrt(self) -> Expr:
        return self._call("sqrt")

    def exp(self) -> Expr:
        return self._call("exp")

    def log(self) -> Expr:
        """The natural logarithm; null for zero and below."""
        return self._call("ln")

    def ceil(self) -> Expr:
        return self._call("ceil")

    def floor(self) -> Expr:
        return self._call("floor")

    def round(self, digits: int = 0) -> Expr:
        """Rounded half away from zero."""
        return self._call("round", digits)

    # structs and lists
    def field(self, name: str) -> Expr:
        """A field of a struct."""
        return Expr(exp.Dot(this=_wrap(self.tree.copy()), expression=exp.to_identifier(name, True)))

    def element(self, index: int) -> Expr:
        """The element at ``index`` from 0; null past the end."""
        return self._call("get", index)

    def __getitem__(self, key: int | str) -> Expr:
        """A field by name, or an element by index from 0 that must exist."""
        if isinstance(key, str):
            return self.field(key)
        return Expr(exp.Bracket(this=_wrap(self.tree.copy()), expressions=[_tree(key)]))

    def size(self) -> Expr:
        """How many elements a list has."""
        return self._call("size")

    def has(self, value: Any) -> Expr:
        """Whether a list holds ``value``."""
        return self._call("array_contains", value)

    def distinct(self) -> Expr:
        """A list without its repeated elements."""
        return self._call("array_distinct")


def _sql_type(kind: Any) -> str:
    from headrace.types import to_type, type_name

    return type_name(to_type(kind))


def col(name: str) -> Expr:
    """The column of that name, whatever characters it has."""
    if not isinstance(name, str) or not name:
        raise PlanError(f"col({name!r}): a column's name is a non-empty string")
    return Expr(exp.Column(this=exp.to_identifier(name, quoted=not name.isidentifier())))


def lit(value: Any) -> Expr:
    """A constant."""
    return Expr(_tree(value))


def sql(text: str) -> Expr:
    """An expression written as Spark SQL."""
    return Expr(parse(text))


class Condition:
    """``when(condition)``, waiting for ``.then``."""

    __slots__ = ("_condition", "_ifs")

    def __init__(self, condition: Expr, ifs: tuple[tuple[Expr, Any], ...] = ()) -> None:
        self._condition = condition
        self._ifs = ifs

    def then(self, value: Any) -> Then:
        return Then((*self._ifs, (self._condition, value)))


class Then(Expr):
    """After ``.then``: null where no condition holds; ``.when`` or ``.otherwise`` may follow."""

    __slots__ = ("_ifs",)

    def __init__(self, ifs: tuple[tuple[Expr, Any], ...]) -> None:
        self._ifs = ifs
        super().__init__(_case(ifs))

    def when(self, condition: Any) -> Condition:
        return Condition(to_expr(condition), self._ifs)

    def otherwise(self, value: Any) -> Expr:
        """The value where no condition holds; ``otherwise(None)`` for null."""
        return Expr(_case(self._ifs, default=_tree(value)))


def _case(ifs: tuple[tuple[Expr, Any], ...], **default: exp.Expr) -> exp.Case:
    return exp.Case(ifs=[exp.If(this=c.tree.copy(), true=_tree(v)) for c, v in ifs], **default)


_NO_THEN = "when(…) has no value yet; say .then(value) after it"


def when(condition: Any) -> Condition:
    """The start of a choice: ``when("x > 0").then(1).otherwise(0)``."""
    return Condition(to_expr(condition))


def _function(name: str, doc: str) -> Callable[..., Expr]:
    def build(*args: Any) -> Expr:
        return call(name, *(to_column(a) if isinstance(a, str) else a for a in args))

    build.__name__ = build.__qualname__ = name
    build.__doc__ = doc
    return build


concat = _function("concat", "Strings joined end to end; text is a column, ``lit`` a constant.")
coalesce = _function("coalesce", "The first of its arguments that is not null.")
greatest = _function("greatest", "The largest of its arguments, nulls left out.")
least = _function("least", "The least of its arguments, nulls left out.")
array = _function("array", "A list of its arguments.")
hash_of = _function("xxhash64", "A 64-bit hash of its arguments (Spark's ``xxhash64``).")


def struct(**fields: Any) -> Expr:
    """A struct of named values: ``struct(x=col("a"), y=1)``."""
    args = [part for name, value in fields.items() for part in (lit(name), value)]
    return call("named_struct", *args)
