"""About how many bytes the records of a step are, as far as that is known before it runs."""

from __future__ import annotations

from headrace.plan.groups import GroupBy
from headrace.plan.joins import Join
from headrace.plan.node import Node
from headrace.plan.order import Limit
from headrace.plan.rows import Filter, Project
from headrace.plan.sources import Read

_KEPT = 4
"""A filter is taken to keep one in so many records, and so is a group_by."""
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
            return int(each.source.nbytes) // (_KEPT if each.source.conditions else 1) or None
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
        return sum(sizes) // (_KEPT if isinstance(each, (Filter, GroupBy)) else 1)

    return of(node)
