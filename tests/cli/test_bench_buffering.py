"""``headrace bench buffering``: the experiments on buffering policies, at a tiny size."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

import headrace as hr
from headrace.bench import buffering
from headrace.bench.buffering import EXPERIMENTS, POLICIES, label
from headrace.bench.buffering_plots import plots
from headrace.bench.experiments import Scale
from headrace.cli import main
from tests.cli.svg import SVG, series_of


@pytest.fixture(scope="module")
def report():
    patch = pytest.MonkeyPatch()
    patch.setattr(buffering, "TURNS", 1)
    scale = Scale(rounds=1, records=1000, seconds=0.25, workers=2)
    yield EXPERIMENTS.run(list(EXPERIMENTS.each), scale)
    patch.undo()


def test_every_policy_gives_the_same_and_is_measured(report):
    assert report["equal"] is True
    rows = report["experiments"]["throughput"]
    assert [row["policy"] for row in rows] == list(map(label, POLICIES))
    assert all(row["records"] == 1000 and row["records_per_s"] > 0 for row in rows)


def test_every_record_under_load_is_delivered_and_timed(report):
    light = report["experiments"]["light"]
    told = [(row["policy"], row["buffers"]) for row in light]
    assert told == [
        ("fixed(1024)", 1), ("fixed(1024)", 2),
        ("adaptive(1024, 50ms)", 1), ("adaptive(1024, 50ms)", 2), ("default", 1),
    ]  # fmt: skip
    for row in light:
        assert 1 <= row["records"] <= 250
        assert len(row["over_time"]) == row["records"]
        moments = [at for at, _ in row["over_time"]]
        assert moments == sorted(moments)
        assert 0 <= row["p50_ms"] <= row["max_ms"]
    assert all(row["records"] >= 1024 for row in report["experiments"]["heavy"])


def test_the_plots_have_their_series(report):
    drawn = plots(report)
    assert series_of(drawn["buffering-light.svg"]) == ["fixed(1024)", "adaptive(1024, 50ms)"]
    assert series_of(drawn["buffering-light-adaptive.svg"]) == [
        "adaptive(1024, 50ms)", "adaptive(1024, 50ms), two buffers", "default",
    ]  # fmt: skip
    assert len(series_of(drawn["buffering-heavy.svg"])) == 3
    root = ET.fromstring(drawn["buffering-throughput.svg"])
    shown = [element.text for element in root.iter(f"{SVG}text")]
    assert {"immediate", "fixed,", "16384", "adaptive,", "50ms", "default"} <= set(shown)


def test_targets_are_what_was_measured():
    rates = {"fixed(1024)": 400, "immediate": 19, "adaptive(1024, 50ms)": 350}
    rows = {
        "throughput": [
            {"policy": p, "records_per_s": r, "records_per_cpu_s": 2 * r} for p, r in rates.items()
        ],
        "light": [
            {"policy": "fixed(1024)", "buffers": 1, "max_ms": 1024.0},
            {"policy": "adaptive(1024, 50ms)", "buffers": 1, "max_ms": 101.0},
        ],
    }
    assert [t["met"] for t in EXPERIMENTS.judged(rows)] == [True, True, True, True, False, True]


def test_the_command_runs_reports_and_draws(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(buffering, "TURNS", 1)
    monkeypatch.setattr(buffering, "OVER_TIME", (hr.fixed(1024), hr.adaptive(1024, "50ms")))
    report, folder = tmp_path / "report.json", tmp_path / "plots"
    arguments = ["--only", "light", "--seconds", "0.1", "--json", str(report)]
    assert main(["bench", "buffering", *arguments, "--plots", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "results equal" in out
    assert "adaptive(1024, 50ms): the longest a record takes under light load, ms" in out
    assert len(json.loads(report.read_text())["experiments"]["light"]) == 4
    assert (folder / "buffering-light.svg").exists()
    assert main(["bench", "buffering", "--only", "dark"]) == 1
    assert "there is no experiment 'dark'" in capsys.readouterr().err
