"""The text of people's functions, found in the file they came from.

A compiler works on syntax. A lambda stands inside a larger statement, so it is found by the places
that its code says it came from; and code compiled from what is found must be the function's own,
for the file may have changed since.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

Key = tuple[str, int, str, int | None]
Texts = dict[Key, str]
_DEEPEST = 16


def key_of(code: CodeType) -> Key:
    """What tells a function's text from others; the same in a process it was sent to."""
    return code.co_filename, code.co_firstlineno, code.co_name, _span(code)[1]


def text_of(function: FunctionType) -> str | None:
    """A function as text, a ``def`` or a ``lambda``; None if it cannot be read."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename, function.__globals__)
    parsed = _parsed(code.co_filename, "".join(lines)) if lines else None
    if parsed is None:
        return None
    nodes, codes = parsed
    if code not in codes.get(code.co_name, ()):
        return None
    first, column = _span(code)
    found = [
        node
        for node in nodes
        if _name(node) == code.co_name and _first_line(node) == code.co_firstlineno
    ]
    if len(found) > 1 and column is not None:
        # Of those on one line, the one in which its code begins, the innermost.
        around = [node for node in found if _begins(node) <= (first, column) < _ends(node)]
        found = sorted(around, key=_begins)[-1:]
    try:
        return ast.unparse(found[0]) if len(found) == 1 else None
    except RecursionError:
        return None


def texts_of(functions: Any) -> Texts:
    """The texts of functions and of those they may call."""
    texts: Texts = {}
    seen: set[int] = set()

    def visit(function: Any, depth: int) -> None:
        if not isinstance(function, FunctionType) or id(function) in seen or depth > _DEEPEST:
            return
        seen.add(id(function))
        text = text_of(function)
        if text is None:
            return
        texts[key_of(function.__code__)] = text
        for value in _mentions(function):
            visit(value, depth + 1)

    for function in functions:
        visit(function, 0)
    return texts


def _mentions(function: FunctionType) -> Iterator[Any]:
    """What a function's code names outside itself."""
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


_Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@functools.lru_cache(maxsize=32)
def _parsed(filename: str, text: str) -> tuple[list[_Node], dict[str, list[CodeType]]] | None:
    """The functions of a file, as syntax and as code."""
    try:
        tree = ast.parse(text)
        module = compile(tree, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = [node for node in ast.walk(tree) if isinstance(node, _Node)]
    codes: dict[str, list[CodeType]] = {}
    waiting = [module]
    while waiting:
        code = waiting.pop()
        codes.setdefault(code.co_name, []).append(code)
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
    return nodes, codes


def _name(node: _Node) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _first_line(node: _Node) -> int:
    decorators = () if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(each.lineno for each in decorators)])


def _begins(node: _Node) -> tuple[int, int]:
    body = node.body if isinstance(node, ast.Lambda) else node.body[0]
    return body.lineno, body.col_offset


def _ends(node: _Node) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _span(code: CodeType) -> tuple[int, int | None]:
    """The line and column at which a function's code begins."""
    places = [
        (line, column)
        for line, _, column, end in code.co_positions()
        if line is not None and column is not None and (column, end) != (0, 0)
    ]
    if not places:
        return code.co_firstlineno, None
    return min(places)
