"""Patterns as automata that go through bytes, for those that are simple enough.

An automaton is in one state at a time, so a byte costs one step. Its states are lists of places in
the pattern, in the order in which a backtracking matcher would try them: what comes after a place
where the pattern ends is cut off, and so the match is the one such a matcher finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.columns import Text
from headrace.kernels.expressions.needles import Needle
from headrace.kernels.native import automata as native

try:  # what re itself parses with
    from re import _constants, _parser  # type: ignore[attr-defined]
except ImportError:
    _parser = None

_MOST_PLACES, _MOST_STATES = 512, 256
_MOST_STEPS = 8
"""For each byte: a pattern that needs more goes back too often."""
_ASCII = frozenset(range(128))
_AFTER_LEAD = frozenset(range(0x80, 0xC0))
_LEADS = (range(0xC2, 0xE0), range(0xE0, 0xF0), range(0xF0, 0xF5))
"""The first bytes of characters of two, three and four bytes."""


class _Unsupported(Exception):
    """A pattern that no automaton is made for."""


@dataclass(frozen=True)
class Automaton:
    """Finds the matches of a pattern that all begin with some text."""

    prefix: Needle
    classes: Any
    table: Any
    accepts: Any

    def extract(self, array: pa.Array, rows: Any) -> tuple[Any, pa.Array] | None:
        """How many matches there are in each of some rows, and all of them; None where that would
        take too long."""
        text = Text.of(array)
        sizes, room = np.zeros(rows.size, np.int32), rows.size + 16
        while True:
            starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
            prefix = self.prefix
            found = native.find_matches(
                text.data, text.offsets, rows, prefix.bytes, prefix.first, prefix.second,
                self.classes, self.table, self.accepts, _MOST_STEPS, sizes, starts, ends,
            )  # fmt: skip
            if found < 0:
                return None
            if found <= room:
                break
            room = found
        offsets = np.zeros(found + 1, np.int32)
        np.cumsum(ends[:found] - starts[:found], out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        native.copy_spans(text.data, starts, offsets, data)
        buffers = [pa.py_buffer(offsets), pa.py_buffer(data)]
        return sizes, pa.StringArray.from_buffers(found, *buffers)


@lru_cache(maxsize=256)
def automaton_of(pattern: str) -> Automaton | None:
    """The automaton of a pattern for ``re`` with its ASCII flag; None if there is none."""
    if _parser is None:
        return None
    nodes = list(_parser.parse(pattern, re.ASCII))
    prefix = _prefix(nodes)
    if not prefix:
        return None
    places = _Places()
    try:
        start = places.sequence(nodes, places.end)
        return Automaton(Needle(prefix), *_determined(places, start))
    except _Unsupported:
        return None


def _prefix(nodes: Iterable[Any]) -> str:
    """The text every match begins with."""
    text = ""
    for kind, value in nodes:
        if kind is not _constants.LITERAL or value > 127:
            break
        text += chr(value)
    return text


class _Places:
    """A pattern taken apart: places that read a byte, and places that are two others, the first
    of which is tried first."""

    def __init__(self) -> None:
        self.reads: list[tuple[frozenset[int], int] | None] = [None]
        self.either: list[tuple[int, int] | None] = [None]
        self.end = 0

    def _add(self, read: tuple[frozenset[int], int] | None, either: tuple[int, int] | None) -> int:
        if len(self.reads) >= _MOST_PLACES:
            raise _Unsupported
        self.reads.append(read)
        self.either.append(either)
        return len(self.reads) - 1

    def sequence(self, nodes: Any, then: int) -> int:
        for kind, value in reversed(list(nodes)):
            then = self.one(kind, value, then)
        return then

    def one(self, kind: Any, value: Any, then: int) -> int:
        """The place where one part of the pattern begins, if ``then`` follows it."""
        c = _constants
        if kind is c.LITERAL:
            for byte in reversed(_utf8(value)):
                then = self._add((frozenset([byte]), then), None)
            return then
        if kind is c.NOT_LITERAL:
            return self.character(*_members([(c.NEGATE, None), (c.LITERAL, value)]), then)
        if kind is c.IN:
            return self.character(*_members(value), then)
        if kind is c.SUBPATTERN and not (value[1] or value[2]):
            return self.sequence(value[3], then)
        if kind is c.BRANCH:
            starts = [self.sequence(nodes, then) for nodes in value[1]]
            return self.first_of(starts)
        if kind in (c.MAX_REPEAT, c.MIN_REPEAT):
            least, most, body = value
            return self.repeat(least, most, body, then, greedy=kind is c.MAX_REPEAT)
        raise _Unsupported

    def first_of(self, starts: list[int]) -> int:
        start = starts[-1]
        for other in reversed(starts[:-1]):
            start = self._add(None, (other, start))
        return start

    def character(self, ascii_bytes: frozenset[int], beyond: bool, then: int) -> int:
        """A character of a class, which has all that are not ASCII or none."""
        starts = [self._add((ascii_bytes, then), None)]
        if beyond:
            for leads in _LEADS:
                then = self._add((_AFTER_LEAD, then), None)
                starts.append(self._add((frozenset(leads), then), None))
        return self.first_of(starts)

    def repeat(self, least: int, most: Any, body: Any, then: int, *, greedy: bool) -> int:
        if body.getwidth()[0] == 0:
            raise _Unsupported  # matchers differ in what a loop over nothing does
        start = then
        if most is _constants.MAXREPEAT:
            start = self._add(None, (0, 0))
            inside = self.sequence(body, start)
            self.either[start] = (inside, then) if greedy else (then, inside)
        else:
            for _ in range(most - least):
                inside = self.sequence(body, start)
                start = self._add(None, (inside, then) if greedy else (then, inside))
        for _ in range(least):
            start = self.sequence(body, start)
        return start


def _utf8(code: int) -> bytes:
    if 0xD800 <= code < 0xE000:
        raise _Unsupported
    return chr(code).encode()


def _members(items: Any) -> tuple[frozenset[int], bool]:
    """The ASCII characters of a class, and whether it has all others."""
    c, negated = _constants, False
    members, beyond = set[int](), False
    categories = {
        c.CATEGORY_DIGIT: r"\d", c.CATEGORY_NOT_DIGIT: r"\D", c.CATEGORY_WORD: r"\w",
        c.CATEGORY_NOT_WORD: r"\W", c.CATEGORY_SPACE: r"\s", c.CATEGORY_NOT_SPACE: r"\S",
    }  # fmt: skip
    for kind, value in items:
        if kind is c.NEGATE:
            negated = True
        elif kind is c.LITERAL and value < 128:
            members.add(value)
        elif kind is c.RANGE and value[1] < 128:
            members.update(range(value[0], value[1] + 1))
        elif kind is c.CATEGORY and value in categories:
            one = re.compile(categories[value], re.ASCII)
            members.update(b for b in _ASCII if one.match(chr(b)))
            beyond = beyond or categories[value].isupper()
        else:
            raise _Unsupported
    if negated:
        return _ASCII - members, not beyond
    return frozenset(members), beyond


def _determined(places: _Places, start: int) -> tuple[Any, Any, Any]:
    """The class of each byte, the next state for each state and class, and where a match ends.

    State 0 has no way on, and state 1 is the first.
    """
    sets = {read[0] for read in places.reads if read is not None}
    signs: dict[tuple[bool, ...], int] = {}
    classes = np.empty(256, np.uint8)
    for byte in range(256):
        sign = tuple(byte in members for members in sets)
        classes[byte] = signs.setdefault(sign, len(signs))
    examples = [int(np.flatnonzero(classes == i)[0]) for i in range(len(signs))]

    def closure(starts: Iterable[int]) -> tuple[tuple[int, ...], bool]:
        reads, seen, waiting = list[int](), set[int](), list(starts)[::-1]
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            if place == places.end:
                return tuple(reads), True
            either = places.either[place]
            if either is None:
                reads.append(place)
            else:
                waiting += either[::-1]
        return tuple(reads), False

    first = closure([start])
    if first[1]:
        raise _Unsupported  # it may match nothing
    numbers, states, rows = {((), False): 0, first: 1}, [((), False), first], [[0] * len(examples)]
    while len(rows) < len(states):
        row = []
        for byte in examples:
            nexts = []
            for place in states[len(rows)][0]:
                read = places.reads[place]
                assert read is not None
                if byte in read[0]:
                    nexts.append(read[1])
            state = closure(nexts)
            if state not in numbers:
                if len(states) >= _MOST_STATES:
                    raise _Unsupported
                numbers[state] = len(states)
                states.append(state)
            row.append(numbers[state])
        rows.append(row)
    accepts = np.array([accept for _, accept in states])
    return classes, np.array(rows, np.uint8), accepts
