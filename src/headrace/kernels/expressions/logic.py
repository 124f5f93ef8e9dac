"""Comparison, truth, null and choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.errors import PlanError
from headrace.kernels.expressions.casts import cast
from headrace.kernels.expressions.kernel import (
    ONE_ROW,
    Kernel,
    Scope,
    apply,
    choose,
    constant,
    fold,
    function,
    is_number,
    node,
    not_for_spark,
    spread,
    want,
    where,
)
from headrace.kernels.expressions.promotion import common_of
from headrace.types import type_name

BOOLEAN = pa.bool_()
_SIGNS: dict[type[exp.Expr], tuple[str, Callable[..., Any]]] = {
    exp.EQ: ("=", pc.equal),
    exp.NEQ: ("<>", pc.not_equal),
    exp.LT: ("<", pc.less),
    exp.LTE: ("<=", pc.less_equal),
    exp.GT: (">", pc.greater),
    exp.GTE: (">=", pc.greater_equal),
}


@node(exp.Boolean)
def build_boolean(scope: Scope, tree: exp.Boolean) -> Kernel:
    return constant(pa.scalar(bool(tree.this)))


@node(exp.Null)
def build_null(scope: Scope, tree: exp.Null) -> Kernel:
    return constant(pa.scalar(None, pa.null()))


def meet(scope: Scope, where: str, *sides: Kernel) -> list[Kernel]:
    """Values brought to one type so that they can be compared.

    Text that is a constant becomes the date or time it is compared with; any other mix of text
    and something else is refused, for it is more often a mistake than a wish.
    """
    kinds = [s.type for s in sides if not (_is_word(s) and _has_time(sides))]
    kind = common_of(kinds, where)
    return [cast(s, kind, scope.zone) for s in sides]


def _is_word(kernel: Kernel) -> bool:
    return kernel.constant and bool(pa.types.is_string(kernel.type))


def _has_time(sides: tuple[Kernel, ...]) -> bool:
    return any(pa.types.is_date(s.type) or pa.types.is_timestamp(s.type) for s in sides)


def compare(tree: type[exp.Expr], left: Kernel, right: Kernel) -> Kernel:
    """A comparison of two values of one type."""
    return apply(BOOLEAN, comparer(tree, left.type), left, right)


def comparer(tree: type[exp.Expr], kind: pa.DataType) -> Callable[[Any, Any], Any]:
    """What compares two values of a type, where NaN equals NaN and is above every number."""
    sign, plain = _SIGNS[tree]
    if pa.types.is_nested(kind):
        raise PlanError(f"'{sign}' does not compare {type_name(kind)}; compare its parts")
    if pa.types.is_null(kind):
        return lambda a, b: pa.scalar(None, BOOLEAN)
    if not pa.types.is_floating(kind):
        return plain

    def with_nan(a: Any, b: Any) -> Any:
        x, y = pc.is_nan(a), pc.is_nan(b)
        if tree is exp.EQ:
            return pc.or_(plain(a, b), pc.and_(x, y))
        if tree is exp.NEQ:
            return pc.and_not(plain(a, b), pc.and_(x, y))
        if tree is exp.LT:
            return pc.or_(plain(a, b), pc.and_not(y, x))
        if tree is exp.GT:
            return pc.or_(plain(a, b), pc.and_not(x, y))
        if tree is exp.LTE:
            return pc.or_(plain(a, b), y)
        return pc.or_(plain(a, b), x)

    return with_nan


@node(*_SIGNS)
def build_comparison(scope: Scope, tree: exp.Binary) -> Kernel:
    sides = scope.compile(tree.this), scope.compile(tree.expression)
    return compare(type(tree), *meet(scope, f"'{_SIGNS[type(tree)][0]}'", *sides))


@node(exp.NullSafeEQ)
def build_same(scope: Scope, tree: exp.NullSafeEQ) -> Kernel:
    left, right = meet(scope, "'<=>'", scope.compile(tree.this), scope.compile(tree.expression))
    equal = compare(exp.EQ, left, right)
    return apply(
        BOOLEAN,
        lambda e, a, b: pc.or_(pc.coalesce(e, pa.scalar(False)), pc.and_(a, b)),
        equal,
        _is_null(left),
        _is_null(right),
    )


@node(exp.Between)
def build_between(scope: Scope, tree: exp.Between) -> Kernel:
    value, low, high = (scope.compile(tree.args[k]) for k in ("this", "low", "high"))
    above = compare(exp.GTE, *meet(scope, "BETWEEN", value, low))
    below = compare(exp.LTE, *meet(scope, "BETWEEN", value, high))
    return apply(BOOLEAN, pc.and_kleene, above, below)


@node(exp.In)
def build_in(scope: Scope, tree: exp.In) -> Kernel:
    if not tree.expressions:
        raise PlanError("IN takes a list of values, as in x in (1, 2)")
    value, *options = meet(
        scope, "IN", scope.compile(tree.this), *(scope.compile(e) for e in tree.expressions)
    )
    if all(o.constant for o in options) and not pa.types.is_floating(value.type):
        scalars = [spread(o.run(ONE_ROW), 1)[0] for o in options]
        known = pa.array([s for s in scalars if s.is_valid], value.type)
        has_null = len(known) < len(scalars)

        def run(v: Any) -> Any:
            found = pc.is_in(v, value_set=known)
            unsure = pc.is_null(v) if not has_null else pc.invert(found)
            return pc.if_else(unsure, pa.scalar(None, BOOLEAN), found)

        return apply(BOOLEAN, run, value)
    found = [compare(exp.EQ, value, option) for option in options]
    result = found[0]
    for each in found[1:]:
        result = apply(BOOLEAN, pc.or_kleene, result, each)
    return result


def truth(scope: Scope, tree: exp.Expr, sign: str) -> Kernel:
    """A condition: boolean, or refused."""
    kernel = scope.compile(tree)
    if pa.types.is_null(kernel.type):
        return cast(kernel, BOOLEAN)
    if not pa.types.is_boolean(kernel.type):
        raise PlanError(
            f"{sign} takes conditions, not {type_name(kernel.type)} "
            f"({tree.sql(dialect='spark')}); compare it with something, and add parentheses around "
            "each comparison: (x > 1) & (y > 0)"
        )
    return kernel


@node(exp.And, exp.Or)
def build_connective(scope: Scope, tree: exp.Connector) -> Kernel:
    sign = "AND" if isinstance(tree, exp.And) else "OR"
    return _joined([truth(scope, term, sign) for term in _terms(tree)], sign)


def _terms(tree: exp.Connector) -> list[exp.Expr]:
    """The conditions that a chain of the same connective joins, in order."""
    terms: list[exp.Expr] = []
    stack: list[exp.Expr] = [tree]
    while stack:
        part = stack.pop()
        while isinstance(part, exp.Paren):
            part = part.this
        if type(part) is type(tree):
            stack += [part.expression, part.this]
        else:
            terms.append(part)
    return terms


def _joined(conditions: list[Kernel], sign: str) -> Kernel:
    """Conditions joined as a balanced tree: thousands of them nest only a few levels deep."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    left, right = _joined(conditions[:half], sign), _joined(conditions[half:], sign)
    is_and = sign == "AND"
    join = pc.and_kleene if is_and else pc.or_kleene
    if not right.raises:
        return apply(BOOLEAN, join, left, right)

    def run(batch: pa.RecordBatch) -> Any:
        # The right side is computed only where the left does not decide, as Spark does.
        first = spread(left.run(batch), batch.num_rows)
        open_rows = pc.coalesce(first if is_and else pc.invert(first), pa.scalar(True))
        return join(first, where(batch, open_rows, right))

    differs = left.differs_in_spark or right.differs_in_spark
    return fold(Kernel(BOOLEAN, run, True, left.constant and right.constant, differs))


