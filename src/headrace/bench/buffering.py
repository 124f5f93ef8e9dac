"""The experiments on buffering (RStream §V-D.6): what a policy does to throughput and to latency.

The pipeline copies integers. Latency is from the moment a record is due at its source until it is
delivered, a value for every record.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.apps import passthrough
from headrace.bench.replay import Replay
from headrace.bench.samples import PATIENCE, Samples, finished, sampled
from headrace.box.bundle import Bundle
from headrace.box.engine import Box
from headrace.box.host import Outbox
from headrace.box.job import Run
from headrace.box.sinks import Collected, Discarded
from headrace.buffers import Buffer, adaptive, fixed, immediate
from headrace.io.source import Source, Split
from headrace.jobs import Output
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
_PER_CPU = "records_per_cpu_s"
_POINTS = 20_000
"""Of latencies that a report keeps."""


def label(policy: Buffer | None) -> str:
    return "default" if policy is None else repr(policy)


@dataclass
class Experiments:
    """All of them, at one size."""

    rounds: int = 5
    workers: int | None = None
    records: int | None = None
    seconds: float = 4.0
    """Length of a run under light or heavy load."""
    seed: int = 1
    progress: Callable[[str], None] = lambda text: None
    equal: bool = True

    def run(self, names: list[str]) -> dict[str, Any]:
        """The report of some experiments."""
        rows = {name: EXPERIMENTS[name](self) for name in names}
        return {
            "workers": Box(workers=self.workers).workers,
            "rounds": self.rounds,
            "equal": self.equal,
            "experiments": rows,
            "targets": targets(rows),
        }

    def throughput(self) -> list[dict[str, Any]]:
        """Records a second of each policy, from memory and as fast as they are taken."""
        table = self._table(self.records or _RECORDS)
        few = min(table.num_rows, 5000)
        first: pa.Table | None = None
        for policy in POLICIES:
            self.progress(f"warming up {label(policy)}")
            sink = Collected(table.schema)
            finished(self._replayed(policy, table.slice(0, few))(sink))
            first = sink.table() if first is None else first
            self.equal = self.equal and sink.table().equals(first)
        sizes = {policy: self._records(policy) for policy in POLICIES}
        samples = {policy: Samples(sizes[policy]) for policy in POLICIES}
        for turn in range(PATIENCE * self.rounds):
            if turn >= self.rounds and all(s.quiet() >= self.rounds for s in samples.values()):
                break
            for policy in POLICIES:
                self.progress(f"throughput: round {turn + 1}, {label(policy)}")
                made = self._replayed(policy, table.slice(0, sizes[policy]))
                samples[policy].all.append(sampled(made(Discarded()), False))
        rows = []
        for policy in POLICIES:
            least = samples[policy].least_disturbed(self.rounds)
            rows.append({"policy": label(policy), **least.report(sizes[policy])})
        return rows

    def light(self) -> list[dict[str, Any]]:
        """Latency over time of a record every millisecond."""
        return self._over_time(LIGHT, "light")

    def heavy(self) -> list[dict[str, Any]]:
        """Latency over time of as many records as are taken."""
        return self._over_time(None, "heavy")

    def _over_time(self, rate: int | None, load: str) -> list[dict[str, Any]]:
        # Two buffers, one before the map and one after it, are RStream's two channels.
        variants = [
            (policy, buffers)
            for policy in OVER_TIME
            for buffers in ((1, 2) if policy is not None and rate is not None else (1,))
        ]
        found: dict[Any, list[dict[str, Any]]] = {variant: [] for variant in variants}
        for turn in range(TURNS):
            for policy, buffers in variants:
                self.progress(f"{load} load: round {turn + 1}, {label(policy)}")
                found[policy, buffers].append(self._delivered(policy, rate, buffers))
        return [
            {"load": load, **min(rows, key=lambda row: row["others"])} for rows in found.values()
        ]

    def _delivered(self, policy: Buffer | None, rate: int | None, buffers: int) -> dict[str, Any]:
        stream = passthrough.pipeline(
            {"numbers": hr.from_source(Ticking(rate, self.seconds))}, None
        )
        if buffers == 2:
            assert policy is not None
            stream = stream.buffer(policy)
        sink = Delivered()
        box = Box(
            workers=self.workers, buffer=policy, memory=None if rate else _HEAVY_MEMORY
        )  # fmt: skip
        run = box._run([Output(stream.node, sink=(sink, False))])
        sample = sampled(run, False)
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

    def _records(self, policy: Buffer | None) -> int:
        most = self.records or _RECORDS
        return most if policy is None else min(most, max(1000, int(policy.size / _COST)))

    def _table(self, records: int) -> pa.Table:
        return passthrough.tables(records, self.seed, records, 0)["numbers"]

    def _replayed(self, policy: Buffer | None, table: pa.Table) -> Callable[[Any], Run]:
        source = Replay(table, table.num_rows, 1 << 62, table.num_rows, watermarks=False)
        stream = passthrough.pipeline({"numbers": hr.from_source(source)}, None)
        box = Box(workers=self.workers, buffer=policy)
        return lambda sink: box._run([Output(stream.node, sink=(sink, False))])


EXPERIMENTS: dict[str, Callable[[Experiments], list[dict[str, Any]]]] = {
    "throughput": Experiments.throughput,
    "light": Experiments.light,
    "heavy": Experiments.heavy,
}


def targets(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What we ask of buffering, and whether it is so."""
    found: list[dict[str, Any]] = []
    measured = {row["policy"]: row for row in rows.get("throughput", ())}
    for what, key in (("throughput", "records_per_s"), ("records a cpu second", _PER_CPU)):
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
    for target in found:
        value = target["value"]
        above = "at_least" in target
        target["met"] = value >= target["at_least"] if above else value < target["below"]
    return found


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
