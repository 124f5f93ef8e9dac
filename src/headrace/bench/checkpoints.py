"""What checkpoints cost: the same job on the box with and without, by turns."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.bench.replay import Replay, ReplaySplit
from headrace.bench.streams import Setup
from headrace.box.engine import Box
from headrace.io.offsets import OffsetSource, Positions
from headrace.io.source import BUNDLE_ROWS, Split

_STEP = 4 * BUNDLE_ROWS


@dataclass(frozen=True, eq=False)
class ReplayByPosition(OffsetSource):
    """A replay that can be read again from any record."""

    replay: Replay
    watermarks: bool = True

    @property
    def schema(self) -> pa.Schema:
        return self.replay.schema

    def __str__(self) -> str:
        return str(self.replay)

    def initial(self) -> Positions:
        return {"all": 0}

    def available(self, since: Positions) -> Positions:
        return {"all": self.replay.records}

    def step(self, since: Positions, end: Positions) -> Positions:
        return {"all": min(end["all"], since["all"] + _STEP)}

    def between(
        self, start: Positions, end: Positions, parallelism: int
    ) -> Sequence[tuple[str, Split]]:
        return [("all", _Part(self.replay, start["all"], end["all"]))]

    def ended(self, at: Positions) -> bool:
        return bool(at["all"] >= self.replay.records)


@dataclass(frozen=True, eq=False)
class _Part(Split):
    of: Replay
    start: int
    end: int

    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        yield from ReplaySplit(self.of).between(columns, self.start, self.end)


def cost(
    setup: Setup, every: str, turns: int, rounds: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """The seconds a job takes with and without checkpoints, the input replayed ``turns`` times."""
    box = setup.box
    kept = Box(workers=box.workers, scheduler=box.scheduler, bundle=box.bundle, commit_every=every)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    counts: set[int] = set()
    checkpoints, size = 0, 0
    for number in range(rounds + 1):
        for checkpointed in (False, True):
            progress(f"checkpoints: round {number} of {rounds}")
            with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
                rows = [0]

                def take(batch: pa.RecordBatch, rows: list[int] = rows) -> None:
                    rows[0] += batch.num_rows

                where = Path(folder) / "checkpoint" if checkpointed else None
                begun = time.perf_counter()
                stream = _pipeline(setup, turns)
                job = stream.start(on=kept, to=take, checkpoint=where)
                job.wait()
                took = time.perf_counter() - begun
                counts.add(rows[0])
                if where is not None:
                    checkpoints = max(checkpoints, job._run.keeper.count)  # type: ignore[attr-defined]
                    size = max(size, job._run.keeper.written)  # type: ignore[attr-defined]
                    shutil.rmtree(where)
            if number:
                seconds[checkpointed].append(took)
    without, with_them = (statistics.median(seconds[which]) for which in (False, True))
    return {
        "every": every,
        "records": turns * setup.records,
        "without_s": round(without, 3),
        "with_s": round(with_them, 3),
        "speed": round(without / with_them, 3),
        "checkpoints": checkpoints,
        "written_mb": round(size / 1e6, 1),
        "equal": len(counts) == 1,
    }


def _pipeline(setup: Setup, turns: int) -> hr.Stream:
    assert setup.app.stream is not None
    inputs, count = {}, len(setup.tables)
    for name, table in setup.tables.items():
        replay = Replay(
            table,
            max(1, setup.per_second // count),
            max(1, setup.epoch_records // count),
            turns * table.num_rows,
            seconds=setup.app.stream.seconds,
        )
        inputs[name] = hr.from_source(ReplayByPosition(replay)).event_time("at")
    return setup.app.stream.pipeline(inputs, setup.window)
