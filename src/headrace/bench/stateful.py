"""Workloads with state by key as a hand-written Spark query has them.

Many keys with a small state go row by row, few keys with a large one as pandas frames; each way is
the faster one there. A batch's records of a key are taken in the order of their times. That is the
order of the stream only if no record comes in a later batch than it should, so these are for input
in order.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headrace.apps import fraud as frauds
from headrace.apps import spikes as spiking
from headrace.apps import window_wc as words

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""transformWithState needs that store, and it is no slower with pandas."""
_CODES = {name: code for code, name in enumerate(frauds.STATES)}
_MODEL = frauds.MODEL.tolist()


class _Scores(StatefulProcessor):
    """The last state of each customer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.last = handle.getValueState("last", "code int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        known = self.last.get()
        last = None if known is None else known[0]
        for row in sorted(rows, key=attrgetter("at")):
            code = _CODES[row.state]
            score = 0.0 if last is None else 1 - _MODEL[last][code]
            if score > frauds.THRESHOLD:
                yield Row(customer=key[0], at=row.at, transaction=row.transaction, score=score)
            last = code
        self.last.update((last,))

    def close(self) -> None:
        pass


def fraud(stream: Any) -> Any:
    return stream.groupBy("customer").transformWithState(
        _Scores(),
        "customer string, at timestamp, transaction long, score double",
        "append",
        "none",
    )


class _Windows(StatefulProcessor):
    """The times of each word that its next window begins with, and how many windows there were."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.last = handle.getValueState("last", "given long, times array<timestamp>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        known = self.last.get()
        given, times = (0, []) if known is None else (known[0], list(known[1]))
        times += sorted(row.at for row in rows)
        start = 0
        while len(times) - start >= words.SIZE:
            last = times[start + words.SIZE - 1]
            yield Row(word=key[0], at=last, window=given, n=words.SIZE, since=times[start])
            start, given = start + words.EVERY, given + 1
        self.last.update((given, times[start:]))

    def close(self) -> None:
        pass


def window_wc(stream: Any) -> Any:
    found = stream.select("at", F.explode(F.split("line", " ")).alias("word"))
    return found.groupBy("word").transformWithState(
        _Windows(),
        "word string, at timestamp, window long, n long, since timestamp",
        "append",
        "none",
    )


def _spike(
    key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    warnings.simplefilter("ignore", FutureWarning)  # Spark's worker joins empty frames
    frame = pd.concat(list(frames)).sort_values("at")
    held = np.frombuffer(state.get[0]) if state.exists else np.empty(0)
    values = np.append(held, frame["value"])
    means = pd.Series(values).rolling(spiking.LAST, min_periods=1).mean().to_numpy()[len(held) :]
    state.update((values[-(spiking.LAST - 1) :].tobytes(),))
    frame["mean"] = means
    far = (frame["value"] - means).abs() > spiking.FAR * means
    if far.any():
        yield frame.loc[far, ["sensor", "at", "value", "mean"]]


def spikes(stream: Any) -> Any:
    return stream.groupBy("sensor").applyInPandasWithState(
        _spike,
        "sensor long, at timestamp, value double, mean double",
        "last binary",
        "append",
        GroupStateTimeout.NoTimeout,
    )
