"""Compiled functions give what the interpreter gives: values, nulls, errors, and their records."""

from __future__ import annotations

import datetime
import itertools
import linecache
import math
import random
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import event

import headrace as hr
from headrace.kernels.row_steps import RowStep, why_not_native
from headrace.plan.rows import MapRows
from headrace.plan.sources import Read
from headrace.types import TIMESTAMP
from tests.conftest import for_any

SCHEMA = pa.schema(
    {
        "a": pa.int64(), "b": pa.int64(), "small": pa.int8(), "x": pa.float64(), "y": pa.float64(),
        "single": pa.float32(), "p": pa.bool_(), "q": pa.bool_(), "s": pa.string(),
        "t": pa.string(), "at": TIMESTAMP, "until": TIMESTAMP,
    }
)  # fmt: skip
_numbers = itertools.count()


def function(text: str, **known: Any) -> Any:
    """A function of a text, as if it stood in a file; it is the last that the text defines."""
    name = f"<generated {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"math": math, "datetime": datetime, **known}
    exec(compile(text, name, "exec", dont_inherit=True), space)
    return space["f"]


def step_of(f: Any, gives: Any, method: str = "map", schema: pa.Schema = SCHEMA) -> MapRows:
    after = schema if method == "filter" else hr.types.to_schema(gives)
    return MapRows(after, 2, Read(schema, 1, None), f, method)  # type: ignore[arg-type]


def native(step: MapRows, schema: pa.Schema = SCHEMA) -> RowStep:
    run = RowStep(step, schema)
    run._enough = 0
    return run


def interpreted(step: MapRows, schema: pa.Schema = SCHEMA) -> RowStep:
    run = RowStep(step, schema)
    run.unfit = True
    return run


def outcome(run: RowStep, batch: pa.RecordBatch) -> str:
    """What came of a bundle, to the last bit, or the error."""
    try:
        result = run(batch)
    except hr.StepError as error:
        return str(error)
    result.validate(full=True)
    return repr(result.to_pylist())


WHOLE = [0, 1, -1, 2, 3, -7, 10, 2**63 - 1, -(2**63), 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**31]
REAL = [0.0, -0.0, 0.5, 1.5, 2.5, -2.5, 2.675, 0.125, -0.001, 99.995, math.nan, math.inf, -math.inf,
        5e-324, 1e308, -1e308, 2.0**53, 2.0**63, -(2.0**63), 1.0, -3.7]  # fmt: skip
TEXT = ["", "a", "ab", "abc", "B", " b ", "ä", "ß x", "a,b", "\x1cz\t", "\u2003q", "𝄞", "Z", "a\0b"]
TIME = [
    datetime.datetime(*each, tzinfo=datetime.UTC)
    for each in ((1970, 1, 1), (1, 1, 1), (9999, 12, 31, 23, 59, 59, 999999), (2024, 2, 29, 13, 7),
                 (1969, 12, 31, 23, 59, 59, 1), (2000, 3, 1), (1900, 2, 28, 5), (2023, 12, 31))
]  # fmt: skip
POOLS = [WHOLE, WHOLE, [0, 1, -128, 127, 3], REAL, REAL, [0.0, 1.5, math.nan, 3.4e38, -0.5],
         [True, False], [True, False], TEXT, TEXT, TIME, TIME]  # fmt: skip
OPTIONAL = ("a", "small", "x", "p", "s", "at")


def rows_of(seed: int, count: int = 30) -> list[tuple[Any, ...]]:
    """Records of the values at which Python's arithmetic and 64 bits part, and of others."""
    chance = random.Random(seed)

    def value(name: str, pool: list[Any]) -> Any:
        if name in OPTIONAL and chance.random() < 0.15:
            return None
        if chance.random() < 0.3 and pool in (WHOLE, REAL):
            return chance.randint(-100, 100) if pool is WHOLE else chance.uniform(-50, 50)
        return chance.choice(pool)

    named = list(zip(SCHEMA.names, POOLS, strict=True))
    return [tuple(value(*each) for each in named) for _ in range(count)]


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in SCHEMA]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


