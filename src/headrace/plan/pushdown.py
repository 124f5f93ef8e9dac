"""Conditions moved from the first steps after a source into the source, where it can decide them.

It is asked for each condition by itself (``Source.filtered``): those of a filter in their order, as
long as it takes them, for a later one may only hold for records that meet the earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce

from sqlglot import exp

from headrace.plan.node import Node, show
from headrace.plan.rows import Filter, Project
from headrace.plan.sources import Read


def pushed(step: Filter, before: Node, zone: str) -> Node:
    """A filter after ``before``; what is left of it, if the source of that takes some of it."""
    conditions = list(_conditions(step.condition))
    while conditions and (sunk := _sunk(conditions[0], before, zone)) is not None:
        before = sunk
        conditions.pop(0)
    if not conditions:
        return before
    return replace(step, input=before, condition=reduce(_both, conditions))


def decided(head: Node) -> str:
    """What a source decides of its records, for people; empty if nothing."""
    conditions: Sequence[exp.Expr] = head.source.conditions if isinstance(head, Read) else ()
    return " and ".join(map(show, conditions))


def _conditions(tree: exp.Expr) -> Iterator[exp.Expr]:
    """What must all be true of a record for a condition to be."""
    while isinstance(tree, exp.Paren):
        tree = tree.this
    if isinstance(tree, exp.And):
        yield from _conditions(tree.this)
        yield from _conditions(tree.expression)
    else:
        yield tree


def _both(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return exp.And(this=left.copy(), expression=right.copy())


def _sunk(condition: exp.Expr, node: Node, zone: str) -> Node | None:
    """A step whose source decides a condition; None if it does not."""
    if isinstance(node, Read):
        source = node.source.filtered(condition, zone)
        return None if source is None else replace(node, source=source)
    if isinstance(node, Project):
        renamed = _renamed(condition, node)
        below = None if renamed is None else _sunk(renamed, node.input, zone)
        return None if below is None else replace(node, input=below)
    return None


def _renamed(condition: exp.Expr, step: Project) -> exp.Expr | None:
    """A condition of what a step gives as one of what it reads; None unless it only renames.

    Another step could fail on a record, which must not depend on a filter after it.
    """
    columns = dict(step.columns)
    if not all(isinstance(tree, exp.Column) and len(tree.parts) == 1 for tree in columns.values()):
        return None
    if any(len(column.parts) > 1 for column in condition.find_all(exp.Column)):
        return None
    return condition.transform(
        lambda tree: columns[tree.name].copy() if isinstance(tree, exp.Column) else tree
    )
