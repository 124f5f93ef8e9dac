"""What an expression compiles to, and the small tools every operator is made with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.errors import ExpressionError, PlanError
from headrace.types import type_name

Value = Any
"""A ``pyarrow.Array`` as long as the bundle, or a ``pyarrow.Scalar`` that stands for every row."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled expression: its type, and what computes it for a bundle.

    ``raises`` is true where some value could stop the job, so that a choice such as CASE must not
    run it on rows it was not chosen for. ``constant`` is true where no column is read.
    """

    type: pa.DataType
    run: Callable[[pa.RecordBatch], Value]
    raises: bool = False
    constant: bool = False
    differs_in_spark: bool = False
    """Whether Spark itself could give another answer, so that only this may compute it."""
    elements: Callable[[pa.RecordBatch], tuple[Any, pa.Array]] | None = None
    """Of a list: the row of each element and the elements, where lists need not be made for it."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What names mean while an expression is compiled."""

    schema: pa.Schema
    zone: str
    compile: Callable[[exp.Expr], Kernel]


MAX_DEPTH = 100
"""How deep an expression may be nested: Python limits the depth of calls."""
TOO_DEEP = (
    f"the expression is nested more than {MAX_DEPTH} levels deep; compute parts of it in "
    "with_columns steps before, or use is_in([…]) for many values"
)

Builder = Callable[..., Kernel]
FUNCTIONS: dict[str, Builder] = {}
NODES: dict[type[exp.Expr], Builder] = {}


def function(*names: str) -> Callable[[Builder], Builder]:
    """Register a builder ``(scope, *argument kernels)`` for functions of these SQL names."""

    def register(builder: Builder) -> Builder:
        for name in names:
            FUNCTIONS[name] = builder
        return builder

    return register


def node(*kinds: type[exp.Expr]) -> Callable[[Builder], Builder]:
    """Register a builder ``(scope, tree)`` for kinds of syntax."""

    def register(builder: Builder) -> Builder:
        for kind in kinds:
            NODES[kind] = builder
        return builder

    return register


ONE_ROW = pa.RecordBatch.from_arrays([pa.nulls(1)], names=["_"])


def fold(kernel: Kernel) -> Kernel:
    """A kernel that reads no column, computed now; one that fails is left to fail where it is used.

    So a constant such as a date is not made of its text again for every row.
    """
    if not kernel.constant:
        return kernel
    try:
        value = kernel.run(ONE_ROW)
    except (ExpressionError, pa.ArrowException):
        return replace(kernel, raises=True)
    folded = constant(value if isinstance(value, pa.Scalar) else value[0])
    return not_for_spark(folded) if kernel.differs_in_spark else folded


def not_for_spark(kernel: Kernel) -> Kernel:
    """The kernel, not to be left to Spark's own expressions."""
    return replace(kernel, differs_in_spark=True)


def constant(value: pa.Scalar) -> Kernel:
    """A kernel that is one value."""
    return Kernel(value.type, lambda batch: value, constant=True)


def apply(
    kind: pa.DataType, compute: Callable[..., Value], *args: Kernel, raises: bool = False
) -> Kernel:
    """A kernel that computes its arguments and gives them to an Arrow function."""
    raises = raises or any(a.raises for a in args)
    if len(args) == 1:
        only = args[0].run
        run: Callable[[pa.RecordBatch], Value] = lambda batch: compute(only(batch))  # noqa: E731
    elif len(args) == 2:
        left, right = args[0].run, args[1].run
        run = lambda batch: compute(left(batch), right(batch))  # noqa: E731
    else:
        runs = [a.run for a in args]
        run = lambda batch: compute(*(r(batch) for r in runs))  # noqa: E731
    differs = any(a.differs_in_spark for a in args)
    return fold(Kernel(kind, run, raises, all(a.constant for a in args), differs))


def apply_arrays(
    kind: pa.DataType, compute: Callable[..., Value], *args: Kernel, raises: bool = False
) -> Kernel:
    """Like ``apply`` for a function that wants arrays: constants are spread over the rows."""
    runs = [a.run for a in args]

    def run(batch: pa.RecordBatch) -> Value:
        return compute(*(spread(r(batch), batch.num_rows) for r in runs))

    raises = raises or any(a.raises for a in args)
    differs = any(a.differs_in_spark for a in args)
    return fold(Kernel(kind, run, raises, all(a.constant for a in args), differs))


def spread(value: Value, rows: int) -> pa.Array:
    """An array of ``rows`` values, from an array or a constant."""
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, rows) if rows else pa.nulls(0, value.type)
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value


def literal_value(kernel: Kernel, what: str, where: str) -> Any:
    """The Python value of an argument that must be constant."""
    if not kernel.constant:
        raise PlanError(f"{where}: {what} must be a constant, not a column")
    value = kernel.run(ONE_ROW)
    return (value if isinstance(value, pa.Scalar) else value[0]).as_py()


def want(kernel: Kernel, test: Callable[[pa.DataType], bool], what: str, where: str) -> None:
    """Refuse an argument of the wrong type."""
    if not (test(kernel.type) or pa.types.is_null(kernel.type)):
        raise PlanError(f"{where} takes {what}, not {type_name(kernel.type)}")


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind))


def is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def where(batch: pa.RecordBatch, mask: pa.Array, kernel: Kernel) -> pa.Array:
    """The kernel's values on the rows where ``mask`` is true, null elsewhere.

    Rows outside the mask are not computed, so that what would fail there does not.
    """
    rows = batch.num_rows
    chosen = np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))
    if chosen.size == rows:
        return spread(kernel.run(batch), rows)
    if chosen.size == 0:
        return pa.nulls(rows, kernel.type)
    values = spread(kernel.run(batch.take(pa.array(chosen))), chosen.size)
    places = np.zeros(rows, dtype=np.int64)
    places[chosen] = np.arange(chosen.size)
    missing = np.ones(rows, dtype=np.bool_)
    missing[chosen] = False
    return values.take(pa.array(places, mask=missing))


def choose(batch: pa.RecordBatch, mask: pa.Array, kernel: Kernel, other: Value) -> pa.Array:
    """The kernel's values where ``mask`` is true, ``other`` elsewhere."""
    mask = mask.fill_null(False)
    differs = where(batch, mask, kernel) if kernel.raises else kernel.run(batch)
    if isinstance(differs, pa.Scalar) and isinstance(other, pa.Scalar):
        differs = spread(differs, batch.num_rows)
    return pc.if_else(mask, differs, other)
