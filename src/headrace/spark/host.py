"""Spark as a host of operators: the states of one shard of the keys, run by one worker.

In a streaming job operators are put in levels, and a level is one ``transformWithState`` by shard:
it is called once in a micro-batch with the rows that came for the shard. Spark's state holds the
operators' bundles, and a note with what is small (``headrace.spark.store``). In a bounded job all
rows of a shard come at once, and so does the end.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.operators import is_operator, operator_of
from headrace.operators.operator import Input, Operator, Part, Result, State
from headrace.operators.stores import MemoryStore
from headrace.plan.node import Node
from headrace.spark.graph import Branch, OperatorFlow
from headrace.spark.initial import shard_state
from headrace.spark.last_watermark import LastWatermark, ReceivedWatermarks
from headrace.spark.pipes import Compiled
from headrace.spark.python.compiled import once
from headrace.spark.python.shipping import bare
from headrace.spark.store import ShardBundles, SparkStore
from headrace.spark.wire import (
    WATERMARK,
    Batches,
    Place,
    Row,
    RowSender,
    input_of,
    received,
    task_of,
    unpack,
)
from headrace.watermarks import LaneFrontiers
from headrace.windows import BEGINNING, FOREVER

_BRANCH = 1 << 10
"""Where the numbers of levels begin, after those of sources."""


# Bounded


def results_of(operator: Operator, batches: Batches, last: LastWatermark | None) -> Batches:
    """The results of an operator from all parts of its shards, which come shard by shard.

    ``last``, where there are timers, gets what the shards promise before the end.
    """
    sides = range(len(operator.chains))
    ends = [FOREVER for _ in sides]
    for _, rows in itertools.groupby(received(batches), key=lambda row: row[0]):
        state = operator.state(MemoryStore(), {})
        told = ReceivedWatermarks()
        parts = _parts(operator, told.records(rows))
        if last is None or not operator.every_watermark:
            results = state.take(parts, ends)
        else:
            results = _told_last(state, parts, told, ends, last)
        for _, batch in results:
            yield batch
        if last is not None and not operator.every_watermark:
            last.shards.append(max(told.last(side) for side in sides))


def _told_last(
    state: State,
    parts: Iterator[Part],
    told: ReceivedWatermarks,
    ends: list[int],
    last: LastWatermark,
) -> Iterator[Result]:
    """The results of all parts, then of the last watermarks, then of the end."""
    yield from state.take(parts, [BEGINNING for _ in ends])
    promised: list[int] = []
    yield from _at_the_end(state, [], [told.last(i) for i in range(len(ends))], ends, promised)
    last.shards += promised


def _parts(operator: Operator, rows: Iterator[Row]) -> Iterator[Part]:
    for _, _, lane, slice, place, data in rows:
        side = lane if len(operator.chains) > 1 else 0
        batch = unpack(data, operator.part_schema(side, slice))
        yield Part(slice, batch, (task_of(place),), side)


# Streaming


@dataclass(frozen=True)
class Hosted:
    """A step with state, on its way to the workers."""

    number: int
    node: Node
    inputs: tuple[pa.Schema, ...]
    branches: tuple[Branch, ...]
    feeders: tuple[frozenset[str], ...]
    watermarks_for: tuple[int, ...]

    @staticmethod
    def of(flow: OperatorFlow) -> Hosted:
        node: Any = flow.node
        schemas = tuple(each.schema for each in node.inputs)
        feeders = tuple(frozenset(f) for f in flow.feeders)
        branches, targets = tuple(flow.branches), tuple(sorted(set(flow.watermarks_for)))
        return Hosted(flow.number, bare(node), schemas, branches, feeders, targets)


class _Running:
    """An operator of a level, compiled once in a worker's life."""

    def __init__(self, hosted: Hosted, zone: str) -> None:
        self.hosted = hosted
        self.branches = [Compiled(b, zone) for b in hosted.branches]
        self.operator: Operator | None = None
        if is_operator(hosted.node):
            inputs = [Input((), schema) for schema in hosted.inputs]
            self.operator = operator_of(hosted.node, inputs, zone)

    def schema(self, lane: int, slice: int) -> pa.Schema:
        if self.operator is None:
            return self.hosted.inputs[0]
        return self.operator.part_schema(self.side(lane), slice)

    def side(self, lane: int) -> int:
        """Which input a row is of."""
        return lane % len(self.hosted.inputs)

    def stream(self, lane: int) -> int:
        """Which of the streams of a union it is of."""
        return lane // len(self.hosted.inputs)

    def state(self, store: SparkStore, note: dict[str, Any], shard: int) -> State:
        if self.operator is None or not (self.operator.is_keyed or shard == 0):
            return _Relay()
        return self.operator.state(store, note)


