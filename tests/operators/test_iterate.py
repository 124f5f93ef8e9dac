"""``iterate`` and ``cycle``: steps repeated until it is enough."""

from __future__ import annotations

import datetime
import gc
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace import col
from headrace.io.source import Source, Split
from tests.conftest import for_all, until

STEPS = {
    "add": (lambda s: s.map("value + 1"), lambda v: [x + 1 for x in v]),
    "double": (
        lambda s: s.map(lambda x: x * 2 % 1000, schema=int),
        lambda v: [x * 2 % 1000 for x in v],
    ),
    "drop": (lambda s: s.filter("value % 7 <> 3"), lambda v: [x for x in v if x % 7 != 3]),
    "twice": (
        lambda s: s.union(s.map("value + 5")).distinct(),
        lambda v: sorted(set(v) | {x + 5 for x in v}),
    ),
    "most": (lambda s: s.top_k(5, by="value"), lambda v: sorted(v)[-5:]),
}


def test_it_repeats_as_a_loop_does(engine: Any) -> None:
    names = st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3)
    values = st.lists(st.integers(0, 50), max_size=20)

    @for_all(
        engine, box=20, spark=2, names=names, values=values, most=st.integers(1, 4),
        enough=st.integers(0, 400),
    )  # fmt: skip
    def check(names: list[str], values: list[int], most: int, enough: int) -> None:
        def body(stream: hr.Stream) -> hr.Stream:
            for name in names:
                stream = STEPS[name][0](stream)
            return stream

        expected = values
        for _ in range(most):
            for name in names:
                expected = STEPS[name][1](expected)
            if expected and sum(expected) > enough:
                break
        stream = hr.from_items(values, schema={"value": "bigint"})
        got = stream.iterate(
            body,
            reduce=lambda a, b: a + b,
            until=lambda total: total is not None and total > enough,
            at_most=most,
        )
        assert sorted(got.to_list(on=engine)) == sorted(expected)


def test_a_body_may_join_group_and_nest(engine: Any, tmp_path: Path) -> None:
    """Reachability: pairs joined with edges until there are no more."""
    edges = {"from": [1, 2, 3, 7, 8], "to": [2, 3, 4, 8, 7]}
    pq.write_table(pa.table(edges), tmp_path / "edges.parquet")
    steps = hr.read_parquet(tmp_path / "edges.parquet").rename(**{"from": "mid", "to": "end"})
    seen: list[Any] = []

    def longer(pairs: hr.Stream) -> hr.Stream:
        one = pairs.join(steps, left_on="to", right_on="mid")
        return pairs.union(one.select("from", to="end")).distinct()

    pairs = hr.from_arrow(pa.table(edges)).iterate(
        longer, reduce=hr.count(), until=lambda n, before: n == before, report=seen.append
    )
    got = {(r["from"], r.to) for r in pairs.to_list(on=engine)}
    assert got == {(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4), (7, 8), (8, 7), (7, 7), (8, 8)}
    assert [each.measure for each in seen] == [9, 10, 10]
    assert [each.number for each in seen] == [1, 2, 3]
    nested = hr.from_items([1]).iterate(
        lambda s: s.iterate(lambda t: t.map("value + 1"), at_most=3).map("value * 10"), at_most=2
    )
    assert nested.to_list(on=engine) == [430]
    cycled = hr.from_items([1, 2]).iterate(
        lambda s: s.cycle(
            state=0, body=lambda t, _: t.agg(n=hr.sum("value")), at_most=2,
            update=lambda n, table: n + table["n"][0].as_py(),
        ),
        at_most=2,
    )  # fmt: skip
    assert cycled.to_list(on=engine) == [12]
    # What is constant in an inner iteration may change in the outer one.
    outer = hr.from_items([1, 2]).iterate(
        lambda s: hr.from_items([5]).iterate(lambda t: t.union(s).distinct(), at_most=2), at_most=2
    )
    assert sorted(outer.to_list(on=engine)) == [1, 2, 5]
    assert "iterate until" in pairs.explain(on=engine)
    assert "kept for the next" in pairs.explain(on=engine)


@dataclass
class Line:
    """A state that is neither a number nor a table."""

    slope: float
    rounds: int = 0


