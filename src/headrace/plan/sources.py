"""Where the records of a plan come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.plan.node import Node

if TYPE_CHECKING:
    from headrace.io.source import Source


@dataclass(frozen=True, eq=False)
class Read(Node):
    """Records of a source, split by split."""

    source: Source
    zone: str | None = None
    """The time zone of the pipeline; UTC unless told."""
    reopen: Any = None
    """How its files are found anew, if it is of files."""

    @property
    def name(self) -> str:
        return "read"

    @property
    def detail(self) -> str:
        return str(self.source)


@dataclass(frozen=True, eq=False)
class External(Node):
    """Records that an engine already has, such as a Spark DataFrame."""

    engine: str
    handle: Any
    zone: str | None = None

    @property
    def name(self) -> str:
        return f"from_{self.engine}"
