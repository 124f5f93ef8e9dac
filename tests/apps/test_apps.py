"""Every app gives what its plain-Python reference gives."""

from __future__ import annotations

import pytest

from headrace import apps
from headrace.bench.runner import rows_of, same
from headrace.testing import same_answer


@pytest.mark.parametrize("name", apps.NAMES)
def test_an_app_agrees_with_its_reference(engine, tmp_path, monkeypatch, name):
    monkeypatch.setattr("headrace.apps.streams.PIECES", 4)  # each is a batch on Spark
    app = apps.load(name)
    reference = app.reference(str(app.generate(tmp_path, 3000, 7, app.forms[0])))
    counted = {k: {(*row, 1) for row in v} for k, v in reference.items()}
    for form in app.forms:
        path = str(app.generate(tmp_path, 3000, 7, form))
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
