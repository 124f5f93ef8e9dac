"""Pass-through (RStream §V-D): integers that a map copies, so that only moving them costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.apps import StreamApp
from headrace.apps.streams import app, micros, times


def tables(records: int, seed: int, per_second: int, early: int) -> dict[str, pa.Table]:
    values = np.random.default_rng([seed, 19]).integers(0, 1 << 31, records)
    return {"numbers": pa.table({"at": times(records, per_second, early, seed), "value": values})}


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    return inputs["numbers"].map(at="at", value="value + 0")  # a column as it is is not copied


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    return set(zip(micros(inputs["numbers"]), inputs["numbers"]["value"].to_pylist(), strict=True))


APP = app(
    "passthrough", "integers through a map that copies them (RStream)", 4_000_000,
    StreamApp(tables, pipeline, None), reference,
)  # fmt: skip
