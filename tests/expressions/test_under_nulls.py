"""What is in memory under a null, as filters and joins leave it, is nobody's value."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.kernels.expressions import compile_expression, evaluate
from headrace.trees import parse

KINDS = {"at": pa.timestamp("us", "UTC"), "took": pa.duration("us"), "n": pa.int64()}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("least", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "at + interval '2' second", "at - interval '2' second", "at + took", "at - took",
        "took + took", "took - interval '1' day", "n + 1", "n * 3", "-n",
    ],
)  # fmt: skip
def test_sums_of_what_is_not_there(text: str, zone: str, least: bool) -> None:
    limits = np.iinfo(np.int64)
    values = np.array([limits.min if least else limits.max, 5], np.int64)
    buffers = [pa.py_buffer(b"\x02"), pa.py_buffer(values)]
    columns = [pa.Array.from_buffers(kind, 2, buffers) for kind in KINDS.values()]
    batch = pa.RecordBatch.from_arrays(columns, names=list(KINDS))
    found = evaluate(compile_expression(parse(text), batch.schema, zone), batch)
    assert found.is_valid().to_pylist() == [False, True]
