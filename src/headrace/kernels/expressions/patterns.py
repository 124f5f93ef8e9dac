"""Java's regular expressions, for RE2 where it can and for Python's ``re`` where it cannot.

RE2 is what Arrow has: fast, in time that grows with the text alone, but without look-around and
back-references, and with its own idea of ``$``, ``.``, ``\\s`` and of letters that differ in case
only. A pattern is rewritten so that both engines read it as Java does.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PlanError
from headrace.kernels.expressions.backtracking import ends_in_return, is_ambiguous

try:  # what re itself parses with
    from re import _constants, _parser  # type: ignore[attr-defined]
except ImportError:
    _parser = None

_DOT = "[^\\n\\r\\x85\\u2028\\u2029]"
_DOT_RE2 = "[^\\n\\r\\x{85}\\x{2028}\\x{2029}]"
_SPACE = "\\t\\n\\x0b\\f\\r "
# Java's line ends; none lies between \r and \n.
_LINE_END = "\\r\\n|(?<!\\r)\\n|[\\r\\x85\\u2028\\u2029]"
_END = f"(?=(?:{_LINE_END})?\\Z)"
_END_OF_LINE = f"(?=\\Z|{_LINE_END})"
_START_OF_LINE = "(?:(?!\\Z)(?:\\A|(?<=[\\n\\x85\\u2028\\u2029])|(?<=\\r)(?!\\n)))"
# Where nothing follows, to take the line end does as well as to look for it.
_END_RE2 = "(?:\\r\\n|[\\n\\r\\x{85}\\x{2028}\\x{2029}])?\\z"
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A Java pattern in the forms we can run. ``re2`` and ``search`` are None where RE2 cannot."""

    java: str
    re2: str | None
    """Finds what Java finds; its groups are named g1, g2, …"""
    search: str | None
    """Tells whether Java finds anything: some patterns that end in ``$`` have this form only."""
    python: re.Pattern[str]
    literal: str | None
    """The text it matches, where it is nothing but text."""
    needle: str | None = None
    """Text that every match has in it: what has not, need not be looked at."""
    endless: bool = False
    """Whether ``re`` may take time that doubles with each character."""
    bounds: bool = False
    """Whether it has word boundaries, which not every Java sees at the same places."""

    @property
    def groups(self) -> int:
        return self.python.groups

    @property
    def empty(self) -> bool:
        """Whether it may match nothing: Java then cuts characters of two units in half."""
        if _parser is None:
            return self.python.search("") is not None or self.bounds
        return bool(_parser.parse(self.python.pattern, re.ASCII).getwidth()[0] == 0)

    def by_python(self, where: str) -> re.Pattern[str]:
        """The pattern for ``re``, unless that might never end."""
        if self.endless:
            raise PlanError(
                f"{where}: {self.java!r} repeats what can itself be split in many ways, and would "
                "take time without bound on some texts; write it so that each repetition starts "
                "with a character of its own"
            )
        return self.python


@lru_cache(maxsize=256)
def compile_pattern(java: str, where: str) -> Pattern:
    """Read a Java pattern, or refuse it in the place it was written."""
    reader = _Reader(java, where)
    reader.read()
    try:
        python = re.compile("".join(reader.python), re.ASCII)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise PlanError(f"{where}: {java!r} is not a regular expression: {error}") from None
    text = "".join(reader.python)
    endless = is_ambiguous(text)
    re2 = search = _known("".join(reader.re2)) if reader.re2_can else None
    if endless and reader.search_can and not ends_in_return(text):
        search = _known("".join(reader.search))
    literal = java if java and not set(java) & set("\\^$.|?*+()[]{}") else None
    return Pattern(java, re2, search, python, literal, _needle(text), endless, reader.bounds)


def _known(re2: str) -> str | None:
    try:
        pc.match_substring_regex(pa.array([""]), re2)
    except pa.ArrowInvalid:
        return None
    return re2


def _needle(pattern: str) -> str | None:
    """The most telling text that every match must hold."""
    if _parser is None:
        return None
    runs = "".join(_required(_parser.parse(pattern, re.ASCII))).split(_GAP)
    return max((r for r in runs if r), key=_rarity, default=None)


_COMMON = " etaoinsrhldcumfpgwyb,.vk\n0123456789-'\"TSAIMCxjqz"
"""The characters of ordinary text, the most frequent first."""


def rank(c: str) -> int:
    """How rare a character is in ordinary text; the rarest have the highest."""
    place = _COMMON.find(c)
    return len(_COMMON) if place < 0 else place


