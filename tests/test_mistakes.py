"""What a person gets wrong is answered with one sentence: the fault, and what to write instead."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace import col

TRIPS = hr.from_items([{"fare": 1, "from": 2, "t": 3}])
ENDLESS = hr.rate(10)
NAIVE = datetime.datetime(2026, 1, 1)
AWARE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a reserved word": (lambda: TRIPS.filter("from > 0"), "`from` in backticks"),
    "an expression cut off": (lambda: TRIPS.filter("fare >"), "it ends after '>'"),
    "a parenthesis": (lambda: TRIPS.filter("(fare > 1"), r"a '\)' is missing"),
    "a quote": (lambda: TRIPS.filter("fare = 'x"), "a quote is not closed"),
    "a clock": (lambda: TRIPS.filter("now() > t"), "the record's own time"),
    "in": (lambda: col("fare") in [1, 2], r"is_in\(\[…\]\) instead of in"),
    "event time of a number": (lambda: TRIPS.event_time("t"), r"timestamp_millis\(t\)"),
    "an option of a function": (lambda: TRIPS.map(lambda r: r.fare, foo=1), "'foo=' is not"),
    "a type that is not known": (lambda: ENDLESS.with_columns(y=lambda r: 1), "def f.row. -> int"),
    "show of fewer than none": (lambda: TRIPS.show(-1), "step 2, show: .*records to print, not -1"),
    "show of text": (lambda: TRIPS.show("5"), "records to print, not '5'"),
    "a decimal that is none": (lambda: hr.lit(Decimal("NaN")), "NaN cannot be a literal"),
    "a decimal too long": (lambda: col("fare") < Decimal("1e38"), "39 digits.*use a float"),
    "a moment of NumPy": (lambda: hr.lit(np.datetime64("2026-01-01")), "cannot be a literal"),
    "show of a stream": (lambda: ENDLESS.show(), r"show waits.*write_console\(\).start\(\)"),
    "a month": (lambda: hr.tumbling("1M"), "may be a month"),
    "sep": (lambda: hr.read_csv("x", sep=";"), "read_csv has no option 'sep'; use delimiter="),
    "step": (lambda: hr.sliding("3s", step="1s"), "use every="),
    "a folder that is not there": (lambda: hr.read_text("nowhere", follow=True), "no folder"),
    "a misspelt field": (
        lambda: hr.from_items([{"fare": 1}], schema={"fre": "bigint"}),
        "no record has the field 'fre' of schema=; did you mean 'fare'",
    ),
    "times with and without a zone": (
        lambda: hr.from_items([{"at": NAIVE}, {"at": AWARE}]),
        "with a time zone and without",
    ),
    "the same with a schema": (
        lambda: hr.from_items([{"at": NAIVE}, {"at": AWARE}], schema={"at": "timestamp"}),
        "with a time zone and without",
    ),
    "a stream and a table": (
        lambda: TRIPS.rename(fare="value").join(ENDLESS, on="value").start(on="box"),
        r"the other way round: stream.join\(table\)",
    ),
    "when_idle": (lambda: ENDLESS.event_time("at", when_idle="close"), "'hold' or 'advance'"),
    "ahead of bounded input": (
        lambda: hr.from_items([{"at": AWARE}]).event_time("at", ahead="1h"),
        "input that does not end",
    ),
    "descending in words": (lambda: TRIPS.sort("fare", descending="no"), "True or False.*'no'"),
    "too many directions": (lambda: TRIPS.sort("t", descending=[True, False]), "1 columns"),
    "two zones": (
        lambda: TRIPS.time_zone("Europe/Berlin").union(TRIPS.time_zone("Asia/Tokyo")),
        "Asia/Tokyo and Europe/Berlin; a pipeline has one",
    ),
    "a zone that is none": (lambda: TRIPS.time_zone("Europe/Berln"), "did you mean"),
    "a zone too late": (lambda: TRIPS.filter("t > 0").time_zone("UTC"), "right after the source"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_refused_with_what_to_do(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(hr.HeadraceError, match=words):
        make()


BROUGHT: dict[str, tuple[Any, str, str]] = {
    "withColumn": (TRIPS, "withColumn", "with_columns"),
    "with_column": (TRIPS, "with_column", "with_columns"),
    "assign": (TRIPS, "assign", "with_columns"),
    "where": (TRIPS, "where", "filter"),
    "groupBy": (TRIPS, "groupBy", "group_by"),
    "orderBy": (TRIPS, "orderBy", "sort"),
    "isin": (col("a"), "isin", "is_in"),
    "avg": (hr, "avg", "hr.mean"),
    "keyed collect": (TRIPS.key_by("t"), "collect", "agg"),
    "grouped to_pandas": (TRIPS.group_by("t"), "to_pandas", "agg"),
    "a near miss": (TRIPS, "filtre", "did you mean 'filter'"),
    "a near miss of the module": (hr, "tumblin", "did you mean 'tumbling'"),
}


@pytest.mark.parametrize("name", BROUGHT)
def test_a_name_from_elsewhere_is_answered_with_ours(name: str) -> None:
    thing, attribute, words = BROUGHT[name]
    with pytest.raises(AttributeError, match=words):
        getattr(thing, attribute)
    assert not hasattr(thing, attribute)


def test_what_a_windowed_stream_lacks_is_answered_too() -> None:
    windowed = ENDLESS.event_time("at").key_by("value").window(hr.tumbling("1s"))
    with pytest.raises(AttributeError, match=r"say first what to compute.*agg"):
        windowed.collect()
    assert "tumbling(1s)" in windowed._repr_html_()


def test_a_misspelt_field_of_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"fare": 1, "zone": "x"}\n')
    with pytest.raises(hr.PlanError, match="'fre' of schema=; did you mean 'fare'"):
        hr.read_json(tmp_path / "a.json", schema={"fre": "bigint", "zone": "string"})
    rare = hr.read_json(tmp_path / "a.json", schema={"fare": "bigint", "tip": "bigint"})
    assert rare.to_list(on="box") == [(1, None)]
    (tmp_path / "b.json").write_text('{"no": 1, "ID": 2}\n')
    short = hr.read_json(tmp_path / "b.json", schema={"n": "bigint"})
    assert short.to_list(on="box") == [(None,)]
    with pytest.raises(hr.PlanError, match="'id' of schema=; did you mean 'ID'"):
        hr.read_json(tmp_path / "b.json", schema={"id": "bigint"})


def test_a_file_called_means_is_no_hint(tmp_path: Path) -> None:
    (tmp_path / "means.csv").write_text("a\n1\n")
    with pytest.raises(hr.PlanError, match="check the path"):
        hr.read_csv(tmp_path / "q")


def test_numbers_of_numpy_are_numbers() -> None:
    numbers = [np.float64(1.5), np.float32(0.25), np.int64(-3), np.uint8(7), np.bool_(True)]
    plain = [1.5, 0.25, -3, 7, True]
    assert [repr(hr.lit(n)) for n in numbers] == [repr(hr.lit(n)) for n in plain]
    assert TRIPS.filter(col("fare") < np.float64(1.5)).count(on="box") == 1
