"""Kernels are compiled before a job reads its first record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import headrace as hr
from headrace import testing
from headrace.testing import seconds

_PROGRAM = """
import headrace as hr
from headrace import testing
from headrace.testing import seconds
from numba.core import event

compiled, reading = [], []

class Compiled(event.Listener):
    def on_start(self, event):
        (compiled if reading else []).append(event.data["dispatcher"].py_func.__name__)
    def on_end(self, event):
        pass

class Noticed(testing.ScriptedSource):
    def splits(self, parallelism):
        reading.append(True)
        return super().splits(parallelism)

event.register("numba:compile", Compiled())
rows = [{"k": f"k{i % 3}", "n": i, "v": i / 2, "at": seconds(i)} for i in range(200)]
script = [testing.records(*rows), testing.watermark(seconds(300))]
schema = testing.script(script).schema

def stream():
    return hr.from_source(Noticed((tuple(script),), schema, None, False, True)).event_time("at")

by_key, window = stream().key_by("k"), hr.tumbling("20s")
for pipeline in (
    by_key.window(window).agg(n=hr.count(), s=hr.sum("n"), m=hr.mean("v"), top=hr.max("n")),
    by_key.window(hr.sliding("20s", every="5s")).agg(s=hr.sum("v"), least=hr.min("v")),
    stream().key_by("n").window(hr.session("3s")).agg(different=hr.count_distinct("v")),
    by_key.scan(lambda total, row: (total + row.n, total), 0, schema={"total": "bigint"}),
    stream().join_within(stream().select("k", "at", m="n"), on="k", before="5s"),
):
    reading.clear()
    job = pipeline.start(on=hr.Box(workers=2))
    job.wait()
    assert reading and job.result().num_rows
    assert not compiled, (pipeline, compiled)
"""


def test_no_kernel_is_compiled_after_the_first_read(tmp_path: Path) -> None:
    """With an empty cache; one line says that kernels are compiled, and where they are kept."""
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        env={"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    (line,) = (line for line in run.stderr.splitlines() if "compiling kernels" in line)
    assert str(tmp_path) in line


def test_a_rehearsal_calls_no_function_and_leaves_no_state() -> None:
    seen: list[Any] = []

    def noted(row: Any) -> None:
        seen.append(row.n)

    def total(state: list[int], row: Any) -> tuple[list[int], int]:
        seen.append(row.n)
        return [*state, row.n], len(state)

    rows = [{"k": "a", "n": i, "at": seconds(i)} for i in range(4)]
    schema = {"k": "string", "n": "bigint", "at": "timestamp"}
    trips = testing.script([testing.records(*rows)], schema=schema, bounded=False, ends=True)
    timed = trips.event_time("at")
    mapped = timed.inspect(noted).key_by("k").window(hr.tumbling("10s")).agg(n=hr.sum("n"))
    scanned = timed.key_by("k").scan(total, [], schema={"before": "bigint"})
    with hr.start([mapped, scanned], on=hr.Box(workers=2)) as job:
        job.wait()
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [row["n"] for row in job.result(0).to_pylist()] == [6]
    assert sorted(row["before"] for row in job.result(1).to_pylist()) == [0, 1, 2, 3]