def _rarity(text: str) -> tuple[int, int]:
    return sum(sorted(map(rank, text))[-2:]), len(text)


_GAP = "\uffff"


def _required(nodes: Any) -> Iterator[str]:
    """The ASCII characters that stand in every match, in order; a gap where others may stand."""
    for kind, value in nodes:
        if kind is _constants.LITERAL and value < 128:
            yield chr(value)
        elif kind is _constants.SUBPATTERN and not (value[1] or value[2]):
            yield from _required(value[3])
        elif kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT) and value[0] > 0:
            yield from _required(value[2])
            yield _GAP
        else:
            yield _GAP


class _Reader:
    """Goes through a Java pattern once and writes it in three dialects."""

    def __init__(self, java: str, where: str) -> None:
        self.java, self.where = java, where
        self.re2: list[str] = []
        self.search: list[str] = []
        self.python: list[str] = []
        self.re2_can = self.search_can = True
        self.bounds = False
        self.groups = 0
        self.flags = [""]  # of each group that is open

    def refuse(self, what: str) -> PlanError:
        return PlanError(f"{self.where}: {what} in {self.java!r} is not supported")

    def put(self, both: str, python: str | None = None) -> None:
        self.re2.append(both)
        self.search.append(both)
        self.python.append(both if python is None else python)

    def only_python(self, text: str) -> None:
        self.re2_can = self.search_can = False
        self.python.append(text)

    def char(self, c: str) -> None:
        """A character that stands for itself."""
        if "i" in self.flags[-1] and c.isascii() and c.isalpha():
            self.put(f"[{c.lower()}{c.upper()}]")
        elif ord(c) < 32 or ord(c) == 127:
            self.put(f"\\x{ord(c):02x}")
        else:
            self.put(re.escape(c) if c.isascii() else c)

    def read(self) -> None:
        java, i = self.java, 0
        while i < len(java):
            c = java[i]
            if c == "\\":
                i = self.escape(i + 1)
            elif c == "[":
                i = self.a_class(i + 1)
            elif c == "(":
                i = self.group(i + 1)
            elif c == ")":
                if len(self.flags) == 1:
                    raise PlanError(f"{self.where}: {java!r} closes a group it did not open")
                self.flags.pop()
                self.put(c)
                i += 1
            elif c == "{" and not re.match(r"\{\d+(,\d*)?\}", java[i:]):
                raise PlanError(f"{self.where}: '{{' in {java!r} must be escaped")
            elif c == "{":
                end = java.index("}", i) + 1
                self.put(java[i:end])
                i = self.possessive(end)
            elif c in "?*+":
                self.put(c)
                i = self.possessive(i + 1)
            elif c == ".":
                if "s" in self.flags[-1]:
                    self.put("(?s:.)")
                else:
                    self.put(_DOT_RE2, _DOT)
                i += 1
            elif c == "^" and "m" in self.flags[-1]:
                self.only_python(_START_OF_LINE)
                i += 1
            elif c == "$":
                self.end(i + 1)
                i += 1
            elif c in "^|":
                self.put(c)
                i += 1
            else:
                self.char(c)
                i += 1

    def possessive(self, i: int) -> int:
        if self.java[i : i + 1] == "+":
            self.only_python("+")
            i += 1
        elif self.java[i : i + 1] == "?":
            self.put("?")
            i += 1
        return i

    def end(self, i: int) -> None:
        """``$``, or what stands for it in RE2 when only the finding counts."""
        self.re2_can = False
        if "m" in self.flags[-1]:
            self.only_python(_END_OF_LINE)
            return
        self.python.append(_END)
        if len(self.flags) > 1 or self.java[i : i + 1] not in ("", "|"):
            self.search_can = False
        self.search.append(_END_RE2)

    def group(self, i: int) -> int:
        java = self.java
        if java[i : i + 1] != "?":
            self.groups += 1
            self.open(f"(?P<g{self.groups}>", "(")
            return i
        flags = re.match(r"\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])", java[i:])
        if flags:
            on, off, close = flags.groups(default="")
            strange = set(on + off) - set("ims")
            if strange:
                raise self.refuse(f"the flag '{min(strange)}'")
            state = "".join((set(self.flags[-1]) | set(on)) - set(off))
            if close == ")":
                self.flags[-1] = state
            else:
                self.open("(?:", "(?:")
                self.flags[-1] = state
            return i + flags.end()
        named = re.match(r"\?<([a-zA-Z][a-zA-Z0-9]*)>", java[i:])
        if named:
            self.groups += 1
            self.open(f"(?P<g{self.groups}>", f"(?P<{named[1]}>")
            return i + named.end()
        look = re.match(r"\?(<?[=!]|>)", java[i:])
        if look is None:
            raise self.refuse(f"'({java[i : i + 2]}'")
        self.only_python("(" + look[0])
        self.flags.append(self.flags[-1])
        return i + look.end()

    def open(self, re2: str, python: str) -> None:
        self.put(re2, python)
        self.flags.append(self.flags[-1])

    def escape(self, i: int) -> int:
        java = self.java
        if i >= len(java):
            raise PlanError(f"{self.where}: {java!r} ends with a lone backslash")
        d = java[i]
        if d in "sS":
            self.put(f"[{'^' if d == 'S' else ''}{_SPACE}]")
        elif d in "wWdD":
            self.put("\\" + d)
        elif d == "A":
            self.put("\\A")
        elif d == "z":
            self.put("\\z", "\\Z")
        elif d == "Z":
            self.only_python(_END)
        elif d in "bB":
            self.bounds = True
            self.put("\\" + d)
        elif d in "pP":
            inside, i = self.category(i)
            self.put(*(f"[{'^' if d == 'P' else ''}{x}]" for x in inside))
            return i
        elif d in "123456789":
            if "i" in self.flags[-1] or java[i + 1 : i + 2].isdigit():
                raise self.refuse(f"\\{d} with (?i) or two digits")
            self.only_python("\\" + d)
        else:
            c, i = self.one(i)
            self.char(c)
            return i
        return i + 1

    def one(self, i: int) -> tuple[str, int]:
        """The character that an escape stands for, and where it ends."""
        java, d = self.java, self.java[i : i + 1]
        code = re.match(r"u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]+)\}", java[i:])
        if code:
            value = int(code[1] or code[2] or code[3], 16)
            if 0xD800 <= value < 0xE000 or value > sys.maxunicode:
                raise self.refuse(f"\\{code[0]}")
            return chr(value), i + code.end()
        if d in _CONTROLS:
            return _CONTROLS[d], i + 1
        if not d or d.isalnum():
            raise self.refuse(f"\\{d}")
        return d, i + 1

    def category(self, i: int) -> tuple[tuple[str, str], int]:
        """A class of Unicode's or POSIX's, as RE2 and Python write its inside."""
        found = re.match(r"\{(\w+)\}|([A-Z])", self.java[i + 1 :])
        if found is None:
            raise self.refuse(f"\\{self.java[i]}")
        name, after = found[1] or found[2], i + 1 + found.end()
        if name in _POSIX:
            if "i" in self.flags[-1] and name in ("Lower", "Upper"):
                raise self.refuse(f"\\p{{{name}}} with (?i)")
            return (_POSIX[name], _POSIX[name]), after
        name = name.removeprefix("Is")
        inside = _category(name)
        if not inside or ("i" in self.flags[-1] and name in ("Lu", "Ll", "Lt")):
            raise self.refuse(f"\\p{{{found[1] or found[2]}}}")
        return (f"\\p{{{name}}}", inside), after

    def a_class(self, i: int) -> int:
        """A class in brackets."""
        java, fold = self.java, "i" in self.flags[-1]
        self.put("[")
        if java[i : i + 1] == "^":
            self.put("^")
            i += 1
        if java[i : i + 1] == "]":
            raise PlanError(f"{self.where}: ']' first in a class of {java!r} must be escaped")
        while java[i : i + 1] != "]":
            if i >= len(java):
                raise PlanError(f"{self.where}: a class in {java!r} is not closed")
            c = java[i]
            if c == "[" or java.startswith("&&", i):
                raise self.refuse("a class inside a class, or '&&',")
            if c == "\\" and java[i + 1 : i + 2] in ("s", "w", "W", "d", "D"):
                self.put(_SPACE if java[i + 1] == "s" else java[i : i + 2])
                i += 2
                continue
            if c == "\\" and java[i + 1 : i + 2] == "p":
                inside, i = self.category(i + 1)
                self.put(*inside)
                continue
            low, i = self.one(i + 1) if c == "\\" else (c, i + 1)
            high = low
            if java[i : i + 1] == "-" and java[i + 1 : i + 2] not in ("]", "", "["):
                c = java[i + 1]
                if c == "\\" and java[i + 2 : i + 3] in ("s", "S", "w", "W", "d", "D", "p", "P"):
                    raise self.refuse(f"'-\\{java[i + 2]}' in a class")
                high, i = self.one(i + 2) if c == "\\" else (c, i + 2)
            if high < low:
                raise PlanError(f"{self.where}: {low}-{high} in {java!r} is no range")
            self.range(low, high)
            if fold:
                for a, z in (("a", "z"), ("A", "Z")):
                    if max(low, a) <= min(high, z):
                        self.range(max(low, a).swapcase(), min(high, z).swapcase())
        self.put("]")
        return i + 1

    def range(self, low: str, high: str) -> None:
        text = (f"\\x{ord(c):02x}" if ord(c) < 128 and not c.isalnum() else c for c in (low, high))
        first, last = text
        self.put(first if low == high else f"{first}-{last}")


