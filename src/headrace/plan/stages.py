"""Stages: maximal chains of steps with no repartitioning between them (RStream §IV)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from headrace.plan.joins import LookUp
from headrace.plan.node import Narrow, Node


@dataclass(frozen=True, eq=False)
class Stage:
    """What begins it, a source or a step that repartitions, and the narrow steps that follow."""

    head: Node
    steps: tuple[Narrow, ...]
    inputs: tuple[Stage, ...]

    @property
    def all_inputs(self) -> tuple[Stage, ...]:
        """The stages it needs: its head's, then those of the tables that its steps look up in."""
        tables = (s.table for s in self.steps if isinstance(s, LookUp))
        return (*self.inputs, *(t for t in tables if isinstance(t, Stage)))

    @property
    def schema(self) -> pa.Schema:
        return self.steps[-1].schema if self.steps else self.head.schema


def stages_of(node: Node) -> Stage:
    """The stage that ends in ``node``, with the stages it reads from; a graph, as the plan is."""
    known: dict[int, Stage] = {}

    def ending_in(end: Node) -> Stage:
        if id(end) not in known:
            steps: list[Narrow] = []
            head = end
            while isinstance(head, Narrow):
                steps.append(head)
                head = head.input
            inputs = tuple(ending_in(i) for i in head.inputs)
            known[id(end)] = Stage(head, tuple(reversed(steps)), inputs)
        return known[id(end)]

    return ending_in(node)


def in_order(stage: Stage) -> Iterator[Stage]:
    """Every stage once, inputs before the stages that read them."""
    seen: set[int] = set()

    def walk(each: Stage) -> Iterator[Stage]:
        if id(each) not in seen:
            seen.add(id(each))
            for before in each.all_inputs:
                yield from walk(before)
            yield each

    return walk(stage)


def shared_heads(stage: Stage) -> set[int]:
    """The heads that several stages read, by ``id``: worth computing once."""
    readers = Counter(id(i.head) for each in in_order(stage) for i in each.inputs)
    return {head for head, count in readers.items() if count > 1}
