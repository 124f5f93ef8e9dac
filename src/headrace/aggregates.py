"""What can be computed of many records: each a partial, a merge and a finish on columns.

>>> import headrace as hr
>>> hr.mean("fare"), hr.count()
(mean(fare), count())
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlglot import exp

from headrace.errors import PlanError
from headrace.expressions import Expr, col, to_column
from headrace.sizes import is_whole
from headrace.trees import AggregateCall, Dialect
from headrace.types import to_type


@dataclass(frozen=True, eq=False, repr=False)
class Aggregate(Expr):
    """An aggregate of some expressions, not yet bound to a stream.

    It is an expression, so ``agg`` also computes results from several:

    >>> max("fare") - min("fare")
    Expr(max(fare) - min(fare))
    """

    kind: str
    inputs: tuple[exp.Expr, ...] = ()
    by: exp.Expr | None = None
    k: int = 0
    user: UserAggregate | None = None
    named: tuple[str | None, ...] = ()
    """The inputs (and ``by``, last) that were given as text, as it was given."""
    functions: tuple[tuple[str, Callable[..., Any]], ...] = ()
    """Columns that Python functions of a row compute first, under these names."""
    down: tuple[bool, ...] = ()
    """Of whole records by rank: for each of the last inputs, whether its largest come first."""

    @property
    def tree(self) -> exp.Expr:  # type: ignore[override]
        return AggregateCall(this=self)

    def __reduce__(self) -> Any:
        return Aggregate, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def is_ordered(self) -> bool:
        """Whether its result follows the order of the input."""
        return self.kind in ("first", "last", "collect", "user")

    def bound(self, columns: Sequence[str]) -> Aggregate:
        """With text that is a column's name as it stands read as that column."""
        trees = [*self.inputs, *([] if self.by is None else [self.by])]
        for i, name in enumerate(self.named):
            if name is not None and name in columns:
                trees[i] = col(name).tree
        by = None if self.by is None else trees.pop()
        return replace(self, inputs=tuple(trees), by=by)

    def __repr__(self) -> str:
        inside = [i.sql(dialect=Dialect) for i in self.inputs]
        if self.k:
            inside.append(str(self.k))
        if self.by is not None:
            inside.append(f"by={self.by.sql(dialect=Dialect)}")
        name = self.user.name if self.user else self.kind
        return f"{name}({', '.join(inside)})"


@dataclass(frozen=True)
class UserAggregate:
    """A person's own aggregate: see ``aggregate``."""

    name: str
    partial: Callable[..., Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]
    returns: Any
    functions: tuple[Any, ...] = ()
    """What a person wrote, where it is not the three above themselves."""

    @property
    def written(self) -> tuple[Any, ...]:
        """What a person wrote: state kept by it is of no use to another function."""
        return self.functions or (self.partial, self.merge, self.finish)

    def __call__(self, *columns: Any) -> Aggregate:
        """Apply it to columns: ``spread("fare")``."""
        if not columns:
            raise PlanError(f"aggregate '{self.name}' needs a column, as in {self.name}('fare')")
        return replace(_of("user", *columns), user=self)


def _of(kind: str, *columns: Any, by: Any = None, k: int = 0) -> Aggregate:
    given = [*columns, *([] if by is None else [by])]
    functions: list[tuple[str, Callable[..., Any]]] = []
    trees = []
    for what in given:
        if callable(what) and not isinstance(what, Expr):
            name = f"_{kind}_{next(_NUMBERS)}"
            functions.append((name, what))
            trees.append(col(name).tree)
        else:
            trees.append(_column(kind, what).tree)
    named = tuple(g if isinstance(g, str) else None for g in given)
    order = None if by is None else trees.pop()
    return Aggregate(kind, tuple(trees), order, k, None, named, tuple(functions))


_NUMBERS = itertools.count()


def _column(kind: str, what: Any) -> Expr:
    if not isinstance(what, (str, Expr)) or isinstance(what, Aggregate):
        raise PlanError(f"{kind}({what!r}): give a column's name or an expression")
    try:
        return to_column(what)
    except PlanError:
        if isinstance(what, str):
            return col(what)  # the name of a column need not be an expression
        raise


def count(column: Any = None) -> Aggregate:
    """How many records, or how many values of a column that are not null."""
    return _of("count") if column is None else _of("count", column)


def sum(column: Any) -> Aggregate:
    """The sum; of integers a bigint, which must not overflow."""
    return _of("sum", column)


def min(column: Any) -> Aggregate:
    """The least value."""
    return _of("min", column)


def max(column: Any) -> Aggregate:
    """The largest value."""
    return _of("max", column)


def mean(column: Any) -> Aggregate:
    """The mean, a double."""
    return _of("mean", column)


def var(column: Any) -> Aggregate:
    """The sample variance; null for fewer than two values."""
    return _of("var", column)


def std(column: Any) -> Aggregate:
    """The sample standard deviation; null for fewer than two values."""
    return _of("std", column)


def first(column: Any, by: Any = None) -> Aggregate:
    """The value of the first record, by input order or by the least ``by``."""
    return _of("first", column, by=by)


def last(column: Any, by: Any = None) -> Aggregate:
    """The value of the last record, by input order or by the largest ``by``."""
    return _of("last", column, by=by)


def count_distinct(*columns: Any) -> Aggregate:
    """How many different values there are, exactly; records with a null are left out."""
    if not columns:
        raise PlanError("count_distinct needs a column")
    return _of("count_distinct", *columns)


def approx_distinct(column: Any) -> Aggregate:
    """How many different values there are: exact to 1023, then within about 3 %.

    It keeps the 1024 least hashes of a group (a KMV sketch), so that its memory is bounded.
    """
    return _of("approx_distinct", column)


def top_k(column: Any, k: int, by: Any = None) -> Aggregate:
    """A list of the ``k`` largest values, or of the values with the largest ``by``."""
    if not is_whole(k):
        raise PlanError(f"top_k takes a positive number of values, not {k!r}")
    return _of("top_k", column, by=by, k=k)


def collect(column: Any) -> Aggregate:
    """All values that are not null, in input order, as a list."""
    return _of("collect", column)


def aggregate(
    partial: Callable[..., Any],
    merge: Callable[[Any, Any], Any],
    finish: Callable[[Any], Any] = lambda state: state,
    *,
    returns: Any,
    name: str = "aggregate",
) -> UserAggregate:
    """An aggregate of your own.

    ``partial`` takes the Arrow arrays of some records of one group (one array a column) and
    returns a state; ``merge`` joins two states, the earlier first; ``finish`` turns the last state
    into the result, of type ``returns``. States travel pickled.

    >>> import pyarrow.compute as pc
    >>> spread = aggregate(lambda a: (pc.min(a).as_py(), pc.max(a).as_py()),
    ...                    lambda s, t: (min(s[0], t[0]), max(s[1], t[1])),
    ...                    lambda s: s[1] - s[0], returns="double", name="spread")
    >>> spread("fare")
    spread(fare)
    """
    to_type(returns)
    for function, role in ((partial, "partial"), (merge, "merge"), (finish, "finish")):
        if not callable(function):
            raise PlanError(f"aggregate: {role} must be a function, not {function!r}")
    return UserAggregate(name, partial, merge, finish, returns)