def test_cycle_has_a_state(engine: Any) -> None:
    points = hr.from_arrow(pa.table({"x": [1.0, 2.0, 3.0], "y": [2.0, 4.0, 6.0]}))
    told: list[Any] = []

    def body(stream: hr.Stream, line: Line) -> hr.Stream:
        slope = line.slope  # in an expression and in a function
        wrong = stream.with_columns(e=col("y") - col("x") * slope)
        return wrong.map(lambda row: row.e * row.x / slope * slope).agg(g=hr.sum("value"))

    def update(line: Line, table: pa.Table) -> Line:
        return Line(line.slope + 0.05 * table["g"][0].as_py(), line.rounds + 1)

    got = points.cycle(
        state=Line(1.0), body=body, update=update, report=told.append,
        until=lambda line, before: abs(line.slope - before.slope) < 0.1, at_most=20,
    ).state(on=engine)  # fmt: skip
    assert got.rounds == len(told) == 3
    assert got.slope == pytest.approx(2.0, abs=0.1)
    lines = points.cycle(
        state=Line(1.0), body=body, update=update, at_most=2,
        give=lambda line: pa.table({"slope": [line.slope], "n": [line.rounds]}),
    )  # fmt: skip
    assert lines.columns == ["slope", "n"]
    assert [row.n for row in lines.filter("slope > 1").to_list(on=engine)] == [2]
    # Arrow and NumPy values, and a cycle within a cycle, which runs on the same engine.
    table = pa.table({"x": [1.0, 2.0]})

    def inner(stream: hr.Stream, state: pa.Table) -> hr.Stream:
        best = stream.cycle(
            state=np.zeros(2),
            body=lambda s, a: s.map_batches(lambda b: {"n": [b.num_rows + a[0]]}),
            update=lambda a, t: a + sum(t["n"].to_pylist()),
            at_most=1,
        ).state()
        return stream.join(hr.from_arrow(state), on="x", how="semi").with_columns(b=float(best[0]))

    seen = points.cycle(state=table, body=inner, update=lambda s, t: t, at_most=1).state(on=engine)
    assert seen.sort_by("x").to_pydict() == {"x": [1.0, 2.0], "y": [2.0, 4.0], "b": [3.0, 3.0]}


READS: list[int] = []


class Counted(Source):
    """Ten records, and a list of who read them."""

    schema = pa.schema([("n", pa.int64())])

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [CountedSplit()]


class CountedSplit(Split):
    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        READS.append(1)
        yield pa.record_batch({"n": pa.array(range(10), pa.int64())})


def test_input_is_read_once(box_engine: hr.Box) -> None:
    READS.clear()
    stream = hr.from_source(Counted())
    total = stream.cycle(
        state=0, body=lambda s, _: s.agg(t=hr.sum("n")), at_most=4,
        update=lambda state, table: state + table["t"][0].as_py(),
    )  # fmt: skip
    assert total.to_list(on=box_engine) == [180]
    assert len(READS) == 1
    beside = hr.from_items([{"n": 1}]).cycle(
        state=0, body=lambda s, i: s.join(stream.filter("n < 3"), on="n"), at_most=3,
        update=lambda i, table: i + table.num_rows,
    )  # fmt: skip
    READS.clear()
    assert beside.state(on=box_engine) == 3
    assert len(READS) == 1
    kept = hr.from_items([{"n": 1}]).iterate(
        lambda s: s.join(stream.filter("n < 3"), on="n"), at_most=3
    )
    assert kept.count(on=box_engine) == 1
    assert len(READS) == 2


def _left() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if f"-{os.getpid()}-" in name}


def test_much_is_kept_in_files(engine: Any) -> None:
    """More than memory may have on the box, more than a task carries on Spark; none stays."""
    before = _left()
    many = hr.Box(workers=2, memory="1MB", debug=True) if engine.name == "box" else engine
    stream = hr.generate(lambda rank, size: range(rank, 400_000, size), splits=2, schema=int)
    sums = []
    during = []

    def body(s: hr.Stream, add: int) -> hr.Stream:
        during.append(any("held" in name for name in _left() - before))
        return s.filter(col("value") % 3 == add).agg(t=hr.sum("value"))

    stream.cycle(
        state=0, body=body, update=lambda i, t: (sums.append(t["t"][0].as_py()), i + 1)[1],
        at_most=3,
    ).state(on=many)  # fmt: skip
    assert sums == [sum(range(i, 400_000, 3)) for i in range(3)]
    assert all(during[1:])  # the first is asked when the pipeline is built
    grown = stream.iterate(lambda s: s.map("value + 1"), at_most=3)
    assert grown.agg(t=hr.sum("value")).to_list(on=many)[0].t == sum(range(400_000)) + 3 * 400_000
    gc.collect()
    assert not {name for name in _left() - before if "held" in name}