@node(exp.BitwiseAnd, exp.BitwiseOr)
def build_bitwise(scope: Scope, tree: exp.Binary) -> Kernel:
    sign, word = ("&", "AND") if isinstance(tree, exp.BitwiseAnd) else ("|", "OR")
    raise PlanError(
        f"'{sign}' between numbers is not supported in SQL text; between conditions write {word} "
        f"and add parentheses, as in (x > 1) {word} (y > 0)"
    )


@node(exp.Not)
def build_not(scope: Scope, tree: exp.Not) -> Kernel:
    return apply(BOOLEAN, pc.invert, truth(scope, tree.this, "NOT"))


def _is_null(kernel: Kernel) -> Kernel:
    return apply(BOOLEAN, pc.is_null, kernel)


@node(exp.Is)
def build_is(scope: Scope, tree: exp.Is) -> Kernel:
    inner = scope.compile(tree.this)
    if isinstance(tree.expression, exp.Null):
        return _is_null(inner)
    if isinstance(tree.expression, exp.Boolean) and pa.types.is_boolean(inner.type):
        wanted = bool(tree.expression.this)
        return apply(
            BOOLEAN,
            lambda v: pc.coalesce(v if wanted else pc.invert(v), pa.scalar(False)),
            inner,
        )
    raise PlanError("IS takes NULL, TRUE or FALSE")


@function("isnull")
def build_isnull(scope: Scope, value: Kernel) -> Kernel:
    return _is_null(value)


@function("isnotnull")
def build_isnotnull(scope: Scope, value: Kernel) -> Kernel:
    return apply(BOOLEAN, pc.is_valid, value)


@function("isnan")
def build_isnan(scope: Scope, value: Kernel) -> Kernel:
    want(value, is_number, "a number", "isnan")
    value = cast(value, pa.float64())
    return apply(BOOLEAN, lambda v: pc.coalesce(pc.is_nan(v), pa.scalar(False)), value)


