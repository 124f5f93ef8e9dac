"""What a person gets wrong is answered with one sentence: the fault, and what to write instead."""

from __future__ import annotations

import datetime
import functools
import re
import threading
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace import col
from headrace.hints import EXPRESSION, KEYED, STREAM

TRIPS = hr.from_items([{"fare": 1, "from": 2, "t": 3}])
ENDLESS = hr.rate(10)
NAIVE = datetime.datetime(2026, 1, 1)
AWARE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


async def awaited(row: Any) -> int:
    return 1


async def yielded(row: Any) -> AsyncIterator[int]:
    yield 1


class Awaited:
    async def __call__(self, row: Any) -> int:
        return 1


def forgetful(row: Any):  # type: ignore[no-untyped-def]
    row.fare + 1


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a reserved word": (lambda: TRIPS.filter("from > 0"), "`from` in backticks"),
    "an expression cut off": (lambda: TRIPS.filter("fare >"), "it ends after '>'"),
    "a parenthesis": (lambda: TRIPS.filter("(fare > 1"), r"a '\)' is missing"),
    "a quote": (lambda: TRIPS.filter("fare = 'x"), "a quote is not closed"),
    "a clock": (lambda: TRIPS.filter("now() > t"), "the record's own time"),
    "in": (lambda: col("fare") in [1, 2], r"is_in\(\[…\]\) instead of in"),
    "& before a comparison": (lambda: col("fare") > 1 & col("t") > 0, "add parentheses"),
    "| before a comparison": (lambda: col("fare") > 1.5 | col("t"), "add parentheses"),
    "& between columns": (lambda: col("fare") > col("t") & col("t") > 0, "add parentheses"),
    "& of a column": (lambda: TRIPS.filter(col("fare") > col("t") & (col("t") > 0)), "add paren"),
    "& in SQL": (lambda: TRIPS.filter("fare > 1 & t > 0"), "write AND and add parentheses"),
    "| in SQL": (lambda: TRIPS.filter("fare > 1 | t > 0"), "write OR and add parentheses"),
    "when without then": (lambda: TRIPS.select(x=hr.when("t > 0")), r"say .then\(value\)"),
    "an aggregate in select": (lambda: TRIPS.select(x=hr.max("t") - 1), "max.t. is an aggregate"),
    "an aggregate of one": (lambda: TRIPS.agg(x=hr.sum(hr.max("t") + 1)), "max.t. is an aggreg"),
    "agg of no aggregate": (lambda: TRIPS.agg(x=col("t") + 1), "is not an aggregate"),
    "agg without a name": (lambda: TRIPS.agg(hr.max("t") - hr.min("t")), "needs a name"),
    "agg with a column": (lambda: TRIPS.agg(x=hr.max("t") - col("fare")), "neither a key nor"),
    "a sum without end": (lambda: TRIPS.select(x=" + ".join(["t"] * 20_000)), "in with_columns"),
    "parentheses without end": (
        lambda: TRIPS.select(x="(" * 20_000 + "t" + ")" * 20_000),
        "nested too deep.*in with_columns",
    ),
    "functions without end": (
        lambda: TRIPS.select(x=functools.reduce(lambda e, _: e.abs(), range(5_000), col("t"))),
        "nested more than 100 levels deep",
    ),
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
    "async in map": (lambda: TRIPS.map(awaited), "step 2, map: awaited is an async def.*plain def"),
    "async in a column": (lambda: TRIPS.with_columns(x=awaited), "x=: awaited is an async def"),
    "async in filter": (lambda: TRIPS.filter(awaited), "awaited is an async def"),
    "async in flat_map": (lambda: TRIPS.flat_map(yielded), "yielded is an async def"),
    "async in map_batches": (lambda: TRIPS.map_batches(awaited), "awaited is an async def"),
    "async in inspect": (lambda: TRIPS.inspect(awaited), "awaited is an async def"),
    "async in key_by": (lambda: TRIPS.key_by(awaited), "awaited is an async def"),
    "async in reduce": (lambda: TRIPS.reduce(awaited), "awaited is an async def"),
    "async in scan": (lambda: TRIPS.key_by("t").scan(awaited, state=0), "awaited is an async def"),
    "async in start": (lambda: ENDLESS.start(to=awaited), "awaited is an async def"),
    "an async object": (lambda: TRIPS.map(Awaited()), "Awaited is an async def"),
    "a partial of async": (lambda: TRIPS.map(functools.partial(awaited)), "is an async def"),
    "map without return": (
        lambda: TRIPS.map(forgetful),
        "map: forgetful returns None.*add a return",
    ),
    "a column without return": (lambda: TRIPS.with_columns(x=forgetful), "add a return"),
    "filter without return": (lambda: ENDLESS.filter(forgetful), "add a return"),
    "flat_map without return": (lambda: TRIPS.flat_map(forgetful), "add a return"),
    "a schema without return": (lambda: TRIPS.map(forgetful, schema={"x": "int"}), "add a return"),
    "always None": (lambda: TRIPS.map(lambda r: None), "returned None for the first .* schema="),
    "None for a record": (
        lambda: TRIPS.map(lambda r: None, schema={"x": "int", "y": "int"}).collect(on="box"),
        "returned None instead of a record of x, y; return one, or use filter or flat_map",
    ),
    "checkpoints": (
        lambda: ENDLESS.start(checkpoints="x"),
        "start has no option 'checkpoints'; did you mean 'checkpoint'",
    ),
    "checkpoints of a sink": (
        lambda: ENDLESS.write_console().start(checkpoints="x"),  # type: ignore[union-attr]
        "did you mean 'checkpoint'",
    ),
    "checkpoints of several": (
        lambda: hr.start([ENDLESS], checkpoints="x"),  # type: ignore[call-arg]
        "did you mean 'checkpoint'",
    ),
    "engine": (lambda: TRIPS.collect(engine="box"), "collect has no option 'engine'; use on="),
    "limit of a stream": (
        lambda: ENDLESS.limit(3).start(on="box"),
        r"step 2, limit: it needs the whole input.*write_console\(\).start\(\)",
    ),
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
    "pivot": (TRIPS, "pivot", r"group_by\('day'\).agg\(east=hr.sum"),
    "melt": (TRIPS, "melt", "flat_map"),
    "dropna": (TRIPS, "dropna", "is_not_null"),
    "fill_null": (TRIPS, "fill_null", "with_columns"),
    "value_counts": (TRIPS, "value_counts", r"group_by\('column'\).count"),
    "rolling": (TRIPS, "rolling", "hr.sliding"),
    "cum_sum": (TRIPS, "cum_sum", "running"),
    "join_asof": (TRIPS, "join_asof", "join_within"),
    "sink_parquet": (TRIPS, "sink_parquet", "write_parquet"),
    "keyed pivot": (TRIPS.group_by("t"), "pivot", "hr.sum"),
    "event_time after key_by": (TRIPS.key_by("t"), "event_time", "right after the source, before"),
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


