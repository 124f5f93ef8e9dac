"""A level of operators, as one worker runs it on one shard of the keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.plan.nodes import GroupBy, JoinWithin, MaxParallelism, Shuffle
from headrace.spark.bundles import Place
from headrace.spark.flow import Branch, OperatorFlow
from headrace.spark.marks import LaneMarks
from headrace.spark.operators import Came, operator_of
from headrace.spark.rows import MARK, Compiled, Row, Sender, first_place
from headrace.spark.stage import once

_BRANCH = 1 << 10
"""Where the numbers of levels begin, after those of sources."""


@dataclass(frozen=True)
class Operator:
    """A step with state, on its way to the workers."""

    number: int
    node: GroupBy | JoinWithin | Shuffle | MaxParallelism
    input: pa.Schema
    branches: tuple[Branch, ...]
    feeders: tuple[frozenset[str], ...]
    marks_for: tuple[int, ...]

    @staticmethod
    def of(flow: OperatorFlow) -> Operator:
        node: Any = flow.node
        schema = node.inputs[0].schema
        if isinstance(node, JoinWithin):
            sides: Any = {s: _Columns(getattr(node, s).schema) for s in ("left", "right")}
            node = replace(node, **sides)
        else:
            node = replace(node, input=None)
        feeders = tuple(frozenset(f) for f in flow.feeders)
        branches, marks = tuple(flow.branches), tuple(sorted(set(flow.marks_for)))
        return Operator(flow.number, node, schema, branches, feeders, marks)


@dataclass(frozen=True)
class _Columns:
    """All that a join's operator needs to know of a side."""

    schema: pa.Schema


@dataclass(frozen=True)
class LevelProgram:
    """The operators of one level, as the workers get them."""

    key: str
    number: int
    operators: tuple[Operator, ...]
    labels: tuple[int, ...]
    zone: str
    timed: frozenset[str]
    """Every source of the job that has event time."""

    def compiled(self) -> list[tuple[Operator, Any, list[Compiled]]]:
        return [
            (
                o,
                operator_of(o.node, o.input, self.zone),
                [Compiled(b, self.zone) for b in o.branches],
            )
            for o in self.operators
        ]

    def run(self, label: int, rows: Any, saved: Any, parts: Any, save: Any) -> Iterator[Row]:
        """One shard's micro-batch: rows in, rows out; the note and the bundles are its state."""
        compiled = once(self.key, self.compiled)
        shard = self.labels.index(label)
        place = Place(_BRANCH + self.number, shard, Place.of(0).attempt)
        sender = Sender(self.labels, first_place(place.branch, shard))
        note: dict[str, Any] = {} if saved is None else json.loads(saved)
        mine = {str(o.number) for o in self.operators}
        came: dict[str, list[Came]] = {name: [] for name in mine}
        marks = {
            name: LaneMarks.of(len(self.labels), note.get("marks", {}).get(name, {}))
            for name in mine
        }
        for row in rows:
            _, target, lane, pane, number, data = row
            name = str(target)
            if name not in mine:
                yield tuple(row)
            elif lane == MARK:
                marks[name].take(json.loads(data))
            else:
                came[name].append(Came(number, lane, pane, bytes(data)))
        notes: dict[str, Any] = note.setdefault("operators", {})
        for operator, runs, branches in compiled:
            name = str(operator.number)
            marks[name].settle(self.timed)
            lanes = [marks[name].mark(f) for f in operator.feeders]
            bundles = sorted(came[name], key=lambda c: c.place)
            pipes = [b.start(sender, f"{operator.number}-{place}") for b in branches]
            store = _Store(parts, operator.number)
            given = 0
            for batch in runs.run(bundles, lanes, notes.setdefault(name, {}), store):
                given += batch.num_rows
                for pipe in pipes:
                    yield from pipe.add(batch)
            for pipe in pipes:
                yield from pipe.finish()
            least = min(lanes)
            for target in operator.marks_for:
                said = {"from": f"o{operator.number}", "shard": shard, "mark": least}
                yield from sender.to_all(target, said)
            told = {"operator": operator.number, "out": given, "bundles": len(bundles)}
            told["records"] = sum(c.rows for c in bundles)
            yield sender.report({**told, "shard": shard, "mark": least})
        note["marks"] = {name: m.said() for name, m in marks.items()}
        save(json.dumps(note))


class _Store:
    """One operator's bundles in the state of a shard."""

    def __init__(self, state: Any, operator: int) -> None:
        self.state, self.operator = state, operator

    def get(self, kind: int, pane: int, part: int) -> bytes:
        data: bytes = self.state.getValue((self.operator, kind, pane, part))[0]
        return data

    def put(self, kind: int, pane: int, part: int, data: bytes) -> None:
        self.state.updateValue((self.operator, kind, pane, part), (data,))

    def remove(self, kind: int, pane: int, part: int) -> None:
        self.state.removeKey((self.operator, kind, pane, part))
