"""The experiments on buffering (RStream §V-D.6): what a policy does to throughput and to latency.

The pipeline copies integers. Latency is from the moment a record is due at its source until it is
delivered, a value for every record.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.apps import passthrough
from headrace.bench.experiments import Experiments, Made, Scale, on
from headrace.bench.replay import Replay
from headrace.bench.samples import Row, sampled
from headrace.box.bundle import Bundle
from headrace.box.engine import Box
from headrace.box.host import Outbox
from headrace.buffers import Buffer, adaptive, fixed, immediate
from headrace.io.source import Source, Split
from headrace.types import TIMESTAMP

POLICIES: tuple[Buffer | None, ...] = (
    immediate, fixed(1), fixed(16), fixed(256), fixed(1024), fixed(16_384),
    adaptive(1024, "1ms"), adaptive(1024, "10ms"), adaptive(1024, "50ms"), adaptive(1024, "200ms"),
    None,
)  # fmt: skip
"""None is what the box does unless told: it adapts the size of bundles to the load."""
OVER_TIME: tuple[Buffer | None, ...] = (fixed(1024), adaptive(1024, "50ms"), None)
LIGHT = 1000
"""Records a second under light load: one every millisecond."""
TURNS = 3
"""Runs of each variant over time, by turns; the one that others disturbed least counts."""
_HEAVY_MEMORY = "4MB"
"""Of records in flight under heavy load, so that latency is not that of a full memory."""
_RECORDS, _COST = 4_000_000, 100e-6
"""Records of a run, and about what a bundle costs by itself in seconds: where bundles are small a
run has fewer records, so that it takes a second or so."""
_POINTS = 20_000
"""Of latencies that a report keeps."""


def label(policy: Buffer | None) -> str:
    return "default" if policy is None else repr(policy)


def throughput(scale: Scale) -> list[Row]:
    """Records a second of each policy, from memory and as fast as they are taken."""
    most = scale.records or _RECORDS
    table = passthrough.tables(most, scale.seed, most, 0)["numbers"]
    few = table.slice(0, 5000)
    first = {label(policy): _replayed(scale, policy, few) for policy in POLICIES}
    scale.compare("throughput", first, table.schema)
    sizes = {label(policy): _records(policy, most) for policy in POLICIES}
    variants = {
        label(policy): _replayed(scale, policy, table.slice(0, sizes[label(policy)]))
        for policy in POLICIES
    }
    found = scale.by_turns("throughput", variants, sizes)
    return [{"policy": name, **samples.report(sizes[name])} for name, samples in found.items()]


def _records(policy: Buffer | None, most: int) -> int:
    return most if policy is None else min(most, max(1000, int(policy.size / _COST)))


def _replayed(scale: Scale, policy: Buffer | None, table: pa.Table) -> Made:
    source = Replay(table, table.num_rows, 1 << 62, table.num_rows, watermarks=False)
    stream = passthrough.pipeline({"numbers": hr.from_source(source)}, None)
    return on(Box(workers=scale.workers, buffer=policy), stream)


def light(scale: Scale) -> list[Row]:
    """Latency over time of a record every millisecond."""
    return _over_time(scale, LIGHT, "light")


def heavy(scale: Scale) -> list[Row]:
    """Latency over time of as many records as are taken."""
    return _over_time(scale, None, "heavy")


def _over_time(scale: Scale, rate: int | None, load: str) -> list[Row]:
    # Two buffers, one before the map and one after it, are RStream's two channels.
    variants = [
        (policy, buffers)
        for policy in OVER_TIME
        for buffers in ((1, 2) if policy is not None and rate is not None else (1,))
    ]
    found: dict[Any, list[Row]] = {variant: [] for variant in variants}
    for turn in range(TURNS):
        for policy, buffers in variants:
            scale.progress(f"{load} load: round {turn + 1}, {label(policy)}")
            found[policy, buffers].append(_delivered(scale, policy, rate, buffers))
    return [{"load": load, **min(rows, key=lambda row: row["others"])} for rows in found.values()]


def _delivered(scale: Scale, policy: Buffer | None, rate: int | None, buffers: int) -> Row:
    stream = passthrough.pipeline({"numbers": hr.from_source(Ticking(rate, scale.seconds))}, None)
    if buffers == 2:
        assert policy is not None
        stream = stream.buffer(policy)
    sink = Delivered()
    box = Box(workers=scale.workers, buffer=policy, memory=None if rate else _HEAVY_MEMORY)
    sample = sampled(on(box, stream)(sink), False)
    due, late = sink.latencies()
    order = np.argsort(due, kind="stable")
    due, late = (due - due.min())[order] / 1e6, late[order] / 1e3
    some = slice(None, None, max(1, math.ceil(due.size / _POINTS)))
    worst = np.percentile(late, 99)
    return {
        "policy": label(policy),
        "buffers": buffers,
        "records": int(due.size),
        "records_per_s": round(due.size / sample.seconds),
        "others": round(sample.others, 2),
        "p50_ms": round(float(np.median(late)), 2),
        "p99_ms": round(float(worst), 2),
        "max_ms": round(float(late.max()), 2),
        "over_time": [[round(t, 4), round(ms, 3)] for t, ms in
                      zip(due[some].tolist(), late[some].tolist(), strict=True)],
    }  # fmt: skip


def targets(rows: Mapping[str, list[Row]]) -> list[Row]:
    """What we ask of buffering, and what it is."""
    found: list[Row] = []
    measured = {row["policy"]: row for row in rows.get("throughput", ())}
    for what, key in (
        ("throughput", "records_per_s"),
        ("records a cpu second", "records_per_cpu_s"),
    ):
        rates = {policy: row[key] for policy, row in measured.items()}
        if not rates:
            continue
        full = rates["fixed(1024)"]
        found.append(
            {
                "target": f"fixed(1024) as a multiple of immediate, {what}",
                "at_least": 20.0, "value": round(full / rates["immediate"], 1),
            }
        )  # fmt: skip
        found.append(
            {
                "target": f"adaptive(1024, 50ms) as a share of fixed(1024), {what}",
                "at_least": 0.85, "value": round(rates["adaptive(1024, 50ms)"] / full, 2),
            }
        )  # fmt: skip
    light = {(row["policy"], row["buffers"]): row for row in rows.get("light", ())}
    if light:
        found.append(
            {
                "target": "adaptive(1024, 50ms): the longest a record takes under light load, ms",
                "below": 100.0, "value": light["adaptive(1024, 50ms)", 1]["max_ms"],
            }
        )  # fmt: skip
        found.append(
            {
                "target": "fixed(1024): the longest a record takes under light load, ms",
                "at_least": 900.0, "value": light["fixed(1024)", 1]["max_ms"],
            }
        )  # fmt: skip
    return found


EXPERIMENTS = Experiments({"throughput": throughput, "light": light, "heavy": heavy}, targets)


class Delivered:
    """Writes down when each record came."""

    def __init__(self) -> None:
        self.came: list[tuple[int, Any]] = []
        self.lock = threading.Lock()

    def process(self, bundle: Bundle, out: Outbox) -> None:
        now = time.time_ns() // 1000
        with self.lock:
            self.came.append((now, np.asarray(bundle.batch.column("at").cast(pa.int64()))))

    def latencies(self) -> tuple[Any, Any]:
        """When each record was due, and how long after that it came, in microseconds."""
        due = np.concatenate([due for _, due in self.came])
        return due, np.concatenate([now - due for now, due in self.came])

    def on_watermark(self, time: int, out: Outbox) -> None:
        """Nothing is held back."""

    def tick(self) -> None:
        """Nothing waits."""

    def abort(self) -> None:
        """What has come stays to be looked at."""


@dataclass(frozen=True)
class Ticking(Source):
    """Integers for some seconds: each when it is due, or (without a rate) as many as are taken."""

    rate: int | None
    seconds: float
    schema = pa.schema([("at", TIMESTAMP), ("value", pa.int64())])
    bounded = False

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [_Ticks(self)]

    def __str__(self) -> str:
        return f"integers for {self.seconds:g} s, {self.rate or 'as many as are taken'} a second"


@dataclass(frozen=True)
class _Ticks(Split):
    of: Ticking

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        begun, sent = time.time_ns() // 1000, 0
        end = begun + int(self.of.seconds * 1e6)
        while (now := time.time_ns() // 1000) < end:
            if self.of.rate is None:
                values = np.arange(sent, sent + 1024)
                due = np.full(1024, now)
            else:
                count = (now - begun) * self.of.rate // 1_000_000 - sent
                if count <= 0:
                    time.sleep((begun + (sent + 1) * 1_000_000 // self.of.rate - now + 1) / 1e6)
                    continue
                values = np.arange(sent, sent + count)
                due = begun + (values + 1) * 1_000_000 // self.of.rate
            sent += values.size
            arrays = [pa.array(due).cast(TIMESTAMP), pa.array(values)]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.of.schema)
