"""For any records, disorder, watermarks, bundles, workers and scheduler: the plain answer."""

from __future__ import annotations

import math
from collections import Counter

import pyarrow as pa
from hypothesis import strategies as st

import headrace as hr
from headrace.box.scheduler import SCHEDULERS
from headrace.testing import records, rows, script, watermark
from tests.conftest import for_any
from tests.operators.test_windows import SCHEMA, WINDOWS, events
from tests.reference import micros, moment, pairs_within, windowed


@st.composite
def boxes(draw):
    """Any way to run."""
    return hr.Box(
        workers=draw(st.integers(1, 8)),
        bundle=draw(st.sampled_from([None, 1, 2, 3, 7, 100_000])),
        scheduler=draw(st.sampled_from(sorted(SCHEDULERS))),
        memory=draw(st.sampled_from([None, 1, "1kB", "1MB"])),
        debug=True,
    )


@st.composite
def scripts(draw, most: int = 30):
    """Splits of records with watermarks that are true: nothing after one is older."""
    rows, splits = draw(events(most)), []
    count = draw(st.integers(1, 3))
    shares = [[] for _ in range(count)]
    for row in rows:
        shares[draw(st.integers(0, count - 1))].append(row)
    for share in shares:
        events_, at = [], 0
        while at < len(share):
            size = draw(st.integers(1, 6))
            events_.append(records(pa.Table.from_pylist(share[at : at + size], SCHEMA)))
            at += size
            if draw(st.booleans()) and share[at:]:
                events_.append(watermark(min(micros(r["at"]) for r in share[at:])))
            elif draw(st.booleans()):
                seen = min((micros(r["at"]) for r in share[at:]), default=0)
                events_.append(watermark(seen - draw(st.integers(0, 10_000_000))))
        splits.append(events_)
    in_order = [row for share in shares for row in share]
    return in_order, script(*splits, schema=SCHEMA).event_time("at")


@for_any(60, 300, made=scripts(), window=WINDOWS, box=boxes())
def test_any_window_any_way_to_run(made, window, box):
    rows_in, stream = made
    got = stream.key_by("k").window(window).agg(
        c=hr.count(), s=hr.sum("n"), all=hr.collect("n")
    )  # fmt: skip

    def result(rs):
        ns = [r["n"] for r in rs if r["n"] is not None]
        return (len(rs), sum(ns) if ns else None, tuple(ns))

    want = Counter(windowed(rows_in, window, lambda r: (r["k"],), result))
    assert rows(got.collect(on=box)) == want
    assert stream.late.collect(on=box).num_rows == 0


@for_any(40, 200, made=scripts(), window=WINDOWS, box=boxes())
def test_numbers_kept_in_cells(made, window, box):
    rows_in, stream = made
    got = stream.key_by("n").window(window).agg(c=hr.count(), hi=hr.max("n"), s=hr.sum("n"))
    want = windowed(
        rows_in, window, lambda r: (r["n"],),
        lambda rs: (len(rs), rs[0]["n"], None if rs[0]["n"] is None else rs[0]["n"] * len(rs)),
    )  # fmt: skip
    assert rows(got.collect(on=box)) == Counter(want)


@for_any(40, 200, made=scripts(), window=WINDOWS, box=boxes())
def test_every_number_that_cells_keep(made, window, box):
    rows_in, stream = made
    plain = stream.with_columns(
        p="coalesce(n, 0) % 2", m="coalesce(n, -9)", f="coalesce(x, 0D)", b="coalesce(n, 0) > 1"
    )
    got = plain.key_by("p").window(window).agg(
        hi=hr.max("m"), lo=hr.min("m"), s=hr.sum("m"), fhi=hr.max("f"), flo=hr.min("f"),
        fs=hr.sum("f"), mean=hr.mean("m"), any=hr.max("b"), c=hr.count("f"),
    )  # fmt: skip

    def result(rs):
        m = [-9 if r["n"] is None else r["n"] for r in rs]
        f = [0.0 if r["x"] is None else r["x"] for r in rs]
        b = [(r["n"] or 0) > 1 for r in rs]
        mean = sum(m) / len(m)
        return max(m), min(m), sum(m), max(f), min(f), sum(f), mean, max(b), len(f)

    def key(row):  # the sign of Java's remainder is the dividend's
        return (int(math.fmod(row["n"] or 0, 2)),)

    want = windowed(rows_in, window, key, result)
    as_table = pa.Table.from_pylist(
        [dict(zip(got.columns, row, strict=True)) for row in want], got.schema
    )
    assert rows(got.collect(on=box)) == rows(as_table)


