"""What an accumulator is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, Any]


class Accumulator(Protocol):
    """The states of one aggregate for every group."""

    partial: pa.DataType
    result: pa.DataType

    @property
    def nbytes(self) -> int:
        """About how much memory the states hold, beside a few numbers a group."""

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        """Take in records: their groups, and the aggregate's input columns."""

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        """Take in partials: their groups, and a column of type ``partial``."""

    def partials(self, size: int) -> pa.Array:
        """The state of every group, to be merged elsewhere."""

    def finish(self, size: int) -> pa.Array:
        """The result for every group."""
