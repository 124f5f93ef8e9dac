"""How a plan is shown: as text for people, as a graph for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Protocol

import pyarrow as pa

from headrace.plan.node import Narrow, Node
from headrace.plan.stages import Stage, in_order, stages_of
from headrace.types import type_name

LOCK = "Python, holds the interpreter lock"
ITERATED = "a job for each iteration; what comes of it is kept for the next"


class Text(str):
    """A string that a prompt shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def columns_text(schema: pa.Schema) -> str:
    """Columns and their types in one line."""
    return ", ".join(f"{f.name}: {type_name(f.type)}" for f in schema)


def logical(node: Node) -> str:
    """The steps as a tree, the last first."""
    lines: list[str] = []

    def walk(each: Node, depth: int) -> None:
        detail = f" {each.detail}" if each.detail else ""
        lines.append(f"{'   ' * depth}{'└─ ' if depth else ''}{each.name}{detail}")
        for source in (*each.inner, *each.inputs):
            walk(source, depth + 1)

    walk(node, 0)
    return "\n".join(lines)


class Engine(Protocol):
    """What an engine tells of a plan."""

    name: str

    def stages(self, node: Node) -> Stage:
        """The stages as it runs them."""

    def where(self, stage: Stage, readers: Sequence[Stage] = ()) -> list[str]:
        """Where the head of a stage and each of its steps run, in a few words."""


def explain(node: Node, on: Engine, sink: str = "") -> Text:
    """The logical plan, then the stages and where each step runs; and what a sink promises."""
    stages = list(in_order(on.stages(node)))
    numbers = {id(s): i for i, s in enumerate(stages)}
    lines = ["Logical plan", *("  " + line for line in logical(node).splitlines()), ""]
    lines.append(f"Stages on {on.name}")
    for stage in stages:
        feeds = ", ".join(str(numbers[id(i)]) for i in stage.all_inputs)
        lines.append(f"  stage {numbers[id(stage)]}" + (f", after stage {feeds}" if feeds else ""))
        readers = [s for s in stages if any(i is stage for i in s.all_inputs)]
        places = on.where(stage, readers)
        steps = [stage.head, *stage.steps]
        width = max(len(_step(s)) for s in steps)
        for step, place in zip(steps, places, strict=True):
            lines.append(f"    {_step(step):<{width}}  [{place}]")
    lines += ["", f"Columns: {columns_text(node.schema)}"]
    if sink:
        lines.append(f"Output: {sink}")
    return Text("\n".join(lines))


def _step(step: Node, most: int = 72) -> str:
    text = f"{step.name} {step.detail}".strip()
    return text if len(text) <= most else text[: most - 1] + "…"


def mermaid(node: Node) -> Text:
    """The stages and their steps as a Mermaid flowchart."""
    stages = list(in_order(stages_of(node)))
    numbers = {id(s): i for i, s in enumerate(stages)}
    lines = ["flowchart LR"]
    for stage in stages:
        n = numbers[id(stage)]
        lines.append(f'  subgraph stage{n}["stage {n}"]')
        steps = [stage.head, *stage.steps]
        for i, step in enumerate(steps):
            shape = '{{"%s"}}' if isinstance(step, Narrow) and step.python else '["%s"]'
            lines.append(f"    s{n}_{i}" + shape % _step(step).replace('"', "#quot;"))
        for i in range(1, len(steps)):
            lines.append(f"    s{n}_{i - 1} --> s{n}_{i}")
        lines.append("  end")
        for source in stage.inputs:
            m = numbers[id(source)]
            lines.append(f"  s{m}_{len(source.steps)} ==> s{n}_0")
    return Text("\n".join(lines))


def html(node: Node, first: pa.RecordBatch | None = None) -> str:
    """A stream in a notebook: its columns, its plan, and its first records if they are at hand."""
    rows = "".join(
        f"<tr><td style='text-align:left'>{escape(f.name)}</td>"
        f"<td style='text-align:left'><code>{escape(type_name(f.type))}</code></td></tr>"
        for f in node.schema
    )
    return (
        "<div><b>headrace.Stream</b>"
        f"<table><thead><tr><th>column</th><th>type</th></tr></thead><tbody>{rows}</tbody></table>"
        f"{'' if first is None else _html_rows(first)}"
        f"<details><summary>plan</summary><pre>{escape(logical(node))}</pre></details></div>"
    )


_SHOWN, _COLUMNS = 10, 50


def _html_rows(batch: pa.RecordBatch) -> str:
    """A few records as a table."""
    some = batch.select(list(range(min(_COLUMNS, batch.num_columns)))).slice(0, _SHOWN)
    head = "".join(f"<th>{escape(n)}</th>" for n in some.schema.names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_short(v))}</td>" for v in row.values()) + "</tr>"
        for row in some.to_pylist()
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _short(value: object, most: int = 80) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= most else text[: most - 1] + "…"