@for_any(
    40, 200, left=scripts(20), right=scripts(20), before=st.integers(0, 4),
    after=st.integers(0, 4), box=boxes(),
)  # fmt: skip
def test_every_pair_once(left, right, before, after, box):
    a, b = left[1].select("k", "n", "at"), right[1].select("k", "x", "at")
    got = a.join_within(b, on="k", before=f"{before}s", after=f"{after}s")
    lefts = [{n: r[n] for n in ("k", "n", "at")} for r in left[0]]
    rights = [{n: r[n] for n in ("k", "x", "at")} for r in right[0]]
    want = pairs_within(lefts, rights, before * 1_000_000, after * 1_000_000)
    assert rows(got.collect(on=box)) == rows(pa.Table.from_pylist(
        [dict(zip(got.columns, row, strict=True)) for row in want], got.schema
    ))  # fmt: skip


@for_any(25, 150, left=scripts(20), right=scripts(20), window=WINDOWS, box=boxes())
def test_windows_below_unions_and_joins(left, right, window, box):
    both = left[1].union(right[1])
    counts = both.window(window).agg(c=hr.count())
    want = windowed(left[0] + right[0], window, lambda r: (), lambda rs: (len(rs),))
    assert rows(counts.collect(on=box)) == Counter(want)
    pairs = left[1].join_within(right[1], on="k", before="2s", after="2s")
    found = pairs.window(window).agg(c=hr.count()).collect(on=box)
    lefts = [{n: r[n] for n in ("k", "at")} for r in left[0]]
    rights = [{n: r[n] for n in ("k", "at")} for r in right[0]]
    later = [{"at": max(a, b)} for _, a, b in pairs_within(lefts, rights, 2_000_000, 2_000_000)]
    assert rows(found) == Counter(windowed(later, window, lambda r: (), lambda rs: (len(rs),)))


@for_any(25, 150, rows_in=events(), delay=st.integers(0, 6), box=boxes())
def test_late_records_are_kept_and_no_record_is_lost(rows_in, delay, box):
    table = pa.Table.from_pylist(rows_in, SCHEMA)
    stream = hr.from_arrow(table).event_time("at", delay=f"{delay}s")
    counted = stream.window(hr.tumbling("2s")).agg(c=hr.count())
    job = hr.start([counted, stream.late, stream], on=box)
    job.wait()
    late = job.result(1)
    assert sum(job.result(0)["c"].to_pylist()) + late.num_rows == len(rows_in)
    assert job.progress().late == late.num_rows
    assert rows(job.result(2)) + rows(late.select(SCHEMA.names)) == rows(table)
    for row in late.to_pylist():
        assert row["at"] + row["late_by"] == row["watermark"]
    if delay >= 5:
        assert late.num_rows == 0


def test_an_epoch_held_larger_than_memory_goes_on():
    table = pa.table({"at": pa.array([moment(i) for i in range(5000)]), "n": range(5000)})
    stream = hr.from_arrow(table).event_time("at").window(hr.tumbling("1s")).agg(s=hr.sum("n"))
    box = hr.Box(workers=2, scheduler="in-order", memory=1000, bundle=10)
    assert stream.collect(on=box)["s"].to_pylist() == [sum(range(5000))]
