"""Aggregates that people write in Python."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import pyarrow as pa

from headrace.errors import StepError
from headrace.kernels.accumulators.kept import by_group, runs_of
from headrace.kernels.accumulators.protocol import Numbers
from headrace.kernels.rows import FAILURES, failure, typed_array
from headrace.types import type_name


def _length(state: Any) -> int:
    return len(state) if isinstance(state, (list, tuple, dict, set)) else 1


class States:
    """A state in Python for each group, for functions people write. States travel pickled."""

    partial = pa.binary()

    def __init__(
        self,
        result: pa.DataType,
        partial: Callable[..., Any],
        merge: Callable[[Any, Any], Any],
        finish: Callable[[Any], Any],
        label: str,
    ) -> None:
        self.result, self.label = result, label
        self._partial, self._merge, self._finish = partial, merge, finish
        self.states: dict[int, Any] = {}
        self.nbytes = 0

    def _add(self, group: int, state: Any) -> None:
        self.nbytes += len(state) if isinstance(state, (bytes, str)) else 64 * _length(state)
        known = self.states
        if group in known:
            state = self._called(self._merge, "two states", known[group], state)
        known[group] = state

    def _called(self, function: Callable[..., Any], what: str, *args: Any) -> Any:
        try:
            return function(*args)
        except FAILURES as error:
            shown = args[-1]
            if isinstance(shown, pa.Array):
                shown = shown[0].as_py() if len(shown) else None
            raise failure(self.label, error, shown, what) from error

    def update(self, groups: Numbers, size: int, columns: Sequence[pa.Array]) -> None:
        order = by_group(groups)
        ordered = groups[order]
        columns = [c.take(pa.array(order)) for c in columns]
        for start, end in zip(*runs_of(ordered), strict=True):
            parts = [c.slice(start, end - start) for c in columns]
            what = f"{end - start} records of a group, the first of them"
            state = self._called(self._partial, what, *parts)
            self._add(int(ordered[start]), state)

    def merge(self, groups: Numbers, size: int, column: pa.Array) -> None:
        for group, state in zip(groups.tolist(), column.to_pylist(), strict=True):
            if state is not None:
                self._add(group, pickle.loads(state))

    def partials(self, size: int) -> pa.Array:
        states = self.states
        return pa.array(
            [cloudpickle.dumps(states[g]) if g in states else None for g in range(size)],
            self.partial,
        )

    def finish(self, size: int) -> pa.Array:
        states = self.states
        results = [
            self._called(self._finish, "the state", states[g]) if g in states else None
            for g in range(size)
        ]
        try:
            return typed_array(results, self.result)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise StepError(
                f"{self.label}: the result does not fit {type_name(self.result)}: {error}"
            ) from None
