"""An unbounded plan as Spark runs it: sources, levels of operators with state, and outputs.

Everything a job does in one micro-batch is one line of Spark operators. Sources are read, and the
steps after them run, in the workers that read; what leaves them are *rows* of a few columns, each
with a bundle as one binary value and the operator it is meant for. Operators that hold state are
put in levels, each level after those that feed it, and a level is one ``transformWithState`` by
shard of the keys. A level takes what is meant for its operators and passes on the rest, so any
plan, with several outputs, late sides and joins, is read once and runs as one query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.checkpoints.numbering import feeders_of, inputs_first, keeps_state, levels_of
from headrace.errors import PlanError
from headrace.io.offsets import OffsetSource, replayable
from headrace.jobs import JobOutput
from headrace.plan.joins import Union
from headrace.plan.node import Narrow, Node
from headrace.plan.partitions import MaxParallelism, Shuffle
from headrace.plan.prune import columns_of
from headrace.plan.sources import External, Read
from headrace.plan.time import EventTime, Late, refuse_endless
from headrace.spark.python.shipping import bare

# Where the records of a branch go


@dataclass(frozen=True)
class ToOperator:
    """What a partial makes of records, to the shards of an operator."""

    operator: int
    node: Node
    side: int = 0
    """Which input of the operator."""
    inputs: int = 1
    """How many inputs it has."""
    lane: int = 0
    """Which of the streams of a union, in their order, times the inputs; plus which input."""


@dataclass(frozen=True)
class ToRelay:
    """Records dealt out evenly to some of the shards."""

    operator: int
    most: int | None


@dataclass(frozen=True)
class ToOutput:
    """Records on their way out: into a sink's writer here, or (None) to the driver."""

    number: int
    schema: pa.Schema
    sink: Any = None


Ending = ToOperator | ToRelay | ToOutput


@dataclass(frozen=True)
class Branch:
    """Narrow steps, then an ending; or several branches, where several read the same step."""

    schema: pa.Schema
    """What comes in."""
    steps: tuple[Narrow, ...]
    ending: Ending | None
    forks: tuple[Branch, ...] = ()
    part: tuple[int, ...] = ()
    """Which stream of the unions it goes through, the last union first."""

    def of_part(self, number: int) -> Branch:
        """The same as one of the streams of a union."""
        forks = tuple(b.of_part(number) for b in self.forks)
        return replace(self, part=(*self.part, number), forks=forks)

    def with_lanes(self, lanes: Mapping[tuple[int, int, tuple[int, ...]], int]) -> Branch:
        """The same with the lane of each ending, by its operator, input and part."""
        ending = self.ending
        if isinstance(ending, ToOperator):
            stream = lanes[ending.operator, ending.side, self.part]
            ending = replace(ending, lane=stream * ending.inputs + ending.side)
        return replace(self, ending=ending, forks=tuple(b.with_lanes(lanes) for b in self.forks))

    def endings(self) -> Iterator[tuple[Ending, tuple[int, ...]]]:
        """Every ending of it, and the part it is of."""
        if self.ending is not None:
            yield self.ending, self.part
        for fork in self.forks:
            yield from fork.endings()

    def with_sink(self, number: int, sink: Any) -> Branch:
        """The same with a sink for an output."""
        ending = self.ending
        if isinstance(ending, ToOutput) and ending.number == number:
            ending = replace(ending, sink=sink)
        return replace(
            self, ending=ending, forks=tuple(b.with_sink(number, sink) for b in self.forks)
        )


# What there is


@dataclass
class SourceFlow:
    """A source, its steps up to event time, and where its records go from there."""

    number: int
    node: EventTime | Read | External
    branches: list[Branch] = field(default_factory=list)
    late: list[Branch] = field(default_factory=list)
    watermarks_for: list[int] = field(default_factory=list)
    """The operators that are told its watermarks: all of them, see ``advance_together``."""

    @property
    def event(self) -> EventTime | None:
        return self.node if isinstance(self.node, EventTime) else None

    @property
    def origin(self) -> Read | External:
        node: Node = self.node
        while isinstance(node, Narrow):
            node = node.input
        assert isinstance(node, (Read, External))
        return node

    @property
    def steps(self) -> tuple[Narrow, ...]:
        """The steps before event time, and the one that says it."""
        found: list[Narrow] = []
        node: Node = self.node
        while isinstance(node, Narrow):
            found.append(node)
            node = node.input
        return tuple(reversed(found))

    @property
    def offsets(self) -> OffsetSource | None:
        origin = self.origin
        return replayable(origin.source) if isinstance(origin, Read) else None

    @property
    def name(self) -> str:
        origin = self.origin
        return str(origin.source) if isinstance(origin, Read) else "a Spark DataFrame"


@dataclass
class OperatorFlow:
    """A step that holds state, or only moves records, and what feeds it."""

    number: int
    node: Node
    level: int = 0
    branches: list[Branch] = field(default_factory=list)
    feeders: list[set[str]] = field(default_factory=list)
    """For each lane, the sources (``s0``) and operators (``o1``) whose watermarks it waits for."""
    watermarks_for: list[int] = field(default_factory=list)


@dataclass
class Graph:
    """A whole job."""

    sources: list[SourceFlow]
    operators: list[OperatorFlow]
    outputs: tuple[JobOutput, ...]

    @property
    def timed(self) -> frozenset[str]:
        """The sources that have event time."""
        return frozenset(f"s{s.number}" for s in self.sources if s.event is not None)

    @property
    def levels(self) -> list[list[OperatorFlow]]:
        """The operators by their distance from the sources."""
        depth = max((o.level for o in self.operators), default=0)
        return [[o for o in self.operators if o.level == n] for n in range(1, depth + 1)]