def test_in_the_background(engine: Any) -> None:
    go_on = threading.Event()
    told: list[Any] = []

    def report(each: Any) -> None:
        told.append(each)
        go_on.wait(60)

    stream = hr.from_items([1, 2]).iterate(lambda s: s.map("value + 1"), at_most=2, report=report)
    job = stream.start(on=engine)
    until(lambda: told)
    assert job.running
    assert "iteration 1 of at most 2" in job.progress().notes[0]
    go_on.set()
    assert job.wait(60)
    assert sorted(job.result()["value"].to_pylist()) == [3, 4]
    endless = hr.from_items([1]).iterate(
        lambda s: s.map("value + 1"), reduce=hr.count(), until=lambda n: n > 1
    )
    job = endless.start(on=engine)
    until(lambda: job.progress().notes)
    assert job.stop(timeout=60)
    assert not job.running


def test_what_fails_names_the_step(engine: Any) -> None:
    stream = hr.from_items([1, 2])
    bad = stream.iterate(lambda s: s.map("value + 1"), reduce=hr.sum("value"), until=lambda t: t.x)
    with pytest.raises(hr.StepError, match=r"step 3, iterate: until= failed: AttributeError"):
        bad.collect(on=engine)
    with pytest.raises(hr.StepError, match=r"step 2, cycle: update= failed: KeyError"):
        stream.cycle(state=0, body=lambda s, _: s, update=lambda s, t: t["z"], at_most=1).count(
            on=engine
        )
    with pytest.raises(hr.StepError, match=r"map .* failed on record 2: ZeroDivisionError"):
        stream.iterate(lambda s: s.map(lambda v: 1 // (v - 2), schema=int), at_most=1).collect(
            on=engine
        )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.iterate(lambda t: t), "it would never end; pass until= or at_most="),
        (lambda s: s.iterate(lambda t: t, at_most=0), "at_most=0 is not a number of iterations"),
        (lambda s: s.iterate(3, at_most=1), "step 2, iterate: a function was expected, not 3"),
        (lambda s: s.iterate(lambda t: 3, at_most=1), "the body returned 3, which is not a stream"),
        (
            lambda s: s.iterate(lambda t: t.map("cast(value as double)"), at_most=1),
            "other columns than it takes: 'value' is bigint here and double",
        ),
        (
            lambda s: s.iterate(lambda t: t, until=lambda n: n > 3),
            "until= is asked about the value that reduce= gives",
        ),
        (
            lambda s: s.iterate(lambda t: t, reduce=3, until=bool),
            "reduce=3 is neither an aggregate nor a function",
        ),
        (lambda s: s.iterate(lambda t: t, at_most=1, report=3), "report=3 is not a function"),
        (
            lambda s: hr.rate(5).iterate(lambda t: t, at_most=1),
            "it repeats on all of its input, and this never ends",
        ),
        (
            lambda s: s.iterate(lambda t: t.union(hr.rate(5).select("value")), at_most=1),
            "the body reads a stream that never ends",
        ),
        (
            lambda s: s.iterate(
                lambda t: hr.from_items(
                    [t.cycle(state=0, body=lambda u, _: u, update=max, at_most=1).state()]
                ),
                at_most=1,
            ),
            "step 2, cycle: its state is not known before the iteration that it is in runs",
        ),
        (
            lambda s: s.cycle(state=0, body=lambda t, _: 3, update=max, at_most=1),
            "step 2, cycle: the body returned 3",
        ),
        (
            lambda s: s.cycle(state=0, body=lambda t, _: t.drop("z"), update=max, at_most=1),
            "step 2, drop: there is no column 'z'",
        ),
        (
            lambda s: s.cycle(state=0, body=lambda t, _: t, update=max, at_most=1, give=3),
            "give=3 is not a function of the state",
        ),
    ],
)
def test_mistakes_are_refused(build: Any, message: str) -> None:
    with pytest.raises(hr.PlanError, match=message):
        build(hr.from_items([1, 2]))


def test_records_stay_in_their_order(engine: Any) -> None:
    numbers = hr.generate(
        lambda rank, size: range(rank * 50_000, (rank + 1) * 50_000), splits=4, schema=int
    )
    again = numbers.iterate(lambda s: s.map("value + 1"), at_most=2)
    for one in [engine] if engine.name == "spark" else [hr.Box(workers=4), hr.Box(memory="64KB")]:
        assert again.to_list(on=one) == list(range(2, 200_002))
        assert again.limit(3).to_list(on=one) == [2, 3, 4]


def test_a_pipeline_has_one_time_zone(engine: Any) -> None:
    noon = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
    times = hr.from_items([{"k": 1, "at": noon}]).time_zone("Asia/Tokyo")
    other = hr.from_items([{"k": 1}, {"k": 1}]).distinct()
    joined = times.iterate(lambda s: s.join(other, on="k"), at_most=2)
    assert [row.h for row in joined.select(h="hour(at)").to_list(on=engine)] == [21]
    cycled = times.cycle(
        state=pa.table({"at": [noon]}), body=lambda s, _: s.select("at"), update=lambda _, t: t,
        at_most=1,
    )  # fmt: skip
    assert [row.h for row in cycled.select(h="hour(at)").to_list(on=engine)] == [21]


