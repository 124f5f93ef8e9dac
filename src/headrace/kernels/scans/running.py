"""``running``: aggregates of each key so far, beside every record."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.aggregates import Aggregate
from headrace.errors import ExpressionError, PlanError, StepError
from headrace.kernels.accumulators import accumulator
from headrace.kernels.aggregate import aggregate_trees
from headrace.kernels.columns import as_column, numbers, validity
from headrace.kernels.expressions import Kernel, compile_expression, evaluate
from headrace.kernels.group import is_fixed
from headrace.kernels.native import scans
from headrace.kernels.scans.steps import Records, Steps, grown
from headrace.plan.scans import RunningStep, Scan
from headrace.types import type_name

KINDS = ("count", "sum", "mean", "min", "max")


class RunningSteps(Steps):
    """Of each key, the aggregates so far."""

    def __init__(self, node: Scan, what: RunningStep, schema: pa.Schema, zone: str) -> None:
        super().__init__()
        self.node, self.schema = node, node.schema
        self.kernels = [
            [compile_expression(tree, schema, zone) for tree in aggregate_trees(aggregate)]
            for _, aggregate in what.aggregates
        ]
        self.columns = [
            _column(aggregate, kernels)
            for (_, aggregate), kernels in zip(what.aggregates, self.kernels, strict=True)
        ]
        named = zip(what.aggregates, self.columns, strict=True)
        self.fields = tuple(
            pa.field(f"{name}_{i}", kind)
            for (name, _), column in named
            for i, kind in enumerate(column.kinds)
        )

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def enlarge(self, room: int) -> None:
        for column in self.columns:
            column.enlarge(room)

    def reset(self, slots: Any) -> None:
        for column in self.columns:
            column.reset(slots)

    def run(self, records: Records) -> tuple[pa.RecordBatch | None, Any]:
        out = list(records.batch.columns)
        for kernels, column in zip(self.kernels, self.columns, strict=True):
            try:
                inputs = [evaluate(kernel, records.batch) for kernel in kernels]
            except (ExpressionError, pa.ArrowException) as error:
                raise StepError(f"{self.node.label}: {error}") from error
            found = column.run(records, inputs)
            if found is None:
                raise StepError(f"{self.node.label}: bigint overflow in 'sum'")
            out.append(found)
        return pa.RecordBatch.from_arrays(out, schema=self.schema), None

    def state(self, slots: Any) -> list[pa.Array]:
        return [array for column in self.columns for array in column.state(slots)]

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        rest = iter(columns)
        for column in self.columns:
            column.restore(slots, list(itertools.islice(rest, len(column.kinds))))


def running_type(aggregate: Aggregate, schema: pa.Schema, zone: str) -> pa.DataType:
    """The type of an aggregate so far, or a sentence that says why there is none."""
    kernels = [compile_expression(tree, schema, zone) for tree in aggregate_trees(aggregate)]
    return _column(aggregate, kernels).result


def _column(aggregate: Aggregate, kernels: Sequence[Kernel]) -> Any:
    if aggregate.kind not in KINDS:
        raise PlanError(
            f"running has {', '.join(KINDS[:-1])} and {KINDS[-1]}, not {aggregate!r}; "
            "write it as a function with scan"
        )
    result = accumulator(aggregate, [k.type for k in kernels]).result
    if aggregate.kind == "count":
        return Counted(result)
    kind = kernels[0].type
    if is_fixed(kind):
        return (Meant if aggregate.kind == "mean" else Reckoned)(aggregate.kind, kind, result)
    if aggregate.kind in ("sum", "mean"):
        raise PlanError(f"running {aggregate!r} of a {type_name(kind)}: cast it to double before")
    return Compared(aggregate.kind, kind)


_NONE = np.zeros(0, np.bool_)


def _resets(records: Records) -> Any:
    return _NONE if records.resets is None else records.resets


class Counted:
    """``count``."""

    kinds = (pa.int64(),)

    def __init__(self, result: pa.DataType) -> None:
        self.result = result
        self.counts = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        return int(self.counts.nbytes)

    def enlarge(self, room: int) -> None:
        self.counts = grown(self.counts, room, 0)

    def reset(self, slots: Any) -> None:
        self.counts[slots] = 0

    def run(self, records: Records, inputs: list[pa.Array]) -> pa.Array:
        out = np.empty(records.slots.size, np.int64)
        valid = validity(inputs[0]) if inputs else _NONE
        scans.running_count(records.slots, valid, _resets(records), self.counts, out)
        return as_column(out)

    def state(self, slots: Any) -> list[pa.Array]:
        return [as_column(self.counts[slots])]

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        self.counts[slots] = numbers(columns[0], np.int64)


class Reckoned(Counted):
    """``sum``, ``min`` and ``max`` of what is one number."""

    def __init__(self, op: str, kind: pa.DataType, result: pa.DataType) -> None:
        super().__init__(result)
        self.op = {"sum": scans.SUM, "min": scans.MIN, "max": scans.MAX}[op]
        self.floating = bool(pa.types.is_floating(kind))
        dtype = np.float64 if self.floating else np.int64
        self.kinds = (pa.int64(), pa.from_numpy_dtype(dtype))  # type: ignore[assignment]
        self.states = np.zeros(0, dtype)

    def enlarge(self, room: int) -> None:
        super().enlarge(room)
        self.states = grown(self.states, room, 0)

    def reset(self, slots: Any) -> None:
        super().reset(slots)
        self.states[slots] = 0

    def run(self, records: Records, inputs: list[pa.Array]) -> pa.Array | None:
        count = records.slots.size
        out, there = np.empty(count, self.states.dtype), np.empty(count, np.bool_)
        exact = not self.floating and self.op == scans.SUM
        if not scans.running(
            self.op, exact, records.slots, as_numbers(inputs[0], self.states.dtype),
            validity(inputs[0]), _resets(records), self.counts, self.states, out, there,
        ):  # fmt: skip
            return None
        return typed(out, there, self.result)

    def state(self, slots: Any) -> list[pa.Array]:
        return [*super().state(slots), as_column(self.states[slots])]

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        super().restore(slots, columns)
        self.states[slots] = numbers(columns[1], self.states.dtype)


class Meant(Reckoned):
    """``mean``."""

    def __init__(self, op: str, kind: pa.DataType, result: pa.DataType) -> None:
        super().__init__("sum", pa.float64(), result)

    def run(self, records: Records, inputs: list[pa.Array]) -> pa.Array:
        count = records.slots.size
        out, there = np.empty(count), np.empty(count, np.bool_)
        values = as_numbers(inputs[0], np.float64)
        scans.running_mean(
            records.slots, values, validity(inputs[0]), _resets(records), self.counts, self.states,
            out, there,
        )  # fmt: skip
        return typed(out, there, self.result)


class Compared:
    """``min`` and ``max`` of anything else, such as text."""

    def __init__(self, op: str, kind: pa.DataType) -> None:
        self.largest, self.result = op == "max", kind
        self.kinds = (kind,)
        self.best: list[Any] = []

    @property
    def nbytes(self) -> int:
        return 64 * len(self.best)

    def enlarge(self, room: int) -> None:
        self.best += [None] * (room - len(self.best))

    def reset(self, slots: Any) -> None:
        for slot in slots.tolist():
            self.best[slot] = None

    def run(self, records: Records, inputs: list[pa.Array]) -> pa.Array:
        resets, out = records.resets, []
        for i, (slot, value) in enumerate(
            zip(records.slots.tolist(), inputs[0].to_pylist(), strict=True)
        ):
            known = None if resets is not None and resets[i] else self.best[slot]
            if known is None or (value is not None and (value > known) == self.largest):
                known = value
            self.best[slot] = known
            out.append(known)
        return pa.array(out, self.result)

    def state(self, slots: Any) -> list[pa.Array]:
        return [pa.array([self.best[slot] for slot in slots.tolist()], self.result)]

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        for slot, value in zip(slots.tolist(), columns[0].to_pylist(), strict=True):
            self.best[slot] = value


def as_numbers(array: pa.Array, dtype: Any) -> Any:
    """A fixed-width column as 64-bit numbers, anything in place of nulls."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return numbers(array.cast(pa.int8()), np.int8).astype(dtype)
    own = kind.to_pandas_dtype() if pa.types.is_floating(kind) else f"i{kind.bit_width // 8}"
    if pa.types.is_unsigned_integer(kind):
        own = f"u{kind.bit_width // 8}"
    return numbers(array, own).astype(dtype, copy=False)


def typed(values: Any, there: Any, kind: pa.DataType) -> pa.Array:
    """Numbers as a column of a type, null where there is none."""
    array = pa.array(values, mask=None if there.all() else ~there)
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        array = array.cast(pa.int32())
    return array if array.type.equals(kind) else array.cast(kind, safe=False)
