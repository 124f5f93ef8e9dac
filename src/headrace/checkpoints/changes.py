"""What has changed in a pipeline since its checkpoint was begun, and whether it can be taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Change:
    """One difference, in a sentence."""

    text: str
    is_taken: bool


@dataclass
class Changes:
    """All differences between a checkpoint's pipeline and another."""

    found: list[Change] = field(default_factory=list)
    grown: list[int] = field(default_factory=list)
    """The steps that have more aggregates."""
    begun: list[int] = field(default_factory=list)
    """The outputs that are new, or go elsewhere."""

    @property
    def refused(self) -> str:
        """The first that cannot be taken; nothing if all can."""
        return next((change.text for change in self.found if not change.is_taken), "")

    def take(self, text: str, is_taken: bool = True) -> None:
        self.found.append(Change(text, is_taken))


def changes_of(old: Mapping[str, Any], new: Mapping[str, Any], is_open: bool) -> Changes:
    """The differences between two shapes.

    ``is_open`` where the engine can take more sources, steps and aggregates: the box can.
    """
    changes = Changes()
    for kind in ("source", "step", "output"):
        before, after = old.get(kind, []), new[kind]
        for number, (a, b) in enumerate(zip(before, after, strict=False)):
            if kind == "step":
                _step(changes, old, new, number, is_open)
            elif kind == "output":
                _output(changes, old, new, number)
            elif a != b:
                changes.take(f"{kind} {number + 1} was '{a}' and is '{b}'", is_taken=False)
        for number, text in enumerate(before[len(after) :], len(after)):
            changes.take(f"{kind} {number + 1}, '{text}', is gone", is_taken=False)
        for number, text in enumerate(after[len(before) :], len(before)):
            said = f"{kind} {number + 1}, '{text}', is new"
            if kind == "output":
                changes.begun.append(number)
                changes.take(f"{said}: it begins with what comes from now on")
            elif is_open:
                begins = "it is read from its beginning" if kind == "source" else "it begins empty"
                changes.take(f"{said}: {begins}")
            else:
                changes.take(f"{said}{_MOVE}", is_taken=False)
    return changes


_MOVE = (
    ", which Spark cannot take; the box can: headrace state move FOLDER NEW-FOLDER --on box, start "
    "it there once, and move it back"
)


def _step(
    changes: Changes, old: Mapping[str, Any], new: Mapping[str, Any], number: int, is_open: bool
) -> None:
    a, b = old["step"][number], new["step"][number]
    functions = _at(old, "function", number), _at(new, "function", number)
    if a == b:
        if functions[0] != functions[1]:
            changes.take(
                f"the function of '{b}' is another ({functions[0]}, now {functions[1]}), and "
                "results of it are kept",
                is_taken=False,
            )
        return
    before, after = _at(old, "grouping", number), _at(new, "grouping", number)
    if before and after and before[0] == after[0]:
        aggregates = dict(map(tuple, after[1]))
        same = all(aggregates.get(name) == text for name, text in before[1])
        if same and not functions[0] and is_open:
            more = [name for name in aggregates if name not in dict(map(tuple, before[1]))]
            names = ", ".join(f"'{name}'" for name in more)
            text = f"step {number + 1} has {names} besides: null in windows that are open now"
            changes.grown.append(number)
            changes.take(text)
            return
        if same and not functions[0]:
            changes.take(f"step {number + 1} was '{a}' and is '{b}'{_MOVE}", is_taken=False)
            return
    changes.take(f"step {number + 1} was '{a}' and is '{b}'", is_taken=False)


def _output(changes: Changes, old: Mapping[str, Any], new: Mapping[str, Any], number: int) -> None:
    a, b = old["output"][number], new["output"][number]
    before, after = _at(old, "columns", number), _at(new, "columns", number)
    gains = before is not None and set(before) < set(after) and bool(changes.grown)
    place = _at(old, "place", number), _at(new, "place", number)
    if a == b and (before is None or before == after):
        return
    if a == b and not gains:
        had, has = (", ".join(names) for names in (before, after))
        text = f"output {number + 1}, '{b}', had the columns {had} and has {has}"
        changes.take(text, is_taken=False)
    elif not gains:
        changes.take(f"output {number + 1} was '{a}' and is '{b}'", is_taken=False)
    elif place[0] == place[1]:
        changes.take(
            f"output {number + 1}, '{b}', has columns that are new; give them another place, for "
            "what is there has other columns",
            is_taken=False,
        )
    else:
        changes.begun.append(number)
        changes.take(f"output {number + 1} was '{a}' and is '{b}' from now on")


def _at(shape: Mapping[str, Any], name: str, number: int) -> Any:
    """What a shape says; None where an older version did not write it down."""
    values: Sequence[Any] = shape.get(name, ())
    return values[number] if number < len(values) else None
