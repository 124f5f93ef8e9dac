"""Sources as Spark knows them: offsets, and the tasks of each batch.

An offset of ours says how far each split is read, and what was known when the batch was planned:
which splits were silent, whether the input has ended, and below which event time a record is late.
Spark logs it before the batch runs, so a batch that runs again does the same again.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from headrace.checkpoints.control import Control
from headrace.io.offsets import OffsetSource, Positions
from headrace.io.source import Split
from headrace.spark.initial import initial_of
from headrace.spark.python.failures import carrying
from headrace.spark.python.shipping import PARTS, ROWS_SQL, Shipped, by_value
from headrace.watermarks import Activity, ClockSteps, SourceFrontier
from headrace.windows import BEGINNING

if TYPE_CHECKING:
    from headrace.spark.wire import Batches


@dataclass(frozen=True)
class Reading:
    """One split of one batch, as the task that reads it knows it."""

    name: str
    split: Split | None
    floor: int
    """Below this a record is late."""
    now: float
    """The time of day when the batch was planned, in seconds."""
    number: int
    """Its split's place among the splits, and its own among the parts of the split."""
    control: dict[str, Any] | None
    """With the first split of a batch: which splits there are."""
    moment: int = BEGINNING
    """The time of the batch's records, where they have that at which they were read."""
    ends: bool = False
    """Whether the source ends with this batch."""


@dataclass(frozen=True)
class SourcePlan:
    """All that the driver's side of a source needs."""

    source: OffsetSource
    number: int
    idle: int | None
    parallelism: int
    folder: str
    follows_clock: bool = False
    """Whether the watermark goes on by the clock while every split is silent."""
    closes: bool = False
    """Whether the end of what is available now is the end of the input: nothing goes on later."""
    by_clock: ClockSteps | None = None
    """When to look at the clock, where records have the time at which they are read."""
    clock: Any = None
    """What says the time of day, where a test turns it."""


class OffsetReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A source of ours as Spark's: it plans batches on the driver and reads them in the workers."""

    def __init__(self, plan: Shipped | None, program: Shipped) -> None:
        self.plan, self.program = plan, program
        self.live: _Planning | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "live": None, "plan": None}  # what travels to the workers

    @property
    def planning(self) -> _Planning:
        if self.live is None:
            assert self.plan is not None
            self.live = _Planning(self.plan.load())
        return self.live

    def initialOffset(self) -> dict[str, Any]:
        with carrying():
            return self.planning.initial()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        with carrying():
            return self.planning.latest(start)

    def prepareForTriggerAvailableNow(self) -> None:
        with carrying():
            self.planning.only_now = True

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        with carrying():
            return [InputPartition(by_value(r)) for r in self.planning.readings(start, end)]

    def commit(self, end: Any) -> None:
        with carrying():
            self.planning.plan.source.forget(end["at"])

    def read(self, partition: InputPartition) -> Batches:
        with carrying():
            yield from self.program.load().batches(pickle.loads(partition.value))


def away_file(source: int) -> str:
    """The control file that says whether a source's server can be reached, for progress."""
    return f"away-{source}.json"


