"""Stages: maximal chains of steps with no repartitioning between them (RStream §IV)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from headrace.plan.nodes import Narrow, Node


@dataclass(frozen=True, eq=False)
class Stage:
    """What begins it, a source or a step that repartitions, and the narrow steps that follow."""

    head: Node
    steps: tuple[Narrow, ...]
    inputs: tuple[Stage, ...]

    @property
    def schema(self) -> pa.Schema:
        return self.steps[-1].schema if self.steps else self.head.schema


def stages_of(node: Node) -> Stage:
    """The stage that ends in ``node``, with the stages it reads from."""
    steps: list[Narrow] = []
    while isinstance(node, Narrow):
        steps.append(node)
        node = node.input
    return Stage(node, tuple(reversed(steps)), tuple(stages_of(i) for i in node.inputs))


def in_order(stage: Stage) -> Iterator[Stage]:
    """Every stage, inputs before the stages that read them."""
    for each in stage.inputs:
        yield from in_order(each)
    yield stage
