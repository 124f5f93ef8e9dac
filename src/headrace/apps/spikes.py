"""Spike detection (Multicore study): values far from the mean of their sensor's last thousand."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.apps import StreamApp
from headrace.apps.streams import app, in_order, times

SENSORS, LAST, FAR = 54, 1000, 0.03
EMPTY = np.zeros(1, dtype=[("ring", "f8", LAST), ("total", "f8"), ("n", "i8")])[0]


def tables(records: int, seed: int, per_second: int, early: int) -> dict[str, pa.Table]:
    """Temperatures of a laboratory's sensors, in steps of 1/64 degree so that sums are exact."""
    rng = np.random.default_rng([seed, 13])
    sensor = rng.integers(0, SENSORS, records)
    day = np.sin(np.arange(records) * (2 * np.pi / 500_000)) + sensor / 10
    odd = np.where(rng.random(records) < 0.01, rng.normal(0, 3, records), 0)
    value = np.round((20 + day + odd + rng.normal(0, 0.1, records)) * 64) / 64
    at = times(records, per_second, early, seed)
    return {"readings": pa.table({"at": at, "sensor": sensor, "value": value})}


def spike(state: Any, row: Any) -> Any:
    """Put the value into the ring; emit the mean if the value is far from it."""
    place = state["n"] % LAST
    state["total"] += row.value - state["ring"][place]
    state["ring"][place] = row.value
    state["n"] += 1
    if place == LAST - 1:  # sum again, so that rounding errors do not accumulate
        total = 0.0
        for value in state["ring"]:
            total += value
        state["total"] = total
    mean = state["total"] / min(state["n"], LAST)
    if abs(row.value - mean) > FAR * mean:
        return state, mean
    return state, None


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    sensors = inputs["readings"].key_by("sensor")
    return sensors.scan(spike, EMPTY, keep="value", schema={"mean": "double"})


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    held: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=LAST))
    alerts = set()
    for at, sensor, value in in_order(inputs["readings"], "sensor", "value"):
        held[sensor].append(value)
        mean = sum(held[sensor]) / len(held[sensor])
        if abs(value - mean) > FAR * mean:
            alerts.add((sensor, at, value, mean))
    return alerts


APP = app(
    "spikes", "values far from their sensor's mean (Multicore study)", 4_000_000,
    StreamApp(tables, pipeline, None), reference,
)  # fmt: skip
