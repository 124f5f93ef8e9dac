"""``sort``, ``limit`` and ``top_k``: records in an order, and the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from sqlglot import exp

from headrace.errors import PlanError
from headrace.expressions import col
from headrace.kernels.expressions import compile_expression
from headrace.kernels.order import sortable
from headrace.plan.order import Limit, Sort, TopK
from headrace.plan.prune import columns_of
from headrace.sizes import is_whole
from headrace.steps import Steps

if TYPE_CHECKING:
    from headrace.stream import Stream

Order = tuple[tuple[exp.Expr, bool], ...]
"""What records are sorted by, and whether descending."""


class Sorting(Steps):
    """What takes records in an order."""

    def sort(self, *by: Any, descending: bool | Sequence[bool] = False) -> Stream:
        """All records in order. Nulls come first, or last if descending; NaN is the largest."""
        with self._building("sort") as at:
            if not by:
                raise PlanError("sort needs a column")
            down = _directions(descending, len(by))
            stream, order = self._order(by, down, "sort")
            step = max(at.step, stream.node.step + 1)
            return self._same_columns(self._with(Sort(stream.schema, step, stream.node, order)))

    def limit(self, count: int) -> Stream:
        """The first ``count`` records, in input order or in the order of a ``sort`` before it."""
        with self._building("limit") as at:
            if not is_whole(count, 0, 2**31 - 1):
                raise PlanError(f"a limit is a number of records below 2**31, not {count!r}")
            return self._with(Limit(self.schema, at.step, self.node, count))

    def top_k(self, k: int, by: Any) -> Stream:
        """The ``k`` records with the largest ``by``; ties go by the other columns, ascending."""
        return self._top_k(k, by, ())

    def _top_k(self, k: int, by: Any, keys: tuple[str, ...]) -> Stream:
        with self._building("top_k") as at:
            stream, order = self._ranking(k, by)
            used = columns_of(t for t, _ in order if isinstance(t, exp.Column)) | set(keys)
            ties = [
                (col(f.name).tree, False)
                for f in self.schema
                if f.name not in used and not pa.types.is_nested(f.type)
            ]
            step = max(at.step, stream.node.step + 1)
            order = (*order, *ties)
            return self._same_columns(
                self._with(TopK(stream.schema, step, stream.node, k, order, keys))
            )

    def _ranking(self, k: int, by: Any) -> tuple[Stream, Order]:
        """What ``top_k`` ranks by, and the stream that has it as columns."""
        if not is_whole(k):
            raise PlanError(f"top_k takes a positive number of records, not {k!r}")
        wanted = list(by) if isinstance(by, (list, tuple)) else [by]
        if not wanted:
            raise PlanError("top_k needs something to rank by")
        return self._order(wanted, [True] * len(wanted), "top_k")

    def _order(self, by: Sequence[Any], down: Sequence[bool], where: str) -> tuple[Stream, Order]:
        stream, items = self._columns(by, {})
        for _, tree in items:
            sortable(compile_expression(tree, stream.schema).type, where)
        return stream, tuple((tree, flag) for (_, tree), flag in zip(items, down, strict=True))

    def _same_columns(self, stream: Stream) -> Stream:
        """A stream without columns that were only there to be ordered by."""
        if stream.columns == self.columns:
            return stream
        kept = [(n, col(n).tree) for n in self.columns]
        return stream._project(kept, "select", stream.node.step + 1)


def _directions(descending: Any, columns: int) -> list[bool]:
    """Whether each column is descending."""
    down = list(descending) if isinstance(descending, (list, tuple)) else [descending] * columns
    if len(down) != columns:
        raise PlanError(f"{columns} columns, but descending= has {len(down)}")
    for each in down:
        if not isinstance(each, (bool, np.bool_)):
            raise PlanError(
                f"descending= takes True or False, or one for each column, not {each!r}"
            )
    return [bool(each) for each in down]
