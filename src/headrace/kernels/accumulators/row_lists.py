"""How an aggregate that keeps rows hands them on: a list of rows for each group."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.kernels.accumulators.protocol import Numbers
from headrace.kernels.columns import as_column


class RowLists:
    """Rows of one column as its values, unless ``structs``; of several as structs."""

    def __init__(self, kinds: list[pa.DataType], *, structs: bool = False) -> None:
        self.structs = structs or len(kinds) > 1
        self.fields = [pa.field(str(i), kind) for i, kind in enumerate(kinds)]
        self.type = pa.list_(pa.struct(self.fields) if self.structs else kinds[0])

    def packed(self, groups: Numbers, size: int, arrays: list[pa.Array]) -> pa.Array:
        """Rows sorted by group as a list for each of ``size`` groups."""
        offsets = np.zeros(size + 1, np.int32)
        np.cumsum(np.bincount(groups, minlength=size), out=offsets[1:])
        flat = arrays[0]
        if self.structs:
            flat = pa.StructArray.from_arrays(arrays, fields=self.fields)
        return pa.ListArray.from_arrays(as_column(offsets), flat, type=self.type)

    def unpacked(self, groups: Numbers, lists: pa.Array) -> tuple[Numbers, list[pa.Array]]:
        """The rows of lists and the group of each; ``groups`` are those of the lists."""
        offsets = np.asarray(lists.offsets)
        flat = lists.values.slice(offsets[0], offsets[-1] - offsets[0])
        parents = np.repeat(groups, np.diff(offsets))
        return parents, flat.flatten() if self.structs else [flat]
