"""Functions of a record: compiled where they can be, with the results and errors of Python."""

from __future__ import annotations

import datetime
import functools
import json
import linecache
import math
import pickle
import re
from dataclasses import dataclass

import cloudpickle
import pyarrow as pa
import pytest

import headrace as hr
from headrace.kernels.row_steps import COMPILED_AFTER, RowStep, why_not_native

MANY = 2 * COMPILED_AFTER
"""Records enough for a function to be compiled in every worker that has a part of them."""
FIRST = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
TABLE = pa.table(
    {
        "n": pa.array([None if i % 97 == 0 else i for i in range(MANY)], pa.int64()),
        "x": pa.array([i / 8 - 1000 for i in range(MANY)]),
        "word": pa.array([None if i % 89 == 0 else f"Word {i % 50}" for i in range(MANY)]),
        "at": pa.array([FIRST + datetime.timedelta(hours=i) for i in range(MANY)]),
        "yes": pa.array([i % 3 == 0 for i in range(MANY)]),
    }
)
RATES = (0.5, 1.25, 3)


@dataclass
class Priced:
    key: int
    price: float | None
    name: str | None


def rate(n: int, high: bool = False) -> float:
    return RATES[2] if high else RATES[n % 2 == 0]


def priced(row) -> Priced:
    """Most of what is compiled."""
    if row.n is None:
        return Priced(-1, None, row.word)
    price = row.x * rate_of(row)
    if price < 0:
        price = -price
    name = "none" if row.word is None else row.word.lower()[:4] + f"/{row.n % 7}"
    return Priced(row.n // 3 + row.at.hour, round(price, 2), name)


def rate_of(row) -> float:
    return 2.5 if row.yes and row.at.weekday() < 5 else math.sqrt(abs(row.x))


def parts(row):
    for i in range(0 if row.n is None else row.n % 4):
        if i != 2:
            yield {"i": i, "half": row.x / 2}


def test_functions_over_many_records_are_what_python_gives(engine):
    stream = (
        hr.from_arrow(TABLE)
        .filter(lambda r: r.n is None or r.n % 5 != 0 or r.word in ("Word 10", "Word 20"))
        .with_columns(
            twice=lambda r: None if r.n is None else r.n * 2, late=lambda r: r.at.hour > 12
        )
        .filter(lambda r: not r.late or (r.word or "").endswith(("1", "2")))
    )
    kept = [
        {**r, "twice": None if r["n"] is None else r["n"] * 2, "late": r["at"].hour > 12}
        for r in TABLE.to_pylist()
        if r["n"] is None or r["n"] % 5 != 0 or r["word"] in ("Word 10", "Word 20")
    ]
    kept = [r for r in kept if not r["late"] or (r["word"] or "").endswith(("1", "2"))]
    assert stream.collect(on=engine).to_pylist() == kept


def test_records_made_by_functions_and_flat_maps_are_what_python_gives(engine):
    class Row:
        def __init__(self, fields):
            self.__dict__ = fields

    records = [Row(fields) for fields in TABLE.to_pylist()]
    mapped = hr.from_arrow(TABLE).map(priced)
    assert "[native code]" in mapped.explain(on=engine)
    assert mapped.collect(on=engine).to_pylist() == [vars(priced(r)) for r in records]
    flat = hr.from_arrow(TABLE).flat_map(parts, keep="n", schema={"i": "bigint", "half": "double"})
    assert "[native code]" in flat.explain(on=engine)
    assert flat.collect(on=engine).to_pylist() == [
        {"n": r.n, **part} for r in records for part in parts(r)
    ]


def test_a_key_may_be_computed_by_a_function(rows):
    counts = hr.from_arrow(TABLE).key_by(lambda r: r.at.day % 2 == 0).agg(n=hr.count())
    even = sum(t.day % 2 == 0 for t in TABLE.column("at").to_pylist())
    assert sorted(rows(counts)) == [(False, MANY - even), (True, even)]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda n: n // (n - (MANY - 3)), "ZeroDivisionError"),
        (lambda n: n * 2**62 if n > MANY - 4 else n, f"failed on result {(MANY - 3) * 2**62}"),
        (lambda n: int(math.log(MANY - 3 - n)) if n > 0 else 0, "ValueError: math domain error"),
        (lambda n: n if n < MANY - 3 else n + 0.5, f"{MANY - 3 + 0.5} is not a bigint"),
    ],
)  # fmt: skip
def test_errors_are_the_interpreters_with_the_record_and_the_line(engine, function, reason):
    assert why_not_native(_step(function), pa.schema({"value": pa.int64()})) is None
    with pytest.raises(hr.StepError) as caught:
        hr.from_items(range(MANY)).map(function, schema="bigint").collect(on=engine)
    text = str(caught.value)
    assert reason in text
    assert "step 2, map (a lambda at test_functions.py" in text
    if "Error" in reason:
        assert f"failed on record {MANY - 3}: " in text
        assert "test_functions.py:" in text.splitlines()[1]


def _step(function, schema="bigint", method="map"):
    stream = hr.from_items([1], schema="bigint")
    if method == "filter":
        return stream.filter(function).node
    return stream.map(function, schema=schema).node


