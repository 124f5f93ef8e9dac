"""``write_…`` returns an output that runs when it is told to, bounded or not."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.testing import records, script


def numbers(bounded: bool) -> hr.Stream:
    rows = [{"n": n} for n in range(5)]
    return script([records(*rows)], bounded=bounded, ends=True)


def stored(folder: Path) -> list[int]:
    return sorted(pq.read_table(folder)["n"].to_pylist())


@pytest.mark.parametrize("bounded", [True, False])
def test_the_same_code_writes_bounded_and_unbounded_input(
    engine: Any, tmp_path: Path, bounded: bool
) -> None:
    output = numbers(bounded).write_parquet(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert output.run(on=engine).records_out == 5
    assert stored(tmp_path / "run") == [0, 1, 2, 3, 4]
    job = numbers(bounded).write_parquet(tmp_path / "started").start(on=engine)
    job.wait()
    assert stored(tmp_path / "started") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bounded", [True, False])
def test_several_outputs_run_as_one(engine: Any, tmp_path: Path, bounded: bool) -> None:
    stream = numbers(bounded)
    low, high = stream.split("n < 2")
    outputs = [low.write_parquet(tmp_path / "low"), high.write_parquet(tmp_path / "high")]
    assert hr.run(outputs, on=engine).records_out == 5
    assert (stored(tmp_path / "low"), stored(tmp_path / "high")) == ([0, 1], [2, 3, 4])


def test_an_output_can_run_again(engine: Any, tmp_path: Path) -> None:
    output = numbers(True).write_parquet(tmp_path / "out", mode="append")
    for _ in range(2):
        output.run(on=engine)
    assert stored(tmp_path / "out") == sorted([0, 1, 2, 3, 4] * 2)


def test_a_failure_is_raised_by_run(engine: Any, tmp_path: Path) -> None:
    failing = hr.from_items([0]).map("1 / value").write_parquet(tmp_path / "out")
    with pytest.raises(hr.StepError, match="zero"):
        failing.run(on=engine)
    assert not list(tmp_path.glob("out/part-*"))


def test_an_output_that_is_never_started_warns_with_its_line(tmp_path: Path) -> None:
    output = [numbers(True).write_parquet(tmp_path / "out")]
    with pytest.warns(UserWarning, match=r"step 2, write: .* was never started") as caught:
        output.clear()
    assert caught[0].filename == __file__


def test_an_output_that_was_used_does_not_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers(True).write_parquet(tmp_path / "a").run(on="box")
        numbers(True).write_parquet(tmp_path / "b").start(on="box").wait()
        hr.run([numbers(True).write_parquet(tmp_path / "c")], on="box")
        numbers(True).write_parquet(tmp_path / "d").explain(on="box")
        gc.collect()


def test_an_output_that_is_never_started_warns_at_exit(tmp_path: Path) -> None:
    program = tmp_path / "pipeline.py"
    program.write_text("import headrace as hr\nout = hr.from_items([1]).write_json('out')\n")
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "pipeline.py:2: UserWarning" in done.stderr
    assert "call .run() or .start()" in done.stderr


def test_run_takes_a_list() -> None:
    with pytest.raises(hr.PlanError, match=r"hr\.run\(\[output, …\]\), or output\.run\(\)"):
        hr.run(hr.from_items([1]))  # type: ignore[arg-type]
