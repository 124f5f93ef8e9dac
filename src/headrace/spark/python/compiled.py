"""What a worker has compiled, for as long as it lives."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

_COMPILED: dict[str, Any] = {}
_MOST = 64


def once(key: str, make: Callable[[], Any]) -> Any:
    """What a pipeline compiles to, once in a worker's life."""
    if key not in _COMPILED:
        while len(_COMPILED) >= _MOST:
            _COMPILED.pop(next(iter(_COMPILED)))
        _COMPILED[key] = make()
        gc.collect()
        gc.freeze()  # not to be looked through after every task; see the Python daemon
    return _COMPILED[key]
