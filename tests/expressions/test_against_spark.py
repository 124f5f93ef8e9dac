"""Our kernels give what Spark SQL gives, for random expressions over random data."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from headrace.errors import ExpressionError, PlanError
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.spark.columns import spark_schema
from headrace.trees import parse, to_sql

SCHEMA = pa.schema(
    [
        ("i", pa.int32()), ("j", pa.int32()), ("l", pa.int64()), ("m", pa.int64()),
        ("y", pa.int8()), ("h", pa.int16()),
        ("x", pa.float64()), ("z", pa.float64()), ("f", pa.float32()),
        ("s", pa.string()), ("u", pa.string()), ("b", pa.bool_()), ("c", pa.bool_()),
        ("d", pa.date32()), ("e", pa.date32()),
        ("t", pa.timestamp("us", tz="UTC")), ("n", pa.timestamp("us")),
        ("a", pa.list_(pa.int32())), ("w", pa.list_(pa.string())),
        ("p", pa.decimal128(10, 2)), ("q", pa.decimal128(8, 3)),
        ("r", pa.struct([("k", pa.int32()), ("v", pa.string())])),
    ]
)  # fmt: skip

# Letters whose case mappings Python and Java know alike, with the awkward ones among them.
TEXT = st.text(st.sampled_from("abcXYZ 019_-,.;'\"\\%\n\tßİıÉéΣσςK日😀"), max_size=12)
DOUBLES = st.one_of(
    st.sampled_from(
        [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 1e15, -1e300, math.inf, -math.inf, math.nan]
    ),
    st.integers(-10_000, 10_000).map(lambda n: n / 8),
    st.floats(allow_nan=True, allow_infinity=True),
)


def integers(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.one_of(st.integers(-20, 20), st.sampled_from([low, high, 0]), st.integers(low, high))


_DATES = st.dates(datetime.date(1900, 1, 1), datetime.date(2199, 12, 31))
_TIMES = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2199, 12, 31))
_DECIMALS = {
    k: st.decimals(-99999, 99999, allow_nan=False, places=p) for k, p in (("p", 2), ("q", 3))
}
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "i": integers(32), "j": integers(32), "l": integers(64), "m": integers(64),
    "y": integers(8), "h": integers(16),
    "x": DOUBLES, "z": DOUBLES, "f": st.floats(width=32),
    "s": TEXT, "u": TEXT, "b": st.booleans(), "c": st.booleans(),
    "d": _DATES, "e": _DATES, "t": _TIMES, "n": _TIMES,
    "a": st.lists(st.none() | st.integers(-3, 3), max_size=4),
    "w": st.lists(st.none() | TEXT, max_size=3),
    **_DECIMALS,
    "r": st.fixed_dictionaries({"k": st.none() | st.integers(-5, 5), "v": st.none() | TEXT}),
}  # fmt: skip

PARTS = ("year", "month", "day", "quarter", "dayofweek", "weekday", "dayofyear", "weekofyear")
SMALL = st.integers(-3, 12)


def call(name: str, *args: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*args).map(lambda a: f"{name}({', '.join(a)})")


def infix(left: Any, signs: list[str], right: Any) -> st.SearchStrategy[str]:
    return st.tuples(left, st.sampled_from(signs), right).map(lambda a: f"({a[0]} {a[1]} {a[2]})")


def quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return "'" + escaped.replace("\t", "\\t") + "'"


WORD = TEXT.map(quote)
PATTERN = st.sampled_from(
    ["a", "[a-c]+", "^a", "x$", "\\\\d+", "(a)(b)?", "a|b", ".", "\\\\s", "[^a-z]", "é+", "\\\\W+",
     "(?i)x", "b*", "a{2,3}", ","]
).map(lambda p: f"'{p}'")  # fmt: skip


YEAR = st.sampled_from(
    ["2020", "1969", "0001", "10000", "+12020", "-0044", "294246", "20", "２０２０"]
)
PLACE = st.sampled_from(["1", "02", "12", "13", "28", "30", "-1", "x"])
CLOCK = st.sampled_from(
    ["", " ", "T", " 10", " 10:0", "T10:00:00", " 23:59:59.", " 1:2:3.1234567", " 24:00:00"]
)
OFFSET = st.sampled_from(
    ["", "Z", "+1", "+01:5", "-0130", "+01:30:15", "+18:01", " UTC", " PST", " BST", " EST",
     " GMT+1", " Europe/Paris", " europe/paris", " America/New_York", " x"]
)  # fmt: skip
MOMENT = st.one_of(
    st.tuples(YEAR, PLACE, PLACE, CLOCK, OFFSET).map(lambda p: f"{p[0]}-{p[1]}-{p[2]}{p[3]}{p[4]}"),
    st.tuples(YEAR, CLOCK).map("".join),
    st.sampled_from(["epoch", " EPOCH ", "epoch UTC", "epoch x", "epochs", "2020-01"]),
)
"""Text that is nearly a date or a time; none without a date, which Spark takes from the clock."""


def expressions(depth: int) -> dict[str, st.SearchStrategy[str]]:
    """SQL text of each type, nested to a depth."""
    leaf = {
        "int": st.sampled_from(["i", "j", "y", "h", "0", "1", "7", "-3", "size(a)", "r.k"]),
        "long": st.sampled_from(
            ["l", "m", "3000000000", "cast(5 as bigint)", "-9223372036854775808"]
        ),
        "double": st.sampled_from(["x", "z", "f", "0.5", "-2.0", "1e3"]),
        "string": st.one_of(st.sampled_from(["s", "u", "r.v"]), WORD),
        "bool": st.sampled_from(["b", "c", "true", "false"]),
        "date": st.sampled_from(["d", "e", "date '2020-02-29'"]),
        "time": st.sampled_from(["t", "timestamp '2020-02-29 23:59:59.5'"]),
        "list": st.sampled_from(["a", "array(i, j)", "array(1, 2, null)"]),
        "decimal": st.sampled_from(["p", "q"]),
    }
    if depth == 0:
        return leaf
    e = expressions(depth - 1)
    number = st.one_of(e["int"], e["long"], e["double"])
    whole = st.one_of(e["int"], e["long"])
    any_type = st.sampled_from(["int", "long", "double", "string", "bool", "date", "time"])
    comparable = any_type.flatmap(
        lambda k: infix(e[k], ["=", "<>", "<", "<=", ">", ">=", "<=>"], e[k])
    )
    return {
        "int": st.one_of(
            leaf["int"],
            infix(e["int"], ["+", "-", "*", "%"], e["int"]),
            e["int"].map(lambda v: f"(-{v})" if not v.startswith("-") else v),
            call("abs", e["int"]),
            call("length", e["string"]),
            call("coalesce", e["int"], e["int"]),
            call("if", e["bool"], e["int"], e["int"]),
            call("greatest", e["int"], e["int"], e["int"]),
            call("least", e["int"], e["int"]),
            call("nullif", e["int"], e["int"]),
            st.tuples(st.sampled_from(PARTS), st.one_of(e["date"], e["time"])).map(
                lambda a: f"{a[0]}({a[1]})"
            ),
            st.tuples(st.sampled_from(["hour", "minute", "second"]), e["time"]).map(
                lambda a: f"{a[0]}({a[1]})"
            ),
            call("datediff", e["date"], e["date"]),
            call(
                "hash", st.sampled_from(["i", "l", "x", "s", "b", "d", "t", "y", "f"]), e["string"]
            ),
            call("get", e["list"], st.integers(-1, 4).map(str)),
            call("element_at", e["list"], st.sampled_from(["1", "-1", "2"])),
            st.integers(0, 2).map(lambda index: f"a[{index}]"),
            e["string"].map(lambda v: f"try_cast({v} as int)"),
            e["long"].map(lambda v: f"cast({v} as int)"),
            e["double"].map(lambda v: f"try_cast({v} as smallint)"),
            st.tuples(e["bool"], e["int"], e["int"]).map(
                lambda a: f"case when {a[0]} then {a[1]} else {a[2]} end"
            ),
            call("instr", e["string"], WORD),
        ),
        "long": st.one_of(
            leaf["long"],
            infix(e["long"], ["+", "-", "*", "%"], whole),
            infix(whole, ["div"], whole),
            call("ceil", e["double"]),
            call("floor", e["double"]),
            call("unix_micros", e["time"]),
            call("unix_seconds", e["time"]),
            call("xxhash64", e["string"], st.sampled_from(["i", "l", "x", "b", "d", "t", "h"])),
            call("crc32", e["string"]),
            e["double"].map(lambda v: f"cast({v} as bigint)"),
            e["time"].map(lambda v: f"cast({v} as bigint)"),
        ),
        "double": st.one_of(
            leaf["double"],
            infix(number, ["/"], number),
            infix(e["double"], ["+", "-", "*", "%"], number),
            call("abs", e["double"]),
            call("sqrt", number),
            call("round", e["double"], st.integers(-2, 3).map(str)),
            call("sign", number),
            call("ln", number),
            call("nanvl", e["double"], e["double"]),
            call("greatest", e["double"], e["double"]),
            call("least", e["double"], e["double"]),
            call("coalesce", e["double"], e["double"]),
            whole.map(lambda v: f"cast({v} as double)"),
            e["string"].map(lambda v: f"try_cast({v} as double)"),
            e["decimal"].map(lambda v: f"cast({v} as double)"),
        ),
        "string": st.one_of(
            leaf["string"],
            call("lower", e["string"]),
            call("upper", e["string"]),
            call("trim", e["string"]),
            call("ltrim", e["string"]),
            call("concat", e["string"], e["string"]),
            infix(e["string"], ["||"], e["string"]),
            call("concat_ws", WORD, e["string"], e["string"]),
            call("substring", e["string"], SMALL.map(str), SMALL.map(str)),
            call("substring", e["string"], SMALL.map(str)),
            call("replace", e["string"], WORD, WORD),
            call("reverse", e["string"]),
            call("repeat", e["string"], st.integers(-1, 3).map(str)),
            call("lpad", e["string"], SMALL.map(str), WORD),
            call("rpad", e["string"], SMALL.map(str), WORD),
            call("left", e["string"], SMALL.map(str)),
            call("regexp_extract", e["string"], PATTERN, st.just("0")),
            call("regexp_replace", e["string"], PATTERN, st.sampled_from(["'-'", "''", "'<>'"])),
            call("coalesce", e["string"], e["string"]),
            call("md5", e["string"]),
            call("sha2", e["string"], st.just("256")),
            whole.map(lambda v: f"cast({v} as string)"),
            e["bool"].map(lambda v: f"cast({v} as string)"),
            e["date"].map(lambda v: f"cast({v} as string)"),
            e["time"].map(lambda v: f"cast({v} as string)"),
            e["decimal"].map(lambda v: f"cast({v} as string)"),
            call("date_format", e["time"], st.sampled_from(["'yyyy-MM'", "'HH:mm:ss'"])),
        ),
        "bool": st.one_of(
            leaf["bool"],
            comparable,
            infix(number, ["=", "<", ">="], number),
            infix(e["decimal"], ["=", "<", ">="], e["decimal"]),
            infix(e["bool"], ["and", "or"], e["bool"]),
            e["bool"].map(lambda v: f"(not {v})"),
            any_type.flatmap(lambda k: e[k]).map(lambda v: f"({v} is null)"),
            any_type.flatmap(lambda k: e[k]).map(lambda v: f"({v} is not null)"),
            st.tuples(number, number, number).map(lambda a: f"({a[0]} between {a[1]} and {a[2]})"),
            st.tuples(e["int"], e["int"]).map(lambda a: f"({a[0]} in (1, {a[1]}, null))"),
            st.tuples(e["string"], WORD).map(lambda a: f"({a[0]} in ('a', {a[1]}))"),
            st.tuples(e["string"], PATTERN).map(lambda a: f"({a[0]} rlike {a[1]})"),
            st.tuples(e["string"], st.sampled_from(["a%", "%b", "_", "%", "%c%", "a_b%"])).map(
                lambda a: f"({a[0]} like '{a[1]}')"
            ),
            call("contains", e["string"], WORD),
            call("startswith", e["string"], WORD),
            call("endswith", e["string"], WORD),
            call("isnan", number),
            call("array_contains", e["list"], e["int"]),
            e["string"].map(lambda v: f"try_cast({v} as boolean)"),
        ),
        "date": st.one_of(
            leaf["date"],
            call("date_add", e["date"], st.integers(-400, 400).map(str)),
            call("date_sub", e["date"], SMALL.map(str)),
            call("add_months", e["date"], st.integers(-30, 30).map(str)),
            call("last_day", e["date"]),
            call("trunc", e["date"], st.sampled_from(["'year'", "'month'", "'week'", "'quarter'"])),
            e["time"].map(lambda v: f"cast({v} as date)"),
            e["date"].map(lambda v: f"({v} + interval '3' day)"),
            call("coalesce", e["date"], e["date"]),
        ),
        "time": st.one_of(
            leaf["time"],
            call(
                "date_trunc",
                st.sampled_from(["'hour'", "'day'", "'week'", "'month'", "'year'", "'minute'"]),
                e["time"],
            ),
            st.tuples(e["time"], st.sampled_from(["+", "-"]), SMALL).map(
                lambda a: f"({a[0]} {a[1]} interval '{a[2]}' second)"
            ),
            e["date"].map(lambda v: f"cast({v} as timestamp)"),
            call("greatest", e["time"], e["time"]),
        ),
        "list": st.one_of(
            leaf["list"],
            call("array_distinct", e["list"]),
            call("array", e["int"], e["int"]),
        ),
        "decimal": st.one_of(
            leaf["decimal"],
            infix(leaf["decimal"], ["+", "-", "*"], leaf["decimal"]),
            e["int"].map(lambda v: f"cast({v} as decimal(12, 1))"),
            call("coalesce", e["decimal"], e["decimal"]),
        ),
    }


BY_TYPE = expressions(2)
EXPRESSION = st.sampled_from(sorted(BY_TYPE)).flatmap(lambda kind: BY_TYPE[kind])


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    size = draw(st.integers(0, 5))
    columns = [
        draw(st.lists(st.none() | COLUMNS[f.name], min_size=size, max_size=size)) for f in SCHEMA
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def ours(text: str, table: pa.Table, zone: str) -> tuple[pa.DataType, list[Any]]:
    kernel = compile_expression(parse(text), SCHEMA, zone)
    batch = table.combine_chunks().to_batches()
    values = evaluate(kernel, batch[0]).to_pylist() if batch else []
    return kernel.type, values


def sparks(session: Any, text: str, table: pa.Table) -> tuple[Any, list[Any]]:
    frame = session.createDataFrame(table, schema=spark_schema(SCHEMA))
    result = frame.select(F.expr(to_sql(parse(text))).alias("v"))
    return result.schema, result.toArrow()["v"].to_pylist()


def close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-300)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    return bool(a == b)


def agree(session: Any, text: str, table: pa.Table, zone: str = "UTC") -> None:
    session.conf.set("spark.sql.session.timeZone", zone)
    try:
        schema, expected = sparks(session, text, table)
        refused = None
    except PySparkException as error:
        refused = error
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")
    if refused is not None:
        try:
            ours(text, table, zone)
        except (ExpressionError, PlanError, pa.ArrowInvalid):
            return
        pytest.fail(f"Spark refuses {text}: {str(refused).splitlines()[0]}")
    kind, values = ours(text, table, zone)
    wanted = spark_schema(pa.schema([("v", kind)]))[0].dataType
    assert schema["v"].dataType.simpleString() in (wanted.simpleString(), "void"), text
    assert len(values) == len(expected)
    for mine, theirs in zip(values, expected, strict=True):
        assert close(mine, theirs), f"{text}: {mine!r} is not {theirs!r}"


@settings(max_examples=60)
@given(text=EXPRESSION, table=tables())
def test_kernels_agree_with_spark(session: Any, text: str, table: pa.Table) -> None:
    agree(session, text, table)


OF_TIME = st.one_of(BY_TYPE["time"], BY_TYPE["date"], BY_TYPE["int"])
ZONES = st.sampled_from(["America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Europe/Paris"])


@settings(max_examples=20)
@given(text=OF_TIME, table=tables(), zone=ZONES)
def test_wall_clock_follows_the_time_zone(
    session: Any, text: str, table: pa.Table, zone: str
) -> None:
    agree(session, text, table, zone)


@settings(max_examples=60)
@given(text=MOMENT, zone=ZONES | st.just("UTC"))
def test_text_is_read_as_the_same_moment(session: Any, text: str, zone: str) -> None:
    """Both as a constant, where some words are special, and as a column, where none is."""
    row = {f.name: None for f in SCHEMA} | {"s": text, "d": datetime.date(2020, 1, 1)}
    table = pa.Table.from_pylist([row], schema=SCHEMA)
    for value in ("s", quote(text)):
        agree(session, f"datediff(try_cast({value} as date), d)", table, zone)
        agree(session, f"unix_micros(try_cast({value} as timestamp))", table, zone)
        local = f"cast(try_cast({value} as timestamp_ntz) as timestamp)"
        agree(session, f"unix_micros({local})", table, zone)


def test_summer_time_goes_on_after_2037(session: Any) -> None:
    at = datetime.datetime(2106, 8, 22, 12)
    row = {f.name: None for f in SCHEMA} | {"d": at.date(), "t": at, "n": at}
    table = pa.Table.from_pylist([row], schema=SCHEMA)
    for text in ("hour(t)", "cast(d as timestamp)", "date_trunc('day', t)", "cast(t as string)"):
        agree(session, text, table, "Europe/Paris")
