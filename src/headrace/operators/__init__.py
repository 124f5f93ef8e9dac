"""Operators: one file for each step that holds state, hosted by both engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.operators.custom import CustomOperator
from headrace.operators.group import Group
from headrace.operators.join import EqualKeys
from headrace.operators.join_within import NearInTime
from headrace.operators.keyed import BroughtTogether
from headrace.operators.operator import Input, Operator
from headrace.operators.ordering import FirstRecords, SortAll
from headrace.operators.sessions import SessionWindows
from headrace.operators.top import TopRecords
from headrace.operators.windows import Windows
from headrace.plan.nodes import (
    Custom,
    GroupBy,
    Join,
    JoinWithin,
    KeyBy,
    Limit,
    Node,
    Sort,
    TopK,
)
from headrace.windows import Session, Window

OPERATORS: dict[type[Node], Any] = {
    Custom: CustomOperator,
    Join: EqualKeys,
    JoinWithin: NearInTime,
    KeyBy: BroughtTogether,
    Limit: FirstRecords,
    Sort: SortAll,
    TopK: TopRecords,
}
"""The operator of each kind of step."""
WINDOWS: dict[type, Any] = {type(None): Group, Window: Windows, Session: SessionWindows}
"""The operator of each kind of window, for steps that aggregate."""


def is_operator(node: Node) -> bool:
    """Whether a step holds state."""
    return isinstance(node, GroupBy) or type(node) in OPERATORS


def operator_of(node: Node, inputs: Sequence[Input], zone: str) -> Operator:
    """The operator of a step, compiled over its inputs."""
    kind = WINDOWS[type(node.window)] if isinstance(node, GroupBy) else OPERATORS[type(node)]
    operator: Operator = kind(node, inputs, zone)
    return operator
