"""About how many bytes the records of a step are, as far as that is known before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sqlglot import exp

from headrace.plan.groups import GroupBy
from headrace.plan.joins import Join
from headrace.plan.node import Node
from headrace.plan.order import Limit
from headrace.plan.rows import Filter, Project
from headrace.plan.sources import Read

_KEPT = 4
"""A filter of which nothing is known is taken to keep one in so many records, so is a group_by."""
_RECORD = 100


def estimated_bytes(node: Node) -> int | None:
    """Of sources what they say; None if one does not. Steps on the way are guesses."""
    known: dict[int, int | None] = {}

    def of(each: Node) -> int | None:
        if id(each) not in known:
            known[id(each)] = guess(each)
        return known[id(each)]

    def guess(each: Node) -> int | None:
        if isinstance(each, Read):
            size = int(each.source.nbytes)
            return max(1, int(size * _share(each.source.conditions))) if size else None
        before = [of(source) for source in each.inputs]
        sizes = [size for size in before if size is not None]
        if not sizes or len(sizes) < len(before):
            return None
        if isinstance(each, Join):  # most are of records with the one record that they refer to
            return sizes[0] if each.how in ("semi", "anti") else max(sizes)
        if isinstance(each, Limit):
            return min(sizes[0], each.count * _RECORD)
        if isinstance(each, Project):
            wide = len(each.input.schema)
            return sizes[0] * min(wide, len(each.schema)) // max(1, wide)
        if isinstance(each, Filter):
            return int(sizes[0] * _share([each.condition]))
        return sum(sizes) // (_KEPT if isinstance(each, GroupBy) else 1)

    return of(node)


def _share(conditions: Sequence[exp.Expr]) -> float:
    """The share of records that meet some conditions, as query planners guess it.

    Never very few: a side of a join that is not small after all would be sent to every worker.
    """
    return max(0.05, math.prod(map(_share_of, conditions)))


def _share_of(tree: exp.Expr) -> float:
    while isinstance(tree, exp.Paren):
        tree = tree.this
    if isinstance(tree, exp.And):
        return _share([tree.this, tree.expression])
    if isinstance(tree, exp.Or):
        return min(1.0, _share_of(tree.this) + _share_of(tree.expression))
    if isinstance(tree, exp.EQ):
        return 0.1
    if isinstance(tree, exp.In):
        return min(1.0, 0.1 * len(tree.expressions))
    if isinstance(tree, (exp.LT, exp.LTE, exp.GT, exp.GTE)):
        return 0.5
    return 1 / _KEPT
