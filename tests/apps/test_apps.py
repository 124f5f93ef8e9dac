"""Every app gives what its plain-Python reference gives."""

from __future__ import annotations

import ast
import datetime
import itertools
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace import apps, col
from headrace.apps import fraud, spikes
from headrace.apps.streams import START
from headrace.bench.runner import rows_of, same
from headrace.testing import same_answer

# Their results are rare: bought items, pairs, values after the ring of a sensor is full.
RECORDS = {"spikes": 100_000, "bb_q1": 20_000, "bb_q3": 60_000}


@pytest.mark.parametrize("name", apps.NAMES)
def test_an_app_agrees_with_its_reference(engine, tmp_path, monkeypatch, name):
    monkeypatch.setattr("headrace.apps.streams.PIECES", 4)  # each is a batch on Spark
    monkeypatch.setattr("headrace.apps.bb_q1.OFTEN", 2)
    app, records = apps.load(name), RECORDS.get(name, 3000)
    reference = app.reference(str(app.generate(tmp_path, records, 7, app.forms[0])))
    counted = {k: {(*row, 1) for row in v} for k, v in reference.items()}
    for form in app.forms:
        path = str(app.generate(tmp_path, records, 7, form))
        got = {k: rows_of(same_answer(s, [engine])) for k, s in app.pipelines(path, form).items()}
        assert same(got, counted), form
        assert all(got.values())


def contents(path):
    files = sorted(path.glob("*")) if path.is_dir() else [path]
    return [file.read_bytes() for file in files]