def graph_of(outputs: Sequence[JobOutput]) -> Graph:
    """The graph of some outputs, read once for all of them."""
    return _Building(outputs).graph


class _Building:
    def __init__(self, outputs: Sequence[JobOutput]) -> None:
        self.graph = Graph([], [], tuple(outputs))
        self.sources: dict[int, SourceFlow] = {}
        self.operators: dict[int, OperatorFlow] = {}
        for output in outputs:
            refuse_endless(output.node)
        # From the outputs back, so that all that read a step are known when the step is placed.
        nodes = inputs_first([o.node for o in outputs])[::-1]
        pending: dict[int, list[Branch]] = {id(n): [] for n in nodes}
        for i, output in enumerate(outputs):
            schema = output.node.schema
            pending[id(output.node)].append(Branch(schema, (), ToOutput(i, schema)))
        for node in reversed(nodes):  # numbered as the input is ordered
            if keeps_state(node):
                self._operator(node)
        for node in nodes:
            self._place(node, pending)
        places = {id(node): i for i, node in enumerate(reversed(nodes))}
        self.graph.sources.sort(key=lambda source: places[id(source.node)])
        for i, source in enumerate(self.graph.sources):
            source.number = i
        self._lanes()
        self._levels()

    def _lanes(self) -> None:
        """Number the streams that reach an operator through unions, in their order."""
        everything = [b for s in self.graph.sources for b in (*s.branches, *s.late)]
        everything += [b for o in self.graph.operators for b in o.branches]
        found: dict[tuple[int, int], set[tuple[int, ...]]] = {}
        for branch in everything:
            for ending, part in branch.endings():
                if isinstance(ending, ToOperator):
                    found.setdefault((ending.operator, ending.side), set()).add(part)
        lanes = {(*o, p): i for o, parts in found.items() for i, p in enumerate(sorted(parts))}
        for source in self.graph.sources:
            source.branches = [b.with_lanes(lanes) for b in source.branches]
            source.late = [b.with_lanes(lanes) for b in source.late]
        for operator in self.graph.operators:
            operator.branches = [b.with_lanes(lanes) for b in operator.branches]

    def _place(self, node: Node, pending: dict[int, list[Branch]]) -> None:
        """Hand the branches that read a step on to what feeds the step."""
        branches = pending[id(node)]
        if isinstance(node, EventTime) or (isinstance(node, (Read, External)) and branches):
            self._source(node).branches.extend(branches)
            return
        if isinstance(node, Late):
            self._source(node.of).late.extend(branches)
            return
        if isinstance(node, (Read, External)):
            return  # read through the event_time after it
        if isinstance(node, Narrow):
            if branches:  # and is not just on the way to event_time
                pending[id(node.input)].append(_through(node, branches))
            return
        if isinstance(node, Union):
            for i, part in enumerate(node.parts):
                pending[id(part)].extend(b.of_part(i) for b in branches)
            return
        if not keeps_state(node):
            raise PlanError(
                f"{node.label}: beside a stream that does not end, Spark takes bounded input only "
                "as it is read; write this part first and read it, or pass on='box'"
            )
        operator = self._operator(node)
        operator.branches.extend(branches)
        number = operator.number
        if isinstance(node, (Shuffle, MaxParallelism)):
            most = node.count if isinstance(node, MaxParallelism) else None
            relay = Branch(node.input.schema, (), ToRelay(number, most))
            pending[id(node.input)].append(relay)
            return
        for side, before in enumerate(node.inputs):
            ending = ToOperator(number, bare(node), side, len(node.inputs))
            pending[id(before)].append(Branch(before.schema, (), ending))

    def _source(self, node: EventTime | Read | External) -> SourceFlow:
        found = self.sources.get(id(node))
        if found is None:
            found = self.sources[id(node)] = SourceFlow(len(self.graph.sources), node)
            self.graph.sources.append(found)
        return found

    def _operator(self, node: Any) -> OperatorFlow:
        found = self.operators.get(id(node))
        if found is None:
            found = self.operators[id(node)] = OperatorFlow(len(self.graph.operators), node)
            self.graph.operators.append(found)
        return found

    def _levels(self) -> None:
        ends = [output.node for output in self.graph.outputs]
        for operator, level in zip(self.graph.operators, levels_of(ends), strict=True):
            operator.level = level
            operator.feeders = feeders_of(operator.node, ends)
            for source in self.graph.sources:
                source.watermarks_for.append(operator.number)
            for name in set().union(*operator.feeders):
                if name[0] == "o":
                    self.graph.operators[int(name[1:])].watermarks_for.append(operator.number)


def _through(node: Narrow, branches: list[Branch]) -> Branch:
    step = bare(node)
    if len(branches) == 1:
        only = branches[0]
        return replace(only, schema=node.input.schema, steps=(step, *only.steps))
    return Branch(node.input.schema, (step,), None, tuple(branches))


def source_columns(source: SourceFlow, needed: Sequence[set[str] | None]) -> list[str] | None:
    """The columns of a source's records that its branches and its event time read; None for all."""
    if source.late or any(n is None for n in needed):
        return None
    columns: set[str] = set().union(*(n for n in needed if n is not None))
    event = source.event
    if event is not None:
        columns.add(event.column)
        if isinstance(event.punctuation, exp.Expr):
            columns |= columns_of([event.punctuation])
        elif event.punctuation is not None:
            return None
    return sorted(columns)
