"""``headrace bench ordered``: the experiments on ordered streams, at a tiny size."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from headrace.bench import probes
from headrace.bench.experiments import Scale
from headrace.bench.ordered import EXPERIMENTS, QUERIES, SCHEDULERS, SIGMAS
from headrace.bench.ordered_plots import plots
from headrace.bench.samples import middle
from headrace.cli import main
from headrace.kernels.aggregate import shards_of
from tests.cli.svg import SVG, series_of


@pytest.fixture(scope="module")
def report():
    names = ["schedulers", "reordering", "ordering", "latency"]
    return EXPERIMENTS.run(names, Scale(rounds=1, records=1000, seconds=0.1, workers=2))


def test_all_variants_give_the_same_results(report):
    assert report["equal"] is True


def test_every_scheduler_is_measured_on_every_query(report):
    rows = report["experiments"]["schedulers"]
    assert [(r["query"], r["scheduler"]) for r in rows] == [
        (query, scheduler) for query in QUERIES for scheduler in SCHEDULERS
    ]
    assert all(row["records_per_s"] > 0 for row in rows)
    assert {row["query"] for row in rows if row["results"]} >= {"bb_q2", "fraud", "stateful_wc"}
    assert [row["latency"] for row in rows if row["query"] == "fraud"] == ["of a bundle"] * 5


def test_a_target_is_met_if_its_value_is_and_the_load_was_reached():
    rows = {
        "ordering": [
            {"pipeline": "a", "of_unordered": 0.81},
            {"pipeline": "b", "of_unordered": 0.79},
        ],
        "latency": [
            {"app": a, "load": "half", "mean_ms": ms, "records_per_s": r, "offered_per_s": 100}
            for a, ms, r in (("c", 9.0, 99), ("d", 11.0, 99), ("e", 9.0, 75))
        ],
    }
    assert [t["met"] for t in EXPERIMENTS.judged(rows)] == [True, False, True, False, False]


def test_the_plots_have_their_series(report):
    drawn = plots(report)
    assert series_of(drawn["ordered-schedulers-throughput.svg"]) == list(SCHEDULERS)
    assert series_of(drawn["ordered-reordering.svg"]) == ["non-blocking", "locking"]
    assert series_of(drawn["ordered-ordering.svg"]) == ["ordered", "unordered"]
    assert series_of(drawn["ordered-latency.svg"]) == ["mean", "p99"]


def test_the_command_runs_reports_and_draws(capsys, tmp_path):
    report, folder = tmp_path / "report.json", tmp_path / "plots"
    arguments = ["--records", "1000", "--only", "skew", "--json", str(report)]
    assert main(["bench", "ordered", *arguments, "--plots", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "results equal" in out
    assert "hybrid as a multiple of partitioned, strongest skew, 2 workers" in out
    rows = json.loads(report.read_text())["experiments"]["skew"]
    assert len(rows) == 2 * len(SIGMAS) * 4
    text = (folder / "ordered-skew-2.svg").read_text()
    assert series_of(text) == ["hybrid/64", "hybrid/2", "partitioned/2", "shared/64"]
    assert len(list(ET.fromstring(text).iter(f"{SVG}polyline"))) == 4


def test_skewed_keys_fill_one_range_and_many_fine_partitions():
    for workers in (2, 4):
        shares = {}
        for sigma in (None, SIGMAS[-1]):
            table = probes.skewed(20_000, sigma, workers, 1)
            for count in (workers, probes.PARTITIONS):
                owner = shards_of([table["k"].combine_chunks()], table.num_rows, count)
                shares[sigma, count] = np.bincount(owner, minlength=count).max() / table.num_rows
        assert shares[None, workers] == pytest.approx(1 / workers, abs=0.02)
        assert shares[SIGMAS[-1], workers] > 0.98
        assert shares[SIGMAS[-1], probes.PARTITIONS] < 0.2


def test_the_middle_of_a_run_leaves_out_a_fifth_at_both_ends():
    assert middle([float(i) for i in range(10)]) == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_an_experiment_is_named_rightly_and_its_options_belong_to_it(capsys):
    assert main(["bench", "ordered", "--only", "skews"]) == 1
    assert "there is no experiment 'skews'; did you mean 'skew'" in capsys.readouterr().err
    assert main(["bench", "wc", "--plots", "x"]) == 1
    assert "--only and --plots are for 'headrace bench ordered'" in capsys.readouterr().err
    assert set(EXPERIMENTS.each) >= {"schedulers", "skew", "reordering", "ordering", "latency"}
