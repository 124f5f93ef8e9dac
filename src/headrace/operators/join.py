"""``join``: pairs of records with equal keys, of inputs that end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from headrace.kernels.chain import compile_chain
from headrace.kernels.join import equi_join
from headrace.operators.operator import (
    Hosting,
    Input,
    Operator,
    Part,
    PassedOn,
    Phases,
    Result,
    State,
    advance_shards,
    by_keys,
)
from headrace.operators.ordering import together
from headrace.operators.shards import Shards
from headrace.operators.stores import Note, Retained, Store
from headrace.plan.nodes import Join
from headrace.windows import FOREVER


class EqualKeys(Operator):
    """Pairs of records with equal keys: when both inputs have ended, shard by shard."""

    of: ClassVar[type | None] = Join
    is_keyed = True

    def __init__(self, node: Join, inputs: Sequence[Input], zone: str) -> None:
        self.node = node
        self.chains = tuple(compile_chain(i.steps, i.schema, None, zone) for i in inputs)
        self.keys = (node.left_on, node.right_on)

    def partial(self, lane: int, hosting: Hosting) -> PassedOn:
        return by_keys(self.keys[lane], lane, hosting)

    def state(self, store: Store, note: Note) -> JoinState:
        return JoinState(self, store, note)

    def advance(
        self, shards: Shards, lane: int, watermark: int, emit: Callable[[int, Result], None]
    ) -> Phases:
        if min(shards.watermarks) < FOREVER:
            return iter(())
        return advance_shards(shards, lane, watermark, emit)


class JoinState(State):
    """Both sides' records of one shard of keys until both have ended."""

    def __init__(self, operator: EqualKeys, store: Store, note: Note) -> None:
        self.operator = operator
        self.sides = [Retained(store, note, i, c.schema) for i, c in enumerate(operator.chains)]

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        for part in parts:
            self.sides[part.lane].append(0, part.batch, part.order)
        if min(watermarks) < FOREVER or not any(0 in side for side in self.sides):
            return
        node = self.operator.node
        left, right = (together(side.pop(0), side.schema, node.label) for side in self.sides)
        yield 0, equi_join(node, left, right)