def test_a_state_may_be_changed_where_it_is(box_engine: hr.Box) -> None:
    def update(state: dict[str, float], table: pa.Table) -> dict[str, float]:
        state["m"] += (2 - state["m"]) / 2
        state["n"] += 1
        return state

    first = {"m": 0.0, "n": 0}
    found = hr.from_items([1]).cycle(
        state=first, body=lambda s, _: s, update=update,
        until=lambda now, before: now["m"] - before["m"] < 0.01, at_most=50,
    )  # fmt: skip
    assert found.state(on=box_engine)["n"] == 8
    assert found.state(on=box_engine)["n"] == 8
    assert first == {"m": 0.0, "n": 0}
    halves = hr.from_items([8.0]).iterate(
        lambda s: s.map("value / 2"), reduce=hr.max("value"), until=lambda v, least=1.5: v < least
    )
    assert halves.to_list(on=box_engine) == [1.0]


def test_a_cycle_in_an_iteration_may_use_its_stream(engine: Any) -> None:
    def body(s: hr.Stream) -> hr.Stream:
        total = s.filter("value > 1").cycle(
            state=0, body=lambda t, n: t.union(s).agg(n=hr.sum("value")), at_most=1,
            update=lambda n, table: table["n"][0].as_py(),
        )  # fmt: skip
        return s.union(total)

    found = hr.from_items([1, 2]).iterate(body, at_most=2)
    assert sorted(found.to_list(on=engine)) == [1, 2, 5, 15]


def test_plans_of_iterations_are_shown(engine: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1, 2], "v": [3, 4], "w": [5, 6]}), tmp_path / "a.parquet")
    table = hr.read_parquet(tmp_path / "a.parquet")
    joined = table.join(table, on="k").select("k", "v")
    stream = joined.iterate(lambda s: s.join(table.select("k"), on="k", how="semi"), at_most=1)
    assert "iterate at most 1 times" in stream.select("k").explain(on=engine)
    assert sorted(r.v for r in stream.select("v").to_list(on=engine)) == [3, 4]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda s: s.iterate(lambda t: hr.from_items([t.count()]), at_most=1),
            "asks for records of an iteration that has not begun",
        ),
        (
            lambda s: s.cycle(
                state=0, body=lambda t, _: t, update=lambda n, t: 0.5, at_most=1
            ).collect(on="box"),
            "it began as bigint and became double",
        ),
        (
            lambda s: s.cycle(
                state=0, body=lambda t, _: t, update=lambda n, t: None, at_most=1
            ).collect(on="box"),
            "step 2, cycle: update= returned None",
        ),
        (
            lambda s: s.iterate(
                lambda t: t, reduce=hr.count(), until=lambda n: np.array([n, n]) > 1
            ).collect(on="box"),
            "step 2, iterate: until= failed: ValueError",
        ),
        (
            lambda s: s.iterate(lambda t: t, at_most=1, report=lambda r: 1 / 0).collect(on="box"),
            "step 2, iterate: report= failed: ZeroDivisionError",
        ),
    ],
)
def test_mistakes_name_the_step(build: Any, message: str) -> None:
    with pytest.raises(hr.HeadraceError, match=message):
        build(hr.from_items([1, 2]))


def test_a_job_may_stop_itself(engine: Any) -> None:
    jobs: list[Any] = []
    stopped: list[bool] = []

    def report(each: Any) -> None:
        until(lambda: jobs)
        stopped.append(jobs[0].stop())

    endless = hr.from_items([1]).iterate(
        lambda s: s, reduce=hr.count(), until=lambda n: n > 1, report=report
    )
    jobs.append(endless.start(on=engine))
    until(lambda: not jobs[0].running)
    assert stopped[0] is False


def test_an_iteration_is_computed_once_for_all_that_read_it(engine: Any) -> None:
    told: list[Any] = []
    grown = hr.from_items([1, 2]).iterate(
        lambda s: s.map("value + 1"), at_most=2, report=told.append
    )
    job = hr.start([grown.filter("value > 3"), grown.agg(n=hr.count())], on=engine)
    assert job.wait(60)
    assert [job.result(i).num_rows for i in (0, 1)] == [1, 1]
    assert len(told) == 2
    told.clear()
    read = hr.from_items([3]).cycle(
        state=0, body=lambda s, _: s.join(grown, on="value"), at_most=3,
        update=lambda n, table: n + table.num_rows,
    )  # fmt: skip
    assert read.state(on=engine) == 3
    assert len(told) == 2