def test_integers_beyond_64_bits_are_pythons(rows):
    wide = hr.from_items([2**62, 5] * (MANY // 2)).map(lambda n: n * n % 1000)
    assert rows(wide) == [(2**124 % 1000,), (25,)] * (MANY // 2)


# What is refused, and what explain tells

TABLE_OF = {"a": 1}
COUNT = 0


def counting(n):
    global COUNT
    COUNT += 1
    return n


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda n: print(n), "it calls print, which is not compiled"),
        (lambda n: TABLE_OF["a"], "it reads a place of 'TABLE_OF', a dict, which may change"),
        (lambda n: json.dumps(n), "it calls json.dumps: dumps takes any number of arguments"),
        (lambda n: [n], "it has a list"),
        (lambda n: str(n / 2), "it makes text of a float"),
        (lambda n: n + "a", "it computes an int [+] text"),
        (lambda n: n if n > 1 else "a", "it has an int in one case|gives text for 'value'"),
        (functools.partial(pow, 2), "it is not a plain function"),
        (math.sqrt, "it is not a plain function"),
        (counting, "it changes a variable that is not its own"),
        (eval("lambda n: n"), "its source cannot be read"),
        (lambda n: 1180591620717411303424 * n, "takes more than 64 bits"),
        (lambda n: n**n, "power"),
        (lambda n: undefined + n, "'undefined' is not defined"),  # noqa: F821
    ],
)
def test_what_is_not_compiled_is_told_with_the_reason(function, why):
    schema = "string" if "text of a float" in why or "print" in why else "bigint"
    step = _step(function, schema)
    found = why_not_native(step, step.input.schema)
    if found is None:
        assert "|" in why
        return
    assert re.search(why, found), found


def test_native_is_refused_when_the_pipeline_is_built():
    numbers = hr.from_items([1, 2])

    @hr.native
    def halves(n) -> float:
        return n / 2

    assert halves(3) == 1.5
    assert halves.__name__ == "halves"
    assert numbers.map(halves).to_list(on="box") == [0.5, 1.0]
    dumps = hr.native(lambda n: json.dumps(n))
    refused = "cannot be native: it calls json.dumps: .*; change that, or"
    with pytest.raises(hr.PlanError, match=rf"step 2, map: a lambda at test_fun.*{refused}"):
        numbers.map(dumps)
    with pytest.raises(hr.PlanError, match=f"step 2, filter: .*{refused}"):
        numbers.filter(dumps)
    with pytest.raises(hr.PlanError, match=r"step 2, with_columns: .*cannot be native"):
        numbers.with_columns(text=dumps)
    with pytest.raises(hr.PlanError, match=r"step 2, inspect: .*it is called for its effect"):
        numbers.inspect(dumps)
    with pytest.raises(hr.PlanError, match="step 2, map_batches: its function runs as Python"):
        numbers.map_batches(dumps)
    with pytest.raises(hr.PlanError, match="step 2, reduce: its function runs as Python"):
        numbers.reduce(hr.native(lambda a, b: a + b))
    with pytest.raises(hr.PlanError, match=r"step 2, scan: .*cannot be native: its state"):
        numbers.scan(hr.native(lambda state, n: (state, n)), state=[])
    with pytest.raises(hr.PlanError, match=r"native takes a function that is written"):
        hr.native(math.sqrt)


# Names outside the function

LIMIT = 10


def test_a_global_or_a_closure_that_changes_is_seen():
    global LIMIT
    step = 1

    def above(n: int) -> int:
        return n + step if n > LIMIT else 0

    node = hr.from_items([1]).map(hr.native(above)).node
    run = RowStep(node, node.input.schema)
    batch = pa.record_batch({"value": [5, 15]})
    assert run(batch).column(0).to_pylist() == [0, 16]
    assert run._native(batch) is not None
    try:
        LIMIT, step = 2, 7
        assert run(batch).column(0).to_pylist() == [12, 22]
        for limit in range(50):  # it is not compiled again for ever
            LIMIT = limit
            assert run(batch).column(0).to_pylist() == [12 * (limit < 5), 22 * (limit < 15)]
        assert run.unfit
    finally:
        LIMIT = 10


def test_native_code_that_leaves_most_to_the_interpreter_is_given_up():
    node = hr.from_items(["a"]).map(hr.native(lambda text: text.upper())).node
    run = RowStep(node, node.input.schema)
    batch = pa.record_batch({"value": ["ä", "b", "ö"] * 10_000})
    for given_up in (False, True):
        assert run(batch).column(0).to_pylist() == ["Ä", "B", "Ö"] * 10_000
        assert run.unfit == given_up


def test_a_function_that_is_sent_elsewhere_is_compiled_without_its_file():
    threshold = 3
    path = "<a file that is not there>"
    text = "def g(v):\n    return v * 2\ndef make(k):\n    return lambda n: g(n) + k\n"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    space = {}
    exec(compile(text, path, "exec", dont_inherit=True), space)
    step = _step(space["make"](threshold))
    assert why_not_native(step, step.input.schema) is None
    data = cloudpickle.dumps(step)
    del linecache.cache[path]
    sent = pickle.loads(data)
    assert why_not_native(sent, sent.input.schema) is None
    run = RowStep(sent, sent.input.schema)
    assert run(pa.record_batch({"value": [10] * MANY})).column(0)[0].as_py() == 23


def test_lambdas_on_one_line_are_told_apart(rows):
    some = [lambda n: n + 1, lambda n: n * 10, lambda n: (lambda m: m)(n)]
    streams = [hr.from_items([7] * 3).map(f, schema="bigint") for f in some]
    places = [stream.explain(on="box") for stream in streams]
    assert ["[native code]" in place for place in places] == [True, True, False]
    assert "a lambda inside it" in places[2]
    nodes = [stream.node for stream in streams[:2]]
    steps = [RowStep(node, node.input.schema) for node in nodes]
    batch = pa.record_batch({"value": [7] * MANY})
    assert [step(batch).column(0)[0].as_py() for step in steps] == [8, 70]
