"""``key_by`` before functions: all records of a key in one bundle, of input that ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from headrace.kernels.chain import compile_chain
from headrace.operators.operator import (
    Hosting,
    Input,
    Operator,
    Part,
    PassedOn,
    Result,
    State,
    by_keys,
)
from headrace.operators.ordering import together
from headrace.operators.stores import Note, Retained, Store
from headrace.plan.partitions import KeyBy
from headrace.windows import FOREVER


class BroughtTogether(Operator):
    """All records of a key in one bundle, in input order."""

    of: ClassVar[type | None] = KeyBy
    is_keyed = True

    def __init__(self, node: KeyBy, inputs: Sequence[Input], zone: str) -> None:
        self.node = node
        self.chains = (compile_chain(inputs[0].steps, inputs[0].schema, None, zone),)
        self.schema = self.chains[0].schema

    def partial(self, lane: int, hosting: Hosting) -> PassedOn:
        return by_keys(self.node.keys, lane, hosting)

    def state(self, store: Store, note: Note) -> KeyedState:
        return KeyedState(self, store, note)


class KeyedState(State):
    """The records of one shard of keys until the input ends."""

    def __init__(self, operator: BroughtTogether, store: Store, note: Note) -> None:
        self.operator = operator
        self.retained = Retained(store, note, 0, operator.schema)

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        for part in parts:
            self.retained.append(0, part.batch, part.order)
        if watermarks[0] == FOREVER and 0 in self.retained:
            operator = self.operator
            yield 0, together(self.retained.pop(0), operator.schema, operator.node.label)