class _Planning:
    """The driver's side of a source, in the process that Spark keeps for it."""

    def __init__(self, plan: SourcePlan) -> None:
        self.plan = plan
        self.control = Control(plan.folder)
        self.activity = Activity(plan.idle)
        self.only_now = False
        self.target: Positions | None = None
        self.has_looked = False
        self.was_away = bool((self.control.load(away_file(plan.number)) or {}).get("away"))
        plan.source.keep_in(f"{plan.folder}/source-{plan.number}")

    def initial(self) -> dict[str, Any]:
        given = initial_of(self.control)
        if given is not None:
            return given["sources"][self.plan.number]
        return {"at": self.plan.source.initial(), "idle": [], "ended": False, "frontier": {}}

    def latest(self, start: dict[str, Any] | None) -> dict[str, Any]:
        if start is None:
            start = self.initial()
        control = self.control.read()
        stop = control.get("stop")
        if start["ended"] or stop == "hold":
            return start
        source, before = self.plan.source, start["at"]
        at = before if stop == "drain" else self._next(before)
        now = time.monotonic()
        for name in at:
            if at[name] != before.get(name) or name not in self.activity.last:
                self.activity.sent(name, now)
        if source.is_away != self.was_away:
            self.was_away = source.is_away
            self.control.save(away_file(self.plan.number), {"away": self.was_away})
        if source.is_away:  # nothing is known of it, which is not silence
            self.activity.pause(now)
        still = [n for n in at if at[n] == before.get(n)]
        idle = [n for n in still if n in start["idle"] or self.activity.is_quiet(n, now)]
        ended = stop == "drain" or source.ended(at)
        if self.only_now and self.plan.closes and at == self.target:
            ended = True
        silent = self._silence(at, idle, start.get("silent", 0), now)
        unchanged = at == before and idle == start["idle"] and silent == start.get("silent", 0)
        if unchanged and not ended and not self._looks(start):
            return start
        frontier = control.get("sources", {}).get(str(self.plan.number), {})
        offset = {
            "at": at, "idle": idle, "ended": ended, "frontier": frontier, "now": time.time(),
            "silent": silent,
        }  # fmt: skip
        if self.plan.by_clock is not None:
            moment, heard = self._moment(start), _heard(start)
            offset |= {"moment": moment, "heard": heard if at == before else moment}
        return offset

    def _moment(self, start: dict[str, Any]) -> int:
        """The time of day in microseconds, never before that of another batch."""
        clock = self.plan.clock
        now = time.time() if clock is None else clock.time_of_day()
        return max(_looked(start), int(now * 1e6))

    def _looks(self, start: dict[str, Any]) -> bool:
        """Whether to go on to the time of day though nothing has come."""
        steps, heard = self.plan.by_clock, _heard(start)
        if steps is None or heard is None or (self.only_now and self.has_looked):
            return False
        self.has_looked = True
        return steps.is_due(_looked(start), self._moment(start), heard)

    def _silence(self, at: Positions, idle: Sequence[str], before: int, now: float) -> int:
        """How long all splits have been silent, in microseconds, where the watermark follows it.

        In steps, for each is a batch: a second, and more the longer it lasts.
        """
        if not self.plan.follows_clock or not at or set(idle) != set(at):
            return 0
        silent = self.activity.silence(at, now)
        return silent if silent - before >= max(10**6, before // 16) else before

    def _next(self, before: Positions) -> Positions:
        source = self.plan.source
        if not self.only_now:
            return source.latest(before)
        if self.target is None:
            self.target = source.available(before)
        return source.step(before, self.target)

    def readings(self, start: dict[str, Any], end: dict[str, Any]) -> list[Reading]:
        frontier = SourceFrontier(**end["frontier"])
        control = {
            "live": list(end["at"]), "idle": end["idle"], "ended": end["ended"],
            "silent": end.get("silent", 0),
        }  # fmt: skip
        moment = end.get("moment", BEGINNING)
        if self.plan.by_clock is not None:
            control["clock"] = moment
        now = float(end.get("now", time.time()))
        found = self.plan.source.between(start["at"], end["at"], self.plan.parallelism)
        names, parts = list(end["at"]), Counter[str]()
        readings = []
        for i, (name, split) in enumerate(found):
            floor = frontier.floor(name, name in start["idle"])
            number = names.index(name) << PARTS | parts[name]
            parts[name] += 1
            told = control if not i else None
            ends = bool(control["ended"])
            readings.append(Reading(name, split, floor, now, number, told, moment, ends))
        return readings or [Reading("", None, BEGINNING, now, 0, control, moment)]


def _looked(start: dict[str, Any]) -> int:
    """The time of day up to which all is known; of state that came from elsewhere what that had."""
    promised = start["frontier"].get("promised", BEGINNING)
    return int(start.get("moment", promised))


def _heard(start: dict[str, Any]) -> int | None:
    """When the last record came."""
    looked = _looked(start)
    found: int | None = start.get("heard", looked if looked > BEGINNING else None)
    return found


def source_class(name: str, plan: SourcePlan, program: Any) -> type[DataSource]:
    """A data source of Spark's that reads one source of one job."""
    planned, shipped = Shipped.of(plan), Shipped.of(program)

    class Headrace(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return ROWS_SQL

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return OffsetReader(planned, shipped)

    return Headrace
