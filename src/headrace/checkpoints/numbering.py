"""The sources of a job and its steps with state, numbered the same on both engines.

The numbers follow the order of the input, so that a checkpoint knows each by its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.operators import is_operator
from headrace.plan.node import Narrow, Node
from headrace.plan.partitions import MaxParallelism, Shuffle
from headrace.plan.sources import External, Read
from headrace.plan.time import EventTime, Late, nodes_of

Beginning = EventTime | Read | External
"""Where a source's records enter: its event time, or the source itself where it has none."""


def inputs_first(ends: Sequence[Node]) -> list[Node]:
    """All steps of a job, each after those it reads."""
    found: list[Node] = []
    seen: set[int] = set()
    for end in ends:
        for each in nodes_of(end):
            if id(each) not in seen:
                seen.add(id(each))
                found.append(each)
    return found


def keeps_state(node: Node) -> bool:
    """Whether a step is numbered: it holds state by shard, or moves records."""
    if isinstance(node, (Shuffle, MaxParallelism)):
        return True
    return is_operator(node) and not node.needs_end


def sources_of(ends: Sequence[Node]) -> list[Beginning]:
    """Where the sources of a job begin, in order."""
    found: set[int] = set()
    seen: set[int] = set()
    waiting: list[Node] = list(ends)
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, (EventTime, Read, External)):
            found.add(id(node))
        elif isinstance(node, Late):
            waiting.append(node.of)
        else:
            waiting.extend(node.inputs)
    ordered = inputs_first(ends)
    return [n for n in ordered if id(n) in found and isinstance(n, (EventTime, Read, External))]


def operators_of(ends: Sequence[Node]) -> list[Node]:
    """The steps of a job that hold state by shard or move records, in order."""
    return [node for node in inputs_first(ends) if keeps_state(node)]


def feeders_of(node: Node, ends: Sequence[Node]) -> list[set[str]]:
    """For each input of a step, the sources (``s0``) and steps with state (``o1``) that feed it."""
    names = {id(n): f"s{i}" for i, n in enumerate(sources_of(ends))}
    names |= {id(n): f"o{i}" for i, n in enumerate(operators_of(ends))}

    def feeding(each: Node) -> set[str]:
        if id(each) in names:
            return {names[id(each)]}
        return set().union(*(feeding(i) for i in each.inputs))

    return [feeding(each) for each in node.inputs]


def levels_of(ends: Sequence[Node]) -> list[int]:
    """How many steps with state each of them is away from the sources, itself counted."""
    operators = operators_of(ends)
    mine = {id(node) for node in operators}
    known: dict[int, int] = {}

    def level(node: Node) -> int:
        if id(node) not in known:
            below = max((level(each) for each in node.inputs), default=0)
            known[id(node)] = below + (id(node) in mine)
        return known[id(node)]

    return [level(node) for node in operators]


def origin_of(node: Beginning) -> Read | External:
    """What is read, below the steps up to event time."""
    step: Node = node
    while isinstance(step, Narrow):
        step = step.input
    assert isinstance(step, (Read, External))
    return step
