"""An expression gives the same in a Python stage and as a Spark column, or both refuse it.

Before a sort our kernels compute an expression; after it, on Spark, Spark SQL does.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import Any

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import HeadraceError
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.trees import parse
from headrace.types import normal_type
from tests.expressions.test_against_spark import EXPRESSION, close
from tests.fuzz.budget import named, seeds
from tests.fuzz.grammar import KINDS, SCHEMA, expression
from tests.fuzz.values import maybe

AT_ONCE = 12
"""How many expressions are tried in one job, and one by one where that is refused."""
_POSITION = "row"


def _drawn(seed: int, count: int) -> list[str]:
    """Expressions of the generator that the property tests use."""
    texts: list[str] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, phases=[hypothesis.Phase.generate], database=None, deadline=None
    )
    @hypothesis.given(st.lists(EXPRESSION, min_size=1, max_size=3))
    def draw(some: list[str]) -> None:
        texts.extend(some)

    draw()
    return texts


def random_table(rng: random.Random) -> pa.Table:
    rows = rng.choice([0, 1, 2, 4])
    columns = {f.name: [maybe(rng, f.type) for _ in range(rows)] for f in SCHEMA}
    return pa.table({_POSITION: list(range(rows)), **columns}, _with_position())


def _with_position() -> pa.Schema:
    return pa.schema([(_POSITION, pa.int64()), *SCHEMA])


@dataclass(frozen=True)
class Answer:
    """What some expressions give: their types and values, or why they are refused."""

    types: tuple[str, ...] = ()
    columns: tuple[tuple[Any, ...], ...] = ()
    refused: str | None = None


def of_kernel(table: pa.Table, text: str) -> Answer:
    """What our kernel gives."""
    batch = table.combine_chunks().to_batches()[0] if table.num_rows else _EMPTY
    try:
        kernel = compile_expression(parse(text), batch.schema, "UTC")
        array = evaluate(kernel, batch)
    except HeadraceError as error:
        return Answer(refused=str(error)[:300])
    except pa.ArrowInvalid as error:  # the step tells it, with the record that it failed on
        if not table.num_rows:
            raise AssertionError(f"{text} refuses no records: {error}") from error
        return Answer(refused=str(error)[:300])
    except Exception as error:
        raise AssertionError(f"{text}: {type(error).__name__}: {error}") from error
    kind = normal_type(kernel.type)  # a column of nothing but nulls is text
    return Answer((str(kind),), (_values(text, array),))


def of_stream(table: pa.Table, texts: list[str], engine: Any, after_sort: bool) -> Answer:
    """What a pipeline gives: of kernels, or after a sort on Spark, of Spark's columns."""
    stream = hr.from_arrow(table)
    stream = stream.sort(_POSITION) if after_sort else stream
    try:
        stream = stream.select(**{f"v{i}": text for i, text in enumerate(texts)})
        result = stream.collect(on=engine)
    except HeadraceError as error:
        return Answer(refused=" ".join(str(error).split())[:300])
    columns = [_values(t, c) for t, c in zip(texts, result.columns, strict=True)]
    return Answer(tuple(str(t) for t in result.schema.types), tuple(columns))


_EMPTY = pa.RecordBatch.from_pylist([], schema=_with_position())


def _values(text: str, column: Any) -> tuple[Any, ...]:
    """Values as Python's, times as numbers: Python has no year 10000."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    try:
        return tuple(column.to_pylist())
    except UnicodeDecodeError:
        raise AssertionError(f"{text} gives text that is not UTF-8") from None


def check(rng: random.Random, seed: int, spark: Any) -> None:
    table = random_table(rng)
    texts = [expression(rng, rng.choice(KINDS), rng.choice([1, 1, 2])) for _ in range(AT_ONCE)]
    if rng.random() < 0.3:
        texts = _drawn(seed, AT_ONCE)[:AT_ONCE]
    known = [t for t in texts if of_kernel(table.slice(0, 0), t).refused is None]
    answers = {t: of_kernel(table, t) for t in known}
    good = [t for t in answers if answers[t].refused is None]
    bad = [t for t in answers if answers[t].refused is not None]
    for text in rng.sample(bad, min(1, len(bad))):  # a job each, so not all of them
        theirs = of_stream(table, [text], spark, True)
        why = answers[text].refused
        assert theirs.refused, f"the kernel refuses {text}: {why}; Spark gives {theirs.columns}"
    _agree(table, good, answers, spark)
    if good and rng.random() < 0.1:
        ours, stage = answers[good[0]], of_stream(table, [good[0]], spark, False)
        _compare(good[0], table, ours, stage, 0)


def _agree(table: pa.Table, texts: list[str], ours: dict[str, Answer], spark: Any) -> None:
    """Compare expressions that kernels take; halved until what Spark refuses stands alone."""
    if not texts:
        return
    theirs = of_stream(table, texts, spark, True)
    if theirs.refused is None:
        for i, text in enumerate(texts):
            _compare(text, table, ours[text], theirs, i)
        return
    if not table.num_rows and "SQLSTATE: 22" in theirs.refused:
        return  # Spark computes constants even for no record, and a value may be out of range
    assert len(texts) > 1, (
        f"Spark refuses {texts[0]}: {theirs.refused}; the kernel gives {ours[texts[0]].columns} "
        f"for {_used(texts[0], table, None)}"
    )
    for half in (texts[: len(texts) // 2], texts[len(texts) // 2 :]):
        _agree(table, half, ours, spark)


def _compare(text: str, table: pa.Table, ours: Answer, theirs: Answer, at: int) -> None:
    kinds = f"{ours.types[0]} of the kernel, {theirs.types[at]} of Spark"
    assert ours.types[0] == theirs.types[at], f"{text}: {kinds}"
    for row, (a, b) in enumerate(zip(ours.columns[0], theirs.columns[at], strict=True)):
        shown = f"{text}: the kernel gives {a!r}, Spark {b!r} for {_used(text, table, row)}"
        assert close(a, b), shown
        assert _zeros(a) == _zeros(b), shown


def _zeros(value: Any) -> list[float]:
    """The signs of the zeros in a value, which equality does not see."""
    parts = value if isinstance(value, list) else [value]
    return [math.copysign(1, v) for v in parts if isinstance(v, float) and v == 0]


def _used(text: str, table: pa.Table, row: int | None) -> dict[str, Any]:
    """The values of the columns that an expression names."""
    names = [n for n in SCHEMA.names if re.search(rf"\b{n}\b", text)]
    return {n: table[n].to_pylist() if row is None else table[n][row].as_py() for n in names}


@pytest.mark.slow
def test_kernels_and_spark_columns_agree(spark_engine: hr.Spark) -> None:
    for seed in seeds(12.0):
        with named(seed):
            check(random.Random(seed), seed, spark_engine)
