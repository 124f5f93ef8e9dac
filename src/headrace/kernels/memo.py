"""``map_memo``: a person's function of a record, asked once for each key it depends on."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import StepError
from headrace.kernels.columns import as_column
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.rows import describe, packed, results_of
from headrace.plan.rows import MapMemo

Keys = tuple[Sequence[Hashable], Any]
"""The different keys of a bundle, and which of them each record has."""
_MISSING = object()


class Memo:
    """The results of the keys that were asked for last, at most so many. Threads share it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.results: OrderedDict[Hashable, Any] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, keys: Sequence[Hashable]) -> list[Any]:
        """What is remembered of some keys; ``_MISSING`` for the others."""
        results = self.results
        with self.lock:
            found = [results.get(key, _MISSING) for key in keys]
            for key, result in zip(keys, found, strict=True):
                if result is not _MISSING:
                    results.move_to_end(key)
        return found

    def put(self, keys: Sequence[Hashable], new: Sequence[Any]) -> None:
        """Remember results, and forget those that were not asked for the longest."""
        with self.lock:
            for key, result in zip(keys, new, strict=True):
                self.results[key] = result
                self.results.move_to_end(key)
            while len(self.results) > self.size:
                self.results.popitem(last=False)


def memo_rows(
    step: MapMemo, schema: pa.Schema, zone: str
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """The step as a function of a bundle, with a memory of its own."""
    label, memo = f"{step.label} ({step.function_name})", Memo(step.size)
    key = step.key
    keys_of = _by_function(key, label) if callable(key) else _by_columns(key, schema, zone)

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        keys, index = keys_of(batch)
        results = memo.get(keys)
        missing = [i for i, result in enumerate(results) if result is _MISSING]
        if missing:
            first = np.empty(len(keys), np.int64)
            first[index[::-1]] = np.arange(batch.num_rows)[::-1]  # the last that is put stays
            rows = batch.take(as_column(first[missing]))
            new = [result for _, result in results_of(step.function, rows, label)]
            for i, result in zip(missing, new, strict=True):
                results[i] = result
            memo.put([keys[i] for i in missing], new)
        made = packed(results, step.schema, label)
        return made if len(keys) == batch.num_rows else made.take(as_column(index))

    return run


def _by_columns(trees: Any, schema: pa.Schema, zone: str) -> Callable[[pa.RecordBatch], Keys]:
    kernels = [compile_expression(tree, schema, zone) for tree in trees]

    def keys_of(batch: pa.RecordBatch) -> Keys:
        columns = [_exact(evaluate(kernel, batch)) for kernel in kernels]
        if len(columns) == 1:
            encoded = columns[0].dictionary_encode(null_encoding="encode")
            return encoded.dictionary.to_pylist(), np.asarray(encoded.indices)
        return _different(zip(*(column.to_pylist() for column in columns), strict=True))

    return keys_of


def _exact(column: pa.Array) -> pa.Array:
    """Numbers by their bits, for 0.0 is not -0.0 to a function, and NaN is not itself."""
    bits = {pa.float64(): pa.int64(), pa.float32(): pa.int32()}
    return column.view(bits[column.type]) if column.type in bits else column


def _by_function(function: Callable[..., Any], label: str) -> Callable[[pa.RecordBatch], Keys]:
    where = f"{label}, its key"

    def keys_of(batch: pa.RecordBatch) -> Keys:
        found = list(results_of(function, batch, where))
        try:
            return _different(key for _, key in found)
        except TypeError:
            for row, key in found:
                try:
                    hash(key)
                except TypeError:
                    raise StepError(
                        f"{label} failed on record {describe(row)}: its key is a "
                        f"{type(key).__name__}, which has no hash; give a tuple or text"
                    ) from None
            raise

    return keys_of


def _different(keys: Any) -> Keys:
    places: dict[Hashable, int] = {}
    index = [places.setdefault(key, len(places)) for key in keys]
    return list(places), np.array(index, np.int64)
