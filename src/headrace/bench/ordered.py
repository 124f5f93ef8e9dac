"""The experiments on ordered streams (Ordered §7), each by turns and with results compared.

Processing latency is from the moment the first transform begins with a bundle until what came of it
is delivered; for a query with windows it is from a watermark's arrival until its results are. Only
the middle 60 % of a run counts, as in the paper.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import headrace as hr
from headrace import apps
from headrace.bench import probes
from headrace.bench.experiments import Experiments, Made, Scale, on
from headrace.bench.replay import Replay
from headrace.bench.samples import Row
from headrace.bench.streams import Setup
from headrace.box.engine import Box
from headrace.box.ordered import Ordering
from headrace.windows import tumbling

SCHEDULERS = ("next-externalization", "ct", "lp", "et", "qst")
QUERIES = {
    "bb_q1": 2_000_000, "bb_q2": 1_000_000, "bb_q3": 2_000_000, "bb_q4": 2_000_000,
    "bb_q15": 2_000_000, "fraud": 1_000_000, "stateful_wc": 200_000,
}  # fmt: skip
"""Queries, and how many records a run of each has."""
UNORDERED = ("bb_q1",)
"""Queries that join, which an ordered box does not run: there the box is a plain one."""
SIGMAS = (None, 0.5, 0.25, 0.1)
"""From even keys to the strongest skew."""
COSTS = (1.0, 10.0, 100.0)
"""Microseconds a record."""
_BUNDLES = {1.0: 32_768, 10.0: 4096, 100.0: 512}
"""Records of a bundle: 32 to 51 ms of work, so that 64 partitions of it are a few ms each."""
_WINDOWS, _FEW_WINDOWS = 20, 8
"""Windows of a run; few where only a large one has a result."""


def schedulers(scale: Scale) -> list[Row]:
    """Throughput and latency of the schedulers on each query (§7.1)."""
    rows = []
    for query, usual in QUERIES.items():
        stream, records, windowed = _query(scale, query, scale.records or usual)
        ordered = query not in UNORDERED
        variants = {
            name: on(_box(scale, scheduler=name, ordered=ordered), stream) for name in SCHEDULERS
        }
        found = scale.measure(query, variants, stream.schema, exact=ordered, windowed=windowed)
        for name, samples in found.items():
            row = {"query": query, "scheduler": name, "ordered": ordered}
            row["latency"] = "of a window" if windowed else "of a bundle"
            rows.append({**row, **samples.report(records)})
    return rows


def skew(scale: Scale) -> list[Row]:
    """Worklists with keys from even to skewed, on 2 and on 4 workers (§7.2.1)."""
    rows = []
    for workers in (2, 4):
        for sigma in SIGMAS:
            rows += _worklists(scale, workers, sigma, 10.0)
    return rows


def costs(scale: Scale) -> list[Row]:
    """Worklists by the cost of a record, with even keys and with the strongest skew (§7.2)."""
    rows = []
    for cost in COSTS:
        for sigma in (SIGMAS[0], SIGMAS[-1]):
            rows += _worklists(scale, 2, sigma, cost)
    return rows


def _worklists(scale: Scale, workers: int, sigma: float | None, cost: float) -> list[Row]:
    records = scale.records or int(300_000 / cost)
    table = probes.skewed(records, sigma, workers, scale.seed)
    step = probes.costly(probes.loops_of(cost))
    stream = hr.from_arrow(table).key_by("k").scan(
        step, 1, schema={"x": "bigint"}, order="arrival"
    )  # fmt: skip
    kinds = [
        ("hybrid", probes.PARTITIONS), ("hybrid", workers), ("partitioned", workers),
        ("shared", probes.PARTITIONS),
    ]  # fmt: skip
    variants = {
        f"{worklist}/{count}": _partitioned(
            Ordering(worklist=worklist), workers, _BUNDLES[cost], stream, count
        )
        for worklist, count in kinds
    }
    what = f"{workers} workers, {cost:g} µs a record, σ {'even' if sigma is None else sigma}"
    return [
        {
            "worklist": name, "workers": workers, "sigma": sigma, "cost_us": cost,
            **samples.report(records),
        }
        for name, samples in scale.measure(what, variants, stream.schema).items()
    ]  # fmt: skip


def reordering(scale: Scale) -> list[Row]:
    """Reorder schemes for a light operator and for one of selectivity 50 (§7.3)."""
    records = scale.records or 400_000
    few = min(records, max(1000, records // 20))
    table = probes.skewed(records, None, 2, scale.seed)
    light = hr.from_arrow(table).filter("v % 5 != 2")
    many = (
        hr.from_arrow(table.slice(0, few))
        .map_batches(probes.fifty, schema={"k": "bigint", "v": "bigint"})
        .key_by("k")
        .scan(probes.costly(10), 1, schema={"x": "bigint"}, order="arrival")
    )
    probes_of = {
        "light, bundles of 256": (light, records, 256),
        "light, bundles of 4096": (light, records, 4096),
        "selectivity 50, bundles of 64": (many, few, 64),
        "selectivity 50, bundles of 1024": (many, few, 1024),
    }
    rows = []
    for what, (stream, count, bundle) in probes_of.items():
        for workers in (2, 4):
            variants = {
                name: on(Box(workers=workers, bundle=bundle, ordered=Ordering(name)), stream)
                for name in ("non-blocking", "locking")
            }
            found = scale.measure(f"{what}, {workers} workers", variants, stream.schema)
            for name, samples in found.items():
                row = {"operator": what, "workers": workers, "reorder": name}
                rows.append({**row, **samples.report(count)})
    return rows


def ordering(scale: Scale) -> list[Row]:
    """What order costs: the same pipelines on an ordered box and on a plain one."""
    rows = []
    for what, app, usual, timed in (
        ("wordcount", "wordcount", 1_000_000, True),
        ("fraud, by arrival", "fraud", 2_000_000, False),
        ("fraud, by event time", "fraud", 2_000_000, True),
    ):
        records = scale.records or usual
        stream = _stream(_setup(scale, app, records), timed)
        variants = {
            "ordered": on(_box(scale), stream),
            "unordered": on(_box(scale, ordered=False), stream),
        }
        found = scale.measure(what, variants, stream.schema, exact=False, windowed=timed)
        plain, ordered = (statistics.median(found[n].seconds) for n in ("unordered", "ordered"))
        for name, samples in found.items():
            row = {"pipeline": what, "box": name, **samples.report(records)}
            if name == "ordered":
                row["of_unordered"] = round(plain / ordered, 3)
                cpu = found["unordered"].cpu / samples.cpu
                row["of_unordered_by_cpu"] = round(cpu, 3)
            rows.append(row)
    return rows


def latency(scale: Scale) -> list[Row]:
    """Processing latency at half of full speed, on an ordered box."""
    rows = []
    for app, usual in (("fraud", 2_000_000), ("spikes", 4_000_000)):
        setup = _setup(scale, app, scale.records or usual)
        stream = _stream(setup, False)
        box = _box(scale)
        full = scale.measure(
            f"{app} at full speed", {"": on(box, stream)}, stream.schema
        )[""]  # fmt: skip
        rate = setup.records / statistics.median(full.seconds) / 2
        records = int(rate * scale.seconds)
        paced = _stream(setup, False, records, rate)
        half = scale.by_turns(
            f"{app} at half load", {"": on(box, paced)}, {"": full.results}
        )[""]  # fmt: skip
        for load, samples, count in (("full", full, setup.records), ("half", half, records)):
            row = {"app": app, "load": load, "offered_per_s": round(rate)}
            rows.append({**row, **samples.report(count)})
    return rows


# Their pipelines


def _box(scale: Scale, scheduler: str = "next-externalization", ordered: bool = True) -> Box:
    return Box(workers=scale.workers, scheduler=scheduler, ordered=ordered)


def _query(scale: Scale, name: str, records: int) -> tuple[hr.Stream, int, bool]:
    """A query, how many records it has, and whether it is over windows."""
    setup = _setup(scale, name, records)
    windowed = setup.window is not None
    return _stream(setup, windowed), setup.records, windowed


def _setup(scale: Scale, name: str, records: int) -> Setup:
    app = apps.load(name)
    windows = _FEW_WINDOWS if name == "bb_q1" else _WINDOWS
    density = epoch = max(1, records // windows)
    if name == "bb_q15":  # a window is a year, and density is by day
        density = max(1, epoch // 365)
        epoch = 365 * density
    return Setup.of(
        app,
        records=records,
        seed=scale.seed,
        per_second=density,
        epoch_records=epoch,
        early=0,
        window=tumbling("1s") if name == "wordcount" else None,
        box=Box(workers=scale.workers),
    )


def _stream(
    setup: Setup, timed: bool, records: int | None = None, rate: float | None = None
) -> hr.Stream:
    """A pipeline by event time or, where it has no windows, by arrival."""
    if timed:
        return setup.pipeline(records, rate)
    assert setup.app.stream is not None
    ((name, table),) = setup.tables.items()
    count = table.num_rows if records is None else records
    source = Replay(table, setup.per_second, setup.epoch_records, count, rate)
    return setup.app.stream.pipeline({name: hr.from_source(source)}, setup.window)


def _partitioned(
    ordering: Ordering, workers: int, bundle: int, stream: hr.Stream, count: int
) -> Made:
    made = on(Box(workers=workers, bundle=bundle, ordered=ordering), stream)
    return lambda sink: probes.with_partitions(made(sink), ordering, count)


def targets(rows: Mapping[str, list[Row]]) -> list[Row]:
    """What we ask of ordered streams, and what it is."""
    found: list[Row] = []
    for row in rows.get("ordering", ()):
        if "of_unordered" in row:
            what = f"{row['pipeline']}: ordered as a share of unordered"
            found.append({"target": what, "at_least": 0.8, "value": row["of_unordered"]})
    for row in rows.get("latency", ()):
        if row["load"] == "half" and "mean_ms" in row:
            what = f"{row['app']}: mean processing latency at half load, ms"
            reached = row["records_per_s"] / row["offered_per_s"]
            found.append(
                {
                    "target": what,
                    "below": 10.0,
                    "value": row["mean_ms"],
                    "reached": round(reached, 2),
                }
            )
    for workers in (2, 4):
        strongest = {
            row["worklist"].partition("/")[0]: row
            for row in reversed(rows.get("skew", ()))
            if row["workers"] == workers and row["sigma"] == SIGMAS[-1]
        }
        if strongest:
            what = f"hybrid as a multiple of partitioned, strongest skew, {workers} workers"
            hybrid, partitioned = strongest["hybrid"], strongest["partitioned"]
            for how, rate in (("", _rate), (", estimated with a core for each", _with_a_core_each)):
                value = round(rate(hybrid) / rate(partitioned), 2)
                found.append({"target": what + how, "at_least": 1.3, "value": value})
    return found


def _rate(row: Row) -> float:
    return float(row["records_per_s"])


def _with_a_core_each(row: Row) -> float:
    """Records a second if every worker had a core for itself: by what the busiest of them did."""
    return float(row["records_per_cpu_s"] * row["busy_workers"])


EXPERIMENTS = Experiments(
    {
        "schedulers": schedulers, "skew": skew, "costs": costs, "reordering": reordering,
        "ordering": ordering, "latency": latency,
    },
    targets,
)  # fmt: skip