@pytest.mark.parametrize("name", [n for n in apps.NAMES if n != "tweets"])
def test_the_seed_decides_the_input(tmp_path, name):
    app = apps.load(name)
    one, two, other = (
        contents(app.generate(tmp_path / folder, 500, seed, app.forms[0]))
        for folder, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert one == two
    assert one != other


def test_word_count_of_real_books(engine, real_data):
    (words,) = apps.load("wc").pipelines(str(real_data / "gutenberg" / "*.txt"), "text").values()
    counts = dict(zip(*(c.to_pylist() for c in words.collect(on=engine).columns), strict=True))
    assert (sum(counts.values()), len(counts)) == (1_774_552, 45_858)
    assert [counts[w] for w in ("the", "and", "of", "to", "a", "in", "i", "he")] == [
        98_109, 61_281, 46_815, 45_797, 36_668, 29_220, 25_827, 25_400,
    ]  # fmt: skip


def test_collisions_of_the_real_city(engine, real_data):
    path = real_data / "nyc_collisions" / "NYPD_Motor_Vehicle_Collisions.csv"
    app = apps.load("collisions")
    got = {k: rows_of(s.collect(on=engine)) for k, s in app.pipelines(str(path)).items()}
    weeks = sorted(row[:3] for row in got["lethal_per_week"])
    assert weeks == [(2013, 0, 7), (2013, 1, 3), (2013, 2, 5), (2013, 3, 4), (2013, 4, 8)]
    factors = {row[0]: (row[1], round(row[1] * row[2])) for row in got["per_factor"]}
    assert len(factors) == 45
    assert factors["Unspecified"] == (13_648, 21)
    assert factors["Driver Inattention/Distraction"] == (1726, 1)
    assert factors["Fatigued/Drowsy"] == (926, 0)
    boroughs = got["per_borough_and_week"]
    assert len(boroughs) == 30
    assert sum(row[3] for row in boroughs if row[0] == "") == 3664
    assert sum(row[3] for row in boroughs) == 15_643


@pytest.mark.parametrize(
    ("mote", "rows", "count"),
    [("indoor_moteid1", 4417, 255), ("indoor_moteid2", 4417, 121),
     ("outdoor_moteid3", 5039, 3344), ("outdoor_moteid4", 5041, 3532)],
)  # fmt: skip
def test_spikes_of_real_sensors(engine, real_data, mote, rows, count):
    path = real_data / "sensors" / f"singlehop_{mote}_data.txt"
    fields = col("line").split("\t")
    readings = (
        hr.read_text(path)
        .filter(col("line").matches("^[0-9]"))
        .select(
            at=fields[0].cast("bigint").cast("timestamp"),
            sensor=fields[1].cast("bigint"),
            value=fields[3].cast("double"),
        )
        .event_time("at")
    )
    assert readings.count(on=engine) == rows
    found = spikes.pipeline({"readings": readings}, None).collect(on=engine)
    assert found.num_rows == count
    reference = spikes.reference({"readings": readings.collect(on=engine)})
    assert same({"": rows_of(found)}, {"": {(*row, 1) for row in reference}})


def transactions(states, customers):
    """One each second."""
    start = datetime.datetime(2024, 5, 1)
    ats = [start + datetime.timedelta(seconds=i) for i in range(len(states))]
    rows = zip(ats, customers, range(len(states)), states, strict=True)
    names = ("at", "customer", "transaction", "state")
    return hr.from_items([dict(zip(names, row, strict=True)) for row in rows]).event_time("at")


def test_fraud_by_the_real_model(engine, real_data):
    path = real_data / "fraud" / "model.txt"
    assert path.read_text().splitlines()[0].split(",") == fraud.STATES
    model = np.loadtxt(path, delimiter=",", skiprows=1)
    assert np.allclose(model.sum(axis=1), 1)
    # A customer for each pair of states.
    states = [state for pair in itertools.product(fraud.STATES, repeat=2) for state in pair]
    stream = transactions(states, [f"C{i // 2}" for i in range(len(states))])
    for threshold, count in ((0.8, 312), (0.96, 194)):
        alerts = fraud.alerts(stream, model, threshold=threshold).collect(on=engine)
        assert alerts.num_rows == count
        assert min(alerts["score"].to_pylist()) > threshold


def test_fraud_over_more_than_two_transactions(engine):
    codes = np.random.default_rng(3).integers(0, 18, 50)
    stream = transactions([fraud.STATES[code] for code in codes], ["C"] * 50)
    alerts = fraud.alerts(stream, window=4, threshold=0.0).collect(on=engine)
    unlikely = [1 - fraud.MODEL[a, b] for a, b in itertools.pairwise(codes)]
    assert alerts["transaction"].to_pylist() == list(range(3, 50))
    assert alerts["score"].to_pylist() == [sum(unlikely[i : i + 3]) / 3 for i in range(47)]


RSTREAM = {"wc": 35, "collisions": 129, "kmeans": 157, "window_wc": 39}
"""The lines of code of the same workloads in RStream (its table I)."""


def lines_of(name):
    """The lines of an app but for its input, its reference, what it is called, and its words."""
    text = Path(apps.__file__).with_name(f"{name}.py").read_text()
    left_out, lines = {"reference", "generate", "tables", "APP"}, text.splitlines()
    count = 0
    for node in ast.parse(text).body:
        names = {getattr(node, "name", "")} | {
            t.id for t in getattr(node, "targets", ()) if isinstance(t, ast.Name)
        }
        if names & left_out or isinstance(node, ast.Expr):
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        own = lines[first - 1 : node.end_lineno]
        count += sum(bool(line.strip()) and not line.strip().startswith("#") for line in own)
        said = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        count -= sum(bool(line.strip()) for line in (said or "").splitlines())
    return count


def test_programs_are_as_short_as_the_page_says():
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
    for name, lines in RSTREAM.items():
        assert lines_of(name) <= 1.2 * lines
        assert f"| `{name}` | {lines_of(name)} | {lines} |" in page


def test_generated_input_starts_at_a_fixed_recent_date() -> None:
    for name in apps.NAMES:
        stream = apps.load(name).stream
        for table in {} if stream is None else stream.tables(100, 1, 10, 0).values():
            if "at" in table.schema.names:
                assert min(table["at"].to_pylist()) >= START, name
