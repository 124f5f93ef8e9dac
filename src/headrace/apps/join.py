"""Temporal join (StreamBox §9): two streams of random keys, records within half a second."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.apps import StreamApp
from headrace.apps.streams import app, micros, times

WITHIN = 500_000


def tables(records: int, seed: int, per_second: int, early: int) -> dict[str, pa.Table]:
    half, found = records // 2, {}
    for side, name in enumerate(("left", "right")):
        rng = np.random.default_rng([seed, side])
        at = times(half, max(1, per_second // 2), early, seed + side)
        found[name] = pa.table({"at": at, "k": rng.integers(0, 8 * max(1, half), half)})
    return found


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    return inputs["left"].join_within(inputs["right"], on="k", before="500ms", after="500ms")


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    rights: dict[int, list[int]] = defaultdict(list)
    for at, k in zip(micros(inputs["right"]), inputs["right"]["k"].to_pylist(), strict=True):
        rights[k].append(at)
    return {
        (at, k, other)
        for at, k in zip(micros(inputs["left"]), inputs["left"]["k"].to_pylist(), strict=True)
        for other in rights[k]
        if abs(other - at) <= WITHIN
    }


APP = app(
    "join", "pair records of two streams that are near in time (StreamBox)", 1_000_000,
    StreamApp(tables, pipeline, None), reference,
)  # fmt: skip
