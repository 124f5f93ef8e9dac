"""Windows of bounded input as keys: what a batch engine makes of event time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
from sqlglot import exp

from headrace.expressions import Expr, col, lit
from headrace.plan.nodes import (
    AssignWindows,
    GroupBy,
    Join,
    JoinWithin,
    Narrow,
    Node,
    Project,
    Union,
    Wide,
)
from headrace.plan.time import END, START
from headrace.windows import Window


def windows_as_keys(node: Node) -> Node:
    """The same plan with tumbling and sliding windows as one more key of a ``GroupBy``."""
    done: dict[int, Node] = {}

    def walk(each: Node) -> Node:
        if id(each) not in done:
            done[id(each)] = _rewritten(each, walk)
        return done[id(each)]

    return walk(node)


def _rewritten(node: Node, walk: Callable[[Node], Node]) -> Node:
    if isinstance(node, (Narrow, Wide)):
        node = replace(node, input=walk(node.input))
    elif isinstance(node, (Join, JoinWithin)):
        node = replace(node, left=walk(node.left), right=walk(node.right))
    elif isinstance(node, Union):
        node = replace(node, parts=tuple(walk(p) for p in node.parts))
    if isinstance(node, GroupBy) and isinstance(node.window, Window) and not by_panes(node):
        return _grouped(node)
    return node


PANE = "__pane"


def by_panes(node: GroupBy) -> bool:
    """Whether a sliding window is best put together from panes: unless input order matters."""
    window = node.window
    return isinstance(window, Window) and window.panes > 1 and not node.is_ordered


def in_panes(node: GroupBy) -> tuple[AssignWindows, GroupBy]:
    """The step that gives each record its pane, and the aggregation by key and pane."""
    assert isinstance(node.window, Window)
    assert node.clock is not None
    window, before = node.window, node.input
    field = node.schema.field(START).with_name(PANE)
    columns = before.schema.append(field)
    step = AssignWindows(columns, node.step, before, window, node.clock, by_pane=True)
    keys = (*node.keys, (PANE, col(PANE).tree))
    return step, replace(node, input=step, keys=keys, window=None, clock=None)


def _grouped(node: GroupBy) -> Node:
    assert isinstance(node.window, Window)
    assert node.clock is not None
    start = node.schema.field(START)
    name = "__window_start"
    before = node.input
    assigned = AssignWindows(
        before.schema.append(start.with_name(name)), node.step, before, node.window, node.clock
    )
    keys = (*node.keys, (START, col(name).tree))
    fields = [f for f in node.schema if f.name != END]
    grouped = replace(
        node, schema=pa.schema(fields), input=assigned, keys=keys, window=None, clock=None
    )
    end: Expr = col(START) + lit(timedelta(microseconds=node.window.size))
    columns: list[tuple[str, exp.Expr]] = [(n, col(n).tree) for n in node.schema.names]
    columns = [(n, end.tree if n == END else t) for n, t in columns]
    return Project(node.schema, node.step, grouped, tuple(columns), "select")
