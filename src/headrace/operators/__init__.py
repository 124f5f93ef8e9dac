"""Operators: one file for each step that holds state, hosted by both engines.

A module here has a class for what it implements, and says so with ``of``: a kind of node of the
plan, or a kind of window. Nothing else needs to know of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence

from headrace.operators.operator import Input, Operator
from headrace.plan.groups import GroupBy
from headrace.plan.node import Node


def _known() -> dict[type, type[Operator]]:
    """The operator of each kind of node and of each kind of window."""
    known: dict[type, type[Operator]] = {}
    for module in pkgutil.iter_modules(__path__):
        for thing in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(thing, type) and issubclass(thing, Operator) and thing.of is not None:
                known[thing.of] = thing
    return known


OPERATORS = _known()


def _kind(node: Node) -> type:
    """What an operator is looked up by: steps that aggregate have one for each kind of window."""
    return type(node.window) if isinstance(node, GroupBy) else type(node)


def is_operator(node: Node) -> bool:
    """Whether a step holds state."""
    return _kind(node) in OPERATORS


def operator_of(node: Node, inputs: Sequence[Input], zone: str) -> Operator:
    """The operator of a step, compiled over its inputs."""
    return OPERATORS[_kind(node)](node, inputs, zone)