def test_what_a_hint_says_to_use_exists() -> None:
    for hints, kind in ((STREAM, hr.Stream), (KEYED, hr.KeyedStream), (EXPRESSION, hr.Expr)):
        for name, hint in hints.items():
            assert not hasattr(kind, name), f"{kind.__name__} has {name}; drop its hint"
            for method in re.findall(r"\b(?:use|or) ([a-z_]+)\(", hint):
                assert hasattr(hr.Stream, method) or hasattr(kind, method), (name, method)
            for function in re.findall(r"\bhr\.([a-z_]+)", hint):
                assert hasattr(hr, function), (name, function)


def test_what_the_hint_at_pivot_says_works() -> None:
    trips = hr.from_items(
        [{"day": 1, "zone": "east", "fare": 2}, {"day": 1, "zone": "w", "fare": 3}]
    )
    pivoted = trips.group_by("day").agg(east=hr.sum("if(zone = 'east', fare, 0)"))
    assert pivoted.to_list(on="box") == [(1, 2)]


NO_COLLECTION: dict[str, tuple[Callable[[], Any], str]] = {
    "a column": (lambda: TRIPS["fare"], r"use select\('fare'\), or col\('fare'\)"),
    "columns": (lambda: TRIPS[["fare", "t"]], r"use select\('fare', 't'\)"),
    "a condition": (lambda: TRIPS[col("fare") > 1], r"use filter\(condition\)"),
    "a slice": (lambda: TRIPS[:3], r"use limit\(n\)"),
    "its length": (lambda: len(TRIPS), r"no length.*use count\(\)"),
    "its rows": (lambda: [row.fare for row in TRIPS], r"use to_list\(\), collect\(\) or for_each"),
    "a list": (lambda: list(TRIPS), r"use to_list\(\)"),
    "a name": (lambda: "fare" in TRIPS, r"\.columns for the names"),
    "the column of groups": (lambda: TRIPS.key_by("t")["fare"], r"agg\(n=hr.count\(\)\)"),
    "the rows of groups": (lambda: list(TRIPS.key_by("t")), r"agg\(n=hr.count\(\)\)"),
}


