"""Iterations in a plan (RStream §III-B): a part of it that is computed again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headrace.plan.node import Node, OneInput, function_name
from headrace.plan.sources import External, Read


@dataclass(frozen=True, eq=False)
class Again(Node):
    """Where a body begins: the records of the iteration before, of the input at first."""

    like: Node
    """What gives the first of them, for examples."""
    token: object = field(default_factory=object)
    """Which iteration it belongs to, whatever else a plan becomes."""


@dataclass(frozen=True, eq=False)
class Repeated(OneInput):
    """A step that computes others again and again, until it is enough."""

    until: Callable[..., Any] | None
    at_most: int | None
    report: Callable[[Any], Any] | None
    """Told of each iteration."""

    @property
    def needs_end(self) -> bool:
        return True

    @property
    def without_end(self) -> str:
        return "it takes input that ends"

    @property
    def detail(self) -> str:
        most = "" if self.at_most is None else f"at most {self.at_most} times"
        how = "" if self.until is None else f"until {function_name(self.until)}"
        return ", ".join(part for part in (how, most) if part)


@dataclass(frozen=True, eq=False)
class Iterate(Repeated):
    """A body computed on its own result, until a measure of it is as wanted."""

    body: Node
    again: Again
    """The leaf of the body, and of the measure."""
    measure: Node | None
    """One record that the result is reduced to, which ``until`` is asked about."""
    value: Callable[[Any], Any]
    """What ``until`` is given of that record."""
    constant: tuple[Node, ...] = ()
    """What the body reads besides: computed once, and kept."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input, *self.constant)

    @property
    def inner(self) -> tuple[Node, ...]:
        return (self.body,)


@dataclass(frozen=True, eq=False)
class Cycle(Repeated):
    """A body computed again and again on the same input, with a state that its result updates."""

    state: Any
    body: Callable[..., Any]
    """Gives the end of a plan, of the leaf that it is to begin with and a state."""
    update: Callable[..., Any]
    give: Callable[[Any], Any]
    """The last state as a table."""
    first: Node | None = None
    """The body with the first state, where it could be made without its input."""

    @property
    def inner(self) -> tuple[Node, ...]:
        return () if self.first is None else (self.first,)


@dataclass(frozen=True, eq=False)
class Held(Node):
    """Records that an engine keeps from one iteration to the next."""

    engine: str
    handle: Any
    zone: str | None = None


def rewired(node: Node, known: Mapping[int, Node]) -> Node:
    """A plan in which some steps, by ``id``, are others; what is shared stays shared."""
    return rewired_all([node], known)[0]


def rewired_all(
    ends: Sequence[Node],
    known: Mapping[int, Node],
    changes: Mapping[int, dict[str, Any]] | None = None,
) -> list[Node]:
    """Plans in which some steps are others, or have some fields changed, by ``id``."""
    made = dict(known)
    fresh = {} if changes is None else changes

    def walk(each: Node) -> Node:
        if id(each) not in made:
            new: dict[str, Any] = {}
            for part in fields(each):
                value = getattr(each, part.name)
                if isinstance(value, Node):
                    new[part.name] = walk(value)
                elif isinstance(value, tuple) and value and all(isinstance(v, Node) for v in value):
                    new[part.name] = tuple(map(walk, value))
            changed = {n: v for n, v in new.items() if _differs(getattr(each, n), v)}
            changed |= fresh.get(id(each), {})
            made[id(each)] = replace(each, **changed) if changed else each
        return made[id(each)]

    return list(map(walk, ends))


def _differs(before: Any, after: Any) -> bool:
    if isinstance(before, tuple):
        return any(a is not b for a, b in zip(before, after, strict=True))
    return before is not after


def constants_of(body: Node, again: Node, seen: Set[int] | None = None) -> tuple[Node, ...]:
    """The largest parts of a body that are the same in every iteration.

    Where the body is made anew for each, those are the steps that were ``seen``, by ``id``, before.
    """
    depends: dict[int, bool] = {}

    def asks(each: Node) -> bool:
        if id(each) not in depends:
            depends[id(each)] = each is again or any(asks(source) for source in each.inputs)
        return depends[id(each)]

    def parts(each: Node) -> Iterator[Node]:
        if not asks(each) and (seen is None or id(each) in seen):
            yield each
            return
        for source in each.inputs:
            yield from parts(source)

    return tuple({id(each): each for each in parts(body)}.values())


def everything_in(*ends: Node) -> Iterator[Node]:
    """Every step of some plans, and of those within them, once."""
    seen: set[int] = set()
    ahead = list(ends)
    while ahead:
        each = ahead.pop()
        if id(each) not in seen:
            seen.add(id(each))
            ahead += [*each.inputs, *each.inner]
            yield each


def zoned(ends: Sequence[Node]) -> list[Node]:
    """Plans whose sources are all in the time zone that some of them say."""
    sources = [e for e in everything_in(*ends) if isinstance(e, (Read, External, Held))]
    said = {each.zone for each in sources if each.zone is not None}
    if len(said) != 1:
        return list(ends)
    (zone,) = said
    changes = {id(each): {"zone": zone} for each in sources if each.zone is None}
    return rewired_all(ends, {}, changes) if changes else list(ends)
