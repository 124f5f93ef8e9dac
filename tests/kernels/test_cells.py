"""Number tables that threads add to at once."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.kernels.aggregate import compile_aggregation
from headrace.kernels.cells import Adding, NumberPlan, NumberTable
from headrace.plan.groups import GroupBy

_NO_SLICES = np.zeros(0, np.int64)


def plan_for(**aggregates: Any) -> NumberPlan:
    schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
    node = hr.from_arrow(schema.empty_table()).group_by("k").agg(**aggregates).node
    assert isinstance(node, GroupBy)
    plan = NumberPlan.of(compile_aggregation(node, schema, "UTC"))
    assert plan is not None
    return plan


def bundle(plan: NumberPlan, keys: Any, values: Any) -> Any:
    columns = [pa.array(keys, pa.int64()), pa.array(values, pa.int64())]
    batch = pa.RecordBatch.from_arrays(columns, names=["k", "v"])
    return plan.rows(*plan.aggregation.evaluate(batch))


def results(table: NumberTable) -> dict[int, tuple[int, ...]]:
    batch = table.batch(finished=True)
    assert batch is not None
    rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("keys", [1, 300, 50_000])
def test_threads_that_add_at_once_lose_nothing(keys: int, crowded: bool) -> None:
    plan = plan_for(n=hr.count(), total=hr.sum("v"), low=hr.min("v"), high=hr.max("v"))
    table = NumberTable(plan, parts=8)
    seed = np.random.default_rng(keys)
    parts = [(seed.integers(0, keys, 20_011), seed.integers(-9, 9, 20_011)) for _ in range(12)]
    left: list[Adding] = []

    def add(number: int) -> None:
        for keys, values in parts[number::4]:
            rows = bundle(plan, keys, values)
            adding = Adding(rows, _NO_SLICES, 0, [table], number * 2, crowded)
            adding.go_on(patient=False)
            if not adding.is_done:
                left.append(adding)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for adding in left:
        adding.go_on(patient=True)
    all_keys, all_values = (np.concatenate(each) for each in zip(*parts, strict=True))
    found = results(table)
    counts = np.bincount(all_keys, minlength=keys)
    totals = np.bincount(all_keys, weights=all_values, minlength=keys)
    assert {k: row[:2] for k, row in found.items()} == {
        k: (int(counts[k]), int(totals[k])) for k in range(keys) if counts[k]
    }
    assert all(-9 <= low <= high < 9 for _, _, low, high in found.values())


def test_a_part_that_another_thread_holds_is_left_for_later() -> None:
    plan = plan_for(n=hr.count())
    table = NumberTable(plan, parts=8)
    rows = bundle(plan, np.arange(10_000), np.zeros(10_000))
    adding = Adding(rows, _NO_SLICES, 0, [table], 0, crowded=False)
    table.directory[3, 0] = 1  # its lock
    adding.go_on(patient=False)
    assert not adding.is_done
    assert 0 < table.groups < 10_000
    table.directory[3, 0] = 0
    adding.go_on(patient=False)
    assert adding.is_done
    assert results(table) == dict.fromkeys(range(10000), (1,))


def test_rows_of_several_slices_go_to_their_tables() -> None:
    plan = plan_for(total=hr.sum("v"))
    tables = [NumberTable(plan, parts=8), None, NumberTable(plan, parts=8)]
    slices = np.tile([5, 7], 9_000)
    rows = bundle(plan, np.arange(18_000) % 100, np.ones(18_000))
    adding = Adding(rows, slices, 5, tables, 3, crowded=True)
    adding.go_on(patient=True)
    assert results(tables[0]) == dict.fromkeys(range(0, 100, 2), (180,))  # type: ignore[arg-type]
    assert results(tables[2]) == dict.fromkeys(range(1, 100, 2), (180,))  # type: ignore[arg-type]
