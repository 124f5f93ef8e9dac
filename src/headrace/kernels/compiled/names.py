"""What a function's names stand for outside it, and whether they still do.

Code is compiled for the values of its globals and its closure, as they are. They are looked at
again for every bundle: where one has changed, the function is compiled again.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from headrace.kernels.compiled.values import Unfit

_GONE = object()
Guard = tuple[Callable[[], Any], Any]


class Names:
    """The names of functions, and what was read of them."""

    def __init__(self) -> None:
        self.guards: list[Guard] = []

    def lookup(self, function: FunctionType, name: str) -> Any:
        """What a name that is not local stands for."""
        code = function.__code__
        if name in code.co_freevars:
            cell = (function.__closure__ or ())[code.co_freevars.index(name)]
            return self._guarded(lambda: _contents(cell), name)
        if name in function.__globals__:
            known = function.__globals__
            return self._guarded(lambda: known.get(name, _GONE), name)
        return self._guarded(lambda: _builtin(function, name), name)

    def attribute(self, module: ModuleType, name: str) -> Any:
        """What a module has under a name."""
        return self._guarded(lambda: getattr(module, name, _GONE), f"{module.__name__}.{name}")

    def watch(self, function: FunctionType) -> None:
        """A function is compiled as it is now."""
        self._guarded(lambda: function.__code__, function.__name__)
        self._guarded(lambda: function.__defaults__, function.__name__)
        self._guarded(lambda: function.__kwdefaults__, function.__name__)

    def _guarded(self, read: Callable[[], Any], name: str) -> Any:
        value = read()
        if value is _GONE:
            raise Unfit(f"'{name}' is not defined")
        self.guards.append((read, value))
        return value


def unchanged(guards: list[Guard]) -> bool:
    """Whether all that was read is what it was."""
    return all(read() is value for read, value in guards)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _GONE


def _builtin(function: FunctionType, name: str) -> Any:
    if name in function.__globals__:
        return _GONE  # it hides the builtin now
    known = function.__globals__.get("__builtins__", builtins)
    known = known if isinstance(known, dict) else vars(known)
    return known.get(name, _GONE)
