"""What a Python function does, as a short text that changes when the function does."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_DEEPEST = 8


def fingerprint(*things: Any) -> str:
    """Functions and values in a few characters, the same in every process of one Python version.

    A function counts by its code, its defaults and what it encloses, not by its name or the line
    it stands on. Globals that it reads are not looked into.
    """
    text = "\n".join(part for thing in things for part in _parts(thing, 0))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{version}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _parts(thing: Any, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        yield "…"
    elif isinstance(thing, _PLAIN):
        yield repr(thing)
    elif isinstance(thing, CodeType):
        yield thing.co_code.hex()
        yield repr((thing.co_names, thing.co_varnames, thing.co_freevars))
        for constant in thing.co_consts:
            yield from _parts(constant, depth + 1)
    elif isinstance(thing, MethodType):
        yield from _parts(thing.__func__, depth + 1)
        yield from _parts(thing.__self__, depth + 1)
    elif isinstance(thing, FunctionType):
        yield from _parts(thing.__code__, depth + 1)
        yield from _parts((thing.__defaults__, thing.__kwdefaults__), depth + 1)
        for cell in thing.__closure__ or ():
            try:
                yield from _parts(cell.cell_contents, depth + 1)
            except ValueError:  # not filled yet: a function that calls itself
                yield "…"
    elif isinstance(thing, functools.partial):
        yield from _parts((thing.func, thing.args, thing.keywords), depth + 1)
    elif isinstance(thing, (tuple, list)):
        yield f"{type(thing).__name__} of {len(thing)}"
        for item in thing:
            yield from _parts(item, depth + 1)
    elif isinstance(thing, (set, frozenset)):
        yield from sorted("".join(_parts(item, depth + 1)) for item in thing)
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from _parts(key, depth + 1)
            yield from _parts(value, depth + 1)
    else:
        kind = thing if isinstance(thing, type) else type(thing)
        yield f"{kind.__module__}.{kind.__qualname__}"
        call = vars(kind).get("__call__")
        if isinstance(call, FunctionType):
            yield from _parts(call, depth + 1)
