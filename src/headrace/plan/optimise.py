"""A bounded plan without what nobody asks for: columns are left out before records are brought
together, a sort before a limit keeps no more records than that, and a source that can leaves out
records which a filter would.

``prune`` does the same within a stage; this goes through joins, sorts and unions. Plans with event
time are left as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.expressions import col
from headrace.plan.groups import GroupBy
from headrace.plan.iteration import rewired
from headrace.plan.joins import Join, Union
from headrace.plan.node import Node
from headrace.plan.order import Limit, Sort
from headrace.plan.partitions import MaxParallelism, Shuffle
from headrace.plan.prune import columns_of
from headrace.plan.pushdown import pushed
from headrace.plan.rows import Explode, Filter, Project
from headrace.plan.sources import Read
from headrace.plan.time import EventTime, Late, is_bounded, nodes_of, zone_of

Needs = set[str] | None
"""Names of columns; None for all."""


def optimised(outputs: Sequence[Node]) -> list[Node]:
    """Plans with the same results. What several of them read is still one step."""
    nodes: dict[int, Node] = {}
    for output in outputs:
        nodes.update((id(each), each) for each in nodes_of(output))
    if any(isinstance(n, (EventTime, Late)) for n in nodes.values()):
        return list(outputs)
    if not all(map(is_bounded, outputs)):
        return list(outputs)
    needs = _needs(outputs, list(nodes.values()))
    readers = Counter(id(source) for n in nodes.values() for source in n.inputs)
    readers.update(map(id, outputs))
    made: dict[int, Node] = {}
    for key, node in nodes.items():
        step = _rebuilt(node, needs[key], [made[id(i)] for i in node.inputs], readers)
        if isinstance(step, Filter) and _reads_alone(node, readers):
            step = pushed(step, step.input, zone_of(*outputs))
        made[key] = step
    return [made[id(output)] for output in outputs]


def _reads_alone(node: Node, readers: Counter[int]) -> bool:
    """Whether a source is read by nothing but this step, through some that keep no records."""
    while isinstance(node, (Filter, Project)):
        node = node.input
        if readers[id(node)] > 1:
            return False
    return isinstance(node, Read)


def _needs(outputs: Sequence[Node], nodes: Sequence[Node]) -> dict[int, Needs]:
    """The columns that are read of each step; ``nodes`` has inputs first."""
    needs: dict[int, Needs] = {id(node): set() for node in nodes}

    def ask(node: Node, names: Needs) -> None:
        before = needs[id(node)]
        needs[id(node)] = None if names is None or before is None else before | names

    for output in outputs:
        ask(output, None)
    for node in reversed(nodes):
        if needs[id(node)] == set():  # a bundle must keep its number of rows
            needs[id(node)] = set(node.schema.names[:1])
        for source, names in zip(node.inputs, _read(node, needs[id(node)]), strict=True):
            ask(source, names)
    return needs


def _read(node: Node, needed: Needs) -> list[Needs]:
    """The columns that a step reads of each of its inputs, if those are needed of it."""
    names = set(node.schema.names) if needed is None else needed
    if isinstance(node, Project):
        return [columns_of(tree for _, tree in _columns(node, needed))]
    if isinstance(node, Explode):
        return [{name for name in node.keep if name in names} | columns_of([node.elements])]
    if isinstance(node, Filter):
        return [needed if needed is None else needed | columns_of([node.condition])]
    if isinstance(node, Sort):
        return [names | columns_of(tree for tree, _ in node.order)]
    if isinstance(node, GroupBy):
        trees = [tree for _, tree in node.keys]
        for _, aggregate in node.aggregates:
            trees += [*aggregate.inputs, *([] if aggregate.by is None else [aggregate.by])]
        return [columns_of(trees)]
    if isinstance(node, Join):
        theirs = {old for old, new in node.renamed if new in names}
        ours = {name for name in node.left_names if name in names}
        return [ours | set(node.left_on), theirs | set(node.right_on)]
    if isinstance(node, (Limit, Shuffle, MaxParallelism, Union)):
        return [needed for _ in node.inputs]
    return [None for _ in node.inputs]


def _columns(node: Project, needed: Needs) -> Any:
    return tuple(c for c in node.columns if needed is None or c[0] in needed)


def _rebuilt(node: Node, needed: Needs, inputs: Sequence[Node], readers: Counter[int]) -> Node:
    """A step over other inputs, with the columns that are needed of it."""
    if isinstance(node, Project):
        columns = _columns(node, needed)
        names = [name for name, _ in columns]
        return _over(node, inputs, schema=_fields(node.schema, names), columns=columns)
    if isinstance(node, Explode):
        keep = tuple(k for k in node.keep if needed is None or k in needed)
        return _over(node, inputs, schema=_fields(node.schema, [*keep, node.column]), keep=keep)
    if isinstance(node, Filter):
        names = _some(inputs[0].schema, needed)
        return _over(node, inputs, schema=_fields(inputs[0].schema, names))
    if isinstance(node, Join):
        sides = [
            _selected(source, names, node.step)
            for source, names in zip(inputs, _read(node, needed), strict=True)
        ]
        names = _some(node.schema, needed)
        renamed = tuple((old, new) for old, new in node.renamed if new in names)
        return _over(node, sides, schema=_fields(node.schema, names), renamed=renamed)
    if isinstance(node, Limit) and isinstance(node.input, Sort):
        (before,) = inputs
        if readers[id(node.input)] == 1:
            before = replace(before, first=node.count)  # type: ignore[call-arg]
        return _over(node, [before], schema=before.schema)
    if isinstance(node, (Sort, Limit, Shuffle, MaxParallelism, Union)):
        parts = [
            _selected(source, names, node.step)
            for source, names in zip(inputs, _read(node, needed), strict=True)
        ]
        return _over(node, parts, schema=parts[0].schema)
    return _over(node, inputs)


def _over(node: Any, inputs: Sequence[Node], **changes: Any) -> Node:
    """The step over other inputs; itself where nothing is different."""
    same = all(a is b for a, b in zip(node.inputs, inputs, strict=True))
    schema = changes.get("schema", node.schema)
    if same and schema.equals(node.schema):
        return node  # type: ignore[no-any-return]
    if node.inner:  # what is within it reads the same
        return rewired(node, dict(zip(map(id, node.inputs), inputs, strict=True)))
    if isinstance(node, Union):
        return replace(node, parts=tuple(inputs), **changes)
    if len(inputs) == 1:
        return replace(node, input=inputs[0], **changes)  # type: ignore[no-any-return]
    if inputs:
        return replace(node, left=inputs[0], right=inputs[1], **changes)  # type: ignore[no-any-return]
    return node  # type: ignore[no-any-return]


def _selected(node: Node, names: Needs, step: int) -> Node:
    """The columns of these names only."""
    kept = _some(node.schema, names)
    if len(kept) == len(node.schema) or not all(kept):  # a column without a name cannot be said
        return node
    columns = tuple((name, col(name).tree) for name in kept)
    return Project(_fields(node.schema, kept), step, node, columns, "select")


def _some(schema: pa.Schema, names: Needs) -> list[str]:
    """The columns of these names in their order."""
    return [n for n in schema.names if names is None or n in names]


def _fields(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])