def _at_the_end(
    state: State, parts: list[Part], lasts: list[int], ends: list[int], promised: list[int]
) -> Iterator[Result]:
    """The results of the last watermarks, then of the end; what was promised in between."""
    yield from state.take(parts, lasts)
    promised[:] = [state.promised(max(lasts))]
    yield from state.take([], ends)


class _Relay(State):
    """Passes records on where they were sent."""

    def take(self, parts: Any, watermarks: Any) -> Iterator[Result]:
        for part in parts:
            yield 0, part.batch


@dataclass(frozen=True)
class LevelProgram:
    """The operators of one level, as the workers get them."""

    key: str
    number: int
    operators: tuple[Hosted, ...]
    labels: tuple[int, ...]
    zone: str
    timed: frozenset[str]
    """Every source of the job that has event time."""
    initial: str | None = None
    """The folder of our own files, where shards begin with state that is there."""

    def compiled(self) -> list[_Running]:
        return [_Running(hosted, self.zone) for hosted in self.operators]

    def run(self, label: int, rows: Any, saved: Any, large: Any, save: Any) -> Iterator[Row]:
        """One shard's micro-batch: rows in, rows out; its state is a note and a map of bundles."""
        compiled: list[_Running] = once(self.key, self.compiled)
        shard = self.labels.index(label)
        place = Place(_BRANCH + self.number, shard, Place.of(0).attempt)
        sender = RowSender(self.labels, place.first)
        if saved is None:
            note, bundles = self._begun(shard, large)
        else:
            note = json.loads(saved)
            bundles = ShardBundles.of(note, large)
        mine = {str(o.number) for o in self.operators}
        arrived: dict[str, list[Row]] = {name: [] for name in mine}
        known = note.get("watermarks", {})
        frontiers = {n: LaneFrontiers.of(len(self.labels), known.get(n, {})) for n in mine}
        for row in rows:
            name = str(row[1])
            if name not in mine:
                yield tuple(row)
            elif row[2] == WATERMARK:
                frontiers[name].take(json.loads(row[5]))
            else:
                arrived[name].append(tuple(row))
        notes: dict[str, Any] = note.setdefault("operators", {})
        note["turn"] = turn = note.get("turn", 0) + 1
        for running in compiled:
            hosted = running.hosted
            name = str(hosted.number)
            frontiers[name].advance(self.timed)
            watermarks = [frontiers[name].watermark(f) for f in hosted.feeders]
            parts = []
            for _, _, lane, slice, at, data in sorted(arrived[name], key=lambda row: row[4]):
                batch = unpack(bytes(data), running.schema(lane, slice))
                order = (input_of(running.stream(lane), at), turn, task_of(at))
                parts.append(Part(slice, batch, order, running.side(lane)))
            pipes = [b.start(sender, f"{hosted.number}-{place}") for b in running.branches]
            store = SparkStore(bundles, hosted.number)
            state = running.state(store, notes.setdefault(name, {}), shard)
            given = 0
            results = state.take(parts, watermarks)
            last = None
            if min(watermarks, default=BEGINNING) == FOREVER:
                # The last watermark and the end may come in one batch, but are two steps.
                lasts = [frontiers[name].last(f) for f in hosted.feeders]
                last = [max(lasts)]
                if running.operator is not None and running.operator.every_watermark:
                    results = _at_the_end(state, parts, lasts, watermarks, last)
            for _, batch in results:
                given += batch.num_rows
                for pipe in pipes:
                    yield from pipe.add(batch)
            for pipe in pipes:
                yield from pipe.finish()
            state.save()
            promised = state.promised(min(watermarks))
            for target in hosted.watermarks_for:
                message = {"from": f"o{hosted.number}", "shard": shard, "watermark": promised}
                message |= {} if last is None else {"last": last[0]}
                yield from sender.to_all(target, message)
            counted = {"operator": hosted.number, "out": given, "bundles": len(parts)}
            counted["records"] = sum(part.batch.num_rows for part in parts)
            counted["keys"] = state.keys_held
            yield sender.report({**counted, "shard": shard, "watermark": promised})
        bundles.save(note)
        note["watermarks"] = {name: f.saved() for name, f in frontiers.items()}
        save(json.dumps(note))

    def _begun(self, shard: int, large: Any) -> tuple[dict[str, Any], ShardBundles]:
        """The note and the bundles that a shard begins with."""
        bundles = ShardBundles({}, large)
        if self.initial is None:
            return {}, bundles
        note, given = shard_state(self.initial, self.number, shard)
        for key, data in given:
            bundles.write({key: data.to_pybytes()})
        return note, bundles
