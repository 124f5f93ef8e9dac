"""The logical plan: what the pipeline says, step by step, with the columns after each step.

A node is frozen and knows its inputs. Nodes are of two kinds: *narrow* ones turn one bundle into
one bundle, so that a chain of them is one stage; *wide* ones bring records together or apart, and
begin a new stage (RStream §IV). Nothing here knows an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.trees import Dialect

Named = tuple[tuple[str, exp.Expr], ...]


@dataclass(frozen=True, eq=False)
class Node:
    """A step. ``schema`` is what it gives; ``step`` its place in the pipeline, from 1."""

    schema: pa.Schema
    step: int

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @property
    def inner(self) -> tuple[Node, ...]:
        """The ends of plans within this step."""
        return ()

    @property
    def name(self) -> str:
        """The method that added this step."""
        return type(self).__name__.lower()

    @property
    def detail(self) -> str:
        """What it does, in a few words."""
        return ""

    @property
    def label(self) -> str:
        """How messages name it: ``step 3, filter``."""
        return f"step {self.step}, {self.name}"

    @property
    def needs_end(self) -> bool:
        """Whether it gives nothing before all of its input has come."""
        return False

    @property
    def without_end(self) -> str:
        """What to do instead where the input never ends."""
        return "use a window before it"

    @property
    def python(self) -> bool:
        """Whether it runs a person's function, and so holds the interpreter lock."""
        return False


@dataclass(frozen=True, eq=False)
class OneInput(Node):
    """A step that reads one other."""

    input: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)


@dataclass(frozen=True, eq=False)
class Narrow(OneInput):
    """A step that turns one bundle into one bundle."""


@dataclass(frozen=True, eq=False)
class Wide(OneInput):
    """A step that repartitions one input."""


@dataclass(frozen=True, eq=False)
class Bounded(Wide):
    """A step that repartitions input that ends, for which no window would do."""

    @property
    def needs_end(self) -> bool:
        return True

    @property
    def without_end(self) -> str:
        return "it takes input that ends"


def show(tree: exp.Expr) -> str:
    """An expression as a person wrote it."""
    return str(tree.sql(dialect=Dialect))


def is_same(name: str, tree: exp.Expr) -> bool:
    """Whether a column is passed on under its own name."""
    return isinstance(tree, exp.Column) and len(tree.parts) == 1 and tree.name == name


def named(name: str, tree: exp.Expr) -> str:
    """A column and what it is: ``fare``, or ``double = fare * 2``."""
    return name if is_same(name, tree) else f"{name} = {show(tree)}"


def function_name(function: Callable[..., Any]) -> str:
    """A function's name, and the line it was written on if it has none of its own."""
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    if name == "<lambda>" and code is not None:
        return f"a lambda at {code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"
    return str(name)
