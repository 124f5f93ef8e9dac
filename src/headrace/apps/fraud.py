"""Fraud detection (Multicore study): unlikely sequences of a customer's transactions.

A transaction has one of 18 states: its amount (low, medium, high), its kind (normal, high ticket)
and the time since the last one (long, normal, short). A Markov model has the probability P of each
state after each other. The score of a customer's last transactions is the mean of 1 - P over
consecutive pairs; a score above the threshold is an alert.
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.apps import StreamApp
from headrace.apps.streams import app, in_order, times

STATES = [amount + kind + elapsed for amount in "LMH" for kind in "NH" for elapsed in "LNS"]
SHARES = np.multiply.outer(np.multiply.outer([35, 53, 12], [85, 15]), [35, 45, 20]).ravel() / 1e6
CUSTOMERS, WINDOW, THRESHOLD = 10_000, 2, 0.8
MODEL = np.random.default_rng(18).dirichlet(np.full(len(STATES), 0.5), len(STATES))
"""The probability of each state after each other: a row sums to 1."""


def tables(records: int, seed: int, per_second: int, early: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng([seed, 11])
    names = pa.array([f"C{n:07d}" for n in range(CUSTOMERS)])
    return {
        "transactions": pa.table(
            {
                "at": times(records, per_second, early, seed),
                "customer": names.take(pa.array(rng.integers(0, CUSTOMERS, records))),
                "transaction": np.arange(records),
                "state": pa.array(STATES).take(pa.array(rng.choice(18, records, p=SHARES))),
            }
        )
    }


def coded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """States as numbers, so that the step of the scan can be compiled."""
    codes = pc.index_in(batch.column("state"), pa.array(STATES)).cast(pa.int64())
    return batch.set_column(batch.schema.get_field_index("state"), "state", codes)


def alerts(
    transactions: hr.Stream,
    model: Any = MODEL,
    window: int = WINDOW,
    threshold: float = THRESHOLD,
) -> hr.Stream:
    """Transactions with a score above the threshold, and the score."""

    def score(last: Any, row: Any) -> Any:
        for i in range(window - 1):
            last["codes"][i] = last["codes"][i + 1]
        last["codes"][window - 1] = row.state
        last["n"] += 1
        if last["n"] < window:
            return last, None
        total = 0.0
        for i in range(window - 1):
            total += 1 - model[last["codes"][i], last["codes"][i + 1]]
        if total / (window - 1) <= threshold:
            return last, None
        return last, total / (window - 1)

    types = {"at": "timestamp", "customer": "string", "transaction": "bigint", "state": "bigint"}
    last = np.zeros(1, dtype=[("codes", "i8", window), ("n", "i8")])[0]
    return (
        transactions.map_batches(coded, schema=types)
        .key_by("customer")
        .scan(score, last, keep="transaction", schema={"score": "double"})
    )


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    return alerts(inputs["transactions"])


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    held: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=WINDOW))
    alerts = set()
    columns = ("customer", "transaction", "state")
    for at, customer, transaction, state in in_order(inputs["transactions"], *columns):
        last = held[customer]
        last.append(STATES.index(state))
        score = sum(1 - MODEL[a, b] for a, b in pairwise(last)) / (WINDOW - 1)
        if len(last) == WINDOW and score > THRESHOLD:
            alerts.add((customer, at, transaction, float(score)))
    return alerts


APP = app(
    "fraud", "unlikely sequences of transactions (Multicore study)", 2_000_000,
    StreamApp(tables, pipeline, None), reference,
)  # fmt: skip
