"""A step that is a person's own operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.plan.node import OneInput, function_name


@dataclass(frozen=True, eq=False)
class Custom(OneInput):
    """A person's own ``Transform``, with state by key; without keys there is one state."""

    make: Callable[[], Any]
    keys: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "transform"

    @property
    def detail(self) -> str:
        keys = f" by {', '.join(self.keys)}" if self.keys else ""
        return f"{function_name(self.make)}{keys}"

    @property
    def python(self) -> bool:
        return True
