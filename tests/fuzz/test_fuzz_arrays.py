"""Every kernel gives for any layout of its input what it gives for the plainest one."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ExpressionError, HeadraceError
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.expressions.kernel import FUNCTIONS
from headrace.trees import parse
from tests.fuzz.budget import seeds
from tests.fuzz.child import rounds_in_child
from tests.fuzz.grammar import KINDS, SCHEMA, expression, functions_named
from tests.fuzz.layouts import any_layout, fresh
from tests.fuzz.values import maybe

EXPRESSIONS = 30
"""How many expressions are tried on the same arrays."""


def test_every_function_has_a_place_in_the_grammar() -> None:
    assert set(FUNCTIONS) <= functions_named()


def check_layouts(rng: random.Random, folder: str) -> None:
    rows = rng.choice([0, 1, 2, 9, 40, 150])
    nulls = rng.choice([0.0, 0.1, 0.5, 1.0])
    columns = {
        f.name: [None if rng.random() < nulls else maybe(rng, f.type) for _ in range(rows)]
        for f in SCHEMA
    }
    plain = pa.RecordBatch.from_arrays(
        [fresh(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA
    )
    other = pa.RecordBatch.from_arrays(
        [any_layout(rng, columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA
    )
    for _ in range(EXPRESSIONS):
        text = expression(rng, rng.choice(KINDS), rng.choice([1, 1, 2, 3]))
        zone = rng.choice(["UTC", "UTC", "America/New_York", "Asia/Kolkata"])
        try:
            kernel = compile_expression(parse(text), SCHEMA, zone)
        except HeadraceError:
            continue
        except Exception as error:
            raise AssertionError(f"{text}: {type(error).__name__}: {error}") from error
        _compare(text, kernel, plain, other)
    text = expression(rng, rng.choice(KINDS), 2)
    if rng.random() < 0.2:
        _on_the_box(text, plain, other)


def _compare(text: str, kernel: Any, plain: pa.RecordBatch, other: pa.RecordBatch) -> None:
    want, refused = _answer(text, kernel, plain)
    got, too = _answer(text, kernel, other)
    assert (refused is None) == (too is None), f"{text}: {too} is not {refused}"
    if want is not None and got is not None:
        shown = f"{text} on {[c.slice(0, 3).to_pylist() for c in plain.columns]}"
        assert repr(got) == repr(want), f"{shown}:\n{got[:20]} is not\n{want[:20]}"


def _answer(text: str, kernel: Any, batch: pa.RecordBatch) -> tuple[list[Any] | None, str | None]:
    """The values of a kernel, or why it refuses them."""
    try:
        array = evaluate(kernel, batch)
    except ExpressionError as error:
        return None, str(error)
    except pa.ArrowInvalid as error:  # the step tells it, with the record that it failed on
        if not batch.num_rows:
            raise AssertionError(f"{text} refuses no records: {error}") from error
        return None, str(error)
    except Exception as error:
        raise AssertionError(f"{text} raises {type(error).__name__}: {error}") from error
    array.validate(full=True)
    assert len(array) == batch.num_rows, f"{text}: {len(array)} values of {batch.num_rows} rows"
    assert array.type.equals(kernel.type), f"{text}: {array.type} is not {kernel.type}"
    return _listed(array), None


def _listed(array: Any) -> list[Any]:
    if pa.types.is_date(array.type):
        array = array.cast(pa.int32())  # Python has no year 10000
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    values: list[Any] = array.to_pylist()
    return values


def _on_the_box(text: str, plain: pa.RecordBatch, other: pa.RecordBatch) -> None:
    answers: list[Any] = []
    for batch in (plain, other):
        try:
            stream = hr.from_arrow(batch).select(value=text)
            answers.append(_listed(stream.collect(on=hr.Box(workers=1)).column(0)))
        except HeadraceError as error:
            answers.append(type(error))
    assert repr(answers[0]) == repr(answers[1]), text


@pytest.mark.slow
def test_any_layout_gives_the_same_answer(tmp_path: Any) -> None:
    rounds_in_child(seeds(6.0), check_layouts, str(tmp_path))