# Random functions: in a template {i} is an int, {f} a float, {c} a condition, {t} text, {m} a time.

GRAMMAR = {
    "i": ["r.a", "r.b", "r.small", "r[0]", "3", "-2", "0", "({i} + {i})", "({i} - {i})",
          "({i} * {i})", "({i} // {i})", "({i} % {i})", "({i} & {i})", "({i} | {i})", "({i} ^ {i})",
          "({c} + {c})", "({c} * {i})", "({i} << 3)", "({i} << 62)", "({i} >> 2)", "({i} >> 70)",
          "({i} ** 2)", "({i} ** 3)", "({i} ** 0)", "(-{i})", "(~{i})", "({i} if {c} else {i})",
          "abs({i})", "min({i}, {i})", "max({i}, {i}, {i})", "int({f})", "round({f})",
          "math.floor({f})", "math.ceil({f})", "int({c})", "len({t})", "{m}.day", "{m}.weekday()",
          "({m}.year + {m}.month * {m}.hour - {m}.microsecond)", "({m} - {m}).days", "(+{c})",
          "({i} or {i})", "({m} - {m}).seconds", "(-{c})", "pow({i}, 2)"],
    "f": ["r.x", "r.y", "r.single", "0.5", "-1.5", "1e300", "({f} + {f})", "({f} - {f})",
          "({f} * {f})", "({f} / {f})", "({f} // {f})", "({f} % {f})", "({i} / {i})", "({f} + {i})",
          "({i} % {f})", "({f} ** {f})", "({f} ** 2)", "({i} ** -1)", "({i} ** 0.5)", "(-{f})",
          "({f} if {c} else {f})", "({i} if {c} else {f})", "(({i} if {c} else {f}) * {i})",
          "(({i} if {c} else {f}) // 2)", "abs({f})", "min({f}, {f})", "max({i}, {f})",
          "float({i})", "round({f}, 2)", "round({f}, 0)", "round({f}, 5)", "math.sqrt({f})",
          "math.exp({f})", "math.log({f})", "math.log({i}, 2)", "math.sin({f})", "math.cos({i})",
          "math.tanh({f})", "math.log1p({f})", "math.atan2({f}, {f})", "math.pow({f}, {f})",
          "math.fmod({f}, {f})", "({m} - {m}).total_seconds()", "({m} - {m}) / ({m} - {m})",
          "{m}.timestamp()", "({f} and {f})", "-({i} if {c} else {f})", "math.copysign({f}, {f})"],
    "c": ["r.p", "r.q", "r['q']", "True", "({i} < {i})", "({i} >= {i})", "({i} == {i})",
          "({i} != {i})", "({f} < {f})", "({f} <= {i})", "({f} == {i})", "({f} != {f})",
          "({c} == {i})", "({t} < {t})", "({t} == {t})", "({t} in {t})", "({t} not in {t})",
          "({m} < {m})", "({m} == {m})", "({c} and {c})", "({c} or {c})", "({c} & {c})",
          "({c} ^ {c})", "(r.a is not None)", "(r.x is None)", "(r.s is None)", "(r.p is None)",
          "(r.a == None)", "(not {c})", "(not {f})", "(0 < {i} < 5)", "({i} in (1, 2, 3, None))",
          "({t} in ('a', 'ä', ''))", "{t}.startswith('a')", "{t}.endswith(('b', 'ä'))",
          "math.isnan({f})", "math.isinf({f})", "bool({t})", "bool({i})", "({f} in (0, 0.5))"],
    "t": ["r.s", "r.t", "'a'", "'b'", "''", "'ä'", "r.s.lower()", "r.t.upper()", "r.s.strip()",
          "r.t.lstrip()", "r.t.rstrip()", "r.t[0]", "r.s[1:]", "r.t[:-1]", "r.t[-2:5]",
          "({t} + {t})", "f'{{r.a}}-{{r.t}}'", "str(r.small)", "({t} if {c} else {t})",
          "({t} or {t})"],
    "m": ["r.at", "r.until", "(r.at + (r.until - r.at))", "({m} if {c} else {m})"],
}  # fmt: skip
GIVES = [("bigint", "i"), ("double", "f"), ("boolean", "c"), ("string", "t"), ("int", "i"),
         ("float", "f"), ("timestamp", "m"), ("tinyint", "i"), ("double", "i"), ("bigint", "f"),
         ("double", "c")]  # fmt: skip


