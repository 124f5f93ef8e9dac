"""A level of operators: one ``transformWithState`` over the shards of the keys."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from headrace.plan.nodes import GroupBy, JoinWithin, MaxParallelism, Shuffle
from headrace.spark.bundles import Place
from headrace.spark.failures import carrying
from headrace.spark.flow import Branch, OperatorFlow
from headrace.spark.marks import LaneMarks
from headrace.spark.operators import Came, operator_of
from headrace.spark.rows import MARK, Compiled, Row, Sender
from headrace.spark.stage import Shipped, once

_RowOf = SparkRow("shard", "target", "lane", "pane", "place", "bundle")
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

    def compiled(self) -> list[tuple[Operator, Any, list[Compiled]]]:
        return [
            (
                o,
                operator_of(o.node, o.input, self.zone),
                [Compiled(b, self.zone) for b in o.branches],
            )
            for o in self.operators
        ]


class _Store:
    """One operator's bundles in the state of a shard."""

    def __init__(self, state: Any, operator: int, level: Level) -> None:
        self.state, self.operator, self.level = state, operator, level

    def get(self, kind: int, pane: int, part: int) -> bytes:
        data: bytes = self.state.getValue((self.operator, kind, pane, part))[0]
        return data

    def put(self, kind: int, pane: int, part: int, data: bytes) -> None:
        self.state.updateValue((self.operator, kind, pane, part), (data,))

    def remove(self, kind: int, pane: int, part: int) -> None:
        self.state.removeKey((self.operator, kind, pane, part))


def _quiet() -> None:
    """Spark's worker that learns of a processor's state on the driver prints what it does."""
    main = sys.modules.get("__main__")
    if str(getattr(main, "__file__", "")).endswith("transform_with_state_driver_worker.py"):
        vars(main)["print"] = lambda *words: None


_quiet()


class Level(StatefulProcessor):
    """Runs the operators of a level on each shard, once in a micro-batch."""

    def __init__(self, shipped: Shipped) -> None:
        self.shipped = shipped

    def init(self, handle: Any) -> None:
        """Spark tells where the state is."""
        self.note = handle.getValueState("note", "value string")
        key = "operator int, kind int, pane bigint, part bigint"
        self.parts = handle.getMapState("bundles", key, "value binary")

    def close(self) -> None:
        """Nothing is held."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        with carrying():
            program: LevelProgram = self.shipped.load()
            for row in self._handled(program, key[0], rows):
                yield _RowOf(*row)

    def _handled(self, program: LevelProgram, label: int, rows: Any) -> Iterator[Row]:
        compiled = once(program.key, program.compiled)
        shard = program.labels.index(label)
        place = Place(_BRANCH + program.number, shard, Place.of(0).attempt)
        sender = Sender(program.labels, place.first)
        saved = self.note.get()
        note: dict[str, Any] = {} if saved is None else json.loads(saved[0])
        mine = {str(o.number) for o in program.operators}
        came: dict[str, list[Came]] = {name: [] for name in mine}
        marks = {
            name: LaneMarks.of(len(program.labels), note.get("marks", {}).get(name, {}))
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
            lanes = [marks[name].mark(set(f)) for f in operator.feeders]
            bundles = sorted(came[name], key=lambda c: c.place)
            pipes = [b.start(sender, f"{operator.number}-{place}") for b in branches]
            store = _Store(self.parts, operator.number, self)
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
            yield sender.report({**told, "shard": shard, "mark": least})
        note["marks"] = {name: m.said() for name, m in marks.items()}
        self.note.update((json.dumps(note),))
