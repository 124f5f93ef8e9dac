"""``union``, ``join``, ``join_within`` and ``zip``: several streams as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.building import column_names, difference
from headrace.errors import PlanError, nearest
from headrace.plan.joins import Join, JoinWithin, Union, Zip
from headrace.plan.table_join import TableJoin
from headrace.plan.time import clock_needed, clock_of, is_bounded, zone_of
from headrace.steps import Steps
from headrace.tables import refreshed
from headrace.types import type_name
from headrace.windows import EventClock, duration

if TYPE_CHECKING:
    from headrace.stream import Stream

JOINS = {"inner": "inner", "left": "left", "right": "right", "outer": "outer", "full": "outer",
         "semi": "semi", "anti": "anti"}  # fmt: skip
TABLE_JOINS = ("inner", "left", "semi", "anti")


class Joining(Steps):
    """What brings a stream together with others."""

    def union(self, *others: Stream) -> Stream:
        """The records of this stream and of others with the same columns."""
        with self._building("union") as at:
            for other in others:
                if not isinstance(other, Steps):
                    raise PlanError(f"{other!r} is not a stream")
                if not other.schema.equals(self.schema):
                    raise PlanError(difference(self.schema, other.schema))
            if not others:
                return self._stream
            step = max(at.step, *(o.node.step + 1 for o in others))
            zone_of(self.node, *(o.node for o in others))
            return self._with(Union(self.schema, step, (self.node, *(o.node for o in others))))

    def join(
        self,
        other: Stream,
        on: str | Sequence[str] | None = None,
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        how: str = "inner",
        suffix: str = "_right",
        refresh: Any = None,
    ) -> Stream:
        """Records paired by equal keys.

        ``how`` is inner, left, right, outer, semi (left records with a match) or anti (without).
        The key columns come out once, under the left names; other columns of the right side that
        the left has too get ``suffix``. A null key matches nothing.

        A stream that does not end is joined with a table, input that does, by inner, left, semi or
        anti: the table is read when the job starts, and each record is looked up in it as it
        comes. ``refresh`` has it read again, every so often (``"5 min"``) or ``"on change"`` of its
        files.
        """
        with self._building("join") as at:
            if not isinstance(other, Steps):
                raise PlanError(f"{other!r} is not a stream")
            if not isinstance(how, str) or how not in JOINS:
                raise PlanError(f"how={how!r} is not a join{nearest(str(how), JOINS)}")
            left, right = self._join_keys(other, on, left_on, right_on, suffix)
            fields: list[pa.Field] = list(self.schema)
            renamed: list[tuple[str, str]] = []
            if JOINS[how] not in ("semi", "anti"):
                fields, renamed = self._beside(other, right, suffix)
            if is_bounded(other.node) and not is_bounded(self.node):
                if how not in TABLE_JOINS:
                    raise PlanError(
                        f"how={how!r} waits for the stream to end, and it never does; with a table "
                        f"use {', '.join(TABLE_JOINS)}"
                    )
                every, on_change = refreshed(other.node, refresh)
                return self._with(
                    TableJoin(
                        pa.schema(fields), max(at.step, other.node.step + 1), self.node,
                        other.node, tuple(left), tuple(right), JOINS[how], tuple(renamed),
                        every, on_change,
                    )
                )  # fmt: skip
            if refresh is not None:
                raise PlanError("refresh= is for a stream that never ends, joined with a table")
            return self._with(
                Join(
                    pa.schema(fields),
                    max(at.step, other.node.step + 1),
                    self.node,
                    other.node,
                    tuple(left),
                    tuple(right),
                    JOINS[how],
                    tuple(renamed),
                )
            )

    def join_within(
        self,
        other: Stream,
        on: str | Sequence[str] | None = None,
        *,
        before: Any = "0s",
        after: Any = "0s",
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        suffix: str = "_right",
    ) -> Stream:
        """Pairs of records with equal keys that are near in event time: the temporal join.

        A record of ``other`` matches if its time is from ``before`` earlier to ``after`` later.
        The pair's event time is its later record's. A null key matches nothing.
        """
        with self._building("join_within") as at:
            if not isinstance(other, Steps):
                raise PlanError(f"{other!r} is not a stream")
            left, right = self._join_keys(other, on, left_on, right_on, suffix)
            clocks = [clock_needed(s.node, "join_within") for s in (self, other)]
            self._same_clocks(other, *clocks)
            fields, renamed = self._beside(other, right, suffix)
            return self._with(
                JoinWithin(
                    pa.schema(fields),
                    max(at.step, other.node.step + 1),
                    self.node,
                    other.node,
                    tuple(left),
                    tuple(right),
                    clocks[0],
                    clocks[1],
                    duration(before, "before"),
                    duration(after, "after"),
                    tuple(renamed),
                )
            )

    def zip(self, other: Stream, *, suffix: str = "_right") -> Stream:
        """Pairs by place: the first record with the first of ``other``, and so on.

        Where both streams have event time, their records are taken by it, those of one time in
        input order; a pair's event time is its later record's. Else both are to end, and are taken
        in input order, or in that of a ``sort`` before. It ends with the shorter. A record waits
        for its partner, so of streams that do not end one must not fall behind for ever. Columns of
        ``other`` that this stream has too get ``suffix``.
        """
        with self._building("zip") as at:
            if not isinstance(other, Steps):
                raise PlanError(f"{other!r} is not a stream")
            if not isinstance(suffix, str):
                raise PlanError(f"suffix={suffix!r} is not text")
            zone_of(self.node, other.node)
            left, right = (clock_of(stream.node) for stream in (self, other))
            if left is None or right is None:
                if not (self.bounded and other.bounded):
                    for stream in (self, other):
                        clock_needed(stream.node, "zip of a stream that does not end")
                left = right = None
            else:
                self._same_clocks(other, left, right)
            fields, renamed = self._beside(other, [], suffix)
            step = max(at.step, other.node.step + 1)
            schema, clocks = pa.schema(fields), (left, right)
            return self._with(Zip(schema, step, self.node, other.node, clocks, tuple(renamed)))

    def _join_keys(
        self, other: Stream, on: Any, left_on: Any, right_on: Any, suffix: Any
    ) -> tuple[list[str], list[str]]:
        """The keys of both sides of a join, checked."""
        given = (on is None, left_on is None, right_on is None)
        if given not in ((False, True, True), (True, False, False)):
            raise PlanError("give on=, or both left_on= and right_on=")
        if not isinstance(suffix, str):
            raise PlanError(f"suffix={suffix!r} is not text")
        left = column_names(on if on is not None else left_on, "left_on=")
        right = column_names(on if on is not None else right_on, "right_on=")
        if not left or len(left) != len(right):
            raise PlanError("both sides need the same number of keys, at least one")
        zone_of(self.node, other.node)
        self._known(*left)
        other._known(*right)
        for a, b in zip(left, right, strict=True):
            x = self._same_type(other, a, b)
            if pa.types.is_nested(x):
                raise PlanError(f"'{a}' is {type_name(x)}, which cannot be a key")
        return left, right

    def _same_type(self, other: Stream, left: str, right: str, fix: str = "") -> pa.DataType:
        """The type of two columns whose values are compared; refuse different types.

        Times with and without a time zone are different types: nothing says how far apart they are.
        """
        a, b = self.schema.field(left).type, other.schema.field(right).type
        if not a.equals(b):
            raise PlanError(
                f"'{left}' is {type_name(a)} on the left and '{right}' {type_name(b)} on the "
                f"right; cast one of them{fix}"
            )
        return a

    def _same_clocks(self, other: Stream, left: EventClock, right: EventClock) -> None:
        """Refuse event times that cannot be compared."""
        for a in left.columns:
            for b in right.columns:
                self._same_type(other, a, b, " before event_time")

    def _beside(
        self, other: Stream, keys: list[str], suffix: str
    ) -> tuple[list[pa.Field], list[tuple[str, str]]]:
        """The columns of both sides, and under which names the right side's come out."""
        fields, renamed = list(self.schema), []
        for field in other.schema:
            if field.name in keys:
                continue
            name = field.name + (suffix if field.name in self.columns else "")
            if name in (f.name for f in fields):
                raise PlanError(f"the column '{name}' would come out twice; pass suffix=")
            renamed.append((field.name, name))
            fields.append(field.with_name(name))
        return fields, renamed
