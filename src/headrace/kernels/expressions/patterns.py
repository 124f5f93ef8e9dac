"""Java's regular expressions, for RE2 where it can and for Python's ``re`` where it cannot.

RE2 is what Arrow has: fast, but without look-around and back-references, and with its own idea of
``$``, ``.`` and ``\\s``. A pattern is rewritten so that both engines read it as Java does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PlanError

try:  # what re itself parses with; without it no text is looked for first
    from re import _constants, _parser  # type: ignore[attr-defined]
except ImportError:
    _parser = None

_LINE_ENDS = "\\n\\r\\x85\\u2028\\u2029"
_DOT_PY = f"[^{_LINE_ENDS}]"
_DOT_RE2 = "[^\\n\\r\\x{85}\\x{2028}\\x{2029}]"
_SPACE = "\\t\\n\\x0b\\f\\r "
_END_PY = "(?=(?:\\r\\n|[\\n\\r\\x85\\u2028\\u2029])?\\Z)"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A Java pattern in the two forms we can run. ``re2`` is None where RE2 cannot."""

    java: str
    re2: str | None
    python: re.Pattern[str]
    literal: str | None
    """The text it matches, where it is nothing but text."""
    needle: str | None = None
    """Text that every match has in it: what has not, need not be looked at."""

    @property
    def groups(self) -> int:
        return self.python.groups


def compile_pattern(java: str, where: str) -> Pattern:
    """Read a Java pattern, or refuse it in the place it was written."""
    for_re2, for_python, re2_can = _translate(java, where)
    try:
        python = re.compile(for_python, re.ASCII)
    except re.error as error:
        raise PlanError(f"{where}: {java!r} is not a regular expression: {error}") from None
    re2: str | None = for_re2 if re2_can else None
    if re2 is not None:
        try:
            pc.match_substring_regex(pa.array([""]), re2)
        except pa.ArrowInvalid:
            re2 = None
    literal = java if java and not set(java) & set("\\^$.|?*+()[]{}") else None
    return Pattern(java, re2, python, literal, _needle(for_python))


def _needle(pattern: str) -> str | None:
    """The most telling text that every match must hold, of two characters at least."""
    if _parser is None or re.search(r"\(\?[a-z]*[ixu]", pattern):
        return None
    runs, run = [], ""
    for kind, value in _parser.parse(pattern, re.ASCII):
        if kind is _constants.LITERAL and value < 128:
            run += chr(value)
            continue
        runs.append(run)
        run = ""
    runs = [r for r in [*runs, run] if len(r) > 1]
    return max(
        runs, key=lambda r: (any(not c.isalnum() and c != " " for c in r), len(r)), default=None
    )


def _translate(java: str, where: str) -> tuple[str, str, bool]:
    re2: list[str] = []
    python: list[str] = []
    re2_can = True
    dot_all = "(?s" in java or re.search(r"\(\?[a-z]*s", java) is not None
    multi_line = re.search(r"\(\?[a-z]*m", java) is not None
    i, in_class = 0, 0
    while i < len(java):
        c = java[i]
        if c == "\\":
            if i + 1 >= len(java):
                raise PlanError(f"{where}: {java!r} ends with a lone backslash")
            d = java[i + 1]
            i += 2
            if d == "s" or (d == "S" and not in_class):
                inner = _SPACE if d == "s" else f"^{_SPACE}"
                piece = inner if in_class else f"[{inner}]"
                re2.append(piece)
                python.append(piece)
            elif d == "z":
                re2.append("\\z")
                python.append("\\Z")
            elif d == "Z":
                re2_can = False
                python.append(_END_PY)
            elif d in "pP":
                piece, i = _property(java, i)
                re2.append("\\" + d + piece)
                python.append(_python_property(d, piece, in_class, java, where))
            elif d in "bB":
                re2_can = re2_can and in_class == 0
                # Java's word boundary knows letters beyond ASCII; (?u:…) is not scoped in Python.
                re2.append("\\" + d)
                python.append("\\" + d)
            elif d.isdigit():
                re2_can = False
                python.append("\\" + d)
            elif d in "GRXhHkQE":
                raise PlanError(f"{where}: \\{d} in {java!r} is not supported")
            elif d in "VvS":
                raise PlanError(f"{where}: \\{d} inside {java!r} is not supported")
            else:
                re2.append("\\" + d)
                python.append("\\" + d)
            continue
        if in_class:
            if c == "[":
                raise PlanError(f"{where}: a class inside a class in {java!r} is not supported")
            if c == "&" and java[i : i + 2] == "&&":
                raise PlanError(f"{where}: '&&' in a class of {java!r} is not supported")
            if c == "]":
                in_class = 0
            re2.append(c)
            python.append(c)
            i += 1
            continue
        if c == "[":
            in_class = 1
            re2.append(c)
            python.append(c)
            i += 1
            if java[i : i + 1] == "^":
                re2.append("^")
                python.append("^")
                i += 1
            if java[i : i + 1] == "]":
                raise PlanError(f"{where}: ']' first in a class of {java!r} must be escaped")
            continue
        if c == "." and not dot_all:
            re2.append(_DOT_RE2)
            python.append(_DOT_PY)
        elif c == "$":
            if multi_line:
                re2.append(c)
                python.append(c)
            else:
                re2_can = False
                python.append(_END_PY)
        elif c in "?*+}" and java[i + 1 : i + 2] == "+":
            re2_can = False
            python.append(c + "+")
            i += 1
        elif java.startswith("(?<", i) and java[i + 3 : i + 4] not in "=!":
            re2.append("(?P<")
            python.append("(?P<")
            i += 2
        else:
            if java.startswith("(?", i) and java[i + 2 : i + 3] in "=!<>":
                re2_can = False
            re2.append(c)
            python.append(c)
        i += 1
    return "".join(re2), "".join(python), re2_can


def _property(java: str, i: int) -> tuple[str, int]:
    if java[i : i + 1] == "{":
        end = java.find("}", i)
        return java[i : end + 1], end + 1
    return java[i : i + 1], i + 1


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


def _python_property(letter: str, piece: str, in_class: int, java: str, where: str) -> str:
    name = piece.strip("{}").removeprefix("Is")
    if name in _POSIX and letter == "p":
        return _POSIX[name] if in_class else f"[{_POSIX[name]}]"
    if name == "L" and letter == "p" and not in_class:
        return "[^\\W\\d_]"
    raise PlanError(f"{where}: \\{letter}{piece} in {java!r} is not supported")


def replacement(java: str, groups: int, where: str) -> tuple[str, str]:
    """A Java replacement such as ``<$1>``, for RE2 and for Python."""
    re2: list[str] = []
    python: list[str] = []
    i = 0
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
            re2.append(f"\\{digits}" if int(digits) < 10 else "")
            python.append(f"\\g<{digits}>")
        else:
            re2.append(c)
            python.append(c)
        i += 1
    return "".join(re2), "".join(python)


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
    negated = inner.startswith("^")
    if negated and not many:
        return None  # a character of several bytes would be cut several times
    try:
        matcher = re.compile(f"[{inner}]".replace("\\s", _SPACE), re.ASCII)
    except re.error:
        return None
    cut = {b for b in range(128) if matcher.fullmatch(chr(b))}
    return frozenset(cut | (set(range(128, 256)) if negated else set())), many
