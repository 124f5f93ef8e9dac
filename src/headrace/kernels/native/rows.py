"""Rows of a column by their numbers."""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(nogil=True, cache=True)
def take(values: Any, rows: Any, out: Any) -> None:
    """The values of some rows."""
    for i in range(rows.size):
        out[i] = values[rows[i]]
