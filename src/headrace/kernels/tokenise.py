"""Cutting text into tokens at a class of characters, on the Arrow buffers themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.columns import Text
from headrace.kernels.native import tokens


@dataclass(frozen=True, slots=True)
class Tokeniser:
    """Cuts at bytes of a class; its parts are what native/tokens.py takes."""

    table: np.ndarray[Any, Any]
    ranges: np.ndarray[Any, Any]
    bounds: tuple[np.uint64, ...]
    foreign: np.uint64
    fold: np.uint64
    folds: tuple[bool, ...]
    small: np.uint64
    runs: bool

    @staticmethod
    def of(pattern: str, lower: bool = False) -> Tokeniser | None:
        """For a Java pattern that is one class of characters; None for any other.

        With ``lower`` the text is lower-cased on the way, which is right for ASCII text only.
        """
        return _tokeniser(pattern, lower)

    def lists(self, array: pa.Array) -> pa.Array:
        """Each string's pieces as a list, the empty ones too."""
        text = Text.of(array)
        sizes, pieces, _ = self._cut(text, keep_empty=True)
        offsets = np.zeros(len(array) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        mask = None if not text.valid.size else pa.array(~text.valid)
        return pa.ListArray.from_arrays(pa.array(offsets), pieces, mask=mask)

    def pieces(self, array: pa.Array, keep_empty: bool) -> tuple[pa.Array, np.ndarray[Any, Any]]:
        """All pieces in order, and the row each came from."""
        _, pieces, parents = self._cut(Text.of(array), keep_empty)
        return pieces, parents

    def _cut(self, text: Text, keep_empty: bool) -> tuple[Any, pa.Array, Any]:
        sizes = np.empty(text.offsets.size - 1, np.int32)
        total = tokens.measure_tokens(
            text.data, text.offsets, text.valid, self.table, self.runs, keep_empty, sizes
        )
        count = int(sizes.sum())
        parents = np.empty(count, np.int64)
        offsets = np.zeros(count + 1, np.int32)
        out = np.empty(total, np.uint8)
        tokens.write_tokens(
            text.data,
            text.offsets,
            text.valid,
            self.table,
            self.runs,
            keep_empty,
            parents,
            offsets,
            out,
        )
        pieces = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(out))
        return sizes, pieces, parents


@lru_cache(maxsize=256)
def _tokeniser(pattern: str, lower: bool) -> Tokeniser | None:
    from headrace.kernels.expressions.patterns import byte_class

    found = byte_class(pattern)
    if found is None:
        return None
    cut, runs = found
    table = np.arange(256, dtype=np.uint16)
    if lower:
        table[ord("A") : ord("Z") + 1] += 32
    for byte in range(256):
        # A letter is lower-cased before it is asked whether it separates.
        if int(table[byte]) in cut:
            table[byte] = tokens.CUT
    inside = [b < 128 and b not in cut for b in range(129)]
    starts = [b for b in range(128) if inside[b] and not (b and inside[b - 1])]
    ends = [b for b in range(128) if inside[b] and not inside[b + 1]]
    ranges = np.array(list(zip(starts, ends, strict=True)), np.uint64).reshape(-1, 2)
    none, all_bytes = np.uint64(0), np.uint64(0x8080808080808080)
    foreign = none if 128 in cut else all_bytes
    bounds = tuple(ranges.ravel()) or (np.uint64(1), np.uint64(0))
    # Where tokens are nothing but small letters, one bit makes a capital one of them.
    letters = lower and not foreign and [tuple(r) for r in ranges.tolist()] == [(97, 122)]
    folds = (True,) if lower and not letters else ()
    small = np.uint64(0x2020202020202020) if letters else none
    fold = all_bytes if lower else none
    return Tokeniser(table, ranges, bounds, foreign, fold, folds, small, runs)
