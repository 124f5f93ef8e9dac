"""What reaches the JVM: partial results of many records, and memory that does not grow."""

from __future__ import annotations

import pyarrow as pa
import pytest

import headrace as hr
from headrace import col
from headrace.operators.operator import Input
from headrace.plan.stages import stages_of
from headrace.spark import pipes
from headrace.spark.bounded import Lowering, bare
from headrace.spark.last_watermark import LastWatermark
from headrace.spark.stage import Program
from headrace.spark.stage_inputs import StateInput
from headrace.spark.stage_outputs import PartialOutput
from headrace.spark.wire import ROWS


def test_spark_sees_few_rows_of_many_records(spark_engine, session):
    stream = hr.from_items(range(50_000)).group_by(k=col("value") % 100).agg(n=hr.count())
    counts = Lowering(session).collected(stages_of(stream.node)).collect()
    assert len(counts) <= 4
    assert (
        sum(
            pa.ipc.read_record_batch(pa.py_buffer(r.bundle), stream.schema).num_rows for r in counts
        )
        == 100
    )


@pytest.mark.parametrize("window", [None, hr.tumbling("1s"), hr.sliding("2s", every="1s")])
def test_words_are_counted_as_they_are_cut(window):
    """With a window and without: no word becomes a string in the worker that reads it."""
    table = pa.table({"line": ["a b"], "at": pa.array([0], pa.timestamp("us", "UTC"))})
    words = hr.from_arrow(table).event_time("at")
    words = words.flat_map(col("line").split(" "), name="word", keep=["at"]).filter("word != ''")
    keyed = words.key_by("word")
    node = (keyed if window is None else keyed.window(window)).count().node
    stage = stages_of(node).inputs[0]
    output = PartialOutput(bare(node), 2)
    operator = output.compiled([Input(stage.steps, stage.head.schema)], "UTC")
    assert operator.plan.split is not None


@pytest.mark.parametrize("groups", [1, 7, 1000])
def test_a_partial_that_grows_too_large_is_sent_early(monkeypatch, groups):
    monkeypatch.setattr(pipes, "_MOST_GROUPS", groups)
    table = pa.table({"k": [n % 500 for n in range(20_000)], "v": range(20_000)})
    stream = hr.from_arrow(table).group_by("k").agg(s=hr.sum("v"), f=hr.first("v"), l=hr.last("v"))
    node = stream.node
    batches = table.to_batches(max_chunksize=900)
    head = _Given(table.schema, batches)
    sent = list(
        Program("a" + str(groups), head, (), PartialOutput(bare(node), 3), "UTC").run(iter([]))
    )
    rows = sorted((r for b in sent for r in b.to_pylist()), key=lambda r: (r["shard"], r["place"]))
    assert len(rows) > 3 or groups == 1000
    merged = StateInput(bare(node), (table.schema,), "UTC").read(
        iter([pa.RecordBatch.from_pylist(rows, ROWS)]), stream.columns, LastWatermark(0)
    )
    got = {r["k"]: (r["s"], r["f"], r["l"]) for b in merged for r in b.to_pylist()}
    assert got == {
        k: (sum(range(k, 20_000, 500)), k, range(k, 20_000, 500)[-1]) for k in range(500)
    }


class _Given:
    """An input that has its bundles already."""

    def __init__(self, schema, batches):
        self.schema, self.batches = schema, batches

    def read(self, rows, columns, last):
        return (b.select(list(columns)) for b in self.batches)


def test_more_input_makes_more_shards(session):
    class Big:
        schema = pa.schema([("k", pa.int64())])
        nbytes = 1 << 30

        def splits(self, parallelism):
            return []

    stream = hr.from_source(Big()).group_by("k").agg(n=hr.count())
    assert Lowering(session)._shards(stages_of(stream.node)) == 32


def test_an_engine_error_is_one_sentence(spark_engine):
    def die(n: int) -> int:
        import os

        if n:
            os._exit(3)
        return n

    with pytest.raises(hr.StepError, match="its worker process was killed") as caught:
        hr.from_items([1]).map(die).collect(on=spark_engine)
    assert len(str(caught.value).splitlines()) == 1


def test_a_module_the_workers_lack_is_told(spark_engine, monkeypatch, tmp_path):
    import sys
    import types

    module = types.ModuleType("only_here")
    exec("class Thing:\n    pass", module.__dict__)
    module.Thing.__module__ = "only_here"
    monkeypatch.setitem(sys.modules, "only_here", module)
    thing = module.Thing()

    def use(n: int) -> str:
        return type(thing).__name__

    with pytest.raises(hr.EngineError, match=r"cannot import what a function needs .*only_here"):
        hr.from_items([1]).map(use).collect(on=spark_engine)


def test_a_module_beside_the_script_is_found(spark_engine, tmp_path, monkeypatch):
    (tmp_path / "beside_the_script.py").write_text("def triple(n: int) -> int:\n    return 3 * n\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from beside_the_script import triple

    assert hr.from_items([1, 2]).map(triple).to_list(on=spark_engine) == [3, 6]


def test_another_thread_uses_the_session_as_it_is(session):
    import threading

    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    found = []
    try:
        thread = threading.Thread(target=lambda: found.append(hr.from_items([1]).to_list()))
        thread.start()
        thread.join()
        assert found == [[1]]
        assert session.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.slow
def test_states_of_a_scripts_own_classes_travel(tmp_path):
    import subprocess
    import sys

    script = tmp_path / "job.py"
    script.write_text(
        "import headrace as hr\n"
        "class State:\n"
        "    def __init__(self, n): self.n = n\n"
        "def add(s, x): return State(s.n + x)\n"
        "if __name__ == '__main__':\n"
        "    engine = hr.Spark(master='local[1]')\n"
        "    merge = lambda a, b: State(a.n + b.n)\n"
        "    print(hr.from_items(range(5000)).fold(State(0), add, merge, on=engine).n)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == str(sum(range(5000))), done.stderr


def test_a_large_table_reaches_workers_here_and_elsewhere(spark_engine, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = pa.table({"n": range(400_000), "unused": ["text"] * 400_000})
    total = hr.from_arrow(table).agg(s=hr.sum("n"))
    want = [{"s": sum(range(400_000))}]
    assert total.collect(on=spark_engine).to_pylist() == want
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(Lowering, "on_this_machine", False)
    assert total.collect(on=spark_engine).to_pylist() == want


def test_a_stopped_session_is_told(session):
    class Context:
        _jsc = None

    class Session:
        sparkContext = Context()

    with pytest.raises(hr.EngineError, match="the Spark session was stopped"):
        hr.from_items([1]).collect(on=hr.Spark(session=Session()))


def test_settings_come_back_when_the_last_thread_is_done(session):
    from headrace.spark.session import ansi_semantics

    session.conf.set("spark.sql.ansi.enabled", "false")
    try:
        outer, inner = ansi_semantics(session, "UTC"), ansi_semantics(session, "UTC")
        outer.__enter__()
        inner.__enter__()
        outer.__exit__(None, None, None)
        assert session.conf.get("spark.sql.ansi.enabled") == "true"
        inner.__exit__(None, None, None)
        assert session.conf.get("spark.sql.ansi.enabled") == "false"
    finally:
        session.conf.set("spark.sql.ansi.enabled", "true")
