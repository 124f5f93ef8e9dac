"""``map_memo``: columns computed by a Python function of a key, with a cache of its results."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.columns import as_column
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.rows import packed, results_of
from headrace.plan.rows import MapMemo

_MISSING = object()


class Memo:
    """Function results by key: the most recently used ones, each for a limited time.

    Threads share it.
    """

    def __init__(
        self,
        max_size: int,
        ttl: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_size, self.ttl, self.clock = max_size, ttl, clock
        self.results: OrderedDict[Hashable, tuple[Any, float]] = OrderedDict()
        """Each result and when it was computed."""
        self.lock = threading.Lock()

    def get(self, keys: Sequence[Hashable]) -> list[Any]:
        """Return the result of each key, or ``_MISSING``."""
        found = []
        oldest = -np.inf if self.ttl is None else self.clock() - self.ttl
        with self.lock:
            for key in keys:
                result, computed = self.results.get(key, (_MISSING, np.inf))
                if computed <= oldest:
                    result = _MISSING
                elif result is not _MISSING:
                    self.results.move_to_end(key)
                found.append(result)
        return found

    def put(self, keys: Sequence[Hashable], results: Sequence[Any], computed: float) -> None:
        """Add results, and drop the least recently used ones beyond ``max_size``."""
        with self.lock:
            for key, result in zip(keys, results, strict=True):
                self.results[key] = result, computed
                self.results.move_to_end(key)
            while len(self.results) > self.max_size:
                self.results.popitem(last=False)


def memo_rows(
    step: MapMemo, schema: pa.Schema, zone: str
) -> tuple[Callable[[pa.RecordBatch], pa.RecordBatch], pa.Schema]:
    """Compile the step: a function of a bundle with its own cache, and the columns after it."""
    label = f"{step.label} ({step.function_name})"
    memo = Memo(step.max_size, None if step.ttl is None else step.ttl / 1e6)
    kernels = [compile_expression(tree, schema, zone) for _, tree in step.key]
    key_names = [name for name, _ in step.key]
    added = [f.with_name(name) for f, name in zip(step.returns, step.names, strict=True)]
    replaced = {field.name: field for field in added}
    after = pa.schema(
        [replaced.get(field.name, field) for field in schema]
        + [field for field in added if field.name not in schema.names]
    )

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [evaluate(kernel, batch) for kernel in kernels]
        keys, index = _distinct([_exact(column) for column in columns])
        results = memo.get(keys)
        missing = [i for i, result in enumerate(results) if result is _MISSING]
        if missing:
            first = np.empty(len(keys), np.int64)
            first[index[::-1]] = np.arange(batch.num_rows)[::-1]  # the first row of each key wins
            keyed = pa.RecordBatch.from_arrays(columns, names=key_names)
            rows = keyed.take(as_column(first[missing]))
            computed = memo.clock()
            new = [result for _, result in results_of(step.function, rows, label)]
            for i, result in zip(missing, new, strict=True):
                results[i] = result
            memo.put([keys[i] for i in missing], new, computed)
        made = packed(results, step.returns, label)
        if len(keys) < batch.num_rows:
            made = made.take(as_column(index))
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        arrays |= dict(zip(step.names, made.columns, strict=True))
        return pa.RecordBatch.from_arrays([arrays[name] for name in after.names], schema=after)

    return run, after


def _distinct(columns: list[pa.Array]) -> tuple[Sequence[Hashable], Any]:
    """The distinct keys of a bundle, and which of them each record has."""
    if len(columns) == 1:
        encoded = columns[0].dictionary_encode(null_encoding="encode")
        return encoded.dictionary.to_pylist(), np.asarray(encoded.indices)
    places: dict[Hashable, int] = {}
    keys = zip(*(column.to_pylist() for column in columns), strict=True)
    index = [places.setdefault(key, len(places)) for key in keys]
    return list(places), np.array(index, np.int64)


def _exact(column: pa.Array) -> pa.Array:
    """Floats as their bits: 0.0 and -0.0 are different keys, and NaN equals itself."""
    bits = {pa.float64(): pa.int64(), pa.float32(): pa.int32()}
    return column.view(bits[column.type]) if column.type in bits else column