class Writer:
    """Writes expressions of a kind, not too deep."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.left = draw, 14

    def __call__(self, kind: str) -> str:
        options = GRAMMAR[kind]
        if self.left <= 0:
            options = [each for each in options if not re.search(r"\{[ifctm]\}", each)]
        template = options[self.draw(st.integers(0, len(options) - 1))]
        parts = re.split(r"(?<!\{)\{([ifctm])\}", template)
        self.left -= len(parts) // 2
        parts[1::2] = [self(each) for each in parts[1::2]]
        return "".join(parts).replace("{{", "{").replace("}}", "}")


@st.composite
def expressions(draw: Any, kind: str) -> str:
    return Writer(draw)(kind)


SHAPES = """
f = lambda r: {one}

|f = lambda r: {one} if {condition} else None

|def f(r):
    if {condition}:
        return {one}
    return {two}

|def g(v, r, k=2):
    if r.q:
        v = {two}
    return v

def f(r):
    return g({one}, r)

|def g(r):
    return {one} if {condition} else {two}

def f(r):
    v = g(r)
    return v

|def f(r):
    v = None
    n = 0
    for i in range(-2, r.b % 5):
        if {condition}:
            v = {one}
            continue
        n += i * r.small
        if n > 3:
            break
    return {two} if v is None else v

|def f(r):
    v = {one}
    w, v = v, {two}
    return v or w

|def f(r):
    if {condition}:
        v = {one}
    return v

|def f(r):
    n = 0
    while n < 3 and {condition}:
        n += 1
        if n == 2:
            return {two}
    return {one}
"""


@st.composite
def functions(draw: Any) -> tuple[str, str]:
    """The text of a function, and the type of what it gives."""
    gives, kind = draw(st.sampled_from(GIVES))
    shape = draw(st.sampled_from(SHAPES.split("|")))
    writer = Writer(draw)
    parts = {"one": writer(kind), "condition": writer("c"), "two": writer(kind)}
    return shape.format(**parts), gives


@for_any(50, 2000, made=functions(), seed=st.integers(0, 10**6))
def test_a_compiled_function_gives_what_the_interpreter_gives(made, seed):
    text, kind = made
    step = step_of(function(text), {"value": kind})
    why = why_not_native(step, SCHEMA)
    event("compiled" if why is None else why)
    assert "LLVM" not in str(why), text
    rows = rows_of(seed)
    fast, slow = native(step), interpreted(step)
    one_by_one = [batch_of([row]) for row in rows]
    wanted = [outcome(slow, each) for each in one_by_one]
    assert [outcome(fast, each) for each in one_by_one] == wanted, text
    well = [row for row, result in zip(rows, wanted, strict=True) if result.startswith("[")]
    for some in (batch_of(rows), batch_of([]), batch_of(well)):
        assert outcome(fast, some) == outcome(slow, some), text
    sliced = batch_of([*well[:1], *well, *well[:3]]).slice(1, len(well))
    assert outcome(fast, sliced) == outcome(slow, sliced), text


@for_any(15, 500, text=st.sampled_from("ifct").flatmap(expressions), seed=st.integers(0, 10**6))
def test_a_compiled_filter_keeps_what_the_interpreter_keeps(text, seed):
    step = step_of(function(f"f = lambda r: {text}\n"), None, "filter")
    for batch in (batch_of(rows_of(seed)), batch_of(rows_of(seed, 1))):
        assert outcome(native(step), batch) == outcome(interpreted(step), batch)


FLAT = """
def f(r):
    yield {one}, {two}
    for i in range(r.b % 4):
        if {condition}:
            return
        yield {one}, {two}

|def f(r):
    out = []
    if {condition}:
        return [({one}, {two})]
    for i in (1, 2, r.b):
        out.append(({two}, {one}) if i == r.small else ({one}, {one}))
    return out

