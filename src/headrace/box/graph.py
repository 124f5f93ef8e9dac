"""A plan as a graph of vertices and ingresses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.box.buffering import Buffering
from headrace.box.cascade import Cascade, Vertex
from headrace.box.clock import Clock
from headrace.box.host import Hosted, Stateless
from headrace.box.ingress import Ingress
from headrace.box.invariants import Checker
from headrace.box.ordered import ByPartition, Ordering, Restored, Settling
from headrace.box.pace import Pace
from headrace.checkpoints.numbering import sources_of
from headrace.errors import PlanError
from headrace.kernels.chain import compile_chain
from headrace.kernels.expressions.codes import coded_schema
from headrace.kernels.scans import not_compiled
from headrace.operators import is_operator, operator_of
from headrace.operators.join import table_side
from headrace.operators.operator import Input
from headrace.operators.stores import Note, TrackedStore
from headrace.plan.custom import Custom
from headrace.plan.groups import GroupBy
from headrace.plan.joins import Join, Union
from headrace.plan.node import Narrow, Node
from headrace.plan.partitions import Buffered, MaxParallelism, Shuffle
from headrace.plan.prune import columns_of
from headrace.plan.scans import CountStep, Scan
from headrace.plan.sources import External, Read
from headrace.plan.time import EventTime, Late, clock_of, nodes_of, refuse_endless
from headrace.windows import Window


@dataclass
class Feed:
    """Where an ingress sends its bundles, and which columns are wanted of them."""

    node: EventTime | Read
    outputs: list[tuple[Vertex, int]] = field(default_factory=list)
    late: list[tuple[Vertex, int]] = field(default_factory=list)
    columns: set[str] | None = field(default_factory=set)
    coded: frozenset[str] = frozenset()
    """The text columns that are given coded: the one step that reads them knows it."""

    def want(self, names: Iterable[str]) -> None:
        if self.columns is not None:
            self.columns |= set(names)


Port = Vertex | Feed


class Graph:
    """Vertices in topological order, and the ingresses that feed them."""

    def __init__(self, workers: int, zone: str = "UTC", ordering: Ordering | None = None) -> None:
        self.workers, self.zone, self.ordering = workers, zone, ordering
        """How the order of all records is kept; None where it need not be."""
        self.nodes: dict[int, Node] = {}
        """The step of each vertex."""
        self.ends: list[Node] = []
        self.vertices: list[Vertex] = []
        self.feeds: dict[int, Feed] = {}
        self.ports: dict[int, Port] = {}
        self.readers: Counter[int] = Counter()
        self.clocks: list[tuple[Vertex, Node]] = []
        self.grains: list[Window] = []
        self.every_watermark = False
        self.last_watermark = False
        self.saved: dict[int, list[tuple[TrackedStore, Note]]] = {}
        """For each step with state what a checkpoint has of its shards, if there is one."""
        self.hosted: dict[int, Hosted] = {}

    # From plan nodes to vertices

    def add_output(self, node: Node, sink: Any, name: str, *, alone: bool) -> Vertex:
        """Compute a step and give its records to a sink; ``alone`` if one bundle at a time."""
        port, steps = self._above(node)
        if steps or (isinstance(port, Vertex) and len(port.lanes) > 1 and not port.joint):
            port = self._stateless(port, steps, node)
        # A key's results reach a sink in the order of their windows.
        in_order = alone and self.ordering is None and _ends_in_windows(node)
        vertex = Vertex(name, sink, max_running=1 if alone else 1 << 30, in_order=in_order)
        self._connect(port, vertex, None)
        self._register(vertex, node)
        if self.ordering is not None or (alone and not in_order):
            vertex.ordered = True
            vertex.max_running = 1
        return vertex

    def count(self, nodes: Sequence[Node]) -> None:
        """Learn which steps are read by several others, before any is built."""
        self.ends = list(nodes)
        seen: set[int] = set()
        for output in nodes:
            refuse_endless(output)
            self.readers[id(output)] += 1
            for each in nodes_of(output):
                if id(each) not in seen:
                    seen.add(id(each))
                    for source in each.inputs:
                        self.readers[id(source)] += 1

    def _above(self, node: Node, own: bool = False) -> tuple[Port, list[Narrow]]:
        """What gives a step's input, and the narrow steps from there to it.

        A narrow step that several others read is computed once, by a vertex of its own; and where
        records wait to be sent on, a vertex ends.
        """
        steps: list[Narrow] = []
        while (
            isinstance(node, Narrow)
            and not isinstance(node, EventTime)
            and ((own and not steps) or not self._is_shown(node))
        ):
            steps.append(node)
            node = node.input
        return self._port(node), steps[::-1]

    def _is_shown(self, node: Narrow) -> bool:
        """Whether a narrow step has a vertex of its own."""
        return self.readers[id(node)] > 1 or isinstance(node, Buffered)

    def _port(self, node: Node) -> Port:
        found = self.ports.get(id(node))
        if found is None:
            found = self.ports[id(node)] = self._made(node)
        return found

    def _made(self, node: Node) -> Port:
        if isinstance(node, (EventTime, Read)):
            feed = Feed(node)
            self.feeds[id(node)] = feed
            return feed
        if isinstance(node, Narrow):
            vertex = self._stateless(*self._above(node, own=True), node)
            if isinstance(node, Buffered):
                vertex.buffering = Buffering(node.policy)
            return vertex
        if isinstance(node, External):
            raise PlanError(
                f"a stream from {node.engine} runs on {node.engine} only; pass on='{node.engine}'"
            )
        if isinstance(node, Late):
            feed_of = self._port(node.of)
            assert isinstance(feed_of, Feed)
            feed_of.columns = None
            vertex = Vertex(node.label, Stateless(compile_chain([], node.schema)))
            feed_of.late.append((vertex, 0))
            return self._register(vertex, node)
        if isinstance(node, Union):
            return self._union(node)
        if is_operator(node):
            return self._operator(node)
        assert isinstance(node, (Shuffle, MaxParallelism))
        port, steps = self._above(node.input)
        vertex = self._stateless(port, steps, node)
        if isinstance(node, MaxParallelism):
            vertex.max_running = node.count
        return vertex

    def _stateless(self, port: Port, steps: Sequence[Narrow], node: Node) -> Vertex:
        chain = compile_chain(steps, _schema(port), None, self.zone)
        name = steps[-1].label if steps else node.label
        vertex = Vertex(name, Stateless(chain))
        vertex.python = _runs_python(steps)
        self._connect(port, vertex, chain.columns)
        return self._register(vertex, node)

    def _operator(self, node: Node) -> Vertex:
        above = [self._above(source) for source in node.inputs]
        for port, _ in above:
            if isinstance(port, Feed) and self.readers[id(port.node)] == 1:
                port.coded = port.node.source.coded if isinstance(port.node, Read) else port.coded
        inputs = [Input(tuple(steps), _schema(port)) for port, steps in above]
        operator = operator_of(node, inputs, self.zone)
        self.every_watermark = self.every_watermark or operator.every_watermark
        window = node.window if isinstance(node, GroupBy) else None
        if isinstance(window, Window):
            self.grains.append(window)
        hosted = self.hosted[id(node)] = Hosted(operator, self.workers, self.saved.get(id(node)))
        vertex = Vertex(node.label, hosted, len(above))
        # A timer may be set again as often as a watermark passes it.
        vertex.each_watermark = isinstance(node, Custom) or operator.has_timers
        self.last_watermark = self.last_watermark or vertex.each_watermark
        runs_python = not_compiled(node) is not None if isinstance(node, Scan) else node.python
        vertex.python = runs_python or any(_runs_python(steps) for _, steps in above)
        for lane, ((port, _), chain) in enumerate(zip(above, operator.chains, strict=True)):
            self._connect(port, vertex, chain.columns, lane)
        if len(above) == 1:
            return self._register(vertex, node)
        self._register(vertex, None)
        # The least of both sides' watermarks is found by the next vertex (StreamBox §5.3).
        meet = Vertex(
            f"{node.label}, both sides",
            Stateless(compile_chain([], node.schema)),
            len(above),
            joint=True,
        )
        vertex.outputs.append((meet, 0))
        return self._register(meet, node)

    def _union(self, node: Union) -> Vertex:
        parts = [self._above(part) for part in node.parts]
        names = node.schema.names
        counts = [_streams(part) for part in node.parts]
        before = [sum(counts[:lane]) for lane in range(len(counts))]
        vertex = Vertex(
            node.label, Stateless(compile_chain([], node.schema), before), len(parts), joint=True
        )
        for lane, (port, steps) in enumerate(parts):
            if steps:
                port = self._stateless(port, steps, node.parts[lane])
            self._connect(port, vertex, names, lane)
        return self._register(vertex, node)

    def _connect(
        self, port: Port, vertex: Vertex, columns: Iterable[str] | None, lane: int = 0
    ) -> None:
        port.outputs.append((vertex, lane))
        if isinstance(port, Vertex) and isinstance(port.transform, Stateless):
            # A bound holds until records are exchanged.
            vertex.max_running = min(vertex.max_running, port.max_running)
        if isinstance(port, Feed):
            if columns is None:
                port.columns = None
            else:
                port.want(columns)

    def _register(self, vertex: Vertex, node: Node | None) -> Vertex:
        self.vertices.append(vertex)
        if node is not None:
            vertex.schema = node.schema
            self.clocks.append((vertex, node))
            self.nodes[id(vertex)] = node
        return vertex

    # The running parts

    def cascade(self, debug: bool) -> Cascade:
        """The network of containers, with a checker of its invariants if asked."""
        ordered = _topological(self.vertices)
        self._keep_order(ordered)
        checker = Checker() if debug else None
        if checker is not None:
            for vertex, node in self.clocks:
                for target, lane in vertex.outputs:
                    checker.watch(target.lanes[lane], clock_of(node))
            for feed in self.feeds.values():
                for target, lane in feed.outputs:
                    checker.watch(target.lanes[lane], clock_of(feed.node))
        return Cascade(ordered, checker)

    def _keep_order(self, vertices: list[Vertex]) -> None:
        """Number the bundles of transforms whose order matters, and of those above them."""
        ordering = self.ordering or Ordering()
        arriving: set[int] = set()
        """What a scan by arrival, and nothing else with state, is above."""
        for vertex in vertices:
            if id(vertex) in arriving or _is_by_arrival(vertex):
                arriving |= {
                    id(target)
                    for target, _ in vertex.outputs
                    if not isinstance(target.transform, Hosted)
                }
        for vertex in reversed(vertices):
            if id(vertex) in arriving and not isinstance(vertex.transform, Stateless):
                vertex.ordered, vertex.max_running = True, 1
            transform, node = vertex.transform, self.nodes.get(id(vertex))
            below = any(
                (target.ordered and not isinstance(target.transform, Hosted))
                or isinstance(target.ordering, ByPartition)
                for target, _ in vertex.outputs
            )  # fmt: skip
            if _is_by_arrival(vertex):
                vertex.ordered, vertex.ordering = True, ByPartition(transform, ordering)
                if self.ordering is not None and node is not None:
                    vertex.settles = _settling(node)  # what comes of the end
            elif isinstance(transform, Stateless) and (
                below or self.ordering is not None or vertex.buffering is not None
            ):
                vertex.ordered, vertex.ordering = True, Restored(ordering)
            elif isinstance(transform, Hosted) and self.ordering is not None and node is not None:
                vertex.settles = _settling(node)
                if isinstance(node, Custom):
                    vertex.ordered, vertex.max_running = True, 1

    def _turns(self) -> dict[int, int]:
        """When to read each source: the side of a join that is its table before the other."""
        turns: dict[int, int] = {}

        def visit(node: Node, turn: int) -> int:
            if id(node) not in turns:
                turns[id(node)] = found(node, turn)
            return turns[id(node)]

        def found(node: Node, turn: int) -> int:
            if isinstance(node, EventTime) or not node.inputs:
                return turn if isinstance(node, Read) else 0
            if isinstance(node, Join):
                side = table_side(node)
                return visit(node.inputs[1 - side], visit(node.inputs[side], turn) + 1)
            return max(visit(source, turn) for source in node.inputs)

        for end in self.ends:
            visit(end, 0)
        return turns

    def ingresses(self, cascade: Cascade, pace: Pace, clock: Clock, flush: float) -> list[Ingress]:
        """What reads the sources, in their order."""
        made: list[Ingress] = []
        in_turn = self.ordering is not None or any(
            isinstance(vertex.ordering, ByPartition) for vertex in self.vertices
        )
        for vertex in cascade.buffering:
            assert vertex.buffering is not None
            vertex.buffering.in_turn = in_turn
        feeds = [self.feeds[id(n)] for n in sources_of(self.ends) if id(n) in self.feeds]
        turns = self._turns()
        for hosted in self.hosted.values():
            hosted.passes_all = self.last_watermark
        for feed in feeds:
            columns = feed.columns
            node = feed.node
            if isinstance(node, EventTime) and columns is not None:
                columns = columns | {node.column}
                if isinstance(node.punctuation, exp.Expr):
                    columns |= columns_of([node.punctuation])
                elif node.punctuation is not None:
                    columns = None
            wanted = None if columns is None else sorted(columns)
            ingress = Ingress(node, wanted, cascade, pace, clock, flush, self.zone)
            ingress.number, ingress.turn = len(made), turns.get(id(node), 0)
            ingress.in_turn = in_turn
            ingress.splits.give_coded(feed.coded)
            epochs = ingress.epochs
            epochs.outputs, epochs.late_outputs = feed.outputs, feed.late
            epochs.grains, epochs.every_watermark = self.grains, self.every_watermark
            epochs.last_watermark = self.last_watermark
            made.append(ingress)
        return made


def _is_by_arrival(vertex: Vertex) -> bool:
    transform = vertex.transform
    return isinstance(transform, Hosted) and transform.operator.by_arrival


def _settling(node: Node) -> Settling:
    """The order of what a step gives at a watermark: by event time, then by key."""
    clock, keys = clock_of(node), list(getattr(node, "keys", ()))
    if isinstance(node, GroupBy):
        keys = [name for name, _ in node.keys]
    elif isinstance(node, Scan) and isinstance(node.what, CountStep):  # they may have other names
        keys = node.schema.names[: len(keys)]
    times = () if clock is None else clock.columns
    return Settling(times, tuple(name for name in keys if name in node.schema.names))


def refuse_unordered(node: Node) -> None:
    """Refuse what has no order of its own where the order of all records is kept."""
    for each in nodes_of(node):
        keyed = isinstance(each, Custom) and bool(each.keys)
        if len(each.inputs) > 1 or keyed or isinstance(each, Late):
            raise PlanError(
                f"{each.label}: Box(ordered=True) takes steps one after the other, of one source; "
                f"{'write it as a scan' if keyed else 'leave ordered out'}"
            )


def _ends_in_windows(node: Node) -> bool:
    """Whether what comes out are results of windows, or of a scan by time, of one step.

    After a union or a join it is not known before the other side's watermark which epoch is older,
    and nothing shall wait for that.
    """
    while not (isinstance(node, GroupBy) and node.window is not None) and not (
        isinstance(node, Scan) and node.by_time
    ):
        if len(node.inputs) != 1:
            return False
        (node,) = node.inputs
    return True


def _streams(node: Node) -> int:
    """How many streams come together in a step, through unions of unions."""
    while isinstance(node, Narrow):
        node = node.input
    return sum(map(_streams, node.parts)) if isinstance(node, Union) else 1


def _runs_python(steps: Iterable[Narrow]) -> bool:
    return any(step.python for step in steps)


def _schema(port: Port) -> pa.Schema:
    if isinstance(port, Feed):
        return coded_schema(port.node.schema, port.coded)
    assert port.schema is not None
    return port.schema


def _topological(vertices: list[Vertex]) -> list[Vertex]:
    """Vertices with those they feed after them, each with its distance from the sources."""
    waiting = Counter({id(v): 0 for v in vertices})
    for vertex in vertices:
        for target, _ in vertex.outputs:
            waiting[id(target)] += 1
    ordered: list[Vertex] = []
    free = [v for v in vertices if not waiting[id(v)]]
    while free:
        vertex = free.pop(0)
        ordered.append(vertex)
        for target, _ in vertex.outputs:
            target.depth = max(target.depth, vertex.depth + 1)
            waiting[id(target)] -= 1
            if not waiting[id(target)]:
                free.append(target)
    return ordered
