"""Whether a function may run in another process: what it would change there stays there."""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import re
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from headrace.plan.texts import text_of

_PLAIN = (bool, int, float, complex, str, bytes, type(None), re.Pattern, type(...), range)
_EFFECTS = ("print", "input", "open", "exec", "eval", "globals", "vars", "setattr", "delattr",
            "next", "breakpoint")  # fmt: skip
_READS = ("get", "keys", "values", "items", "index", "count", "issubset", "issuperset", "copy")
_DEEPEST = 8


def why_here(function: Callable[..., Any], *, forced: bool) -> str | None:
    """Why a function stays in this process, in a few words; None if it need not.

    Unless it is ``forced``, all that it could change must be its own.
    """
    functions = getattr(function, "row_functions", (function,))
    if not forced:
        for each in functions:
            why = _effect(each, _package(each), 0)
            if why is not None:
                return why
    try:
        cloudpickle.dumps(function)
    except Exception as error:
        return f"it cannot be sent to another ({type(error).__name__}: {error})"
    return None


def _package(function: Any) -> str:
    return str(getattr(function, "__module__", None) or "").split(".")[0]


def _effect(function: Any, package: str, depth: int) -> str | None:
    """What a function might change that is not its own."""
    if isinstance(function, functools.partial):
        for held in (function.func, *function.args, *function.keywords.values()):
            why = _held(function, "an argument", held, package, depth)
            if why is not None:
                return why
        return None
    if not isinstance(function, FunctionType):
        return _held(function, getattr(function, "__name__", "itself"), function, package, depth)
    for code in _codes(function.__code__):
        stored = ("STORE_GLOBAL", "DELETE_GLOBAL")
        for each in dis.get_instructions(code):
            free = each.opname in ("STORE_DEREF", "DELETE_DEREF") and each.argval in (
                function.__code__.co_freevars
            )
            if each.opname in stored or free:
                return f"it changes '{each.argval}'"
    for name, held in _outside(function):
        why = _held(function, name, held, package, depth)
        if why is not None:
            return why
    return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _outside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals and the closure of a function."""
    names = {
        each.argval
        for code in _codes(function.__code__)
        for each in dis.get_instructions(code)
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for name in sorted(names):
        if name in function.__globals__:
            yield name, function.__globals__[name]
        elif hasattr(builtins, name):
            yield name, getattr(builtins, name)
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet: a function that calls itself
            continue
    defaults = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) :], defaults, strict=False)
    yield from (function.__kwdefaults__ or {}).items()


def _held(function: Any, name: str, value: Any, package: str, depth: int) -> str | None:
    """What could be changed through something that a function holds."""
    if isinstance(value, (*_PLAIN, ModuleType, type)):
        return None
    if isinstance(value, BuiltinFunctionType):
        named = value.__name__ in _EFFECTS and value.__module__ in ("builtins", "io", "_io")
        owner = value.__self__
        if named:
            return f"it calls {value.__name__}"
        if owner is None or isinstance(owner, (ModuleType, type, *_PLAIN)):
            return None
    if isinstance(value, (tuple, frozenset)):
        found = (_held(function, name, each, package, depth) for each in value)
        return next((why for why in found if why is not None), None)
    if isinstance(value, FunctionType) and (
        _package(value) not in (package, "__main__") or depth >= _DEEPEST
    ):
        return None  # a library's
    if isinstance(value, (FunctionType, functools.partial)):
        return None if value is function else _effect(value, package, depth + 1)
    if type(value) in (dict, list, set) and _only_reads(function, name):
        return None
    kind = type(value).__name__
    return f"it holds '{name}', {'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _only_reads(function: Any, name: str) -> bool:
    """Whether a function does nothing with a collection but to look things up in it."""
    text = text_of(function) if isinstance(function, FunctionType) else None
    if text is None:
        return False
    tree = ast.parse(text)
    reads = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            reads += _is(node.value, name)
        elif isinstance(node, ast.Compare) and all(
            isinstance(op, (ast.In, ast.NotIn)) for op in node.ops
        ):
            reads += sum(_is(each, name) for each in node.comparators)
        elif isinstance(node, ast.Attribute) and node.attr in _READS:
            reads += _is(node.value, name)
        elif isinstance(node, (ast.For, ast.comprehension)):
            reads += _is(node.iter, name)
    uses = sum(_is(node, name) for node in ast.walk(tree))
    return 0 < uses == reads


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
