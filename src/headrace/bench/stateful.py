"""Workloads with state by key as a hand-written Spark query has them: pandas, a group at a time.

Each batch's records of a key are taken in the order of their times. That is the order of the
stream only if no record comes in a later batch than it should, so these are for input in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from headrace.apps import fraud as frauds
from headrace.apps import spikes as spiking

Frames = Iterator[pd.DataFrame]
_CODES = {name: code for code, name in enumerate(frauds.STATES)}


def _sorted(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    parts = list(frames)
    frame = parts[0] if len(parts) == 1 else pd.concat(parts)
    return frame.take(np.argsort(frame["at"].to_numpy()))


def _score(key: tuple[str], frames: Frames, state: GroupState) -> Frames:
    frame = _sorted(frames)
    codes = np.array([_CODES[name] for name in frame["state"]])
    before = np.roll(codes, 1)
    before[0] = state.get[0] if state.exists else -1
    state.update((int(codes[-1]),))
    score = np.where(before < 0, 0.0, 1 - frauds.MODEL[before, codes])
    alert = score > frauds.THRESHOLD
    if alert.any():
        columns = {n: frame[n].to_numpy()[alert] for n in ("customer", "at", "transaction")}
        yield pd.DataFrame({**columns, "score": score[alert]})


def fraud(stream: Any) -> Any:
    return stream.groupBy("customer").applyInPandasWithState(
        _score,
        "customer string, at timestamp, transaction long, score double",
        "last int",
        "append",
        GroupStateTimeout.NoTimeout,
    )


def _spike(key: tuple[int], frames: Frames, state: GroupState) -> Frames:
    frame = _sorted(frames)
    held = np.frombuffer(state.get[0]) if state.exists else np.empty(0)
    values = np.append(held, frame["value"])
    means = pd.Series(values).rolling(spiking.LAST, min_periods=1).mean().to_numpy()[len(held) :]
    state.update((values[-(spiking.LAST - 1) :].tobytes(),))
    frame["mean"] = means
    far = (frame["value"] - means).abs() > spiking.FAR * means
    yield frame.loc[far, ["sensor", "at", "value", "mean"]]


def spikes(stream: Any) -> Any:
    return stream.groupBy("sensor").applyInPandasWithState(
        _spike,
        "sensor long, at timestamp, value double, mean double",
        "last binary",
        "append",
        GroupStateTimeout.NoTimeout,
    )
