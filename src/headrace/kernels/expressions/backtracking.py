"""How long ``re`` may take with a pattern: whether a repetition can go through a text in many ways.

Python's ``re`` tries one way after the other. Where a repetition can take the same text in two
ways, each round doubles the ways to try, as in ``(a+)+$``. RE2 has no such patterns; what it cannot
run is looked at here before ``re`` gets it.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

try:  # what re itself parses with
    from re import _parser  # type: ignore[attr-defined]
except ImportError:
    _parser = None

_FOREIGN = 1 << 128  # every character beyond ASCII
_ANY = (1 << 129) - 1


def is_ambiguous(pattern: str) -> bool:
    """Whether some repetition can go through one text in more ways than one.

    Each such choice doubles what ``re`` may try. Within a repetition every character must say
    which part of the pattern it belongs to, as in what is called a deterministic expression.
    """
    if _parser is None:
        return bool(re.search(r"[*+}]\)*[*+{]", pattern))
    return _loops(_parser.parse(pattern, re.ASCII))


def ends_in_return(pattern: str) -> bool:
    """Whether the last character of a match may be ``\\r``, after which ``$`` asks for more."""
    if _parser is None:
        return True
    places = _Places()
    _, last, _ = places.of(_parser.parse(pattern, re.ASCII))
    return any(places.takes[p] >> ord("\r") & 1 for p in last)


def _loops(tree: Any) -> bool:
    """Whether a repetition in the tree is ambiguous."""
    for kind, value in tree:
        name = str(kind)
        if name in ("MAX_REPEAT", "MIN_REPEAT") and value[1] > 8:
            glushkov = _Places()
            glushkov.repeat(value)
            if glushkov.is_ambiguous():
                return True
        if any(_loops(part) for part in _parts(name, value)):
            return True
    return False


def _parts(name: str, value: Any) -> list[Any]:
    """The trees inside one node of a tree."""
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return [value[2]]
    if name == "SUBPATTERN":
        return [value[-1]]
    if name == "ATOMIC_GROUP":
        return [value]
    if name in ("ASSERT", "ASSERT_NOT"):
        return [value[1]]
    return list(value[1]) if name == "BRANCH" else []


class _Places:
    """The places of a pattern that take a character, and which may follow which."""

    def __init__(self) -> None:
        self.takes: list[int] = []
        self.after: list[set[int]] = []
        self.twice = False

    def is_ambiguous(self) -> bool:
        """Whether from some place one character leads to two, or to one in two ways."""
        if self.twice:
            return True
        for choice in self.after:
            seen = 0
            for place in choice:
                if seen & self.takes[place]:
                    return True
                seen |= self.takes[place]
        return False

    def join(self, last: set[int], first: set[int]) -> None:
        for place in last:
            self.twice = self.twice or bool(self.after[place] & first)
            self.after[place] |= first

    def place(self, takes: int) -> tuple[set[int], set[int], bool]:
        self.takes.append(takes)
        self.after.append(set())
        here = {len(self.takes) - 1}
        return here, set(here), False

    def of(self, tree: Any) -> tuple[set[int], set[int], bool]:
        """The places a sequence may start with, those it may end with, whether it may be empty."""
        first: set[int] = set()
        last: set[int] = set()
        empty = True
        for kind, value in tree:
            begins, ends, may_be_empty = self.one(str(kind), value)
            self.join(last, begins)
            first = first | begins if empty else first
            last = last | ends if may_be_empty else ends
            empty = empty and may_be_empty
        return first, last, empty

    def repeat(self, value: Any) -> tuple[set[int], set[int], bool]:
        least, most, body = value
        first, last, empty = self.of(body)
        if empty and (most > 1 or least == 0):
            self.twice = True  # a round of nothing may be anywhere, or be none
        if most > 8:
            self.join(last, first)
            return first, last, empty or least == 0
        rounds = [(first, last), *(self.of(body)[:2] for _ in range(most - 1))]
        for (_, before), (after, _) in itertools.pairwise(rounds):
            self.join(before, after)
        ends = set().union(*(end for _, end in rounds[max(least, 1) - 1 :]))
        return first, ends, empty or least == 0

    def one(self, name: str, value: Any) -> tuple[set[int], set[int], bool]:
        if name in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
            return self.place(_takes(name, value))
        if name in ("AT", "ASSERT", "ASSERT_NOT"):
            return set(), set(), True
        if name == "BRANCH":
            parts = [self.of(part) for part in value[1]]
            self.twice = self.twice or sum(part[2] for part in parts) > 1  # nothing, in two ways
            return (
                set().union(*(p[0] for p in parts)),
                set().union(*(p[1] for p in parts)),
                any(p[2] for p in parts),
            )
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            return self.repeat(value)
        if name == "SUBPATTERN":
            return self.of(value[-1])
        return self.place(_ANY)  # a back-reference, or what is taken or left as a whole


def _takes(name: str, value: Any) -> int:
    """The characters a place takes, one bit for each of ASCII and one for all others."""
    if name == "ANY":
        return _ANY
    if name == "NOT_LITERAL":
        return _ANY & ~(1 << value) if value < 128 else _ANY
    if name == "LITERAL":
        return 1 << value if value < 128 else _FOREIGN
    bits, negated = 0, False
    for kind, inner in value:
        part = str(kind)
        if part == "NEGATE":
            negated = True
        elif part == "LITERAL":
            bits |= 1 << inner if inner < 128 else _FOREIGN
        elif part == "RANGE":
            low, high = inner
            bits |= sum(1 << c for c in range(low, min(high, 127) + 1))
            bits |= _FOREIGN if high > 127 else 0
        else:
            letter = {"DIGIT": "\\d", "WORD": "\\w", "SPACE": "\\s"}
            kind_of = str(inner).removeprefix("CATEGORY_")
            base = re.compile(letter[kind_of.removeprefix("NOT_")], re.ASCII)
            some = sum(1 << c for c in range(128) if base.match(chr(c)))
            bits |= _ANY & ~some if kind_of.startswith("NOT_") else some
    if not negated:
        return bits
    return (_ANY & ~bits) | _FOREIGN