@function("nanvl")
def build_nanvl(scope: Scope, value: Kernel, other: Kernel) -> Kernel:
    single = all(pa.types.is_float32(k.type) for k in (value, other))
    kind = pa.float32() if single else pa.float64()
    value, other = cast(value, kind), cast(other, kind)
    return apply(value.type, lambda v, o: pc.if_else(pc.is_nan(v), o, v), value, other)


def first_that(
    scope: Scope,
    branches: list[tuple[Kernel | None, Kernel]],
    where_: str,
) -> Kernel:
    """The value of the first branch whose condition is true; a None condition always is."""
    kind = common_of([v.type for _, v in branches], where_)
    values = [cast(v, kind, scope.zone) for _, v in branches]
    conditions = [c for c, _ in branches]
    kernels = [k for k in (*values, *conditions) if k is not None]
    raises = any(k.raises for k in kernels)

    def run(batch: pa.RecordBatch) -> Any:
        rows = batch.num_rows
        result: Any = pa.scalar(None, kind)
        open_rows: Any = None  # rows that no earlier branch took; None means all of them
        taken: list[tuple[Any, Kernel]] = []
        for condition, value in zip(conditions, values, strict=True):
            if condition is None:
                mask = open_rows if open_rows is not None else pa.repeat(pa.scalar(True), rows)
            elif open_rows is None or not condition.raises:
                mask = pc.coalesce(spread(condition.run(batch), rows), pa.scalar(False))
                mask = mask if open_rows is None else pc.and_(mask, open_rows)
            else:
                mask = pc.coalesce(where(batch, open_rows, condition), pa.scalar(False))
            taken.append((mask, value))
            left = pc.invert(mask)
            open_rows = left if open_rows is None else pc.and_(open_rows, left)
        for mask, value in reversed(taken):
            result = choose(batch, mask, value, result)
        return result

    differs = any(k.differs_in_spark for k in kernels)
    return fold(Kernel(kind, run, raises, all(k.constant for k in kernels), differs))


@node(exp.Case)
def build_case(scope: Scope, tree: exp.Case) -> Kernel:
    branches: list[tuple[Kernel | None, Kernel]] = []
    for branch in tree.args["ifs"]:
        test = branch.this if tree.this is None else exp.EQ(this=tree.this, expression=branch.this)
        branches.append((truth(scope, test, "CASE WHEN"), scope.compile(branch.args["true"])))
    default = tree.args.get("default")
    if default is not None:
        branches.append((None, scope.compile(default)))
    case = first_that(scope, branches, "CASE")
    # A condition that is just NULL has no type, which Spark refuses here, and only here.
    nothing = tree.this is None and any(
        pa.types.is_null(scope.compile(branch.this).type) for branch in tree.args["ifs"]
    )
    return not_for_spark(case) if nothing else case


@node(exp.If)
def build_if(scope: Scope, tree: exp.If) -> Kernel:
    test = truth(scope, tree.this, "IF")
    return first_that(
        scope,
        [(test, scope.compile(tree.args["true"])), (None, scope.compile(tree.args["false"]))],
        "IF",
    )


@function("coalesce", "nvl", "ifnull")
def build_coalesce(scope: Scope, *args: Kernel) -> Kernel:
    if not args:
        raise PlanError("coalesce takes at least one value")
    if any(a.raises for a in args[1:]):
        branches: list[tuple[Kernel | None, Kernel]] = [
            (apply(BOOLEAN, pc.is_valid, a), a) for a in args
        ]
        return first_that(scope, branches, "coalesce")
    kind = common_of([a.type for a in args], "coalesce")
    return apply(kind, pc.coalesce, *(cast(a, kind, scope.zone) for a in args))


@function("nullif")
def build_nullif(scope: Scope, value: Kernel, other: Kernel) -> Kernel:
    equal = compare(exp.EQ, *meet(scope, "nullif", value, other))
    return apply(
        value.type,
        lambda e, v: pc.if_else(pc.coalesce(e, pa.scalar(False)), pa.scalar(None, value.type), v),
        equal,
        value,
    )


@function("greatest")
def build_greatest(scope: Scope, *args: Kernel) -> Kernel:
    return _extreme(scope, "greatest", exp.GT, args)


@function("least")
def build_least(scope: Scope, *args: Kernel) -> Kernel:
    return _extreme(scope, "least", exp.LT, args)


def _extreme(scope: Scope, name: str, order: type[exp.Expr], args: tuple[Kernel, ...]) -> Kernel:
    if len(args) < 2:
        raise PlanError(f"{name} takes at least two values")
    sides = meet(scope, name, *args)
    better = comparer(order, sides[0].type)

    def run(best: Any, *rest: Any) -> Any:
        for each in rest:
            # The comparison is null where a side is: then the side that is there wins.
            best = pc.coalesce(pc.if_else(better(each, best), each, best), each, best)
        return best

    return apply(sides[0].type, run, *sides)
