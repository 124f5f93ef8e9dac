"""Engines compared: the same pipeline must give the same records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.engines import resolve
from headrace.stream import Stream


def rows(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """The records of a table without their order, floating numbers to nine digits."""
    columns = [c.to_pylist() for c in table.columns]
    return Counter(tuple(map(_plain, row)) for row in zip(*columns, strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value + 0.0:.9g}" if math.isfinite(value) else str(value)
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return tuple((k, _plain(v)) for k, v in value.items())
    return value


def _answer(pipeline: Stream, engine: Any) -> pa.Table:
    """What a pipeline gives; a stream that does not say so when it is built must end by itself."""
    if pipeline.bounded:
        return pipeline.collect(on=engine)
    job = pipeline.start(on=engine)
    job.wait()
    return job.result()


def same_answer(
    pipeline: Stream, engines: Sequence[Any] = ("box", "spark"), *, ordered: bool = False
) -> pa.Table:
    """Run a pipeline on several engines, and fail unless all give the same records.

    Returns the first engine's table. With ``ordered`` the records must also come in the same
    order. Floating numbers are compared to nine digits.
    """
    first: pa.Table | None = None
    for on in engines:
        engine = resolve(on)
        table = _answer(pipeline, engine)
        if first is None:
            first, name = table, engine.name
            continue
        if not table.schema.equals(first.schema):
            raise AssertionError(
                f"{name} gives {first.schema.names}, {engine.name} gives {table.schema.names}"
            )
        a, b = rows(first), rows(table)
        if a != b:
            missing, extra = list((a - b).elements())[:3], list((b - a).elements())[:3]
            raise AssertionError(
                f"{engine.name} and {name} disagree: {sum((a - b).values())} records only on "
                f"{name}, such as {missing}; {sum((b - a).values())} only on {engine.name}, such "
                f"as {extra}"
            )
        if ordered and table.to_pylist() != first.to_pylist():
            raise AssertionError(f"{engine.name} and {name} give the records in another order")
    assert first is not None, "same_answer needs at least one engine"
    return first
