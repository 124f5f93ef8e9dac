"""The papers' workloads, one short file each, runnable by name.

An app has a seeded generator of input of any size, its pipelines in the public API, and a plain
Python reference that a small input is checked against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import PlanError, nearest
from headrace.stream import Stream
from headrace.windows import AnyWindow

NAMES = (
    "wc", "search", "collisions", "kmeans", "orders",
    "pagerank", "connected_components", "transitive_closure",
    "wordcount", "grep", "join", "distinct", "netmon", "tweets", "enrich",
    "window_wc", "passthrough",
    "stateful_wc", "fraud", "spikes",
    "bb_q1", "bb_q2", "bb_q3", "bb_q4", "bb_q15",
)  # fmt: skip


@dataclass(frozen=True)
class App:
    """A workload.

    ``generate(folder, records, seed, form)`` writes input in one of ``forms`` and gives its path;
    ``pipelines(path, form)`` are its results by name; ``reference(path)`` computes the same from
    the first form in plain Python, each as a set of tuples.
    """

    name: str
    summary: str
    forms: tuple[str, ...]
    records: int
    generate: Callable[[Path, int, int, str], Path]
    pipelines: Callable[[str, str], dict[str, Stream]]
    reference: Callable[[str], dict[str, set[tuple[Any, ...]]]]
    stream: StreamApp | None = None


@dataclass(frozen=True)
class StreamApp:
    """The part of a workload that is a stream of event time (StreamBox §9).

    ``tables(records, seed, per_second, early)`` are its inputs by name, each with the event time
    ``at``; ``early`` percent of the records carry a time after their epoch's end. ``pipeline``
    makes the result of streams that have their event time; ``window`` is None where the workload
    has no window to choose. Where records are rare, ``per_second`` of them are in ``seconds`` of
    event time; an early record's time is up to ``delay`` seconds ahead.
    """

    tables: Callable[[int, int, int, int], dict[str, pa.Table]]
    pipeline: Callable[[dict[str, Stream], AnyWindow | None], Stream]
    window: AnyWindow | None
    epoch_records: int = 1_000_000
    seconds: int = 1
    delay: int = 3


def load(name: str) -> App:
    """The app of that name."""
    if name not in NAMES:
        raise PlanError(f"there is no app '{name}'{nearest(name, NAMES)}")
    app = import_module(f"headrace.apps.{name}").APP
    assert isinstance(app, App)
    return app