_POSIX = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": "!-/:-@\\[-`{-~",
    "Space": _SPACE,
    "ASCII": "\\x00-\\x7f",
}


@lru_cache(maxsize=32)
def _category(name: str) -> str:
    """The characters of a general category, such as ``L`` or ``Nd``, as ``re`` takes them."""
    if not re.fullmatch("[LMNPSZC][a-z]?", name):
        return ""
    pieces, start = [], -1
    for code in range(sys.maxunicode + 2):
        within = code <= sys.maxunicode and unicodedata.category(chr(code)).startswith(name)
        if within and start < 0:
            start = code
        elif not within and start >= 0:
            pieces.append(f"\\U{start:08x}-\\U{code - 1:08x}")
            start = -1
    return "".join(pieces)


def replacement(java: str, groups: int, where: str) -> tuple[str | None, str]:
    """A Java replacement such as ``<$1>``, for RE2, which knows nine groups, and for Python."""
    re2: list[str] = []
    python: list[str] = []
    i, re2_can = 0, True
    while i < len(java):
        c = java[i]
        if c == "\\" and i + 1 < len(java):
            i += 1
            re2.append("\\\\" if java[i] == "\\" else java[i])
            python.append("\\\\" if java[i] == "\\" else java[i])
        elif c == "$":
            digits = ""
            while i + 1 < len(java) and java[i + 1].isdigit():
                # Java takes as many digits as still name a group.
                if digits and int(digits + java[i + 1]) > groups:
                    break
                digits += java[i + 1]
                i += 1
            if not digits or int(digits) > groups:
                raise PlanError(f"{where}: {java!r} names a group the pattern does not have")
            re2.append(f"\\{digits}")
            re2_can = re2_can and int(digits) < 10
            python.append(f"\\g<{digits}>")
        else:
            re2.append(c)
            python.append(c)
        i += 1
    return "".join(re2) if re2_can else None, "".join(python)


def byte_class(java: str) -> tuple[frozenset[int], bool] | None:
    """The bytes a pattern separates at, and whether a run of them counts as one.

    Only for patterns that are one class of characters (``\\W+``, ``[^a-z]+``, ``,``), for which
    cutting UTF-8 text byte by byte is the same as cutting it character by character.
    """
    many = java.endswith("+") and not java.endswith("\\+")
    body = java[:-1] if many else java
    if len(body) == 1 and body not in "\\^$.|?*+()[]{}" and ord(body) < 128:
        return frozenset({ord(body)}), many
    simple = {"\\W": "^a-zA-Z0-9_", "\\s": "\\s", "\\d": "0-9", "\\D": "^0-9", "\\w": "a-zA-Z0-9_"}
    if body in simple:
        inner = simple[body]
    elif len(body) == 2 and body[0] == "\\" and not body[1].isalnum() and ord(body[1]) < 128:
        return frozenset({ord(body[1])}), many
    elif body.startswith("[") and body.endswith("]") and len(body) > 2:
        inner = body[1:-1]
    else:
        return None
    if any(ord(c) > 127 for c in inner) or "[" in inner or "&&" in inner:
        return None
    if body not in simple and re.search(r"\\[a-zA-Z0-9]", re.sub(r"\\[sdw]", "", inner)):
        return None  # \\W and others say more of what is not ASCII
    negated = inner.startswith("^")
    if negated and not many:
        return None  # a character of several bytes would be cut several times
    try:
        matcher = re.compile(f"[{inner}]".replace("\\s", _SPACE), re.ASCII)
    except re.error:
        return None
    cut = {b for b in range(128) if matcher.fullmatch(chr(b))}
    return frozenset(cut | (set(range(128, 256)) if negated else set())), many
