"""``reduce``, ``fold``, ``for_each``, ``count`` and the ways to collect."""

from __future__ import annotations

import pyarrow as pa
import pytest

import headrace as hr

WORDS = [f"w{n}" for n in range(5000)]
LETTERS = hr.from_items([{"k": n % 3, "s": w} for n, w in enumerate(WORDS)])


def test_reduce_joins_in_input_order(engine):
    stream = hr.from_items(WORDS)
    assert stream.reduce(lambda a, b: a + b, on=engine) == "".join(WORDS)
    assert hr.from_items(range(100)).reduce(lambda a, b: a + b, on=engine) == 4950


def test_reduce_of_nothing_is_none(engine):
    assert hr.from_items([], schema="bigint").reduce(lambda a, b: a + b, on=engine) is None


def test_reduce_of_each_key(rows):
    def longer(a, b):
        return {"k": a.k, "s": a.s + b.s}

    got = dict(rows(LETTERS.group_by("k").reduce(longer)))
    assert got == {k: "".join(WORDS[k::3]) for k in range(3)}


def test_fold_with_and_without_merge(engine):
    stream = hr.from_items(WORDS)
    assert stream.fold("", lambda s, w: s + w, on=engine) == "".join(WORDS)
    total = stream.fold(0, lambda n, w: n + len(w), merge=lambda a, b: a + b, on=engine)
    assert total == sum(map(len, WORDS))
    assert hr.from_items([], schema="string").fold(7, lambda s, w: s, on=engine) == 7


def test_fold_of_each_key(rows):
    folded = LETTERS.group_by("k").fold(
        [], lambda s, r: [*s, len(r.s)], returns="array<bigint>", name="sizes"
    )
    got = dict(rows(folded))
    assert got == {k: [len(w) for w in WORDS[k::3]] for k in range(3)}


def test_a_failing_reduction_is_told(engine):
    def bad(a, b):
        return a + 1 // (b - 3)

    with pytest.raises(hr.StepError, match=r"step 2, reduce failed on record 3: ZeroDivisionError"):
        hr.from_items([1, 2, 3]).reduce(bad, on=engine)


def test_for_each_runs_here_in_order(engine):
    seen: list[int] = []
    hr.from_items(range(3000)).filter("value % 2 = 0").for_each(seen.append, on=engine)
    assert seen == list(range(0, 3000, 2))


def test_for_each_in_parallel_runs_in_the_workers(engine, tmp_path):
    folder = str(tmp_path)
    hr.from_items(range(5)).for_each(
        lambda n: open(f"{folder}/{n}", "w").close(), parallel=True, on=engine
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == list("01234")


def test_count(engine):
    assert LETTERS.count(on=engine) == 5000
    assert LETTERS.filter("k = 9").count(on=engine) == 0


def test_ways_to_collect(engine):
    import pandas as pd
    import polars as pl

    stream = hr.from_items([{"a": 1, "b": "x"}, {"a": 2, "b": None}])
    assert stream.collect(on=engine).equals(pa.table({"a": [1, 2], "b": ["x", None]}))
    assert isinstance(stream.to_pandas(on=engine), pd.DataFrame)
    assert stream.to_polars(on=engine).equals(pl.DataFrame({"a": [1, 2], "b": ["x", None]}))
    assert [r.a for r in stream.to_list(on=engine)] == [1, 2]
    assert pa.table(stream).num_rows == 2


def test_show_prints_a_table(engine, capsys):
    hr.from_items(range(30)).show(3, on=engine)
    text = capsys.readouterr().out
    assert "bigint" in text
    assert "there are more" in text


def test_a_notebook_shows_columns_and_plan():
    html = LETTERS.filter("k > 1")._repr_html_()
    assert "<table>" in html
    assert "filter k &gt; 1" in html


def test_a_fold_may_have_any_state(engine):
    def tally(seen, n):
        return {**seen, n % 3: seen.get(n % 3, 0) + 1}

    assert hr.from_items(range(7)).fold({}, tally, on=engine) == {0: 3, 1: 2, 2: 2}
    assert hr.from_items([1, 2, 4]).reduce(lambda a, b: (a + b) / 2, on=engine) == 2.75
    assert hr.from_items([1, 2]).fold((0, 0), lambda s, n: (s[0] + n, s[1] + 1), on=engine) == (
        3,
        2,
    )


def test_keys_of_functions_leave_the_record_alone(rows):
    numbers = hr.from_items([1, 2, 3, 4])
    assert sorted(rows(numbers.group_by(lambda n: n % 2).reduce(lambda a, b: a + b))) == [
        (0, 6), (1, 4),
    ]  # fmt: skip
    folded = numbers.group_by(odd=lambda n: n % 2 == 1).fold(0, lambda s, n: s + n)
    assert sorted(rows(folded)) == [(False, 6), (True, 4)]
    both = numbers.with_columns(a=lambda n: n + 1, b=lambda n: n * 2)
    assert rows(both.limit(1)) == [(1, 2, 2)]


def test_a_state_without_a_type_must_be_told():
    with pytest.raises(hr.PlanError, match=r"step 2, fold: .*pass returns="):
        LETTERS.group_by("k").fold({}, lambda s, r: s)


def test_inspect_does_not_run_while_building():
    seen = []
    hr.from_items([1]).inspect(seen.append).map(lambda n: n + 1)
    assert seen == []


def test_show_prints_text_as_it_is(capsys):
    hr.from_items([{"m[k]": "[red]x"}, {"m[k]": "\\"}, {"m[k]": "\\[b]"}]).show(on="box")
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "m[k]"
    assert lines[3:] == ["[red]x", "\\", "\\[b]"]