@pytest.mark.parametrize("name", NO_COLLECTION)
def test_a_stream_is_no_collection_and_says_what_to_use(name: str) -> None:
    make, words = NO_COLLECTION[name]
    with pytest.raises(TypeError, match=words):
        make()
    assert TRIPS  # as true as any other object


@pytest.mark.parametrize("method", ["map", "with_columns", "filter", "flat_map"])
def test_a_function_that_cannot_be_sent_is_named_with_its_variable(
    spark_engine: hr.Spark, method: str
) -> None:
    lock = threading.Lock()

    def locked(row: Any) -> int:
        with lock:
            return int(row.fare)

    streams = {
        "map": lambda: TRIPS.map(locked),
        "with_columns": lambda: TRIPS.with_columns(x=locked),
        "filter": lambda: TRIPS.filter(locked),
        "flat_map": lambda: TRIPS.flat_map(lambda r: [locked(r)], schema="bigint"),
    }
    words = r"step 2, .*cannot be sent to Spark's workers, for its variable '(lock|locked)'"
    with pytest.raises(hr.PlanError, match=words):
        streams[method]().collect(on=spark_engine)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x,a,2026-01-01", "line 3: column 'id': 'x' is not a bigint"),
        ("2,a,yesterday", "line 3: column 'at': 'yesterday' cannot be cast to timestamp"),
    ],
)
def test_a_bad_row_of_csv_names_the_column(
    engine: Any, tmp_path: Path, line: str, words: str
) -> None:
    (tmp_path / "a.csv").write_text(f"id,zone,at\n1,a,2026-01-01\n{line}\n")
    schema = {"id": "bigint", "zone": "string", "at": "timestamp"}
    with pytest.raises(hr.BadRecord, match=words):
        hr.read_csv(tmp_path / "a.csv", schema=schema).collect(on=engine)


@pytest.mark.parametrize("what", ["redis", "kafka"])
def test_a_server_that_cannot_be_reached_fails_the_start(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.io.kafka.ANSWER", 1.0)
    pytest.importorskip({"redis": "redis", "kafka": "confluent_kafka"}[what])
    where: dict[str, str] = {
        "redis": "redis://localhost:1",
        "kafka": "localhost:1",
    }
    option = {"redis": "url", "kafka": "servers"}[what]
    server = {option: where[what]}
    words = f"x at localhost:1 cannot be reached: .*is {what.title()} running there.* {option}="
    source = getattr(hr, f"read_{what}")("x", schema={"n": "bigint"}, **server)
    with pytest.raises(hr.EngineError, match=words):
        source.start(on="box").wait(60)
    with pytest.raises(hr.EngineError, match=words):
        getattr(ENDLESS, f"write_{what}")("x", **server).start(on="box").wait(60)


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
