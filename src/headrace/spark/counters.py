"""Count records in Spark's Python workers for a bounded job, by accumulators of Spark's.

A worker keeps a program from one task to the next, and Spark forgets accumulators in between, so a
program has only the number of its accumulator. A task that Spark runs again counts again.
"""

from __future__ import annotations

from typing import Any

from pyspark import accumulators


def new_counter(session: Any, counters: list[Any]) -> int:
    """Make a counter, add it to those of a job, and return its number."""
    counter = session.sparkContext.accumulator(0)
    counters.append(counter)
    return int(counter.aid)


def add_to(number: int | None, records: int) -> None:
    """Add to a counter from within a task; without a number, do nothing."""
    if number is not None:
        param: Any = accumulators.AddingAccumulatorParam(0)
        counter: Any = accumulators._deserialize_accumulator(number, 0, param)
        counter.add(records)