|f = lambda r: [({one}, i) for i in range(3) if {condition}]

|f = lambda r: ({{"one": {one}}}, {{"two": {two}}}) if {condition} else []
"""


@for_any(
    20, 500, text=st.sampled_from(FLAT.split("|")), one=expressions("i"), two=expressions("i"),
    condition=expressions("c"), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_a_compiled_flat_map_gives_the_same_records_in_order(text, one, two, condition, seed):
    f = function(text.format(one=one, two=two, condition=condition))
    step = step_of(f, {"one": "bigint", "two": "bigint"}, "flat_map")
    for count in (1, 7, 30):
        batch = batch_of(rows_of(seed, count))
        assert outcome(native(step), batch) == outcome(interpreted(step), batch)


NUMERIC = ["round(r.x, 2)", "round(r.x, 1)", "round(r.x, 3)", "round(r.x)", "r.x ** 3",
           "r.x ** -2", "abs(r.x) ** (r.y / 10**6)", "r.x // r.y", "r.x % r.y",
           "math.exp(r.x / 10**5)", "math.log(abs(r.x) + 0.1)", "math.sin(r.x)",
           "math.log(r.b, 3)", "r.a / r.b", "r.a // r.b", "r.a % -r.b",
           "math.fmod(r.x, r.y)", "math.atan2(r.x, r.y)"]  # fmt: skip


@pytest.mark.parametrize("text", NUMERIC)
def test_numbers_are_the_same_to_the_last_bit(text):
    chance = random.Random(text)
    whole = [chance.randint(-(10**6), 10**6) for _ in range(3000)]
    halves = [(n + 0.5) / 10 ** (n % 4) for n in whole]
    steps = [math.nextafter(x, math.inf if x % 2 else -math.inf) for x in halves]
    x = [*halves, *steps, *(chance.uniform(-1000, 1000) for _ in whole)]
    schema = pa.schema({n: SCHEMA.field(n).type for n in ("a", "b", "x", "y")})
    columns = [whole * 3, [n // 7 + 2 * 10**6 for n in whole * 3], x, x[5:] + x[:5]]
    batch = pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=schema)
    kind = "bigint" if text in ("round(r.x)", "r.a // r.b", "r.a % -r.b") else "double"
    step = step_of(function(f"f = lambda r: {text}\n"), {"value": kind}, schema=schema)
    fast = native(step, schema)
    assert fast._native(batch).run(batch).left.size == 0
    assert outcome(fast, batch) == outcome(interpreted(step, schema), batch)


class Pair(NamedTuple):
    a: int
    b: float = 0.5


@dataclass(frozen=True)
class Frozen:
    a: int
    b: float = 0.5


@dataclass
class Changed:
    a: int
    b: float = 0.5

    def __post_init__(self) -> None:
        self.a += 1


class Made(NamedTuple("Made", [("a", int), ("b", float)])):
    def __new__(cls, a: int, b: float) -> Any:
        return super().__new__(cls, a + 1, b)


@pytest.mark.parametrize(
    ("text", "compiled"),
    [
        ("Pair(r.b)", True),
        ("Pair(b=r.y, a=3)", True),
        ("Frozen(r.b, b=2.0)", True),
        ("dict(b=r.y)", True),
        ("{'a': r.b, 'b': r.y}", True),
        ("(r.b, r.y)", True),
        ("Changed(r.b)", False),
        ("Made(r.b, r.y)", False),
        ("{'c': r.b}", False),
        ("(r.b,)", False),
        ("r.b", False),
    ],
)
def test_records_are_made_as_python_makes_them(text, compiled):
    known = {"Pair": Pair, "Frozen": Frozen, "Changed": Changed, "Made": Made}
    f = function(f"f = lambda r: {text}\n", **known)
    step = step_of(f, {"a": "bigint", "b": "double"})
    batch = batch_of(rows_of(1))
    assert (why_not_native(step, SCHEMA) is None) == compiled
    assert outcome(native(step), batch) == outcome(interpreted(step), batch)
